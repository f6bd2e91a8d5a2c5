// SPDX-License-Identifier: Apache-2.0
/// \file
/// A file as bytes, mapped, and a reader that never leaves them. POSIX only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "model.hpp"

namespace engine {

/// Read-only bytes of a file. Throws `LoadError` when it can't be opened or is no regular file.
class MappedFile {
 public:
  explicit MappedFile(std::string const& path);
  ~MappedFile();
  MappedFile(MappedFile const&) = delete;
  MappedFile& operator=(MappedFile const&) = delete;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return {data_, size_}; }

 private:
  std::string path_;
  std::byte const* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Reads little-endian values one after the other. `what` names the value in the error.
class ByteReader {
 public:
  explicit ByteReader(MappedFile const& file) : file_(&file) {}

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t left() const noexcept { return file_->bytes().size() - position_; }

  /// The next `count` bytes. Throws `LoadError` when fewer are left.
  std::span<std::byte const> take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      fail(what, "expected " + std::to_string(count) + " bytes at byte " +
                     std::to_string(position_) + ", " + std::to_string(left()) + " are left");
    }
    auto const bytes = file_->bytes().subspan(position_, static_cast<std::size_t>(count));
    position_ += bytes.size();
    return bytes;
  }
  template <class T>
  T read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  void skip_to(std::size_t position) noexcept { position_ = position; }

  /// Throws `LoadError`: "path: what: problem".
  [[noreturn]] void fail(std::string_view what, std::string const& problem) const {
    throw LoadError(file_->path() + ": " + std::string(what) + ": " + problem);
  }

 private:
  MappedFile const* file_;
  std::size_t position_ = 0;
};

}  // namespace engine

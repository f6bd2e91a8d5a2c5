// SPDX-License-Identifier: Apache-2.0
/// \file
/// "Device" memory for emulated kernels: guarded on both sides, full of NaN until it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

/// A mapping of its own that ends where the pages behind it begin to fault, up to 15 bytes short of
/// it so that it is 16-byte aligned. 8 GiB on either side are nobody's: an offset that lost its
/// upper half ends there. Kernels that touch them get a fault that names the buffer; under ASan the
/// rest of the first and last page is poisoned, elsewhere watched for writes.
class GuardedMemory {
 public:
  /// `name` is kept. `sparse`: the content begins as zeros and takes no memory until it is written.
  GuardedMemory(std::size_t bytes, char const* name, bool sparse);
  ~GuardedMemory();
  GuardedMemory(GuardedMemory const&) = delete;
  GuardedMemory& operator=(GuardedMemory const&) = delete;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] char const* name() const noexcept { return name_; }

  /// Of all that are alive: one that `address` lies in or next to; null if there is none.
  [[nodiscard]] static GuardedMemory const* find(void const* address) noexcept;
  /// Of all that are alive: one that something was written next to; null if there is none.
  /// Forgets it.
  [[nodiscard]] static GuardedMemory const* find_damaged() noexcept;

 private:
  [[nodiscard]] bool take_damage() noexcept;
  void watch(bool on) noexcept;

  char* map_ = nullptr;
  char* data_ = nullptr;
  std::size_t bytes_;
  std::size_t body_;  ///< whole pages that may be touched
  char const* name_;
  GuardedMemory* next_;
};

/// An array of `T` in guarded memory.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// `count` elements, every byte 0xFF.
  explicit DeviceBuffer(std::size_t count, char const* name = "a buffer")
      : memory_(count * sizeof(T), name, false) {}
  DeviceBuffer(std::span<T const> content, char const* name = "a buffer")
      : memory_(content.size_bytes(), name, false) {
    if (!content.empty()) std::memcpy(memory_.data(), content.data(), content.size_bytes());
  }
  DeviceBuffer(std::vector<T> const& content, char const* name = "a buffer")
      : DeviceBuffer(std::span<T const>(content), name) {}
  /// `count` zeros, of which only those that are touched take memory.
  [[nodiscard]] static DeviceBuffer sparse(std::size_t count, char const* name = "a buffer") {
    return DeviceBuffer(count, name, Sparse{});
  }

  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.data()); }
  [[nodiscard]] T const* data() const noexcept { return static_cast<T const*>(memory_.data()); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size() / sizeof(T); }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data()[i]; }
  [[nodiscard]] std::vector<T> copy() const { return {data(), data() + size()}; }

 private:
  struct Sparse {};
  DeviceBuffer(std::size_t count, char const* name, Sparse /*tag*/)
      : memory_(count * sizeof(T), name, true) {}

  GuardedMemory memory_;
};

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

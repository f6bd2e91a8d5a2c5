// SPDX-License-Identifier: Apache-2.0
/// \file
/// A fixed array of trivial elements on a cache-line boundary, zeroed by the system page by page as
/// it is first touched: a table may be sized for the worst case and cost what is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN
namespace detail {

template <class T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static constexpr std::size_t line = 64;

 public:
  LazyArray() noexcept = default;
  /// `size` elements of zero bytes. Raises `Error`, which says `what`, when memory is short.
  explicit LazyArray(std::size_t size, char const* what = "a table") : size_(size) {
    if (size == 0) return;
    memory_ = std::calloc(size * sizeof(T) + line, 1);
    if (memory_ == nullptr) {
      raise("out of memory for " + std::string(what) + ": " + std::to_string(size * sizeof(T)) +
            " bytes");
    }
    auto const address = reinterpret_cast<std::uintptr_t>(memory_);
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + (line - address % line) % line);
  }
  LazyArray(LazyArray&& other) noexcept { swap(other); }
  LazyArray& operator=(LazyArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~LazyArray() { std::free(memory_); }

  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  void swap(LazyArray& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* memory_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Hints only: they never fault and change nothing.
inline void prefetch_read(void const* address) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0);
#else
  (void)address;
#endif
}
inline void prefetch_write(void const* address) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(address, 1);
#else
  (void)address;
#endif
}

}  // namespace detail
PAGEDKV_ORACLE_END

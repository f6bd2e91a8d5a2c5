// SPDX-License-Identifier: Apache-2.0
/// \file
/// Byte counts that remember an overflow instead of wrapping.
#pragma once

#include <cstdint>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// No byte count that pagedkv accepts or reports is larger (1 EiB). So four of them add up in 64
/// bits.
inline constexpr std::int64_t max_bytes = std::int64_t{1} << 60;

/// The next multiple of `unit`. Requires: n >= 0, unit >= 1, no overflow.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

/// Once above `max_bytes` it stays there: `fits()` is false for any sum or product it went into.
/// Operands are not negative.
class CheckedBytes {
 public:
  constexpr CheckedBytes() noexcept = default;
  constexpr CheckedBytes(std::int64_t value) noexcept : value_(clamp(value)) {}

  [[nodiscard]] constexpr bool fits() const noexcept { return value_ <= max_bytes; }
  /// Requires `fits()`; else a number above `max_bytes`.
  [[nodiscard]] constexpr std::int64_t value() const noexcept { return value_; }

  friend constexpr CheckedBytes operator+(CheckedBytes a, CheckedBytes b) noexcept {
    return {a.value_ + b.value_};
  }
  friend constexpr CheckedBytes operator*(CheckedBytes a, CheckedBytes b) noexcept {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a.value_, b.value_, &product)) product = too_many;
    return {product};
  }

 private:
  static constexpr std::int64_t too_many = max_bytes + 1;
  static constexpr std::int64_t clamp(std::int64_t value) noexcept {
    return value > max_bytes ? too_many : value;
  }

  std::int64_t value_ = 0;
};

/// ceil(a * b / c) with a product of up to 127 bits. Requires 0 <= a, b and 0 < c.
[[nodiscard]] constexpr std::int64_t mul_div_up(std::int64_t a, std::int64_t b,
                                                std::int64_t c) noexcept {
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>((Wide{a} * b + (c - 1)) / c);
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

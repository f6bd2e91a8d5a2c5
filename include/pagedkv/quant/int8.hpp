// SPDX-License-Identifier: Apache-2.0
/// \file
/// 8-bit integers: symmetric (-127 to 127) and unsigned (0 to 255, with a zero beside the scale).
///
/// Encoding takes what is to be stored (the value times the reciprocal of its scale), rounds to
/// nearest, ties to even, and saturates; infinities too. NaN has no code: it gives 0.
#pragma once

#include <cstdint>

#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

inline constexpr float max_int8 = 127.0F;
inline constexpr float max_uint8 = 255.0F;

namespace detail {
/// NaN gives `low`.
[[nodiscard]] PAGEDKV_HD constexpr float clamp(float p, float low, float high) noexcept {
  p = p > low ? p : low;
  return p < high ? p : high;
}
}  // namespace detail

[[nodiscard]] PAGEDKV_HD constexpr std::int8_t encode_int8(float p) noexcept {
  float const number = p == p ? p : 0.0F;
  return static_cast<std::int8_t>(detail::nearest(detail::clamp(number, -max_int8, max_int8)));
}
[[nodiscard]] PAGEDKV_HD constexpr float decode_int8(std::int8_t code) noexcept {
  return static_cast<float>(code);
}
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t encode_uint8(float p) noexcept {
  return static_cast<std::uint8_t>(detail::nearest(detail::clamp(p, 0.0F, max_uint8)));
}
[[nodiscard]] PAGEDKV_HD constexpr float decode_uint8(std::uint8_t code) noexcept {
  return static_cast<float>(code);
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// 16-bit floats as bits: IEEE binary16 (`f16`) and bfloat16 (`bf16`), to and from f32.
///
/// Rounding is to nearest, ties to even. Beyond the largest finite value the result is infinite, as
/// IEEE says: nothing saturates here. NaN stays NaN, quiet, and keeps its sign.
#pragma once

#include <cstdint>

#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

/// The nearest binary16.
[[nodiscard]] PAGEDKV_HD constexpr std::uint16_t encode_f16(float x) noexcept {
  std::uint32_t const bits = detail::bits_of(x);
  std::uint32_t const sign = (bits >> 16) & 0x8000U;
  std::uint32_t const magnitude = bits & 0x7FFF'FFFFU;
  // The scale of x, no finer than the subnormals', 13 bits up: adding it rounds to 10 bits.
  std::uint32_t const exponent = magnitude & 0x7F80'0000U;
  std::uint32_t const base = exponent < 0x3880'0000U ? 0x3880'0000U : exponent;
  std::uint32_t const scale = base + (13U << 23);
  float const finite = magnitude < 0x4780'0000U ? detail::float_of(magnitude) : 0.0F;
  std::uint32_t const steps = detail::bits_of(finite + detail::float_of(scale)) - scale;
  std::uint32_t const code = steps + (base >> 13) - (113U << 10);
  std::uint32_t const special =
      magnitude > 0x7F80'0000U ? 0x7E00U | ((magnitude >> 13) & 0x3FFU) : 0x7C00U;
  return static_cast<std::uint16_t>(sign | (magnitude < 0x4780'0000U ? code : special));
}
/// Exact.
[[nodiscard]] PAGEDKV_HD constexpr float decode_f16(std::uint16_t code) noexcept {
  std::uint32_t const sign = (code & 0x8000U) << 16;
  std::uint32_t const magnitude = code & 0x7FFFU;
  std::uint32_t const shifted = magnitude << 13;
  if (magnitude >= 0x7C00U) return detail::float_of(sign | 0x7F80'0000U | (shifted & 0x7F'FFFFU));
  // Subnormals: read as if the hidden bit were there, then take it away.
  bool const subnormal = magnitude < 0x0400U;
  std::uint32_t const bits = shifted + (112U << 23) + (subnormal ? 1U << 23 : 0U);
  float const value = detail::float_of(bits) - (subnormal ? 0x1p-14F : 0.0F);
  return detail::float_of(sign | detail::bits_of(value));
}

/// The nearest bfloat16.
[[nodiscard]] PAGEDKV_HD constexpr std::uint16_t encode_bf16(float x) noexcept {
  std::uint32_t const bits = detail::bits_of(x);
  std::uint32_t const rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  std::uint32_t const quiet = bits | 0x0040'0000U;
  return static_cast<std::uint16_t>((detail::is_nan(x) ? quiet : rounded) >> 16);
}
/// Exact.
[[nodiscard]] PAGEDKV_HD constexpr float decode_bf16(std::uint16_t code) noexcept {
  return detail::float_of(std::uint32_t{code} << 16);
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// 8-bit floats: E4M3 (bias 7, largest 448, no infinity, NaN 0x7F) and E5M2 (bias 15, largest
/// 57344, infinity 0x7C), as the OCP 8-bit floating point specification defines them.
///
/// Encoding rounds to nearest, ties to even, and saturates: beyond the largest finite value, and
/// for both infinities, it gives the largest finite value. NaN gives 0x7F whatever its sign. That
/// is
/// `__nv_cvt_float_to_fp8(x, __NV_SATFINITE, ...)` for every input, and what the hardware does.
///
/// How: adding to |x| a power of two that is 20 (21) exponents larger, but no smaller than for the
/// smallest normal, makes f32's own rounding cut at the right bit; the sum's bits count the steps.
/// No branches and no tables: compilers vectorize it.
#pragma once

#include <cstdint>

#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

inline constexpr float max_e4m3 = 448.0F;
inline constexpr float max_e5m2 = 57344.0F;

namespace detail {

/// `mantissa` bits of mantissa, the smallest normal is 2^`min_exponent`.
template <int mantissa, int min_exponent>
struct Fp8 {
  static constexpr std::uint32_t shift = 23 - mantissa;
  static constexpr std::uint32_t min_normal = static_cast<std::uint32_t>(127 + min_exponent) << 23;
  static constexpr std::uint32_t bias = static_cast<std::uint32_t>(126 + min_exponent) << mantissa;
  static constexpr float max = mantissa == 3 ? max_e4m3 : max_e5m2;

  [[nodiscard]] PAGEDKV_HD static constexpr std::uint8_t encode(float x) noexcept {
    std::uint32_t const bits = bits_of(x);
    std::uint32_t const magnitude = bits & 0x7FFF'FFFFU;
    std::uint32_t const limit = bits_of(max);
    std::uint32_t const clamped = magnitude < limit ? magnitude : limit;
    std::uint32_t const exponent = clamped & 0x7F80'0000U;
    std::uint32_t const base = exponent < min_normal ? min_normal : exponent;
    std::uint32_t const scale = base + (shift << 23);
    std::uint32_t const steps = bits_of(float_of(clamped) + float_of(scale)) - scale;
    // The hidden bit is one of the steps.
    std::uint32_t const code = steps + (base >> shift) - bias - (1U << mantissa);
    std::uint32_t const signed_code = code | ((bits >> 24) & 0x80U);
    return static_cast<std::uint8_t>(magnitude > 0x7F80'0000U ? 0x7FU : signed_code);
  }

  [[nodiscard]] PAGEDKV_HD static constexpr float decode(std::uint8_t code) noexcept {
    std::uint32_t const sign = std::uint32_t{code & 0x80U} << 24;
    std::uint32_t const magnitude = code & 0x7FU;
    // Subnormals: read as if the hidden bit were there, then take it away.
    bool const subnormal = magnitude < (1U << mantissa);
    std::uint32_t const raised = (magnitude << shift) + ((bias >> mantissa) << 23);
    float const value =
        float_of(raised + (subnormal ? 1U << 23 : 0U)) - (subnormal ? float_of(min_normal) : 0.0F);
    std::uint32_t finite = sign | bits_of(value);
    if constexpr (mantissa == 3) {
      return float_of(magnitude == 0x7FU ? 0x7FC0'0000U | sign : finite);
    } else {
      std::uint32_t const special = sign | 0x7F80'0000U | ((magnitude & 3U) << shift);
      return float_of(magnitude >= 0x7CU ? special : finite);
    }
  }
};
using E4m3 = Fp8<3, -6>;
using E5m2 = Fp8<2, -14>;

}  // namespace detail

[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t encode_e4m3(float x) noexcept {
  return detail::E4m3::encode(x);
}
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t encode_e5m2(float x) noexcept {
  return detail::E5m2::encode(x);
}
/// Exact; 0x7F and 0xFF are NaN.
[[nodiscard]] PAGEDKV_HD constexpr float decode_e4m3(std::uint8_t code) noexcept {
  return detail::E4m3::decode(code);
}
/// Exact; 0x7C and 0xFC are infinite, what is above them NaN.
[[nodiscard]] PAGEDKV_HD constexpr float decode_e5m2(std::uint8_t code) noexcept {
  return detail::E5m2::decode(code);
}

static_assert(encode_e4m3(448.0F) == 0x7E && encode_e4m3(0x1p-9F) == 0x01);
static_assert(encode_e4m3(-1e30F) == 0xFE && decode_e4m3(0x38) == 1.0F);
static_assert(encode_e5m2(57344.0F) == 0x7B && decode_e5m2(0x01) == 0x1p-16F);

}  // namespace quant
PAGEDKV_NAMESPACE_END

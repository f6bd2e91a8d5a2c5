// SPDX-License-Identifier: Apache-2.0
/// \file
/// Scales, and the one definition of quantizing that every writer and reader follows bit for bit:
///
///     inv    = rn(1 / scale)                        once per scale
///     stored = encode(rn(x * inv))                  nearest, ties to even, saturated
///     read   = rn(decode(stored) * scale)
///
/// and with a zero beside the scale (`int8_asym`, `int4`):
///
///     stored = encode(rn(rn(x - zero) * inv))
///     read   = rn(rn(decode(stored) * scale) + zero)
///
/// rn() rounds to f32, to nearest, ties to even. Nobody divides per element: that differs in the
/// last bit now and then. The convention is in the type: a `Scale` is what stored numbers are
/// multiplied by, an `InverseScale` what numbers are multiplied by before they are stored.
///
/// Dynamic scales come from the largest finite magnitude (`amax`) of what they reach, or from its
/// finite range; infinities and NaN are left out. A scale of 0 means that everything is 0 (or
/// `zero`): its inverse is 0. So is one too small to have a finite reciprocal.
#pragma once

#include <cstdint>

#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/quant/fp8.hpp>
#include <pagedkv/quant/int4.hpp>
#include <pagedkv/quant/int8.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

/// What stored numbers are multiplied by when they are read (the convention of checkpoints, vLLM
/// and FlashAttention: "descale").
struct Scale {
  float value = 0.0F;
};
/// What numbers are multiplied by before they are stored.
struct InverseScale {
  float value = 0.0F;
};
/// A scale and the number that code 0 stands for.
struct AffineScale {
  float scale = 0.0F;
  float zero = 0.0F;
};

/// rn(1 / scale); 0 if that isn't finite.
[[nodiscard]] PAGEDKV_HD constexpr InverseScale inverse(Scale scale) noexcept {
  if (scale.value == 0.0F) return {0.0F};
  float const reciprocal = 1.0F / scale.value;
  return {detail::is_finite(reciprocal) ? reciprocal : 0.0F};
}

/// The largest magnitude of a code: 448, 57344, 127, 255 or 15. Requires: not 16 or 32 bit.
[[nodiscard]] PAGEDKV_HD constexpr float largest_code(Element element) noexcept {
  switch (element) {
    case Element::fp8_e4m3: return max_e4m3;
    case Element::fp8_e5m2: return max_e5m2;
    case Element::int8: return max_int8;
    case Element::int8_asym: return max_uint8;
    case Element::int4: return max_int4;
    default: return 1.0F;
  }
}

/// The scale of a vector (`per_token_head`): rn(amax * rn(1 / largest code)).
[[nodiscard]] PAGEDKV_HD constexpr Scale dynamic_scale(Element element, float amax) noexcept {
  Scale const scale{amax * (1.0F / largest_code(element))};
  return inverse(scale).value == 0.0F ? Scale{} : scale;
}

/// The scale and zero of a vector whose finite elements lie in low .. high: zero = low, scale =
/// rn(rn(high - low) * rn(1 / largest code)).
[[nodiscard]] PAGEDKV_HD constexpr AffineScale dynamic_affine_scale(Element element, float low,
                                                                    float high) noexcept {
  float const range = high - low;
  float const finite = detail::is_finite(range) ? range : 3.40282347e38F;
  Scale const scale{finite * (1.0F / largest_code(element))};
  return {inverse(scale).value == 0.0F ? 0.0F : scale.value, low};
}

/// The scale of a block's head (`per_block_head`, fp8): the smallest power of two with which `amax`
/// doesn't saturate, at least 2^-126; 0 if `amax` is 0. A growing maximum only ever multiplies it
/// by a power of two, so that requantizing loses bits at the subnormal edge only.
[[nodiscard]] PAGEDKV_HD constexpr Scale power_of_two_scale(Element element, float amax) noexcept {
  if (amax == 0.0F) return {};
  // Both largest codes are 1.75 times a power of two.
  std::int32_t const exponent_of_max = element == Element::fp8_e4m3 ? 8 : 15;
  std::uint32_t const bits = detail::bits_of(amax);
  std::int32_t const biased = static_cast<std::int32_t>(bits >> 23) - exponent_of_max +
                              ((bits & 0x7F'FFFFU) > 0x60'0000U ? 1 : 0);
  return {detail::float_of(static_cast<std::uint32_t>(biased < 1 ? 1 : biased) << 23)};
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

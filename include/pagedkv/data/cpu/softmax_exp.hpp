// SPDX-License-Identifier: Apache-2.0
/// \file
/// e^x for softmax weights, the same bits on every machine and in every vector width: `std::exp`
/// differs between C libraries.
#pragma once

#include <cstdint>

#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

/// e^x for x <= 0, within 2 units in the last place (relative error below 1.3e-7); exactly 1 at 0;
/// 0 below -87, where floats lose precision; NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7 (remainder 7e-9).
/// No branches: compilers vectorize it. Requires: products and sums aren't fused.
[[nodiscard]] PAGEDKV_HD constexpr float softmax_exp(float x) noexcept {
  using quant::detail::bits_of;
  using quant::detail::float_of;
  using quant::detail::product;
  constexpr float lowest = -87.0F;
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23: where a float's last bit is worth 1
  float const in = x < lowest ? lowest : x;
  float const shifted = product(in, 1.44269504F) + magic;
  float const n = shifted - magic;
  // ln 2 in two parts; the first has few bits, so that its product with n is exact.
  float const r = (in - product(n, 0.693145752F)) - product(n, 1.42860677e-6F);
  float y = 1.98412698e-4F;
  y = product(y, r) + 1.38888889e-3F;
  y = product(y, r) + 8.33333333e-3F;
  y = product(y, r) + 4.16666667e-2F;
  y = product(y, r) + 1.66666667e-1F;
  y = product(y, r) + 0.5F;
  y = product(y, r) + 1.0F;
  y = product(y, r) + 1.0F;
  std::uint32_t const power = (bits_of(shifted) - bits_of(magic) + 127U) << 23;
  float const result = product(y, float_of(power));
  return x < lowest ? 0.0F : result;
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// 4-bit unsigned integers (0 to 15, with a zero beside the scale), two in a byte.
///
/// Element 2 i of a vector is the low half of byte i, element 2 i + 1 the high half. A vector of
/// odd length ends in a high half of 0.
#pragma once

#include <cstdint>

#include <pagedkv/quant/int8.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

inline constexpr float max_int4 = 15.0F;

/// Rounds to nearest, ties to even, saturates; NaN gives 0.
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t encode_int4(float p) noexcept {
  return static_cast<std::uint8_t>(detail::nearest(detail::clamp(p, 0.0F, max_int4)));
}
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t pack_int4(std::uint8_t low,
                                                          std::uint8_t high) noexcept {
  return static_cast<std::uint8_t>(low | (high << 4));
}
/// Element `i` of the vector that begins at `bytes`.
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t unpack_int4(std::uint8_t const* bytes,
                                                            std::int64_t i) noexcept {
  return static_cast<std::uint8_t>((bytes[i / 2] >> (i % 2 * 4)) & 0xF);
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

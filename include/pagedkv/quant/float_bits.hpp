// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the codecs share: bits of floats, and code that compiles for host and device.
#pragma once

#include <cstdint>

#include <pagedkv/version.hpp>

#if defined(__CUDACC__)
#define PAGEDKV_HD __host__ __device__
#else
#define PAGEDKV_HD
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace quant {
namespace detail {

[[nodiscard]] PAGEDKV_HD constexpr std::uint32_t bits_of(float x) noexcept {
  return __builtin_bit_cast(std::uint32_t, x);
}
[[nodiscard]] PAGEDKV_HD constexpr float float_of(std::uint32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}
[[nodiscard]] PAGEDKV_HD constexpr bool is_nan(float x) noexcept {
  return (bits_of(x) & 0x7FFF'FFFFU) > 0x7F80'0000U;
}
[[nodiscard]] PAGEDKV_HD constexpr bool is_finite(float x) noexcept {
  return (bits_of(x) & 0x7F80'0000U) != 0x7F80'0000U;
}
[[nodiscard]] PAGEDKV_HD constexpr float abs_of(float x) noexcept {
  return float_of(bits_of(x) & 0x7FFF'FFFFU);
}

/// a * b rounded to f32 before anything is added to it. Compilers fuse a product into a following
/// sum (nvcc, and g++ where the target has fused instructions); stored bytes must not depend on
/// that.
[[nodiscard]] PAGEDKV_HD constexpr float product(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  float p = a * b;
#if defined(PAGEDKV_NO_FP_CONTRACT)
  // The file is compiled with -ffp-contract=off.
#elif defined(__FMA__) && defined(__GNUC__)
  if (!__builtin_is_constant_evaluated()) __asm__("" : "+x"(p));
#elif defined(__aarch64__) && defined(__GNUC__)
  if (!__builtin_is_constant_evaluated()) __asm__("" : "+w"(p));
#endif
  return p;
#endif
}

/// Rounds to the nearest integer, ties to even. Requires: |x| <= 2^22, not NaN.
[[nodiscard]] PAGEDKV_HD constexpr std::int32_t nearest(float x) noexcept {
  // Where a float's last bit is worth 1: one addition rounds, its bits are the integer.
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23
  return static_cast<std::int32_t>(bits_of(x + magic) - bits_of(magic));
}

}  // namespace detail
}  // namespace quant
PAGEDKV_NAMESPACE_END

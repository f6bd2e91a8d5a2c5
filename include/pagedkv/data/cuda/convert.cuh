// SPDX-License-Identifier: Apache-2.0
/// \file
/// Conversions of two neighbours at once, by the machine's instructions where it has them: fp8 from
/// compute capability 8.9 on, half floats always. Elsewhere, and on the host, the codecs of
/// `quant`. Same bits as those for every input that is not NaN; a NaN stays one (its fp8 code is
/// 0x7F, as theirs; of 16-bit ones only the payload and the sign may differ).
///
/// A pair is in one word, the element with the lower address in the lower half.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/quant/fp8.hpp>
#include <pagedkv/quant/half.hpp>
#include <pagedkv/version.hpp>

/// The first __CUDA_ARCH__ that converts fp8: `first_with_fp8` of model/recommend_format.hpp.
#define PAGEDKV_FP8_ARCH 890

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// Two binary16 from a word.
PAGEDKV_DEVICE float2 unpack_f16(std::uint32_t pair) {
#if defined(__CUDA_ARCH__)
  float2 v{};
  asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n"
      " cvt.f32.f16 %1, high; }"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
#else
  return make_float2(quant::decode_f16(static_cast<std::uint16_t>(pair & 0xFFFFU)),
                     quant::decode_f16(static_cast<std::uint16_t>(pair >> 16)));
#endif
}
/// Two bfloat16 from a word.
PAGEDKV_DEVICE float2 unpack_bf16(std::uint32_t pair) {
  return make_float2(quant::detail::float_of(pair << 16),
                     quant::detail::float_of(pair & 0xFFFF'0000U));
}

/// Rounds to nearest, ties to even; beyond the largest: infinite.
PAGEDKV_DEVICE std::uint32_t pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair = 0;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{quant::encode_f16(high)} << 16 | quant::encode_f16(low);
#endif
}
/// Rounds to nearest, ties to even; beyond the largest: infinite.
PAGEDKV_DEVICE std::uint32_t pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{quant::encode_bf16(high)} << 16 | quant::encode_bf16(low);
#endif
}

/// Two fp8 codes, in the lower 16 bits. Saturates.
PAGEDKV_DEVICE std::uint32_t pack_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= PAGEDKV_FP8_ARCH
  std::uint16_t pair = 0;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{quant::encode_e4m3(high)} << 8 | quant::encode_e4m3(low);
#endif
}
/// Two fp8 codes, in the lower 16 bits. Saturates.
PAGEDKV_DEVICE std::uint32_t pack_e5m2(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= PAGEDKV_FP8_ARCH
  std::uint16_t pair = 0;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{quant::encode_e5m2(high)} << 8 | quant::encode_e5m2(low);
#endif
}

/// The two fp8 numbers in the lower 16 bits. Exact.
PAGEDKV_DEVICE float2 unpack_e4m3(std::uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= PAGEDKV_FP8_ARCH
  std::uint32_t halves = 0;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return unpack_f16(halves);
#else
  return make_float2(quant::decode_e4m3(static_cast<std::uint8_t>(pair & 0xFFU)),
                     quant::decode_e4m3(static_cast<std::uint8_t>((pair >> 8) & 0xFFU)));
#endif
}
/// The two fp8 numbers in the lower 16 bits. Exact.
PAGEDKV_DEVICE float2 unpack_e5m2(std::uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= PAGEDKV_FP8_ARCH
  std::uint32_t halves = 0;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return unpack_f16(halves);
#else
  return make_float2(quant::decode_e5m2(static_cast<std::uint8_t>(pair & 0xFFU)),
                     quant::decode_e5m2(static_cast<std::uint8_t>((pair >> 8) & 0xFFU)));
#endif
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

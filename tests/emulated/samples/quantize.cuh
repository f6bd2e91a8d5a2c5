// SPDX-License-Identifier: Apache-2.0
/// \file
/// Rows of f16 to fp8 with a scale a row: conversions and rounding that must match bit for bit.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/convert.cuh>
#include <pagedkv/quant/scale.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class RowFormat { e4m3, e5m2 };

/// A warp a row: in [num_rows, 128] f16, codes [num_rows, 128], scales [num_rows]. The scale is
/// largest magnitude * inverse_limit, 0 of a row of zeros. Requires: finite numbers.
template <RowFormat format>
PAGEDKV_KERNEL(64, 1)
quantize(uint2 const* in, std::uint32_t* codes, float* scales, int num_rows, float inverse_limit) {
  auto const row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  auto const lane = static_cast<int>(threadIdx.x % 32);
  if (row >= num_rows) return;  // whole warps
  uint2 const halves = load_once(in + std::int64_t{row} * 32 + lane);
  float2 const a = unpack_f16(halves.x);
  float2 const b = unpack_f16(halves.y);
  float largest = fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(b.x), fabsf(b.y)));
  PAGEDKV_UNROLL_ALL
  for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, d));
  float const scale = mul_rn(largest, inverse_limit);
  float const inverse = scale == 0.0F ? 0.0F : rcp_rn(scale);
  float const x0 = mul_rn(a.x, inverse);
  float const x1 = mul_rn(a.y, inverse);
  float const x2 = mul_rn(b.x, inverse);
  float const x3 = mul_rn(b.y, inverse);
  std::uint32_t word = 0;
  if constexpr (format == RowFormat::e4m3) {
    word = pack_e4m3(x0, x1) | pack_e4m3(x2, x3) << 16;
  } else {
    word = pack_e5m2(x0, x1) | pack_e5m2(x2, x3) << 16;
  }
  store_once(codes + std::int64_t{row} * 32 + lane, word);
  if (lane == 0) scales[row] = scale;
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

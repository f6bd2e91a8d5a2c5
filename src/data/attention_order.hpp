// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one order in which attention adds, for the oracle and every vector width:
///
///     q . k        16 partial sums, element i to sum i % 16, then folded in halves
///                  (8 sums of i and i + 8, 4, 2, 1)
///     score        rn(q . k * softmax_scale)
///     tile         `tile_tokens` positions, beginning at multiples of that; those not visible are
///                  left out. m: largest score; weight = softmax_exp(score - m);
///                  l: weights in 16 partial sums, position p of the tile to sum p % 16, folded;
///                  acc[d]: weight * v[d], position after position
///     merge        tiles in order: M' = max(M, m), a = softmax_exp(M - M'), b = softmax_exp(m -
///     M'),
///                  L' = L a + l b, ACC'[d] = ACC[d] a + acc[d] b
///     result       ACC[d] * rn(1 / L)
///
/// Every product and sum is rounded by itself. Neither the block size nor the number of threads has
/// a part in it.
#pragma once

#include <cstdint>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

inline constexpr std::int32_t tile_tokens = 256;
inline constexpr std::int32_t num_partial_sums = 16;

}  // namespace cpu
PAGEDKV_NAMESPACE_END

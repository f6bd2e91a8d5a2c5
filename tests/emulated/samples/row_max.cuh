// SPDX-License-Identifier: Apache-2.0
/// \file
/// A warp a row of any length: what early exits do to shuffles.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class RowMaxBug {
  none,
  none_with_exits,    ///< lanes leave after the ballot that makes the mask
  exited_lane,        ///< lanes leave, the mask still names them
  shuffle_in_branch,  ///< half of the warp in each branch
};

/// out[r] = the largest of values[offsets[r] .. offsets[r + 1]), -1 of an empty row; *count += its
/// length. Values aren't negative. Only the first `num_lanes` lanes read. Warps of 32, any number.
template <RowMaxBug bug>
PAGEDKV_KERNEL(128, 1)
row_max(int const* offsets, int const* values, int* out, unsigned* count, int num_rows,
        int num_lanes) {
  auto const row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  auto const lane = static_cast<int>(threadIdx.x % 32);
  if (row >= num_rows) return;  // whole warps
  unsigned mask = all_lanes;
  if constexpr (bug == RowMaxBug::none_with_exits) {
    mask = __ballot_sync(all_lanes, lane < num_lanes);
    if (lane >= num_lanes) return;
  }
  if constexpr (bug == RowMaxBug::exited_lane) {
    if (lane >= num_lanes) return;
  }
  int largest = -1;
  if (lane < num_lanes) {
    for (int i = offsets[row] + lane; i < offsets[row + 1]; i += num_lanes) {
      largest = max(largest, values[i]);
      atomicAdd(count, 1U);
    }
  }
  if constexpr (bug == RowMaxBug::none_with_exits) {
    largest = __reduce_max_sync(mask, largest);
  } else if constexpr (bug == RowMaxBug::shuffle_in_branch) {
    if (lane < 16) {
      largest = max(largest, __shfl_xor_sync(mask, largest, 1));
    } else {
      largest = max(largest, __shfl_xor_sync(mask, largest, 1));
    }
  }
  if constexpr (bug != RowMaxBug::none_with_exits) {
    for (int d = 16; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(mask, largest, d));
  }
  if (lane == 0) out[row] = largest;
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

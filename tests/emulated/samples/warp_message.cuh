// SPDX-License-Identifier: Apache-2.0
/// \file
/// Lanes that hand each other numbers through shared memory, right and without its fence.
#pragma once

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class MessageBug {
  none,
  no_syncwarp,  ///< a shuffle brings the lanes together, but is no fence
};

/// out[t] = in[the next lane of t's warp] + its number in the warp. 64 threads.
template <MessageBug bug>
PAGEDKV_KERNEL(64, 1)
rotate(int const* in, int* out) {
  PAGEDKV_SHARED(cells, int[64]);
  unsigned const t = threadIdx.x;
  unsigned const next = (t & ~31U) | ((t + 1) & 31U);
  cells[t] = in[t];
  int const number = __shfl_xor_sync(all_lanes, static_cast<int>((t & 31U) ^ 1U), 1);
  if constexpr (bug != MessageBug::no_syncwarp) __syncwarp();
  out[t] = cells[next] + number;
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

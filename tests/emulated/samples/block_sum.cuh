// SPDX-License-Identifier: Apache-2.0
/// \file
/// Sums over blocks in shared memory, right and with one bug put in.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class SumBug {
  none,
  no_first_barrier,
  no_loop_barrier,
  divergent_barrier,     ///< half of the block in each branch
  barrier_after_return,  ///< threads without an element never come
  shared_read_past_end,
  shared_write_past_end,
  dynamic_write_past_end,
  not_filled,  ///< threads without an element leave their cell as it is
};

inline constexpr int sum_threads = 128;

/// out[b] = the sum of block b's elements of in[n]. sum_threads threads and as many bytes of
/// dynamic shared memory.
template <SumBug bug>
PAGEDKV_KERNEL(sum_threads, 1)
block_sum(float const* in, float* out, int n) {
  PAGEDKV_SHARED(partial, float[sum_threads]);
  PAGEDKV_DYNAMIC_SHARED(seen, unsigned char);
  int const t = static_cast<int>(threadIdx.x);
  auto const i = std::int64_t{blockIdx.x} * blockDim.x + t;
  if constexpr (bug == SumBug::barrier_after_return) {
    if (i >= n) return;
  }
  if (bug != SumBug::not_filled || i < n) {
    partial[t + (bug == SumBug::shared_write_past_end ? 1 : 0)] = i < n ? in[i] : 0.0F;
  }
  seen[t + (bug == SumBug::dynamic_write_past_end ? 1 : 0)] = 1;
  if constexpr (bug == SumBug::divergent_barrier) {
    if (t < sum_threads / 2) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (bug != SumBug::no_first_barrier) {
    __syncthreads();
  }
  for (int d = sum_threads / 2; d > 0; d /= 2) {
    if (t < d) partial[t] += partial[t + d + (bug == SumBug::shared_read_past_end ? 1 : 0)];
    if constexpr (bug != SumBug::no_loop_barrier) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = partial[0] + static_cast<float>(seen[0] - 1);
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Copies through shared memory by asynchronous copies, right and without a wait.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class CopyBug {
  none,
  no_wait,           ///< nobody waits at all
  waits_too_little,  ///< one group may be left, and it is the one that is read
  no_barrier,        ///< the wait orders a thread's own copies only
};

inline constexpr int copy_threads = 64;

/// to[i] = from[i] for n vectors; a block takes copy_threads at a time, and threads write what
/// others have fetched.
template <CopyBug bug>
PAGEDKV_KERNEL(copy_threads, 1)
staged_copy(uint4 const* from, uint4* to, int n) {
  PAGEDKV_SHARED(stage, uint4[copy_threads]);
  int const t = static_cast<int>(threadIdx.x);
  auto const step = static_cast<int>(gridDim.x) * copy_threads;
  for (int base = static_cast<int>(blockIdx.x) * copy_threads; base < n; base += step) {
    int const left = min(n - base, copy_threads);
    if (t < left) copy_async_16(&stage[t], from + std::int64_t{base} + t);
    copy_async_commit();
    if constexpr (bug == CopyBug::waits_too_little) {
      copy_async_wait<1>();
    } else if constexpr (bug != CopyBug::no_wait) {
      copy_async_wait<0>();
    }
    if constexpr (bug != CopyBug::no_barrier) __syncthreads();
    if (t < left) to[std::int64_t{base} + left - 1 - t] = stage[left - 1 - t];
    __syncthreads();
  }
  if constexpr (bug == CopyBug::waits_too_little) copy_async_wait<0>();
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one header through which kernel sources reach the machine. Under nvcc it is CUDA; under a
/// host compiler the same names run on an executor with one fiber for each CUDA thread
/// (tests/emulated/executor), and no toolkit is needed. Kernel files include this and other kernel
/// files only, and live in `namespace pagedkv::cuda`. Rules: docs/design/kernels.md.
///
/// Both worlds have, under CUDA's own names:
///  - threadIdx, blockIdx, blockDim, gridDim, warpSize; dim3, uint3, int2, int4, uint2, uint4,
///    float2, float4 and their make_ functions; cudaStream_t, cudaError_t;
///  - __syncthreads, __syncthreads_and / _or / _count, __syncwarp, __threadfence (_block);
///  - __shfl_sync, __shfl_up_sync, __shfl_down_sync, __shfl_xor_sync (4 and 8 byte values),
///    __ballot_sync, __any_sync, __all_sync, __match_any_sync, __reduce_add / min / max / and /
///    or_sync;
///  - atomicAdd, atomicMax, atomicMin, atomicOr, atomicAnd, atomicExch, atomicCAS;
///  - __ldg, min, max, fminf, fmaxf, fabsf, __popc, __clz, __ffs, __byte_perm, __float_as_uint,
///    __uint_as_float, __float_as_int, __int_as_float, __trap.
///
/// and under names of their own:
///  - PAGEDKV_KERNEL(threads, blocks) before a kernel's name, PAGEDKV_DEVICE before a device
///    function's type, PAGEDKV_SHARED and PAGEDKV_DYNAMIC_SHARED, PAGEDKV_UNROLL_ALL;
///  - launch, launch_dependent; wait_for_previous_kernel, allow_next_kernel;
///  - load_once, store_once: values of 4, 8 or 16 bytes that nobody reads again;
///  - copy_async_16, copy_async_commit, copy_async_wait;
///  - add_rn, sub_rn, mul_rn, fma_rn, div_rn, rcp_rn: f32, rounded as IEEE says, never fused;
///  - exp2_approx: about 2 ulp, not the same bits everywhere.
/// Neither __activemask nor a bare __shared__ is offered: see the rules.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// For masks: every lane of a warp.
inline constexpr unsigned all_lanes = 0xFFFF'FFFFU;

namespace detail {
/// Lets a macro declare `float[32][33]` as a variable of that type.
template <class T>
struct Same {
  using type = T;
};
}  // namespace detail

}  // namespace cuda
PAGEDKV_NAMESPACE_END

#if defined(__CUDACC__)
#include <pagedkv/data/cuda/detail/nvcc_device.cuh>
#else
#include <pagedkv/data/cuda/detail/host_device.cuh>
#endif

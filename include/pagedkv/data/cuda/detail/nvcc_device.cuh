// SPDX-License-Identifier: Apache-2.0
/// \file
/// device.cuh under nvcc. Include that, not this. Empty under a host compiler.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/version.hpp>

/// PAGEDKV_KERNEL(256, 2) name(parameters): at most 256 threads a block, at least 2 blocks on a
/// multiprocessor.
#define PAGEDKV_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define PAGEDKV_DEVICE __device__ __forceinline__
#define PAGEDKV_UNROLL_ALL _Pragma("unroll")

/// PAGEDKV_SHARED(tile, float[32][33]): static shared memory, once in a function's body.
#define PAGEDKV_SHARED(name, ...) \
  __shared__ typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type name
/// PAGEDKV_DYNAMIC_SHARED(tile, float): `float* const tile`, the launch's shared_bytes, 16-byte
/// aligned.
#define PAGEDKV_DYNAMIC_SHARED(name, ...)                                           \
  extern __shared__ __align__(16) unsigned char pagedkv_dynamic_shared[];           \
  typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type* const name =           \
      reinterpret_cast<typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type*>( \
          pagedkv_dynamic_shared)

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

using ::float2;
using ::float4;
using ::int2;
using ::int4;
using ::make_float2;
using ::make_float4;
using ::make_int2;
using ::make_int4;
using ::make_uint2;
using ::make_uint4;
using ::uint2;
using ::uint3;
using ::uint4;

namespace detail {

template <class... Params, class... Args>
cudaError_t launch_with(bool dependent, void (*kernel)(Params...), dim3 grid, dim3 block,
                        std::size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  if (shared_bytes > 48U * 1024U) {
    auto const error = cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace detail

/// Queues `kernel(args...)` on `stream`; shared_bytes is what PAGEDKV_DYNAMIC_SHARED gives.
/// Arguments are passed by value. Returns what the runtime says; allocates nothing; can be captured
/// in a graph. An extent of 0 is an error: launchers return before it.
template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, Args&&... args) {
  return detail::launch_with(false, kernel, grid, block, shared_bytes, stream,
                             std::forward<Args>(args)...);
}
/// The same, and may begin before the kernel ahead of it in the stream has ended: it must call
/// wait_for_previous_kernel() in every thread. Requires: compute capability 9.0.
template <class... Params, class... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 block,
                             std::size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  return detail::launch_with(true, kernel, grid, block, shared_bytes, stream,
                             std::forward<Args>(args)...);
}

/// After it, what the kernel ahead in the stream wrote may be read, and what it reads written.
/// Nothing below compute capability 9.0.
PAGEDKV_DEVICE void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// When every block has called it (or ended), a dependent kernel behind may begin.
PAGEDKV_DEVICE void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Reads past the first cache: memory that this kernel doesn't write.
PAGEDKV_DEVICE unsigned load_once(unsigned const* from) {
  unsigned v = 0;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
PAGEDKV_DEVICE uint2 load_once(uint2 const* from) {
  uint2 v{};
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}
PAGEDKV_DEVICE uint4 load_once(uint4 const* from) {
  uint4 v{};
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/// Writes what nobody reads soon.
PAGEDKV_DEVICE void store_once(unsigned* to, unsigned v) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
PAGEDKV_DEVICE void store_once(uint2* to, uint2 v) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}
PAGEDKV_DEVICE void store_once(uint4* to, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// Copies 16 bytes from global into shared memory behind the thread's back; of them the first
/// `bytes` (0 to 16) from `from`, the rest becomes 0. Both 16-byte aligned. Nothing may be read at
/// `to` before copy_async_wait, by other threads before a barrier after it.
PAGEDKV_DEVICE void copy_async_16(void* to, void const* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes)
               : "memory");
}
/// Ends a group of copies of this thread.
PAGEDKV_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the `left` latest groups of this thread are under way.
template <int left>
PAGEDKV_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

PAGEDKV_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
PAGEDKV_DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
PAGEDKV_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
/// a * b + c, rounded once.
PAGEDKV_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
PAGEDKV_DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
PAGEDKV_DEVICE float rcp_rn(float a) { return __frcp_rn(a); }
/// 2^x.
PAGEDKV_DEVICE float exp2_approx(float x) {
  float y = 0.0F;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

#endif

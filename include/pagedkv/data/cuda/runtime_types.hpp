// SPDX-License-Identifier: Apache-2.0
/// \file
/// Streams, errors and grid sizes as CUDA names them, inside `pagedkv::cuda`. Where the toolkit is
/// (nvcc, or a target that links `pagedkv::cuda`, which defines PAGEDKV_CUDA_TOOLKIT) they are the
/// toolkit's own types; elsewhere twins of them, so that kernels and their launchers compile on a
/// machine that has never seen CUDA.
#pragma once

#include <pagedkv/version.hpp>

#if defined(__CUDACC__) || defined(PAGEDKV_CUDA_TOOLKIT)

#include <driver_types.h>
#include <vector_types.h>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
using ::cudaError_t;
using ::cudaErrorInvalidConfiguration;
using ::cudaErrorInvalidValue;
using ::cudaErrorLaunchFailure;
using ::cudaStream_t;
using ::cudaSuccess;
using ::dim3;
}  // namespace cuda
PAGEDKV_NAMESPACE_END

#else

struct CUstream_st;

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// The toolkit's very type: declared, never defined.
using cudaStream_t = ::CUstream_st*;

/// The toolkit's numbers, those that launchers return.
enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};

/// Extents of a grid or a block; what is left out is 1.
struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr dim3() = default;
  // Implicit, as CUDA's: a number is a one-dimensional extent.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr dim3(unsigned x_extent, unsigned y_extent = 1, unsigned z_extent = 1)
      : x(x_extent), y(y_extent), z(z_extent) {}
};

}  // namespace cuda
PAGEDKV_NAMESPACE_END

#endif

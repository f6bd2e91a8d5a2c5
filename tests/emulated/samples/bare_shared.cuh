// SPDX-License-Identifier: Apache-2.0
/// \file
/// Must not compile on a host: shared memory without the macro.
#pragma once

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

PAGEDKV_KERNEL(32, 1) bare_shared(float* out) {
  __shared__ float cells[32];
  cells[threadIdx.x] = 1.0F;
  __syncthreads();
  out[threadIdx.x] = cells[31 - threadIdx.x];
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

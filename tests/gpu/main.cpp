// SPDX-License-Identifier: Apache-2.0
// The kernels' tests on a device; without one they are skipped.
#include <cuda_runtime.h>

#include <cstdio>

#include "catch.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;  // what ctest is told
  int count = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    return skipped;
  }
  return pagedkv::testing::run_catch(argc, argv);
}

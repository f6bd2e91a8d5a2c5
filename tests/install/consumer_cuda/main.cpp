// SPDX-License-Identifier: Apache-2.0
/// \file
/// Calls of the CUDA data plane, with a device or without: then everything that needs one must say
/// so.
#include <cstddef>
#include <cstdio>
#include <optional>

#include <cuda_runtime_api.h>

#include <pagedkv/data/cuda/compiled.hpp>
#include <pagedkv/data/cuda/kv_storage.hpp>
#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/data/cuda/staging.hpp>

namespace kv = pagedkv;
namespace cuda = pagedkv::cuda;

namespace {

int failures = 0;

void check(bool holds, char const* what) {
  if (holds) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}

/// Nothing to do, and what is refused: no device is asked.
void call_without_a_device() {
  std::byte memory[64] = {};
  kv::KvLayer layer;
  layer.k = {.data = memory, .head_dim = 16};
  layer.k.token_stride = layer.k.head_stride = layer.k.block_stride = 16;
  kv::KvView const view{{&layer, 1}, 1, 1, 1};
  kv::KvRows const rows{memory, kv::Element::f16, 16, 16};
  check(cuda::write_kv(view, 0, rows, rows, {}, nullptr) == cudaSuccess, "no tokens");
  check(cuda::zero_blocks(view, &layer, nullptr, 0, nullptr) == cudaSuccess, "no blocks");
  check(cuda::update_tables({}, {}, nullptr) == cudaSuccess, "no updates");
  check(cuda::write_kv(view, 1, rows, rows, {}, nullptr) == cudaErrorInvalidValue, "no layer 1");
  check(!cuda::compiled_code().empty(), "compiled for something");
}

std::optional<cuda::KvStorage> make_pool() {
  try {
    return cuda::KvStorage({.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64},
                           4, nullptr);
  } catch (kv::Error const& error) {
    std::printf("no pool: %s\n", error.what());
    return {};
  }
}

/// A launch where there is no device is an error that is returned, not a crash.
void launch_without_a_device() {
  std::byte memory[64] = {};
  kv::KvLayer layer;
  layer.k = {.data = memory, .head_dim = 16};
  layer.k.token_stride = layer.k.head_stride = layer.k.block_stride = 16;
  kv::BlockId const block{0};
  auto const error = cuda::zero_blocks({{&layer, 1}, 1, 1, 1}, &layer, &block, 1, nullptr);
  check(error != cudaSuccess, "a launch without a device");
  std::printf("no launch: %s\n", cudaGetErrorString(error));
}

void run_on(cuda::KvStorage& pool) {
  void* block = nullptr;
  check(cudaMalloc(&block, sizeof(kv::BlockId)) == cudaSuccess, "cudaMalloc");
  check(cudaMemset(block, 0, sizeof(kv::BlockId)) == cudaSuccess, "cudaMemset");
  check(cuda::zero_blocks(pool.view(), pool.device_layers(), static_cast<kv::BlockId*>(block), 1,
                          nullptr) == cudaSuccess,
        "zero_blocks");
  check(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
  check(cudaFree(block) == cudaSuccess, "cudaFree");
}

}  // namespace

int main() {
  call_without_a_device();
  int devices = 0;
  bool const has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  auto pool = make_pool();
  check(pool.has_value() == has_device, "a pool where there is a device, and only there");
  if (pool) {
    run_on(*pool);
  } else {
    launch_without_a_device();
  }
  return failures == 0 ? 0 : 1;
}

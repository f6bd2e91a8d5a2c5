// SPDX-License-Identifier: Apache-2.0
/// \file
/// Memory of the CUDA runtime.
#include <pagedkv/data/cuda/memory.hpp>

#include <cuda_runtime_api.h>

#include <string>

#include <pagedkv/error.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace {

[[noreturn]] void raise_short(char const* call, std::int64_t bytes, cudaError_t error) {
  // An error that is told here is not the next launch's.
  static_cast<void>(cudaGetLastError());
  raise(std::string(call) + " of " + std::to_string(bytes) + " bytes: " +
        cudaGetErrorString(error) + " (cudaError " + std::to_string(static_cast<int>(error)) + ")");
}

class DeviceMemory final : public Allocator {
  void* allocate(std::int64_t bytes) override {
    void* memory = nullptr;
    auto const error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
    if (error != cudaSuccess) raise_short("cudaMalloc", bytes, error);
    return memory;
  }
  void deallocate(void* memory, std::int64_t /*bytes*/) noexcept override {
    static_cast<void>(cudaFree(memory));
  }
};

class PinnedMemory final : public Allocator {
  void* allocate(std::int64_t bytes) override {
    void* memory = nullptr;
    auto const error = cudaMallocHost(&memory, static_cast<std::size_t>(bytes));
    if (error != cudaSuccess) raise_short("cudaMallocHost", bytes, error);
    return memory;
  }
  void deallocate(void* memory, std::int64_t /*bytes*/) noexcept override {
    static_cast<void>(cudaFreeHost(memory));
  }
};

}  // namespace

Allocator& device_memory() noexcept {
  static DeviceMemory memory;
  return memory;
}
Allocator& pinned_memory() noexcept {
  static PinnedMemory memory;
  return memory;
}

namespace detail {

OwnedMemory::OwnedMemory(Allocator& from, std::int64_t bytes, char const* what)
    : from_(&from), bytes_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(from.allocate(bytes));
  if (data_ == nullptr) {
    raise(std::string(what) + ": the allocator has no " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

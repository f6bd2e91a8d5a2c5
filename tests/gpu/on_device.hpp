// SPDX-License-Identifier: Apache-2.0
/// \file
/// machine.hpp on a device: the launchers of `pagedkv::cuda`, managed memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <pagedkv/data/cuda/runtime_types.hpp>

#include "../emulated/cuda_objects.hpp"
#include "../emulated/result.hpp"

namespace pagedkv::testing {

/// An error of the device stays: every run after it is `faulted` too.
inline void finish() { static_cast<void>(cudaDeviceSynchronize()); }

/// An array of `T` in managed memory, every byte 0xFF.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceBuffer(std::size_t count, char const* /*name*/ = "")
      : DeviceBuffer(Untouched{}, count) {
    if (count > 0) std::memset(static_cast<void*>(data_), 0xFF, count * sizeof(T));
  }
  explicit DeviceBuffer(std::span<T const> content, char const* /*name*/ = "")
      : DeviceBuffer(Untouched{}, content.size()) {
    if (!content.empty())
      std::memcpy(static_cast<void*>(data_), content.data(), content.size_bytes());
  }
  explicit DeviceBuffer(std::vector<T> const& content, char const* name = "")
      : DeviceBuffer(std::span<T const>(content), name) {}
  ~DeviceBuffer() {
    finish();
    cudaFree(data_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  /// `count` elements of which nothing is known; memory is taken by those that are touched.
  [[nodiscard]] static DeviceBuffer sparse(std::size_t count, char const* /*name*/ = "") {
    return DeviceBuffer(Untouched{}, count);
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T const& operator[](std::size_t i) const { return data_[i]; }
  [[nodiscard]] std::vector<T> copy() const { return {data_, data_ + size_}; }

 private:
  struct Untouched {};
  DeviceBuffer(Untouched /*tag*/, std::size_t count) : size_(count) {
    void* memory = nullptr;
    if (count > 0) require_success(cudaMallocManaged(&memory, count * sizeof(T)), "managed memory");
    data_ = static_cast<T*>(memory);
  }

  T* data_ = nullptr;
  std::size_t size_;
};

/// Whether a launch may begin before the one ahead of it has ended.
[[nodiscard]] inline bool has_early_start() {
  int device = 0;
  int major = 0;
  require_success(cudaGetDevice(&device), "cudaGetDevice");
  require_success(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                  "cudaDeviceGetAttribute");
  return major >= 9;
}

[[nodiscard]] inline RunResult judge(cudaError_t launched, bool right) {
  if (launched != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return RunResult::faulted;
  return right ? RunResult::right : RunResult::wrong;
}

/// Five seeds: the order of threads is the device's.
template <class Run>
[[nodiscard]] Findings try_orders(Run run) {
  Findings all;
  for (int seed = 1; seed <= 5; ++seed) all.count(run(seed));
  if (auto const error = cudaDeviceSynchronize(); error != cudaSuccess) {
    all.faults.emplace_back(cudaGetErrorString(error));
  }
  return all;
}

}  // namespace pagedkv::testing

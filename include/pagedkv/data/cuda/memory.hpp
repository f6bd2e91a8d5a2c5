// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where the memory of pagedkv's CUDA objects comes from: cudaMalloc and cudaMallocHost, or an
/// allocator of the engine's. Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// Called when an object is made and when it is destroyed, never in between. Must outlive what was
/// made with it.
class Allocator {
 public:
  /// `bytes` (at least 1), aligned to 256 or more. Null, or raises, when memory is short.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  /// What `allocate(bytes)` returned. Work on the device that uses it has ended, or `deallocate`
  /// waits for it, as cudaFree does.
  virtual void deallocate(void* memory, std::int64_t bytes) noexcept = 0;

 protected:
  ~Allocator() = default;
};

/// cudaMalloc and cudaFree, on the device that is current. Raises with the runtime's words.
[[nodiscard]] Allocator& device_memory() noexcept;
/// cudaMallocHost and cudaFreeHost: pinned, so that copies from it are asynchronous.
[[nodiscard]] Allocator& pinned_memory() noexcept;

namespace detail {

/// Memory and whom to give it back to. Move-only.
class OwnedMemory {
 public:
  OwnedMemory() noexcept = default;
  /// `bytes`, 0 is none. Raises when `from` has none, with `what` it is for.
  OwnedMemory(Allocator& from, std::int64_t bytes, char const* what);
  OwnedMemory(OwnedMemory&& other) noexcept
      : from_(other.from_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedMemory() {
    if (data_ != nullptr) from_->deallocate(data_, bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  Allocator* from_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What tests set and ask of the runtime that cuda_runtime_api.h declares.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

/// Calls since the program began, refused ones too.
struct RuntimeCalls {
  std::int64_t allocations = 0;  ///< of either memory
  std::int64_t frees = 0;
  std::int64_t copies = 0;
};
[[nodiscard]] RuntimeCalls const& runtime_calls() noexcept;

/// The next call that allocates, copies or sets memory, after so many that do, does nothing and
/// returns this.
void fail_next_call(cudaError_t error, int after = 0) noexcept;

/// Allocations of either memory that nobody has freed.
[[nodiscard]] std::size_t live_allocations() noexcept;

/// A stream that is destroyed, without its errors, at the end of a test.
class Stream {
 public:
  Stream() noexcept {
    static_cast<void>(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;
  // Implicit, so that it is passed as the handle.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator cudaStream_t() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

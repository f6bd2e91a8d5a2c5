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

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

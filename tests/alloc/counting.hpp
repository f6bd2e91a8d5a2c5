// SPDX-License-Identifier: Apache-2.0
/// \file
/// Counts what the program takes from the heap: operator new in every form, and on glibc malloc
/// itself, so that an allocation by other means counts too.
#pragma once

#include <cstdint>

namespace pagedkv::testing {

/// Allocations of this program so far.
[[nodiscard]] std::int64_t allocations() noexcept;

/// Allocations since it was made.
class AllocationCount {
 public:
  [[nodiscard]] std::int64_t operator()() const noexcept { return allocations() - before_; }

 private:
  std::int64_t before_ = allocations();
};

}  // namespace pagedkv::testing

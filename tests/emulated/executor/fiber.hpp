// SPDX-License-Identifier: Apache-2.0
/// \file
/// Contexts of execution that hand the processor to each other, announced to the sanitizers.
#pragma once

#include <cstddef>

#include <pagedkv/version.hpp>

#include "sanitizers.hpp"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

/// A stack and where it stopped. The host's own context is one too, without a stack of ours.
struct Fiber {
  char* stack = nullptr;  ///< lowest address
  std::size_t stack_bytes = 0;
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  void* fake_stack = nullptr;  ///< ASan's
  void* tsan = nullptr;        ///< TSan's idea of it
};

/// Makes `fiber` begin with `entry` when it is next switched to. Requires: stack, stack_bytes.
/// `entry` calls `arrived()` first and never returns.
void prepare(Fiber& fiber, void (*entry)());

/// Tells the sanitizers that a fiber has begun to run.
void arrived();

/// Leaves `from`, goes on in `to`; returns when something switches back to `from`. `for_ever`:
/// nothing will.
void switch_fiber(Fiber& from, Fiber& to, bool for_ever);

/// The calling thread as a fiber.
void adopt_this_thread(Fiber& host);

/// In the host's context, for a fiber that will not run again: `host` comes after all it did, by
/// way of `sync`, and TSan forgets it.
void retire(Fiber& fiber, Fiber& host, void* sync);

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

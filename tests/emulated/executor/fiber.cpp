// SPDX-License-Identifier: Apache-2.0
#include "fiber.hpp"

#include <pthread.h>

#include <cstdint>

#if PAGEDKV_UNDER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if PAGEDKV_UNDER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Saves what a call must preserve, and returns on the other stack.
extern "C" void pagedkv_emulated_switch(void** save_stack_pointer, void* stack_pointer);
asm(R"(
.text
.globl pagedkv_emulated_switch
.type pagedkv_emulated_switch, @function
pagedkv_emulated_switch:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
.size pagedkv_emulated_switch, . - pagedkv_emulated_switch
)");
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

void prepare(Fiber& fiber, void (*entry)()) {
#if defined(__x86_64__)
  auto* const top = reinterpret_cast<std::uintptr_t*>(fiber.stack + fiber.stack_bytes);
  // From below: six registers, the entry to return to, and a return address that nobody takes. A
  // function begins with its stack pointer 8 past a multiple of 16.
  for (int i = 1; i <= 8; ++i) *(top - i) = 0;
  *(top - 2) = reinterpret_cast<std::uintptr_t>(entry);
  fiber.stack_pointer = top - 8;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#endif
  fiber.fake_stack = nullptr;
#if PAGEDKV_UNDER_TSAN
  fiber.tsan = __tsan_create_fiber(0);
#endif
}

void arrived() {
#if PAGEDKV_UNDER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool for_ever) {
#if PAGEDKV_UNDER_ASAN
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if PAGEDKV_UNDER_TSAN
  // No order follows from the switch: only barriers make one.
  __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
  pagedkv_emulated_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#if PAGEDKV_UNDER_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void adopt_this_thread(Fiber& host) {
  static pthread_t adopted;
  if (host.stack != nullptr && pthread_equal(adopted, pthread_self()) != 0) return;
  adopted = pthread_self();
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* stack = nullptr;
  pthread_attr_getstack(&attributes, &stack, &host.stack_bytes);
  pthread_attr_destroy(&attributes);
  host.stack = static_cast<char*>(stack);
#if PAGEDKV_UNDER_TSAN
  host.tsan = __tsan_get_current_fiber();
#endif
}

void retire([[maybe_unused]] Fiber& fiber, [[maybe_unused]] Fiber& host,
            [[maybe_unused]] void* sync) {
#if PAGEDKV_UNDER_TSAN
  // TSan need not know that this is still the host's stack.
  __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
  __tsan_release(sync);
  __tsan_switch_to_fiber(host.tsan, __tsan_switch_to_fiber_no_sync);
  __tsan_destroy_fiber(fiber.tsan);
#endif
}

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

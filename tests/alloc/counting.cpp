// SPDX-License-Identifier: Apache-2.0
#include "counting.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::int64_t> count = 0;
}

namespace pagedkv::testing {
std::int64_t allocations() noexcept { return count.load(); }
}  // namespace pagedkv::testing

// A sanitizer brings its own malloc.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAGEDKV_TEST_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PAGEDKV_TEST_OWN_MALLOC 0
#endif
#endif
#if !defined(PAGEDKV_TEST_OWN_MALLOC)
#if defined(__GLIBC__)
#define PAGEDKV_TEST_OWN_MALLOC 1
#else
#define PAGEDKV_TEST_OWN_MALLOC 0
#endif
#endif

#if PAGEDKV_TEST_OWN_MALLOC
// operator new of the standard library ends here as well.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  ++count;
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  ++count;
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t size) {
  ++count;
  return __libc_realloc(p, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  ++count;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? 12 : 0;
}
}
#else
void* operator new(std::size_t size) {
  ++count;
  if (void* const p = std::malloc(size == 0 ? 1 : size); p != nullptr) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::nothrow_t const&) noexcept {
  ++count;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::nothrow_t const&) noexcept { std::free(p); }
#endif

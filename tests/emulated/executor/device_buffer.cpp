// SPDX-License-Identifier: Apache-2.0
#include "device_buffer.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "sanitizers.hpp"

#if PAGEDKV_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

namespace {
constexpr std::size_t guard = std::size_t{8} << 30;
constexpr std::size_t page = 4096;
constexpr unsigned char canary = 0xA5;
GuardedMemory* newest = nullptr;
}  // namespace

GuardedMemory::GuardedMemory(std::size_t bytes, char const* name, bool sparse)
    : bytes_(bytes), body_((bytes + page - 1) / page * page), name_(name), next_(newest) {
  void* const map = mmap(nullptr, body_ + 2 * guard, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED || (body_ > 0 && mprotect(static_cast<char*>(map) + guard, body_,
                                                  PROT_READ | PROT_WRITE) != 0)) {
    std::perror("no address space for a guarded buffer");
    std::abort();
  }
  map_ = static_cast<char*>(map);
  data_ = map_ + guard + (body_ - bytes_) / 16 * 16;
  if (!sparse && bytes_ > 0) std::memset(data_, 0xFF, bytes_);
  watch(true);
  newest = this;
}

GuardedMemory::~GuardedMemory() {
  watch(false);
  GuardedMemory** link = &newest;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
  munmap(map_, body_ + 2 * guard);
}

void GuardedMemory::watch(bool on) noexcept {
  char* const front = map_ + guard;
  char* const back = data_ + bytes_;
  auto const front_bytes = static_cast<std::size_t>(data_ - front);
  auto const back_bytes = static_cast<std::size_t>(front + body_ - back);
#if PAGEDKV_UNDER_ASAN
  if (on) {
    __asan_poison_memory_region(front, front_bytes);
    __asan_poison_memory_region(back, back_bytes);
  } else {
    __asan_unpoison_memory_region(front, body_);
  }
#else
  if (on && front_bytes > 0) std::memset(front, canary, front_bytes);
  if (on && back_bytes > 0) std::memset(back, canary, back_bytes);
#endif
}

bool GuardedMemory::take_damage() noexcept {
#if PAGEDKV_UNDER_ASAN
  return false;
#else
  char const* const front = map_ + guard;
  char const* const back = data_ + bytes_;
  bool damaged = false;
  for (char const* p = front; p != data_; ++p) {
    damaged |= static_cast<unsigned char>(*p) != canary;
  }
  for (char const* p = back; p != front + body_; ++p) {
    damaged |= static_cast<unsigned char>(*p) != canary;
  }
  if (damaged) watch(true);
  return damaged;
#endif
}

GuardedMemory const* GuardedMemory::find(void const* address) noexcept {
  auto const* const at = static_cast<char const*>(address);
  for (auto const* memory = newest; memory != nullptr; memory = memory->next_) {
    if (at >= memory->map_ && at < memory->map_ + memory->body_ + 2 * guard) return memory;
  }
  return nullptr;
}

GuardedMemory const* GuardedMemory::find_damaged() noexcept {
  for (auto* memory = newest; memory != nullptr; memory = memory->next_) {
    if (memory->take_damage()) return memory;
  }
  return nullptr;
}

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which vector width runs.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {
namespace {

#if defined(__x86_64__)
/// clang 14's __builtin_cpu_supports doesn't know it.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}
#endif

bool machine_has(VectorLevel level) noexcept {
#if defined(__x86_64__)
  if (level == VectorLevel::avx2) {
    return __builtin_cpu_supports("avx2") && has_f16c();
  }
  if (level == VectorLevel::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && has_f16c();
  }
#endif
  return level == VectorLevel::baseline;
}

Kernels const* usable(VectorLevel level) noexcept {
  if (!machine_has(level)) return nullptr;
  switch (level) {
    case VectorLevel::baseline: return kernels_baseline();
    case VectorLevel::avx2: return kernels_avx2();
    case VectorLevel::avx512: return kernels_avx512();
  }
  return nullptr;
}

constexpr VectorLevel widest_first[] = {VectorLevel::avx512, VectorLevel::avx2,
                                        VectorLevel::baseline};

/// A wish that can't be met is no error, but not silent either.
void complain(char const* wanted, Kernels const* taken) noexcept {
  std::fprintf(stderr, "pagedkv: PAGEDKV_VECTOR_LEVEL=%s isn't a level of this machine; it has",
               wanted);
  for (VectorLevel const level : widest_first) {
    if (Kernels const* const k = usable(level)) std::fprintf(stderr, " %s", k->name);
  }
  std::fprintf(stderr, "; %s is used\n", taken->name);
}

Kernels const* best() noexcept {
  char const* const wanted = std::getenv("PAGEDKV_VECTOR_LEVEL");
  Kernels const* found = nullptr;
  for (VectorLevel const level : widest_first) {
    Kernels const* const k = usable(level);
    if (k == nullptr) continue;
    if (found == nullptr) found = k;
    if (wanted != nullptr && std::strcmp(wanted, k->name) == 0) return k;
  }
  if (found != nullptr && wanted != nullptr && *wanted != '\0') complain(wanted, found);
  return found;
}

std::atomic<Kernels const*>& in_use() noexcept {
  static std::atomic<Kernels const*> chosen{best()};
  return chosen;
}

std::int64_t default_streaming_bytes() noexcept {
#if defined(__x86_64__)
  // More than a core can hope to keep for itself, and than a chunk of a prefill stores in a layer.
  if (__builtin_cpu_is("intel")) return std::int64_t{32} << 20;
#endif
  return INT64_MAX;
}
std::atomic<std::int64_t>& streaming_from() noexcept {
  static std::atomic<std::int64_t> bytes{default_streaming_bytes()};
  return bytes;
}

}  // namespace

Kernels const& kernels() noexcept { return *in_use().load(std::memory_order_relaxed); }

bool set_vector_level(VectorLevel level) noexcept {
  Kernels const* const k = usable(level);
  if (k != nullptr) in_use().store(k, std::memory_order_relaxed);
  return k != nullptr;
}

std::int64_t streaming_bytes() noexcept { return streaming_from().load(std::memory_order_relaxed); }
void set_streaming_bytes(std::int64_t bytes) noexcept {
  streaming_from().store(bytes, std::memory_order_relaxed);
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

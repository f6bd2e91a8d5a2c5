// SPDX-License-Identifier: Apache-2.0
/// \file
/// device.cuh under a host compiler: CUDA's names in `pagedkv::cuda`, each a thin call of the
/// executor (tests/emulated/executor), which a program with kernels links. Include device.cuh, not
/// this. What the device leaves undefined is made as bad here as it can be: shared memory and
/// destinations of asynchronous copies hold NaN until they are written, copies arrive at the wait.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/version.hpp>

// The toolkit's host headers define it to nothing: every thread would get a variable of its own.
#undef __shared__
#define __shared__ pagedkv_error_use_PAGEDKV_SHARED_instead

#define PAGEDKV_KERNEL(threads, blocks) inline void
#define PAGEDKV_DEVICE inline
#define PAGEDKV_UNROLL_ALL

#define PAGEDKV_SHARED(name, ...)                                                        \
  static char const name##_key = 0;                                                      \
  auto& name = *static_cast<typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type*>( \
      ::pagedkv::cuda::emulated::static_shared(                                          \
          &name##_key, sizeof(typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type)))
#define PAGEDKV_DYNAMIC_SHARED(name, ...)                                                     \
  auto* const name = static_cast<typename ::pagedkv::cuda::detail::Same<__VA_ARGS__>::type*>( \
      ::pagedkv::cuda::emulated::dynamic_shared())

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
constexpr int2 make_int2(int x, int y) noexcept { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) noexcept { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) noexcept { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) noexcept {
  return {x, y, z, w};
}
constexpr float2 make_float2(float x, float y) noexcept { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) noexcept { return {x, y, z, w}; }

/// What the executor does for the functions below.
namespace emulated {

/// Where a barrier or a collective was called.
struct Site {
  char const* file;
  int line;
};

/// Where the running thread stands. The executor sets it whenever it changes threads.
struct Position {
  uint3 thread{};
  uint3 block{};
  dim3 block_dim{};
  dim3 grid_dim{};
};
inline Position position;

enum class Collective : std::uint8_t {
  sync_threads,
  sync_threads_and,
  sync_threads_or,
  sync_threads_count,
  sync_warp,
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  ballot,
  any,
  all,
  match_any,
  reduce_add,
  reduce_min,
  reduce_max,
  reduce_min_signed,
  reduce_max_signed,
  reduce_and,
  reduce_or,
};

/// A launch: `body(call)` runs one thread.
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  bool dependent;
  void (*body)(void const* call);
  void const* call;
};

cudaError_t run(Launch const& launch);
/// Runs `work` when somebody waits for the stream; the null stream: now.
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
/// All threads of the block meet; gives what the kind says of their values.
std::uint64_t meet_block(Collective kind, std::uint64_t value, Site site);
/// The lanes of `mask` meet. argument and width: of a shuffle.
std::uint64_t meet_warp(Collective kind, unsigned mask, std::uint64_t value, int argument,
                        int width, Site site);
void* static_shared(void const* key, std::size_t bytes);
void* dynamic_shared();
void fence();
void waited_for_previous_kernel();
[[noreturn]] void trap(Site site);

/// Copies of the running thread that have not arrived.
struct AsyncCopy {
  uint4* to;
  uint4 const* from;
  int bytes;
  int group;
};
void queue_copy(AsyncCopy const& copy, Site site);
void close_copy_group();
/// Takes a copy out of all groups but the `left` latest; false when there is none.
bool take_copy(int left, AsyncCopy& copy);

template <class T>
std::uint64_t to_bits(T value) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "CUDA shuffles 4 and 8 byte values");
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(value);
}
template <class T>
T from_bits(std::uint64_t bits) noexcept {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(bits));
}

}  // namespace emulated

inline constexpr int warpSize = 32;
inline uint3 const& threadIdx = emulated::position.thread;
inline uint3 const& blockIdx = emulated::position.block;
inline dim3 const& blockDim = emulated::position.block_dim;
inline dim3 const& gridDim = emulated::position.grid_dim;

namespace detail {

template <class... Params, class... Args>
cudaError_t launch_with(bool dependent, void (*kernel)(Params...), dim3 grid, dim3 block,
                        std::size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> arguments;
  };
  Call const call{kernel, std::tuple<Params...>(static_cast<Params>(std::forward<Args>(args))...)};
  auto const body = [](void const* context) {
    auto const& c = *static_cast<Call const*>(context);
    std::tuple<Params...> own = c.arguments;  // every thread has its parameters
    std::apply(c.kernel, own);
  };
  return emulated::enqueue(stream, [=] {
    return emulated::run({grid, block, shared_bytes, dependent, body, &call});
  });
}

}  // namespace detail

/// Runs `kernel(args...)` to its end: now on the null stream, on others when somebody waits for
/// them. An error is a wrong configuration, or cudaErrorLaunchFailure when the executor found a
/// fault: emulated::take_faults() tells which.
template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, Args&&... args) {
  return detail::launch_with(false, kernel, grid, block, shared_bytes, stream,
                             std::forward<Args>(args)...);
}
template <class... Params, class... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 block,
                             std::size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  return detail::launch_with(true, kernel, grid, block, shared_bytes, stream,
                             std::forward<Args>(args)...);
}
inline void wait_for_previous_kernel() { emulated::waited_for_previous_kernel(); }
inline void allow_next_kernel() {}

// Barriers and collectives: the last two parameters are where the call stands.
#define PAGEDKV_CALLED_AT char const *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(PAGEDKV_CALLED_AT) {
  emulated::meet_block(emulated::Collective::sync_threads, 0, {file, line});
}
inline int __syncthreads_and(int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<int>(
      emulated::meet_block(emulated::Collective::sync_threads_and, predicate != 0, {file, line}));
}
inline int __syncthreads_or(int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<int>(
      emulated::meet_block(emulated::Collective::sync_threads_or, predicate != 0, {file, line}));
}
inline int __syncthreads_count(int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<int>(
      emulated::meet_block(emulated::Collective::sync_threads_count, predicate != 0, {file, line}));
}
inline void __syncwarp(unsigned mask = 0xFFFF'FFFFU, PAGEDKV_CALLED_AT) {
  emulated::meet_warp(emulated::Collective::sync_warp, mask, 0, 0, 32, {file, line});
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, PAGEDKV_CALLED_AT) {
  return emulated::from_bits<T>(emulated::meet_warp(
      emulated::Collective::shuffle, mask, emulated::to_bits(value), source, width, {file, line}));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, PAGEDKV_CALLED_AT) {
  return emulated::from_bits<T>(emulated::meet_warp(emulated::Collective::shuffle_up, mask,
                                                    emulated::to_bits(value),
                                                    static_cast<int>(delta), width, {file, line}));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, PAGEDKV_CALLED_AT) {
  return emulated::from_bits<T>(emulated::meet_warp(emulated::Collective::shuffle_down, mask,
                                                    emulated::to_bits(value),
                                                    static_cast<int>(delta), width, {file, line}));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, PAGEDKV_CALLED_AT) {
  return emulated::from_bits<T>(emulated::meet_warp(emulated::Collective::shuffle_xor, mask,
                                                    emulated::to_bits(value), lane_mask, width,
                                                    {file, line}));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<unsigned>(
      emulated::meet_warp(emulated::Collective::ballot, mask, predicate != 0, 0, 32, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<int>(
      emulated::meet_warp(emulated::Collective::any, mask, predicate != 0, 0, 32, {file, line}));
}
inline int __all_sync(unsigned mask, int predicate, PAGEDKV_CALLED_AT) {
  return static_cast<int>(
      emulated::meet_warp(emulated::Collective::all, mask, predicate != 0, 0, 32, {file, line}));
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, PAGEDKV_CALLED_AT) {
  return static_cast<unsigned>(emulated::meet_warp(emulated::Collective::match_any, mask,
                                                   emulated::to_bits(value), 0, 32, {file, line}));
}
namespace emulated {
template <class T>
T reduce(Collective kind, unsigned mask, T value, Site site) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>,
                "CUDA reduces int and unsigned");
  return from_bits<T>(meet_warp(kind, mask, to_bits(value), 0, 32, site));
}
}  // namespace emulated
template <class T>
T __reduce_add_sync(unsigned mask, T value, PAGEDKV_CALLED_AT) {
  return emulated::reduce(emulated::Collective::reduce_add, mask, value, {file, line});
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, PAGEDKV_CALLED_AT) {
  return emulated::reduce(std::is_signed_v<T> ? emulated::Collective::reduce_min_signed
                                              : emulated::Collective::reduce_min,
                          mask, value, {file, line});
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, PAGEDKV_CALLED_AT) {
  return emulated::reduce(std::is_signed_v<T> ? emulated::Collective::reduce_max_signed
                                              : emulated::Collective::reduce_max,
                          mask, value, {file, line});
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, PAGEDKV_CALLED_AT) {
  return emulated::reduce(emulated::Collective::reduce_and, mask, value, {file, line});
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, PAGEDKV_CALLED_AT) {
  return emulated::reduce(emulated::Collective::reduce_or, mask, value, {file, line});
}
[[noreturn]] inline void __trap(PAGEDKV_CALLED_AT) { emulated::trap({file, line}); }
inline void __threadfence() { emulated::fence(); }
inline void __threadfence_block() { emulated::fence(); }

// Poisons the destination at once and delivers at the wait. The bytes are moved here, in code that
// sanitizers see, not in the executor.
inline void copy_async_16(void* to, void const* from, int bytes = 16, PAGEDKV_CALLED_AT) {
  auto* const vector = static_cast<uint4*>(to);
  *vector = make_uint4(0xFFFF'FFFFU, 0xFFFF'FFFFU, 0xFFFF'FFFFU, 0xFFFF'FFFFU);
  emulated::queue_copy({vector, static_cast<uint4 const*>(from), bytes, 0}, {file, line});
}
inline void copy_async_commit() { emulated::close_copy_group(); }
template <int left>
void copy_async_wait() {
  emulated::AsyncCopy copy{};
  while (emulated::take_copy(left, copy)) {
    uint4 vector{};
    if (copy.bytes > 0) std::memcpy(&vector, copy.from, static_cast<std::size_t>(copy.bytes));
    *copy.to = vector;
  }
}
#undef PAGEDKV_CALLED_AT

template <class T>
T __ldg(T const* from) {
  return *from;
}
template <class T>
T load_once(T const* from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  return *from;
}
template <class T>
void store_once(T* to, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  *to = value;
}

// Atomics are atomic here too: a race with one is seen.
namespace emulated {
/// Replaces *p by change(*p), and returns what was there.
template <class T, class Change>
T atomically(T* p, Change change) {
  std::atomic_ref<T> const cell(*p);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}
}  // namespace emulated
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  return emulated::atomically(p, [value](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  return emulated::atomically(p, [value](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> value) {
  return emulated::atomically(p, [value](T old) { return value < old ? value : old; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> value) {
  return emulated::atomically(p, [value](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> value) {
  return emulated::atomically(p, [value](T old) { return static_cast<T>(old & value); });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
/// Byte i of the result is byte (selector >> 4 i) & 7 of high:low; with bit 3 of it, its sign.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  std::uint64_t const bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    unsigned const pick = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7U))) & 0xFFU;
    if ((pick & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xFFU : 0U;
    result |= byte << (8 * i);
  }
  return result;
}

/// Integers as usual; of a NaN and a number, the number.
template <class T>
constexpr T min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}

inline float add_rn(float a, float b) {
  float volatile sum = a + b;  // nothing is fused across it
  return sum;
}
inline float sub_rn(float a, float b) { return add_rn(a, -b); }
inline float mul_rn(float a, float b) {
  float volatile product = a * b;
  return product;
}
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float div_rn(float a, float b) { return a / b; }
inline float rcp_rn(float a) { return 1.0F / a; }
/// Subnormal arguments and results count as 0, as on the device.
inline float exp2_approx(float x) {
  float const y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0F : y;
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

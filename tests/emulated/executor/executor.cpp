// SPDX-License-Identifier: Apache-2.0
// Under TSan this file is compiled without it: only kernels and tests are watched, and what runs
// inside a fiber here calls nothing that TSan intercepts (memcpy, malloc, ...).
#include "executor.hpp"

#include <sys/mman.h>
#include <csignal>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include <pagedkv/data/cuda/device.cuh>

#include "fiber.hpp"

#if PAGEDKV_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif
#if PAGEDKV_UNDER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

namespace {

constexpr unsigned max_threads = 1024;
constexpr unsigned max_warps = max_threads / 32;
constexpr std::size_t max_shared_bytes = 227 * 1024;
constexpr int max_copies = 64;
constexpr int max_faults = 16;
constexpr int max_shared_variables = 64;
constexpr std::size_t page = 4096;
/// Sanitizers make frames larger.
constexpr std::size_t stack_bytes = (PAGEDKV_UNDER_ASAN || PAGEDKV_UNDER_TSAN ? 256 : 64) * 1024;
constexpr std::size_t stack_step = stack_bytes + page;
/// Written behind each shared variable, and looked at when the block has ended.
constexpr std::size_t tail_bytes = 64;

enum class State : std::uint8_t { ready, waiting, ended };

struct Thread {
  Fiber fiber;
  uint3 index{};
  unsigned number = 0;  ///< in the block
  State state = State::ready;
  bool waited_for_previous = false;
  // The collective it waits in, then its result.
  Collective kind{};
  unsigned mask = 0;
  int argument = 0;
  int width = 32;
  std::uint64_t value = 0;
  Site site{};
  // Copies under way.
  AsyncCopy copies[max_copies];
  Site copy_site{};
  int num_copies = 0;
  int copy_group = 0;

  [[nodiscard]] unsigned warp() const noexcept { return number / 32; }
  [[nodiscard]] unsigned lane() const noexcept { return number % 32; }
};

/// Lanes of one warp that wait for each other.
struct Meeting {
  unsigned mask;
  unsigned arrived;
  unsigned slot;  ///< of SyncPoints
};
struct Warp {
  unsigned present = 0;
  unsigned ended = 0;
  unsigned next_slot = 0;
  Meeting meetings[32];
  int num_meetings = 0;
};

struct SharedVariable {
  void const* key;  ///< null: the dynamic one
  unsigned char* data;
  std::size_t bytes;
};

/// Addresses that TSan synchronizes on. A block has its own: nothing orders blocks.
struct SyncPoints {
  char start;
  char barrier[2];
  char warp[max_warps][64];
};
constexpr std::size_t slots_of_warp = sizeof(SyncPoints{}.warp[0]);

struct Executor {
  Thread threads[max_threads];
  Warp warps[max_warps];
  unsigned ready[max_warps] = {};  ///< lanes that can run
  unsigned ready_warps = 0;
  Fiber host;
  Thread* current = nullptr;
  Launch const* launch = nullptr;
  unsigned num_threads = 0;
  unsigned live = 0;
  unsigned at_barrier = 0;
  unsigned barrier_slot = 0;
  unsigned skewed_warp = 0;
  std::uint64_t random = 1;
  bool stopped = false;  ///< by a fault: threads that have not ended never go on
  SharedVariable shared[max_shared_variables];
  int num_shared = 0;
  // A mapping for the stacks of all threads and, under TSan, for what blocks must not share.
  char* stacks = nullptr;
  std::size_t mapped_bytes = 0;
  unsigned mapped_threads = 0;
  unsigned char* arena = nullptr;
  std::size_t arena_used = 0;
  SyncPoints* sync = nullptr;  ///< TSan's are in the arena
  char end_of_launch = 0;
  char device_fence = 0;
};

Executor executor;
SyncPoints unused_sync;
Options the_options;

char fault_texts[max_faults][400];
int num_faults = 0;

void acquire([[maybe_unused]] void* at) {
#if PAGEDKV_UNDER_TSAN
  __tsan_acquire(at);
#endif
}
void release([[maybe_unused]] void* at) {
#if PAGEDKV_UNDER_TSAN
  __tsan_release(at);
#endif
}

// Faults

/// Notes a fault of `thread`; the launch ends. Goes on only in the host's context.
void note(Thread const& thread, Site site, char const* what) {
  if (num_faults < max_faults) {
    auto const& block = position.block;
    std::snprintf(fault_texts[num_faults], sizeof fault_texts[0],
                  "%s:%d: %s; block (%u, %u, %u), thread (%u, %u, %u)", site.file, site.line, what,
                  block.x, block.y, block.z, thread.index.x, thread.index.y, thread.index.z);
    ++num_faults;
  }
  executor.stopped = true;
}

[[noreturn]] void leave_for_host() {
  Thread* const thread = executor.current;
  executor.current = nullptr;
  switch_fiber(thread->fiber, executor.host, true);
  std::abort();
}

[[noreturn]] void fault(Thread const& thread, Site site, char const* what) {
  note(thread, site, what);
  leave_for_host();
}

bool same_place(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

[[noreturn]] void fault_of_two_places(Thread const& thread, Site other, char const* what) {
  char text[256];
  char const* const slash = std::strrchr(other.file, '/');
  std::snprintf(text, sizeof text, "%s, here and at %s:%d", what,
                slash != nullptr ? slash + 1 : other.file, other.line);
  fault(thread, thread.site, text);
}

// Which thread runs

unsigned random_number() {
  std::uint64_t& x = executor.random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return static_cast<unsigned>(x >> 32);
}

/// One of the bits that are set, from a random place on.
unsigned some_bit(unsigned bits) {
  unsigned const shift = random_number() % 32;
  auto const turned = std::rotr(bits, static_cast<int>(shift));
  return (static_cast<unsigned>(std::countr_zero(turned)) + shift) % 32;
}
unsigned lowest_bit(unsigned bits) { return static_cast<unsigned>(std::countr_zero(bits)); }
unsigned highest_bit(unsigned bits) { return 31U - static_cast<unsigned>(std::countl_zero(bits)); }

void make_ready(Thread& thread) {
  thread.state = State::ready;
  executor.ready[thread.warp()] |= 1U << thread.lane();
  executor.ready_warps |= 1U << thread.warp();
}

/// Takes the thread that runs next; null when none can.
Thread* take_next() {
  auto& e = executor;
  if (e.ready_warps == 0) return nullptr;
  unsigned warp = 0;
  unsigned lane = 0;
  switch (the_options.schedule) {
    case Schedule::ascending:
      warp = lowest_bit(e.ready_warps);
      lane = lowest_bit(e.ready[warp]);
      break;
    case Schedule::descending:
      warp = highest_bit(e.ready_warps);
      lane = highest_bit(e.ready[warp]);
      break;
    case Schedule::random:
      warp = some_bit(e.ready_warps);
      lane = some_bit(e.ready[warp]);
      break;
    case Schedule::warp_skew:
      if (e.ready[e.skewed_warp] == 0) e.skewed_warp = some_bit(e.ready_warps);
      warp = e.skewed_warp;
      lane = some_bit(e.ready[warp]);
      break;
  }
  e.ready[warp] &= ~(1U << lane);
  if (e.ready[warp] == 0) e.ready_warps &= ~(1U << warp);
  return &e.threads[warp * 32 + lane];
}

void enter(Thread& thread) {
  executor.current = &thread;
  position.thread = thread.index;
}

/// The current thread waits or has ended; something else runs. Returns when it may go on.
void yield(Thread& me) {
  bool const ended = me.state == State::ended;
  Thread* const next = take_next();
  if (next == &me) return;
  if (next == nullptr) {
    executor.current = nullptr;
    switch_fiber(me.fiber, executor.host, ended);
  } else {
    enter(*next);
    switch_fiber(me.fiber, next->fiber, ended);
  }
}

// Barriers of the block

std::uint64_t vote(Collective kind, unsigned num_true, unsigned num) {
  switch (kind) {
    case Collective::sync_threads_and: return num_true == num ? 1 : 0;
    case Collective::sync_threads_or: return num_true > 0 ? 1 : 0;
    case Collective::sync_threads_count: return num_true;
    default: return 0;
  }
}

/// When all have arrived that still can: everybody goes on.
void try_barrier() {
  auto& e = executor;
  if (e.at_barrier == 0 || e.at_barrier < e.live) return;
  Thread* first = nullptr;
  unsigned num_true = 0;
  for (unsigned i = 0; i < e.num_threads; ++i) {
    Thread& thread = e.threads[i];
    if (thread.state != State::waiting) continue;
    if (first == nullptr) first = &thread;
    num_true += thread.value != 0 ? 1 : 0;
    if (!same_place(thread.site, first->site) || thread.kind != first->kind) {
      fault_of_two_places(thread, first->site, "threads of one block meet in different barriers");
    }
  }
  if (e.live < e.num_threads) {
    fault(*first, first->site, "a barrier that some threads of the block never reach: they ended");
  }
  auto const result = vote(first->kind, num_true, e.num_threads);
  e.at_barrier = 0;
  e.barrier_slot ^= 1U;
  for (unsigned i = 0; i < e.num_threads; ++i) {
    e.threads[i].value = result;
    make_ready(e.threads[i]);
  }
}

// Collectives of a warp

/// The lane whose value a shuffle gives `lane`; itself when the pattern leaves the segment.
unsigned shuffle_source(Thread const& thread) {
  int const lane = static_cast<int>(thread.lane());
  int const segment = lane & ~(thread.width - 1);
  int const end = segment + thread.width;
  int source = lane;
  switch (thread.kind) {
    case Collective::shuffle: source = segment + (thread.argument & (thread.width - 1)); break;
    case Collective::shuffle_up: source = lane - thread.argument; break;
    case Collective::shuffle_down: source = lane + thread.argument; break;
    default: source = lane ^ thread.argument; break;
  }
  bool const inside = thread.kind == Collective::shuffle_xor ? source >= 0 && source < end
                                                             : source >= segment && source < end;
  return static_cast<unsigned>(inside ? source : lane);
}

std::uint64_t combine(Collective kind, unsigned a, unsigned b) {
  auto const signed_a = static_cast<int>(a);
  auto const signed_b = static_cast<int>(b);
  switch (kind) {
    case Collective::any:
    case Collective::reduce_or: return a | b;
    case Collective::all:
    case Collective::reduce_and: return a & b;
    case Collective::reduce_add: return a + b;
    case Collective::reduce_min: return a < b ? a : b;
    case Collective::reduce_max: return a < b ? b : a;
    case Collective::reduce_min_signed: return signed_a < signed_b ? a : b;
    case Collective::reduce_max_signed: return signed_a < signed_b ? b : a;
    default: return 0;
  }
}

bool is_shuffle(Collective kind) {
  return kind >= Collective::shuffle && kind <= Collective::shuffle_xor;
}

/// What every lane of a meeting gets that isn't a shuffle's.
std::uint64_t result_for(Thread const& thread, std::uint64_t const* values, unsigned members) {
  std::uint64_t result = 0;
  bool first = true;
  for (unsigned rest = members; rest != 0; rest &= rest - 1) {
    unsigned const lane = lowest_bit(rest);
    auto const value = values[lane];
    switch (thread.kind) {
      case Collective::sync_warp: break;
      case Collective::ballot: result |= value << lane; break;
      case Collective::match_any:
        result |= std::uint64_t{value == thread.value ? 1U : 0U} << lane;
        break;
      default:
        result = first ? value
                       : combine(thread.kind, static_cast<unsigned>(result),
                                 static_cast<unsigned>(value));
    }
    first = false;
  }
  return result;
}

void complete(unsigned warp, unsigned members) {
  Thread* const lanes = &executor.threads[warp * 32];
  Thread const& first = lanes[lowest_bit(members)];
  std::uint64_t values[32] = {};
  for (unsigned rest = members; rest != 0; rest &= rest - 1) {
    Thread const& thread = lanes[lowest_bit(rest)];
    values[thread.lane()] = thread.value;
    if (thread.kind != first.kind || !same_place(thread.site, first.site)) {
      fault_of_two_places(thread, first.site, "lanes of one warp meet in different collectives");
    }
  }
  std::uint64_t results[32] = {};
  for (unsigned rest = members; rest != 0; rest &= rest - 1) {
    Thread const& thread = lanes[lowest_bit(rest)];
    if (is_shuffle(thread.kind)) {
      unsigned const source = shuffle_source(thread);
      if ((members >> source & 1U) == 0) {
        char text[96];
        std::snprintf(text, sizeof text,
                      "a shuffle reads lane %u, which has ended or is not in the mask", source);
        fault(thread, thread.site, text);
      }
      results[thread.lane()] = values[source];
    } else {
      results[thread.lane()] = result_for(thread, values, members);
    }
  }
  for (unsigned rest = members; rest != 0; rest &= rest - 1) {
    Thread& thread = lanes[lowest_bit(rest)];
    thread.value = results[thread.lane()];
    make_ready(thread);
  }
}

/// Ends the meetings of a warp to which everybody has come who still can.
void try_meetings(unsigned number) {
  Warp& warp = executor.warps[number];
  for (int i = 0; i < warp.num_meetings;) {
    Meeting const meeting = warp.meetings[i];
    if ((meeting.mask & ~warp.ended & ~meeting.arrived) != 0) {
      ++i;
      continue;
    }
    warp.meetings[i] = warp.meetings[--warp.num_meetings];
    complete(number, meeting.arrived);
  }
}

// Shared memory

unsigned char* allocate_shared(std::size_t bytes) {
  std::size_t const whole = (bytes + tail_bytes + 15) / 16 * 16;
#if PAGEDKV_UNDER_TSAN
  auto& e = executor;
  if (e.arena_used + whole > max_shared_bytes + page) return nullptr;
  unsigned char* const data = e.arena + e.arena_used;
  e.arena_used += whole;
#elif PAGEDKV_UNDER_ASAN
  auto* const data = static_cast<unsigned char*>(std::aligned_alloc(16, (bytes + 15) / 16 * 16));
  if (bytes % 16 != 0) __asan_poison_memory_region(data + bytes, 16 - bytes % 16);
#else
  auto* const data = static_cast<unsigned char*>(std::aligned_alloc(16, whole));
#endif
  // Not memset: TSan would take it for a write of this thread's.
  std::size_t const poisoned = PAGEDKV_UNDER_ASAN ? bytes : whole;
  for (std::size_t i = 0; i < poisoned; ++i) {
    static_cast<unsigned char volatile*>(data)[i] = 0xFF;
  }
  return data;
}

bool tail_is_damaged([[maybe_unused]] SharedVariable const& variable) {
#if !PAGEDKV_UNDER_ASAN
  for (std::size_t i = 0; i < tail_bytes; ++i) {
    if (variable.data[variable.bytes + i] != 0xFF) return true;
  }
#endif
  return false;
}

void free_shared() {
  auto& e = executor;
  for (int i = 0; i < e.num_shared; ++i) {
    [[maybe_unused]] auto const& variable = e.shared[i];
    if (!e.stopped && tail_is_damaged(variable)) {
      char text[120];
      std::snprintf(text, sizeof text,
                    "something was written past the end of a shared variable of %zu bytes",
                    variable.bytes);
      note(e.threads[0], {"kernel", 0}, text);
    }
#if PAGEDKV_UNDER_ASAN
    __asan_unpoison_memory_region(variable.data, (variable.bytes + 15) / 16 * 16);
#endif
#if !PAGEDKV_UNDER_TSAN
    std::free(variable.data);
#endif
  }
  e.num_shared = 0;
}

// Stacks

/// Stacks for `num` threads, each behind a page that faults; under TSan also the block's arena.
void map_stacks(unsigned num) {
  auto& e = executor;
  if (e.mapped_threads >= num) return;
  if (e.stacks != nullptr) munmap(e.stacks, e.mapped_bytes);
  std::size_t const arena_bytes =
      PAGEDKV_UNDER_TSAN ? max_shared_bytes + 2 * page + sizeof(SyncPoints) : 0;
  e.mapped_bytes = num * stack_step + arena_bytes;
  void* const map = mmap(nullptr, e.mapped_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    std::perror("no memory for the stacks of a block");
    std::abort();
  }
  e.stacks = static_cast<char*>(map);
  e.mapped_threads = num;
  for (unsigned i = 0; i < num; ++i) {
    char* const guard = e.stacks + i * stack_step;
    mprotect(guard, page, PROT_NONE);
    e.threads[i].fiber.stack = guard + page;
    e.threads[i].fiber.stack_bytes = stack_bytes;
  }
  e.sync = &unused_sync;
  if (PAGEDKV_UNDER_TSAN) {
    char* const behind = e.stacks + num * stack_step;
    e.arena = reinterpret_cast<unsigned char*>(behind);
    e.sync = reinterpret_cast<SyncPoints*>(behind + max_shared_bytes + 2 * page);
  }
}

/// TSan: what the next block finds must know nothing of this one.
void unmap_stacks() {
  auto& e = executor;
  munmap(e.stacks, e.mapped_bytes);
  e.stacks = nullptr;
  e.mapped_threads = 0;
}

// Wild accesses

#if !PAGEDKV_UNDER_ASAN && !PAGEDKV_UNDER_TSAN
alignas(16) char signal_stack[64 * 1024];

void describe_wild_access(char const* at, char* text, std::size_t size) {
  auto const& e = executor;
  if (at >= e.stacks && at < e.stacks + e.mapped_bytes) {
    std::snprintf(text, size, "stack overflow: a thread has %zu bytes", stack_bytes);
    return;
  }
  auto const* const memory = GuardedMemory::find(at);
  if (memory == nullptr) {
    std::snprintf(text, size, "access to address %p, which is no buffer's",
                  static_cast<void const*>(at));
    return;
  }
  auto const offset = at - static_cast<char const*>(memory->data());
  std::snprintf(text, size, "access at byte %td of '%s', which has %zu bytes", offset,
                memory->name(), memory->size());
}

/// A kernel touched what it may not: a fault of the running thread. Elsewhere the process dies.
void on_wild_access(int signal, siginfo_t* info, void* /*context*/) {
  if (executor.current == nullptr) {
    std::signal(signal, SIG_DFL);
    return;
  }
  char text[200];
  describe_wild_access(static_cast<char const*>(info->si_addr), text, sizeof text);
  fault(*executor.current, {"kernel", 0}, text);
}

void catch_wild_accesses() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = &on_wild_access;
  // The handler is left for the host's context, not by returning.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}
#else
void catch_wild_accesses() {}
#endif

// Running

void check_ended(Thread const& thread) {
  if (thread.num_copies > 0) {
    fault(thread, thread.copy_site, "the thread ends and never waited for this asynchronous copy");
  }
  if (executor.launch->dependent && !thread.waited_for_previous) {
    fault(thread, {"kernel", 0},
          "a thread of a dependent launch ends without wait_for_previous_kernel()");
  }
}

void thread_main() {
  arrived();
  auto& e = executor;
  acquire(&e.sync->start);
  e.launch->body(e.launch->call);
  Thread& me = *e.current;
  check_ended(me);
  me.state = State::ended;
  --e.live;
  e.warps[me.warp()].ended |= 1U << me.lane();
  try_meetings(me.warp());
  try_barrier();
  yield(me);
  std::abort();
}

void start_block(uint3 block) {
  auto& e = executor;
  auto const extent = e.launch->block;
  position.block = block;
  map_stacks(e.num_threads);
  e.arena_used = 0;
  e.live = e.num_threads;
  e.at_barrier = 0;
  e.ready_warps = 0;
  for (auto& warp : e.warps) warp = Warp{};
  for (auto& lanes : e.ready) lanes = 0;
  for (unsigned i = 0; i < e.num_threads; ++i) {
    Thread& thread = e.threads[i];
    thread.number = i;
    thread.index = {i % extent.x, i / extent.x % extent.y, i / (extent.x * extent.y)};
    thread.num_copies = 0;
    thread.copy_group = 0;
    thread.waited_for_previous = false;
    e.warps[thread.warp()].present |= 1U << thread.lane();
#if PAGEDKV_UNDER_ASAN
    // The frames in which the last thread ended never returned.
    __asan_unpoison_memory_region(thread.fiber.stack + stack_bytes - page, page);
#endif
    prepare(thread.fiber, &thread_main);
    make_ready(thread);
  }
  release(&e.sync->start);
}

void report_deadlock() {
  auto& e = executor;
  for (unsigned i = 0; i < e.num_threads; ++i) {
    Thread const& thread = e.threads[i];
    if (thread.state != State::waiting) continue;
    bool const barrier = thread.kind <= Collective::sync_threads_count;
    note(thread, thread.site,
         barrier ? "deadlock: this barrier waits for threads that never come"
                 : "deadlock: this collective waits for lanes of its mask that never come");
    if (num_faults >= 2) return;  // one of each side is enough
  }
}

void run_block(uint3 block) {
  auto& e = executor;
  start_block(block);
  Thread* const first = take_next();
  enter(*first);
  switch_fiber(e.host, first->fiber, false);
  if (!e.stopped && e.live > 0) report_deadlock();
  free_shared();
#if PAGEDKV_UNDER_ASAN
  if (e.stopped) __asan_unpoison_memory_region(e.stacks, e.mapped_bytes);
#endif
  for (unsigned i = 0; i < e.num_threads; ++i) {
    retire(e.threads[i].fiber, e.host, &e.end_of_launch);
  }
  if (PAGEDKV_UNDER_TSAN) unmap_stacks();
}

bool can_launch(Launch const& launch) {
  auto const& grid = launch.grid;
  auto const& block = launch.block;
  bool const grid_fits = grid.x > 0 && grid.x <= 0x7FFF'FFFFU && grid.y > 0 && grid.y <= 65535 &&
                         grid.z > 0 && grid.z <= 65535;
  bool const block_fits = block.x > 0 && block.x <= 1024 && block.y > 0 && block.y <= 1024 &&
                          block.z > 0 && block.z <= 64 &&
                          block.x * block.y * block.z <= max_threads;
  return grid_fits && block_fits && launch.shared_bytes <= max_shared_bytes;
}

/// The i-th block to run of `num`. Random: steps around a circle that meet every block once.
std::uint64_t nth_block(std::uint64_t i, std::uint64_t num, std::uint64_t step) {
  switch (the_options.schedule) {
    case Schedule::ascending: return i;
    case Schedule::descending: return num - 1 - i;
    default: return (i % num * (step % num) + step) % num;
  }
}

}  // namespace

Options& options() noexcept { return the_options; }

std::vector<std::string> take_faults() {
  std::vector<std::string> faults;
  for (int i = 0; i < num_faults; ++i) faults.emplace_back(fault_texts[i]);
  num_faults = 0;
  return faults;
}

cudaError_t run(Launch const& launch) {
  auto& e = executor;
  if (e.launch != nullptr) {
    std::fputs("a kernel may not launch kernels\n", stderr);
    std::abort();
  }
  if (!can_launch(launch)) return cudaErrorInvalidConfiguration;
  adopt_this_thread(e.host);
  catch_wild_accesses();
  e.launch = &launch;
  e.stopped = false;
  e.num_threads = launch.block.x * launch.block.y * launch.block.z;
  e.random = the_options.seed * 0x9E37'79B9'7F4A'7C15ULL | 1U;
  for (int i = 0; i < 8; ++i) random_number();
  e.skewed_warp = 0;
  position.block_dim = launch.block;
  position.grid_dim = launch.grid;
  std::uint64_t const num_blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::uint64_t step = random_number() | 1U;
  while (std::gcd(step, num_blocks) != 1) step += 2;
  for (std::uint64_t i = 0; i < num_blocks && !e.stopped; ++i) {
    std::uint64_t const b = nth_block(i, num_blocks, step);
    std::uint64_t const row = b / launch.grid.x;
    run_block({static_cast<unsigned>(b % launch.grid.x), static_cast<unsigned>(row % launch.grid.y),
               static_cast<unsigned>(row / launch.grid.y)});
  }
  acquire(&e.end_of_launch);
  if (auto const* const damaged = GuardedMemory::find_damaged(); damaged != nullptr) {
    char text[200];
    std::snprintf(text, sizeof text, "something was written next to '%s', which has %zu bytes",
                  damaged->name(), damaged->size());
    note(e.threads[0], {"kernel", 0}, text);
  }
  e.launch = nullptr;
  return e.stopped ? cudaErrorLaunchFailure : cudaSuccess;
}

std::uint64_t meet_block(Collective kind, std::uint64_t value, Site site) {
  auto& e = executor;
  Thread& me = *e.current;
  me.kind = kind;
  me.value = value;
  me.site = site;
  me.state = State::waiting;
  char* const sync = &e.sync->barrier[e.barrier_slot];
  release(sync);
  ++e.at_barrier;
  try_barrier();
  yield(me);
  acquire(sync);
  return me.value;
}

std::uint64_t meet_warp(Collective kind, unsigned mask, std::uint64_t value, int argument,
                        int width, Site site) {
  auto& e = executor;
  Thread& me = *e.current;
  Warp& warp = e.warps[me.warp()];
  unsigned const bit = 1U << me.lane();
  if ((mask & bit) == 0) fault(me, site, "the calling lane is not in its mask");
  if ((mask & ~warp.present) != 0) fault(me, site, "the mask names lanes the block doesn't have");
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    fault(me, site, "the width of a shuffle must be a power of two up to 32");
  }
  me.kind = kind;
  me.mask = mask;
  me.value = value;
  me.argument = argument;
  me.width = width;
  me.site = site;
  me.state = State::waiting;
  int at = 0;
  while (at < warp.num_meetings && warp.meetings[at].mask != mask) ++at;
  if (at == warp.num_meetings) {
    ++warp.num_meetings;
    warp.meetings[at] = {mask, 0, warp.next_slot++ % static_cast<unsigned>(slots_of_warp)};
  }
  warp.meetings[at].arrived |= bit;
  // Only __syncwarp orders memory; shuffles and votes do not.
  char* const sync = &e.sync->warp[me.warp()][warp.meetings[at].slot];
  if (kind == Collective::sync_warp) release(sync);
  try_meetings(me.warp());
  yield(me);
  if (kind == Collective::sync_warp) acquire(sync);
  return me.value;
}

void* static_shared(void const* key, std::size_t bytes) {
  auto& e = executor;
  for (int i = 0; i < e.num_shared; ++i) {
    if (e.shared[i].key == key && key != nullptr) return e.shared[i].data;
  }
  if (e.num_shared == max_shared_variables) {
    fault(*e.current, {"kernel", 0}, "more than 64 shared variables");
  }
  unsigned char* const data = allocate_shared(bytes);
  if (data == nullptr) fault(*e.current, {"kernel", 0}, "more than 227 KiB of shared memory");
  e.shared[e.num_shared++] = {key, data, bytes};
  return data;
}

void* dynamic_shared() {
  // Its key is the launch's own field.
  auto const& bytes = executor.launch->shared_bytes;
  return static_shared(&bytes, bytes);
}

void fence() {
  release(&executor.device_fence);
  acquire(&executor.device_fence);
}

void waited_for_previous_kernel() { executor.current->waited_for_previous = true; }

void trap(Site site) { fault(*executor.current, site, "__trap()"); }

void queue_copy(AsyncCopy const& copy, Site site) {
  Thread& me = *executor.current;
  if (me.num_copies == max_copies) {
    fault(me, site, "more than 64 asynchronous copies of one thread under way");
  }
  AsyncCopy& queued = me.copies[me.num_copies++];
  queued.to = copy.to;
  queued.from = copy.from;
  queued.bytes = copy.bytes;
  queued.group = me.copy_group;
  me.copy_site = site;
}

void close_copy_group() { ++executor.current->copy_group; }

bool take_copy(int left, AsyncCopy& copy) {
  Thread& me = *executor.current;
  for (int i = 0; i < me.num_copies; ++i) {
    if (me.copies[i].group >= me.copy_group - left) continue;
    copy = me.copies[i];
    me.copies[i] = me.copies[--me.num_copies];
    return true;
  }
  return false;
}

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

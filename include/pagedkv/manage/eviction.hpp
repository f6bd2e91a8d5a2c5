// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which idle blocks go first. An eviction policy keeps the idle *runs* in order; the pool takes
/// blocks from the end of the first one, so that no block goes before one that follows it.
/// Least recently used is the default: on recorded agent traffic it is within 0.5 % of the
/// clairvoyant optimum, and because a run shrinks from its end, it is exact to the block.
#pragma once

#include <concepts>
#include <cstdint>

#include <pagedkv/detail/index_list.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Idle runs in eviction order, threaded through the records' `prev`, `next` and `jump`. A run is
/// in it once or not at all (not checked). `insert_after(runs, x, head)`: `head` was split off `x`,
/// which is in it, and goes right after it. `soon(runs, prefetch)`: called before a run leaves the
/// front; prefetches runs that it guesses will be there some calls later, and calls `prefetch(run)`
/// for one whose record has probably arrived.
template <class E>
concept EvictionPolicy = std::default_initializable<E> &&
    requires(E e, E const c, RunTable& runs, RunId x, void (*prefetch)(RunId)) {
  { c.front() } -> std::same_as<RunId>;
  { c.after(runs, x) } -> std::same_as<RunId>;
  e.push_back(runs, x);
  e.push_front(runs, x);
  e.erase(runs, x);
  e.insert_after(runs, x, x);
  e.soon(runs, prefetch);
};

/// Least recently used: released last, evicted last. All operations O(1).
///
/// Each run also remembers the run that was pushed 8 places after it. Eviction prefetches that
/// run's record, and four evictions later the lines that it names, so that a series of evictions
/// isn't a chain of cache misses. The hint may be stale; a prefetch of the wrong line is harmless.
class LruEviction {
  static constexpr std::uint32_t distance = 8;

 public:
  /// The next victim, or -1.
  [[nodiscard]] RunId front() const noexcept { return list_.front(); }
  /// The victim after `x`, or -1.
  [[nodiscard]] RunId after(RunTable const& runs, RunId x) const noexcept { return runs[x].next; }

  /// Evicted last.
  void push_back(RunTable& runs, RunId x) noexcept {
    list_.push_back(runs.records(), x);
    RunId& slot = pushed_[num_pushed_++ % distance];
    if (!runs[slot].has(Run::waiting)) runs[slot].jump = x;  // there it means something else
    slot = x;
    runs[x].jump = x;
  }
  /// Evicted first.
  void push_front(RunTable& runs, RunId x) noexcept {
    list_.push_front(runs.records(), x);
    runs[x].jump = x;
  }
  void erase(RunTable& runs, RunId x) noexcept { list_.erase(runs.records(), x); }
  void insert_after(RunTable& runs, RunId x, RunId head) noexcept {
    list_.insert_after(runs.records(), x, head);
  }

  /// The front is about to leave.
  template <class Prefetch>
  void soon(RunTable const& runs, Prefetch&& prefetch) noexcept {
    RunId const later = runs[front()].jump;
    runs.prefetch(later);
    RunId& slot = seen_[num_seen_++ % (distance / 2)];
    runs.prefetch_end(slot);  // the hint named it distance / 2 evictions ago
    prefetch(slot);
    slot = later;
  }

 private:
  detail::IndexList list_;
  RunId pushed_[distance] = {};  // run 0 until written: a harmless hint
  RunId seen_[distance / 2] = {};
  std::uint32_t num_pushed_ = 0;
  std::uint32_t num_seen_ = 0;
};
static_assert(EvictionPolicy<LruEviction>);

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs without references that can't be had yet: a step in flight may still use them, a
/// copy still reads or fills them, or what follows them waits itself (contracts 10, 11).
///
/// They leave by stamp, equal stamps in order of arrival. One list holds all, sorted; the last run
/// of each stamp names the last run of the stamp before it (`jump`), so that a place in the list is
/// found in as many steps as there are ticks in flight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <pagedkv/detail/index_list.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// Under `stream_ordered` all that waits leaves at the end of the step: there the list is in order
/// of arrival, and stamps are raised so that they don't fall along it.
class Quarantine {
 public:
  Quarantine(std::int32_t num_blocks, bool sorts)
      : sorts_(sorts), waiting_children_(static_cast<std::size_t>(num_blocks) + 1) {}

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  [[nodiscard]] RunId front() const noexcept { return list_.front(); }
  /// Findable runs after `x` that wait.
  [[nodiscard]] std::int32_t waiting_children(RunId x) const noexcept {
    return waiting_children_[static_cast<std::size_t>(x)];
  }

  /// A parent never leaves before what waits after it: the stamps of all ancestors are raised
  /// along. O(ticks in flight), and ancestors of lower stamps.
  void enlist(RunTable& runs, RunId x, std::uint64_t stamp) noexcept {
    RunId const back = list_.back();
    if (!sorts_ && back >= 0) stamp = std::max(stamp, runs[back].stamp);
    runs[x].stamp = stamp;
    runs[x].set(Run::waiting);
    insert(runs, x);
    num_blocks_ += runs[x].length;
    RunId const p = parent(runs, x);
    if (p < 0) return;
    ++count(p);
    if (sorts_) raise(runs, p, stamp);
  }
  void erase(RunTable& runs, RunId x) noexcept {
    Run& run = runs[x];
    run.clear(Run::waiting);
    num_blocks_ -= run.length;
    if (RunId const p = parent(runs, x); p >= 0) --count(p);
    remove(runs, x);
  }
  /// `y` waits where `x` did, with its stamp; `x` gets that of `y`. Requires: equal lengths, and
  /// `y` isn't published.
  void replace(RunTable& runs, RunId x, RunId y) noexcept {
    std::uint64_t const stamp = std::exchange(runs[y].stamp, runs[x].stamp);
    insert_behind(runs, y, x);
    runs[y].set(Run::waiting);
    num_blocks_ += runs[y].length;
    erase(runs, x);
    runs[x].stamp = stamp;
  }

  /// `head` was split off `x`, which waits: it leaves right after `x`, or before it where the
  /// deepest comes last (`leaves_first`).
  void split(RunTable& runs, RunId x, RunId head) noexcept {
    if (runs[x].has(Run::leaves_first)) {
      insert_before(runs, head, x);
    } else {
      insert_behind(runs, head, x);
    }
    if (runs[x].has(Run::published)) count(head) = 1;
  }
  /// `x` stops being findable where it waits, its children with it.
  void unpublish(RunTable& runs, RunId x) noexcept {
    count(x) = 0;
    if (!runs[x].has(Run::waiting)) return;
    if (RunId const p = parent(runs, x); p >= 0) --count(p);
  }
  /// What follows `x` can't be found any more.
  void forget_children(RunId x) noexcept { count(x) = 0; }

  /// In order of arrival: from now to the end of the open step, released blocks that were ever
  /// shared wait, for they may stand in the step's `Batch` although their last owner doesn't.
  void note_batched_release(std::uint64_t open_tick) noexcept { batched_release_ = open_tick; }
  /// In order of arrival: a parent must not become evictable before a child that waits, and a block
  /// that a batched sequence owned must not be reused in the step. Both kinds of block were shared.
  [[nodiscard]] bool waits_with_others(Run const& run, std::uint64_t open_tick) const noexcept {
    if (sorts_ || !run.has(Run::shared)) return false;
    return batched_release_ == open_tick || (run.has(Run::published) && num_blocks_ != 0);
  }
  /// Calls `leave(run)`, in order, for each that waits for nothing any more: no step after
  /// `reclaimed`, no copy, no child. O(blocks of reclaimed ticks).
  template <class Leave>
  void flush(RunTable& runs, std::uint64_t reclaimed, Leave&& leave) {
    while (flush_once(runs, reclaimed, leave)) {
    }
  }

 private:
  /// True if a run left that another one, passed before, may have waited for.
  template <class Leave>
  bool flush_once(RunTable& runs, std::uint64_t reclaimed, Leave& leave) {
    bool passed_held = false;
    bool passed_parent = false;
    bool again = false;
    for (RunId x = list_.front(); x >= 0 && runs[x].stamp <= reclaimed;) {
      Run const& run = runs[x];
      RunId const next = run.next;
      constexpr unsigned ancestor = Run::published | Run::shared;
      bool const waits = waiting_children(x) != 0 && waits_for_another(runs, x, reclaimed);
      bool const behind = !sorts_ && passed_held && (run.flags & ancestor) == ancestor;
      passed_held = passed_held || run.has(Run::held);
      passed_parent = passed_parent || waits;
      if (!run.has(Run::held) && !waits && !behind) {
        erase(runs, x);
        leave(x);
        again = passed_parent;
      }
      x = next;
    }
    return again;
  }
  /// Of `x` and its ancestors: those that wait move in the list, and others may stand between them.
  void raise(RunTable& runs, RunId x, std::uint64_t stamp) noexcept {
    for (; x >= 0 && runs[x].stamp < stamp; x = parent(runs, x)) {
      bool const waits = runs[x].has(Run::waiting);
      if (waits) remove(runs, x);
      runs[x].stamp = stamp;
      if (waits) insert(runs, x);
    }
  }
  /// Whether a child waits that doesn't leave now: one that leaves first stands after its parent.
  /// O(waiting runs), and rare.
  PAGEDKV_NEVER_INLINE bool waits_for_another(RunTable const& runs, RunId x,
                                              std::uint64_t reclaimed) const noexcept {
    for (RunId y = list_.front(); y >= 0; y = runs[y].next) {
      bool const leaves = runs[y].has(Run::leaves_first) && runs[y].stamp <= reclaimed;
      if (!leaves && parent(runs, y) == x) return true;
    }
    return false;
  }
  std::int32_t& count(RunId x) noexcept { return waiting_children_[static_cast<std::size_t>(x)]; }
  /// The run after which `x` is findable, or -1.
  static RunId parent(RunTable const& runs, RunId x) noexcept {
    Run const& run = runs[x];
    if (!run.has(Run::published) || run.parent < 0) return -1;
    return runs[run.parent].generation == run.parent_generation ? run.parent : -1;
  }

  void insert(RunTable& runs, RunId x) noexcept {
    RunId after = -1;  // the last run of the next larger stamp
    RunId last = list_.back();
    while (last >= 0 && runs[last].stamp > runs[x].stamp)
      after = std::exchange(last, runs[last].jump);
    if (last < 0) {
      list_.push_front(runs.records(), x);
    } else {
      list_.insert_after(runs.records(), last, x);
    }
    bool const joins = last >= 0 && runs[last].stamp == runs[x].stamp;
    runs[x].jump = joins ? runs[last].jump : last;
    if (after >= 0) runs[after].jump = x;
  }
  void insert_behind(RunTable& runs, RunId x, RunId before) noexcept {
    bool const was_last = is_last(runs, before);
    list_.insert_after(runs.records(), before, x);
    if (!was_last) return;
    runs[x].jump = runs[before].jump;
    relink(runs, before, x);
  }
  void insert_before(RunTable& runs, RunId x, RunId behind) noexcept {
    if (RunId const prev = runs[behind].prev; prev >= 0) {
      list_.insert_after(runs.records(), prev, x);
    } else {
      list_.push_front(runs.records(), x);
    }
  }
  void remove(RunTable& runs, RunId x) noexcept {
    if (is_last(runs, x)) {
      RunId const prev = runs[x].prev;
      bool const more = prev >= 0 && runs[prev].stamp == runs[x].stamp;
      if (more) runs[prev].jump = runs[x].jump;
      relink(runs, x, more ? prev : runs[x].jump);
    }
    list_.erase(runs.records(), x);
  }
  bool is_last(RunTable const& runs, RunId x) const noexcept {
    RunId const next = runs[x].next;
    return next < 0 || runs[next].stamp != runs[x].stamp;
  }
  /// The last run of the stamp that follows `from`'s names `to` instead.
  void relink(RunTable& runs, RunId from, RunId to) noexcept {
    RunId last = list_.back();
    if (last == from || last == to) return;  // none follows
    while (last >= 0 && runs[last].jump != from) last = runs[last].jump;
    if (last >= 0) runs[last].jump = to;
  }

  bool sorts_;
  IndexList list_;
  std::int32_t num_blocks_ = 0;
  std::uint64_t batched_release_ = 0;
  LazyArray<std::int32_t> waiting_children_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

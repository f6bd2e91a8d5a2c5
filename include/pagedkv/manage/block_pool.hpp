// SPDX-License-Identifier: Apache-2.0
/// \file
/// The pool: references to runs of blocks, and which block may take new content.
///
///     free ----allocate----> used ----last reference----> free      nothing published in it
///      ^                      ^ |                         idle      published: a hit revives it
///      +----evicted---- idle -+ +---> quarantined ---> free, idle   a step in flight may use it
///                                +--> retained ------> free, idle   a copy reads or fills it
///
/// Always: free + idle + used + quarantined + retained = all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/config.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/manage/detail/free_blocks.hpp>
#include <pagedkv/manage/detail/quarantine.hpp>
#include <pagedkv/manage/eviction.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Free blocks, idle and waiting runs, references. Knows nothing of content: `evict(x, n)` of the
/// listener given to `allocate` drops what the last n blocks of a run held. One writer; const calls
/// may run together.
template <EvictionPolicy Eviction>
class BasicBlockPool {
 public:
  /// All blocks of `runs` are free; block 0 is handed out first. `runs` must outlive the pool.
  explicit BasicBlockPool(RunTable& runs, Reclaim reclaim = Reclaim::stream_ordered)
      : runs_(&runs),
        deferred_(reclaim == Reclaim::deferred),
        free_(runs.num_blocks()),
        holds_(static_cast<std::size_t>(runs.num_blocks())),
        quarantine_(runs.num_blocks(), deferred_) {}

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return runs_->num_blocks(); }
  [[nodiscard]] std::int32_t num_free() const noexcept { return free_.size(); }
  [[nodiscard]] std::int32_t num_idle() const noexcept { return num_idle_; }
  [[nodiscard]] std::int32_t num_quarantined() const noexcept {
    return num_incoming() - num_retained_;
  }
  [[nodiscard]] std::int32_t num_retained() const noexcept { return num_retained_; }
  /// What `allocate` can hand out now.
  [[nodiscard]] std::int32_t num_available() const noexcept { return num_free() + num_idle_; }
  /// Blocks on their way back.
  [[nodiscard]] std::int32_t num_incoming() const noexcept { return quarantine_.num_blocks(); }
  [[nodiscard]] std::int32_t num_used() const noexcept {
    return num_blocks() - num_available() - num_incoming();
  }
  [[nodiscard]] detail::FreeBlocks const& free_blocks() const noexcept { return free_; }
  [[nodiscard]] Eviction const& eviction() const noexcept { return eviction_; }
  [[nodiscard]] detail::Quarantine const& quarantine() const noexcept { return quarantine_; }
  [[nodiscard]] detail::NewBlocks& new_blocks() noexcept { return free_.new_blocks(); }
  [[nodiscard]] detail::NewBlocks const& new_blocks() const noexcept { return free_.new_blocks(); }
  [[nodiscard]] std::uint64_t open_tick() const noexcept { return open_tick_; }
  /// Steps up to this one are over, as far as blocks are concerned.
  [[nodiscard]] std::uint64_t reclaimed_tick() const noexcept {
    return deferred_ ? reclaimed_tick_ : open_tick_ - 1;
  }
  [[nodiscard]] std::uint32_t holds(BlockId b) const noexcept { return holds_[at(b)]; }
  [[nodiscard]] bool is_idle(Run const& run) const noexcept {
    return run.references == 0 && !run.has(Run::waiting);
  }
  /// Deferred: its content was given back by an owner whose step isn't reclaimed. It may be read,
  /// and takes no new content yet (contract 11).
  [[nodiscard]] bool is_in_flight(Run const& run) const noexcept {
    return deferred_ && run.has(Run::shared) && run.stamp > reclaimed_tick_;
  }
  /// Whether the run has one owner and is as if just allocated, so that other blocks may join it.
  [[nodiscard]] bool is_plain(Run const& run, unsigned flags) const noexcept {
    return run.references == 1 && run.flags == flags && run.stamp <= reclaimed_tick();
  }

  // ---- taking -----------------------------------------------------------------------------------

  /// Fills `out` with blocks that no run has: free ones first, then the last blocks of the runs
  /// that `Eviction` puts in front. For each of those `listener.evict(x, n)` is called before the
  /// last n blocks of run x are taken, and `listener.soon(x)` some evictions earlier. Returns how
  /// many were free. They count as used: lay them in `RunTable`. Requires: `out.size() <=
  /// num_available()`. O(out.size()).
  template <class Listener>
  std::size_t allocate(std::span<BlockId> out, Listener&& listener) {
    PAGEDKV_ASSERT(out.size() <= static_cast<std::size_t>(num_available()),
                   "allocate: ask num_available() first");
    std::size_t const from_stack = free_.take(out);
    for (std::size_t done = from_stack; done < out.size();) {
      auto const n = std::min<std::int32_t>((*runs_)[eviction_.front()].length,
                                            static_cast<std::int32_t>(out.size() - done));
      take_victims(n, &out[done], listener);
      done += static_cast<std::size_t>(n);
    }
    new_blocks().add(out);
    return from_stack;
  }

  /// One free block. Requires: there is one.
  BlockId take_free() noexcept { return free_.take(); }
  /// One more reference. Revives an idle, quarantined or retained run.
  void acquire(RunId x) noexcept {
    Run& run = (*runs_)[x];
    if (run.references++ == 0) leave_unreferenced(x);
    run.clear(Run::leaves_first);
    run.set(Run::shared);
  }
  /// One more reference to a run that has one.
  void share(RunId x) noexcept {
    Run& run = (*runs_)[x];
    ++run.references;
    run.set(Run::shared);
  }

  // ---- giving back ------------------------------------------------------------------------------

  /// Drops a reference that steps up to `tick` used, 0: none that counts. True if it was the last
  /// one: then the caller calls `settle`.
  [[nodiscard]] bool drop(RunId x, std::uint64_t tick) noexcept {
    Run& run = (*runs_)[x];
    run.stamp = deferred_ ? std::max(run.stamp, tick) : tick;
    return --run.references == 0;
  }
  /// A run without references goes where its flags and its stamp say. O(run) if it becomes free.
  void settle(RunId x) noexcept {
    detail::Extent none;
    settle(x, none);
  }
  /// `room`, which may lie after it, is given back as well.
  PAGEDKV_ALWAYS_INLINE void settle(RunId x, detail::Extent& room) noexcept {
    Run const& run = (*runs_)[x];
    bool const waits = run.stamp > reclaimed_tick() || quarantine_.waiting_children(x) != 0 ||
                       quarantine_.waits_with_others(run, open_tick_);
    if (!waits && !run.has(Run::held)) return place(x, room);
    runs_->give_room(room);
    wait(x, waits);
  }
  /// From now to the end of the open step, released blocks that were ever shared wait: they may
  /// stand in the step's `Batch` although their last owner doesn't (stream_ordered).
  void note_batched_release() noexcept { quarantine_.note_batched_release(open_tick_); }

  // ---- copies, content --------------------------------------------------------------------------

  /// A copy reads or fills the one block of `x`: it isn't handed out before the matching `unhold`.
  void hold(RunId x) noexcept {
    Run& run = (*runs_)[x];
    if (run.references == 0 && !run.has(Run::held)) {
      if (!run.has(Run::waiting)) {
        take_idle(x);
        quarantine_.enlist(*runs_, x, deferred_ ? run.stamp : 0);
      }
      ++num_retained_;
    }
    ++holds_[at(runs_->last_block(x))];
    run.set(Run::held);
  }
  /// What can leave because of it leaves at the next `flush`.
  void unhold(BlockId b) noexcept {
    if (--holds_[at(b)] != 0) return;
    Run& run = (*runs_)[runs_->run_at_edge(b)];
    run.clear(Run::held);
    if (run.references == 0) --num_retained_;
  }
  /// The open step uses the run although it isn't given back now (deferred).
  void use_in_open_step(RunId x) noexcept {
    Run& run = (*runs_)[x];
    if (!deferred_ || run.stamp >= open_tick_) return;
    if (!run.has(Run::waiting)) {
      run.stamp = open_tick_;
    } else {
      quarantine_.erase(*runs_, x);
      quarantine_.enlist(*runs_, x, open_tick_);
    }
  }

  /// `head` was split off `x`: it goes into the same list.
  void split(RunId x, RunId head) noexcept {
    Run const& run = (*runs_)[x];
    if (run.references != 0) return;
    if (run.has(Run::waiting)) return quarantine_.split(*runs_, x, head);
    eviction_.insert_after(*runs_, x, head);
  }
  /// The content of `x` can't be found any more; the index still has it. An idle run becomes free.
  void unpublish(RunId x) noexcept {
    Run& run = (*runs_)[x];
    bool const idle = is_idle(run);
    quarantine_.unpublish(*runs_, x);
    if (idle) take_idle(x);
    run.clear(Run::published | Run::orphan | Run::has_twins);
    if (!run.has(Run::waiting)) run.clear(Run::leaves_first);
    if (idle) place(x);
  }
  void forget_children(RunId x) noexcept { quarantine_.forget_children(x); }
  /// Every idle run becomes free, in order of block numbers. The index has dropped them. O(pool).
  void free_idle() noexcept {
    for (std::int32_t i = 0; i < num_blocks(); ++i) {
      RunId const x = runs_->run_of(BlockId{i});
      if (x >= 0 && is_idle((*runs_)[x])) free_.give(BlockId{i});
    }
    while (eviction_.front() >= 0) {
      RunId const x = eviction_.front();
      eviction_.erase(*runs_, x);
      runs_->dissolve(x);
    }
    num_idle_ = 0;
  }
  /// The blocks of `y` are referenced and have the content of `x`: they bear it from now on. The
  /// former blocks of `x` are in `y` afterwards, without content. Holds go with the blocks.
  void exchange(RunId x, RunId y) noexcept {
    bool const idle = is_idle((*runs_)[x]);
    if (idle) take_idle(x);
    if ((*runs_)[x].has(Run::waiting)) quarantine_.replace(*runs_, x, y);
    runs_->exchange_blocks(x, y);
    (*runs_)[x].set(Run::shared);  // others had this content before
    if (idle) place(y);
  }

  // ---- steps ------------------------------------------------------------------------------------

  /// Closes the open step and returns its tick.
  std::uint64_t end_step() noexcept { return open_tick_++; }
  /// The device has finished every step up to `tick`; `flush` lets go what waited for it.
  void mark_reclaimed(std::uint64_t tick) noexcept {
    reclaimed_tick_ = std::max(reclaimed_tick_, tick);
  }
  /// Lets go, in order, what waits for nothing any more. O(blocks of reclaimed ticks).
  void flush() noexcept {
    quarantine_.flush(*runs_, reclaimed_tick(), [&](RunId x) { place(x); });
  }

 private:
  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }

  template <class Listener>
  void take_victims(std::int32_t n, BlockId* out, Listener& listener) {
    RunId const x = eviction_.front();
    auto const blocks = runs_->blocks(x);
    std::reverse_copy(blocks.end() - n, blocks.end(), out);
    listener.evict(x, n);
    num_idle_ -= n;
    if (n < (*runs_)[x].length) return runs_->cut_end(x, n);
    eviction_.soon(*runs_, [&](RunId later) { listener.soon(later); });
    eviction_.erase(*runs_, x);
    runs_->dissolve(x);
  }
  PAGEDKV_NEVER_INLINE void wait(RunId x, bool for_step) noexcept {
    Run const& run = (*runs_)[x];
    if (run.has(Run::held)) ++num_retained_;
    // In order of arrival, all that waits waits for the end of the step.
    quarantine_.enlist(*runs_, x, deferred_ ? run.stamp : for_step ? open_tick_ : 0);
  }
  void leave_unreferenced(RunId x) noexcept {
    Run const& run = (*runs_)[x];
    if (!run.has(Run::waiting)) return take_idle(x);
    quarantine_.erase(*runs_, x);
    if (run.has(Run::held)) --num_retained_;
  }
  void take_idle(RunId x) noexcept {
    eviction_.erase(*runs_, x);
    num_idle_ -= (*runs_)[x].length;
  }
  void place(RunId x) noexcept {
    detail::Extent none;
    place(x, none);
  }
  PAGEDKV_ALWAYS_INLINE void place(RunId x, detail::Extent& room) noexcept {
    if ((*runs_)[x].has(Run::published)) return make_idle(x, room);
    free_.give(runs_->blocks(x), (*runs_)[x].has(Run::leaves_first));
    runs_->dissolve(x, room);
  }
  PAGEDKV_ALWAYS_INLINE void make_idle(RunId x, detail::Extent& room) noexcept {
    Run& run = (*runs_)[x];
    runs_->give_room(room);
    num_idle_ += run.length;
    if (!run.has(Run::leaves_first)) return eviction_.push_back(*runs_, x);
    run.clear(Run::leaves_first);
    eviction_.push_front(*runs_, x);
  }

  RunTable* runs_;
  bool deferred_;
  detail::FreeBlocks free_;
  detail::LazyArray<std::uint32_t> holds_;
  std::int32_t num_idle_ = 0;
  std::int32_t num_retained_ = 0;
  std::uint64_t open_tick_ = 1;
  std::uint64_t reclaimed_tick_ = 0;
  Eviction eviction_;
  detail::Quarantine quarantine_;
};

using BlockPool = BasicBlockPool<LruEviction>;

PAGEDKV_NAMESPACE_END

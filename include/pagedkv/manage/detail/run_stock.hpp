// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs in the pool, in the index and in copies: what is done to one of them is done to the others.
/// Knows no sequence and no twins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/config.hpp>
#include <pagedkv/manage/block_pool.hpp>
#include <pagedkv/manage/copy_plan.hpp>
#include <pagedkv/manage/detail/event_source.hpp>
#include <pagedkv/manage/prefix_index.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

template <class Policy>
class RunStock {
 public:
  using Pool = BasicBlockPool<typename Policy::Eviction>;
  using Index = BasicPrefixIndex<typename Policy::Hash>;
  using Bytes = std::span<std::byte const>;

  explicit RunStock(KvCacheConfig const& c)
      : runs_(c.num_blocks, c.block_tokens, c.max_sequences),
        pool_(runs_, c.reclaim),
        index_(runs_, {c.block_tokens, c.max_extra_key_bytes,
                       c.partial_hits ? c.max_partial_candidates : 0, c.hash_seed, GroupId{0}}),
        copies_(c.num_blocks),
        events_(c.observer, runs_, c.block_tokens) {}
  RunStock(RunStock const&) = delete;
  RunStock& operator=(RunStock const&) = delete;

  [[nodiscard]] RunTable const& runs() const noexcept { return runs_; }
  [[nodiscard]] RunTable& runs() noexcept { return runs_; }
  [[nodiscard]] Pool const& pool() const noexcept { return pool_; }
  [[nodiscard]] Pool& pool() noexcept { return pool_; }
  [[nodiscard]] Index const& index() const noexcept { return index_; }
  [[nodiscard]] CopyPlan const& copies() const noexcept { return copies_; }
  /// The counters of blocks and copies.
  [[nodiscard]] Stats& stats() noexcept { return stats_; }
  [[nodiscard]] Stats const& stats() const noexcept { return stats_; }

  // ---- runs -------------------------------------------------------------------------------------

  /// The first k blocks become a run of their own, which is returned; `x` keeps the rest. O(1).
  RunId split(RunId x, std::int32_t k) noexcept {
    RunId const head = runs_.split(x, k);
    if (runs_[x].has(Run::published)) index_.split(x, head);
    pool_.split(x, head);
    return head;
  }
  /// `n` blocks from the one at `place` on, of one run, become a run of their own.
  RunId cut_out(std::int32_t place, std::int32_t n) noexcept {
    RunId x = runs_.run_of(runs_.block_at(place));
    if (place + n < runs_[x].end()) x = split(x, place + n - runs_[x].start);
    if (place > runs_[x].start) split(x, place - runs_[x].start);
    return x;
  }
  /// The run of this block alone.
  RunId isolate(BlockId b) noexcept { return cut_out(runs_.place(b), 1); }
  /// The run that begins with this block.
  RunId beginning_with(BlockId b) noexcept {
    std::int32_t const place = runs_.place(b);
    if (runs_.is_start(place)) return runs_.run_at_edge(b);
    RunId const x = runs_.run_of(b);
    split(x, place - runs_[x].start);
    return x;
  }
  /// The run of just the blocks that were hit.
  RunId trim(RunHit hit) noexcept {
    return hit.blocks < runs_[hit.run].length ? split(hit.run, hit.blocks) : hit.run;
  }

  // ---- taking -----------------------------------------------------------------------------------

  /// New blocks after `tail` (-1: anywhere), which grows if only its owner ever had it. Requires:
  /// they are available. O(blocks).
  PAGEDKV_ALWAYS_INLINE void allocate_behind(RunId tail, std::span<BlockId> out, Extent& room) {
    if (out.size() == 1 && pool_.num_free() != 0) {  // one more block of a running sequence
      out[0] = pool_.take_free();
      return runs_.lay_one(tail, can_join(tail), out[0], room);
    }
    allocate_many(tail, out, room);
  }
  /// From now on it counts as used by others, if it is published.
  void mark_shared(RunId x) noexcept {
    if (runs_[x].has(Run::published)) runs_[x].set(Run::shared);
  }
  /// No request comes back for it.
  void mark_unwanted(RunId x) noexcept { runs_[x].set(Run::leaves_first); }
  /// The next look-up after `parent` (-1: nothing to say) tries `child` first.
  void used_last(RunId parent, RunId child) noexcept {
    if (parent >= 0 && runs_[parent].last_child != child) index_.use_last(parent, child);
  }

  // ---- content ----------------------------------------------------------------------------------

  /// The content of the first n blocks of `x` is findable after `parent` now; returns the run that
  /// it ends.
  RunId publish(RunId x, RunId parent, std::int32_t n, Bytes extra) {
    std::int32_t const first = runs_[x].start;
    std::int32_t const before = parent >= 0 ? runs_[parent].end() - 1 : 0;
    if (before + 1 == first && parent >= 0 && extra.empty() && may_grow(parent, x, n)) {
      runs_.move_front(parent, x, n);
      x = parent;
    } else {
      if (n < runs_[x].length) x = split(x, n);
      index_.publish(x, parent, extra);
    }
    stats_.published_blocks += static_cast<std::uint64_t>(n);
    events_.stored(runs_, index_, before, first, n, extra);
    return x;
  }
  /// All blocks of the published run `x` lose their content. If it has no reference, it becomes
  /// free, or waits on. Requires: none of them has a twin.
  void forget(RunId x) {
    forget_blocks(x, runs_[x].length);
    for (BlockId const b : runs_.blocks(x)) runs_.raise_generation(b);
    index_.erase(x);
    pool_.unpublish(x);
  }
  /// Nothing is findable any more. O(pool).
  void forget_all() {
    for_each_run([&](RunId x) {
      if (!runs_[x].has(Run::published)) return;
      for (BlockId const b : runs_.blocks(x)) runs_.raise_generation(b);
      index_.erase(x);
    });
    pool_.free_idle();
    for_each_run([&](RunId x) { pool_.unpublish(x); });
    events_.cleared();
  }
  /// Whether an owned run can be found, so that more may be published after it.
  [[nodiscard]] bool may_be_followed(RunId owned) const noexcept {
    return (runs_[owned].flags & (Run::published | Run::orphan)) == Run::published;
  }
  /// Whether it is published and the path to it is whole.
  [[nodiscard]] bool is_findable(RunId x) const noexcept {
    Run const& run = runs_[x];
    return run.has(Run::published) && !run.has(Run::orphan) && index_.is_reachable(run);
  }

  // ---- copies -----------------------------------------------------------------------------------

  void hold_source(BlockId src) noexcept {
    RunId const x = isolate(src);
    pool_.hold(x);
    runs_[x].set(Run::shared);
    runs_[x].clear(Run::leaves_first);
  }
  void plan_copy(BlockCopy const& copy) noexcept {
    copies_.add(copy);
    runs_[isolate(copy.dst)].set(Run::copy_target);
    ++stats_.copies;
  }
  [[nodiscard]] bool is_copy_target(BlockId b) const noexcept {
    return copies_.num_pending() != 0 && runs_[runs_.run_of(b)].has(Run::copy_target);
  }
  std::span<BlockCopy const> take_copies() {
    auto const taken = copies_.take(pool_.open_tick());
    for (BlockCopy const& copy : taken) {
      RunId const dst = runs_.run_at_edge(copy.dst);
      runs_[dst].clear(Run::copy_target);
      pool_.new_blocks().forget({&copy.dst, 1});
      pool_.hold(dst);
      pool_.use_in_open_step(dst);
      pool_.use_in_open_step(runs_.run_at_edge(copy.src));
    }
    return taken;
  }
  /// Steps up to `tick` are over.
  void let_go(std::uint64_t tick) {
    pool_.mark_reclaimed(tick);
    copies_.release(tick, [&](BlockId b) { pool_.unhold(b); });
    pool_.flush();
  }

 protected:
  /// Calls `visit(run)` for each, in no order that matters.
  template <class Visit>
  void for_each_run(Visit&& visit) {
    for (RunId x = 0; x < runs_.num_records(); ++x) {
      if (runs_[x].length != 0) visit(x);
    }
  }
  void drop_copy(BlockId dst) {
    runs_[runs_.run_at_edge(dst)].clear(Run::copy_target);
    pool_.unhold(copies_.drop(dst).src);
    pool_.flush();
    ++stats_.dropped_copies;
  }

  RunTable runs_;
  Pool pool_;
  Index index_;
  CopyPlan copies_;
  EventSource events_;
  Stats stats_;

 private:
  struct OnEvict {
    RunStock& stock;
    void soon(RunId x) const noexcept { stock.index_.prefetch(x); }
    void evict(RunId x, std::int32_t n) const {
      stock.forget_blocks(x, n);
      if (n == stock.runs_[x].length) {
        stock.index_.erase(x);
      } else if (stock.runs_[x].num_children != 0) {
        stock.index_.forget_children(x);
      }
      stock.pool_.forget_children(x);
    }
  };

  PAGEDKV_NEVER_INLINE void allocate_many(RunId tail, std::span<BlockId> out, Extent& room) {
    std::int32_t const idle = pool_.num_idle();
    std::size_t const num_clean = pool_.allocate(out, OnEvict{*this});
    stats_.evicted_blocks += static_cast<std::uint64_t>(idle - pool_.num_idle());
    runs_.lay(tail, can_join(tail), out, num_clean, room);
  }
  /// Whether new blocks may become a part of the run.
  bool can_join(RunId tail) const noexcept { return tail >= 0 && pool_.is_plain(runs_[tail], 0); }
  void forget_blocks(RunId x, std::int32_t n) {
    if (!events_.is_heard()) return;
    std::int32_t const end = runs_[x].end();
    for (std::int32_t place = end; place-- > end - n;) events_.removed(runs_, place);
  }
  /// Whether `n` blocks at the front of `x` may become a part of `p`: one owner, no child, and
  /// nothing that one of the two had and the other hadn't.
  bool may_grow(RunId p, RunId x, std::int32_t n) const noexcept {
    Run const& run = runs_[p];
    unsigned const flags = Run::published | (run.flags & Run::indexed);
    return run.num_children == 0 && run.length + n <= RunTable::max_run_blocks &&
           pool_.is_plain(run, flags) && pool_.is_plain(runs_[x], 0);
  }
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The blocks, and the rules that tie pool, index, copies and twins together: one block bears a
/// content, and what its last reference takes along. Knows no sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <pagedkv/config.hpp>
#include <pagedkv/manage/detail/run_stock.hpp>
#include <pagedkv/manage/detail/twin_rings.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

template <class Policy>
class BlockStock : public RunStock<Policy> {
  using Base = RunStock<Policy>;

 public:
  explicit BlockStock(KvCacheConfig const& c) : Base(c), rings_(c.num_blocks) {}

  [[nodiscard]] TwinRings const& rings() const noexcept { return rings_; }

  /// The run that ends with the content of this block: its own, or that of the block whose twin it
  /// is.
  RunId content_ending_with(BlockId b) noexcept {
    RunId const x = runs_.run_at_edge(b);
    Run const& run = runs_[x];
    bool const is_last = run.length != 0 && run.end() == runs_.place(b) + 1;
    if (is_last && !run.has(Run::has_twins)) return x;
    return content_ending_at(is_twin(b) ? rings_.content(b) : runs_.place(b));
  }
  /// Whether another block bears the content of this one.
  [[nodiscard]] bool is_twin(BlockId b) const noexcept {
    std::int32_t const place = rings_.content(b);
    return place != 0 && runs_.block_at(place) != b;
  }

  // ---- taking and giving back -------------------------------------------------------------------

  /// Drops a reference that steps up to `tick` used.
  void release(RunId x, std::uint64_t tick) {
    Extent none;
    release(x, tick, none);
  }
  /// `room`, which may lie after it, is given back as well.
  PAGEDKV_ALWAYS_INLINE void release(RunId x, std::uint64_t tick, Extent& room) {
    constexpr unsigned unusual = Run::copy_target | Run::orphan | Run::has_twins;
    Run const& run = runs_[x];
    if (run.references == 1 && run.has(unusual)) {
      runs_.give_room(room);
      return release_last(x, tick);
    }
    if (pool_.drop(x, tick)) return pool_.settle(x, room);
    runs_.give_room(room);
  }

  // ---- content ----------------------------------------------------------------------------------

  /// The blocks of `own` bear the content of `x`, which has no reference, from now on.
  void succeed(RunId x, RunId own) {
    move_content(x, own);
    pool_.exchange(x, own);
  }
  /// The blocks of `own` are twins of those of `x`.
  void join_rings(RunId x, RunId own) noexcept {
    for (std::int32_t i = 0; i < runs_[x].length; ++i) {
      std::int32_t const place = runs_[x].start + i;
      rings_.join(place, runs_.block_at(place), runs_.block_at(runs_[own].start + i));
    }
    runs_[x].set(Run::has_twins);
    runs_[own].set(Run::has_twins);
  }
  /// A twin that will be written into.
  void leave_ring(BlockId b) noexcept { rings_.leave(runs_.block_at(rings_.content(b)), b); }
  /// No block is free for a copy and no other row has the published block: its content goes, or a
  /// twin bears it.
  void make_writable(BlockId b) {
    RunId const x = this->isolate(b);
    bool const has_twin = !rings_.oldest(b).is_null();
    if (has_twin && !runs_[x].has(Run::orphan)) return void(hand_over_to_twins(x));
    unpublish(x);
    ++stats_.unpublished_blocks;
  }
  /// All blocks of the published run `x` lose their content, and no twin bears it. Without
  /// references it becomes free, or waits on.
  void unpublish(RunId x) {
    if (runs_[x].has(Run::has_twins)) dissolve_rings(x);
    this->forget(x);
  }
  enum class Condemned : std::uint8_t { nothing, twin, bearer };
  /// `b` must not be found nor bear a content again. Says what it was.
  Condemned condemn(BlockId b) {
    RunId const x = runs_.run_of(b);
    if (x < 0) return Condemned::nothing;
    if (is_twin(b)) {
      leave_rings(this->isolate(b));
      return Condemned::twin;
    }
    if (!runs_[x].has(Run::published)) return Condemned::nothing;
    unpublish(this->isolate(b));
    return Condemned::bearer;
  }
  /// A run of a row that follows a condemned block: it can't be found, and its twins don't
  /// bear what others computed from good bytes. True if that is new.
  bool mark_orphan(RunId x) noexcept {
    Run& run = runs_[x];
    if (!run.has(Run::published)) {
      bool const had = run.has(Run::has_twins);
      leave_rings(x);
      return had;
    }
    if (run.has(Run::orphan)) return false;
    run.set(Run::orphan);
    index_.detach(x);
    pool_.forget_children(x);
    return true;
  }
  /// Runs without references that follow what went lose their content. Returns the number of their
  /// blocks. O(runs) per pass, with one more pass per change of direction in the run numbers of a
  /// lost path.
  std::int32_t drop_unreachable() {
    std::int32_t dropped = 0;
    std::int32_t const end = runs_.num_records();
    bool upwards = true;
    for (bool more = true; more; upwards = !upwards) {
      more = false;
      for (RunId i = 0; i < end; ++i) {
        RunId const x = upwards ? i : end - 1 - i;
        Run const& run = runs_[x];
        bool const is_lost = run.length != 0 && run.references == 0 && run.has(Run::published) &&
                             !index_.is_reachable(run);
        if (!is_lost) continue;
        dropped += run.length;
        unpublish(x);
        more = true;
      }
    }
    return dropped;
  }
  /// Leading blocks of the run whose content, borne by themselves or by others, can be found.
  [[nodiscard]] std::int32_t findable_blocks(RunId x) const noexcept {
    if (runs_[x].has(Run::published)) return this->is_findable(x) ? runs_[x].length : 0;
    std::int32_t n = 0;
    for (BlockId const b : runs_.blocks(x)) {
      if (!is_twin(b)) break;
      if (!this->is_findable(runs_.run_of(runs_.block_at(rings_.content(b))))) break;
      ++n;
    }
    return n;
  }
  [[nodiscard]] bool has_a_twin(RunId x) const noexcept {
    if (!runs_[x].has(Run::has_twins)) return false;
    auto const blocks = runs_.blocks(x);
    return std::any_of(blocks.begin(), blocks.end(), [&](BlockId b) { return is_twin(b); });
  }
  /// Nothing is findable any more, and no block is a twin. O(pool).
  void unpublish_all() {
    this->for_each_run([&](RunId x) {
      if (runs_[x].has(Run::has_twins)) dissolve_rings(x);
    });
    this->forget_all();
  }

 private:
  using Base::events_;
  using Base::index_;
  using Base::pool_;
  using Base::runs_;
  using Base::stats_;

  RunId content_ending_at(std::int32_t place) noexcept {
    RunId const x = runs_.run_of(runs_.block_at(place));
    return place + 1 < runs_[x].end() ? this->split(x, place + 1 - runs_[x].start) : x;
  }
  void leave_rings(RunId x) noexcept {
    if (!runs_[x].has(Run::has_twins)) return;
    for (BlockId const b : runs_.blocks(x)) {
      if (is_twin(b)) leave_ring(b);
    }
    runs_[x].clear(Run::has_twins);
  }
  void dissolve_rings(RunId x) noexcept {
    for (BlockId const b : runs_.blocks(x)) rings_.dissolve(b);
  }
  void move_content(RunId x, RunId heirs) {
    for (std::int32_t i = runs_[x].length; i-- > 0;) {
      std::int32_t const place = runs_[x].start + i;
      events_.moved(runs_, place, runs_.block_at(runs_[heirs].start + i));
      runs_.raise_generation(runs_.block_at(place));
    }
    stats_.moved_blocks += static_cast<std::uint64_t>(runs_[x].length);
  }

  /// The last reference goes, and something else with it.
  PAGEDKV_NEVER_INLINE void release_last(RunId x, std::uint64_t tick) {
    if (runs_[x].has(Run::copy_target)) this->drop_copy(runs_.last_block(x));
    if (runs_[x].has(Run::orphan)) {
      stats_.unpublished_blocks += static_cast<std::uint64_t>(runs_[x].length);
      unpublish(x);
    }
    if (!runs_[x].has(Run::has_twins)) return drop_and_settle(x, tick);
    if (runs_[x].has(Run::published)) return release_bearers(x, tick);
    leave_rings(x);
    drop_and_settle(x, tick);
  }
  void drop_and_settle(RunId x, std::uint64_t tick) {
    if (pool_.drop(x, tick)) pool_.settle(x);
  }
  /// Piece by piece: where blocks have twins, those bear the content from now on. The deepest piece
  /// first, but in the order of the row where the deepest ends up in front (`leaves_first`).
  void release_bearers(RunId x, std::uint64_t tick) {
    bool const upside_down = runs_[x].has(Run::leaves_first);
    for (RunId rest = -1; x >= 0; x = rest) {
      std::int32_t const n = runs_[x].length;
      std::int32_t k = upside_down ? 1 : n - 1;
      while (k > 0 && k < n && goes_with_next(runs_[x].start + k - 1)) k += upside_down ? 1 : -1;
      rest = k > 0 && k < n ? this->split(x, k) : -1;
      if (upside_down && rest >= 0) std::swap(x, rest);
      bool const has_twins = !rings_.oldest(runs_.last_block(x)).is_null();
      if (!has_twins) runs_[x].clear(Run::has_twins);
      drop_and_settle(has_twins ? hand_over_to_twins(x) : x, tick);
    }
  }
  /// Whether the block at `place` and the next one have no twins, or twins that lie side by side.
  bool goes_with_next(std::int32_t place) const noexcept {
    BlockId const a = rings_.oldest(runs_.block_at(place));
    BlockId const b = rings_.oldest(runs_.block_at(place + 1));
    if (a.is_null() || b.is_null()) return a.is_null() == b.is_null();
    return runs_.place(a) + 1 == runs_.place(b) && !runs_.is_start(runs_.place(b));
  }
  /// The oldest twins bear the content of `x`. Returns the run of the blocks that bore it.
  RunId hand_over_to_twins(RunId x) {
    std::int32_t const n = runs_[x].length;
    RunId const heirs = this->cut_out(runs_.place(rings_.oldest(runs_.blocks(x)[0])), n);
    move_content(x, heirs);
    for (BlockId const b : runs_.blocks(x)) rings_.succeed(b);
    pool_.exchange(x, heirs);
    return heirs;
  }

  TwinRings rings_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

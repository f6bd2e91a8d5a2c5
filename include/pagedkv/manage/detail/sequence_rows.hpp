// SPDX-License-Identifier: Apache-2.0
/// \file
/// How the rows of blocks grow, are copied from and are given back. A row is made of whole runs;
/// while its sequence is the only one that has the last of them, that one grows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/config.hpp>
#include <pagedkv/detail/block_shape.hpp>
#include <pagedkv/manage/detail/block_stock.hpp>
#include <pagedkv/manage/detail/growth.hpp>
#include <pagedkv/manage/detail/sequence_ids.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// The block stock and the tables of sequences and pins.
template <class Policy>
class SequenceRows {
 public:
  using Stock = BlockStock<Policy>;

  explicit SequenceRows(KvCacheConfig const& c)
      : shape_(c.block_tokens),
        deferred_(c.reclaim == Reclaim::deferred),
        stock_(c),
        sequences_(c.max_sequences, table_width(c)),
        pins_(c.max_pins, table_width(c)) {}

  [[nodiscard]] BlockShape shape() const noexcept { return shape_; }
  [[nodiscard]] Stock& stock() noexcept { return stock_; }
  [[nodiscard]] Stock const& stock() const noexcept { return stock_; }
  [[nodiscard]] RunTable const& runs() const noexcept { return stock_.runs(); }
  [[nodiscard]] SequenceTable& sequences() noexcept { return sequences_; }
  [[nodiscard]] SequenceTable const& sequences() const noexcept { return sequences_; }
  [[nodiscard]] SequenceTable& pins() noexcept { return pins_; }
  [[nodiscard]] SequenceTable const& pins() const noexcept { return pins_; }
  [[nodiscard]] SequenceIds ids(std::int32_t r) noexcept {
    return {stock_.runs(), shape_, sequences_.columns(r), sequences_.state(r)};
  }
  [[nodiscard]] static std::int32_t table_width(KvCacheConfig const& c) noexcept {
    return std::min(blocks_for(c.max_sequence_tokens, c.block_tokens), c.num_blocks);
  }

  // ---- taking -----------------------------------------------------------------------------------

  /// The runs found get a reference, and `columns` their blocks; returns how many. The next look-up
  /// will try them first.
  std::int32_t take_hits(std::span<RunHit const> found, BlockId* columns) noexcept {
    BlockId* to = columns;
    RunId before = -1;
    for (RunHit const& hit : found) {
      RunId const x = stock_.trim(hit);
      stock_.pool().acquire(x);
      auto const blocks = runs().blocks(x);
      to = std::copy(blocks.begin(), blocks.end(), to);
      stock_.used_last(before, x);
      before = x;
    }
    return static_cast<std::int32_t>(to - columns);
  }
  /// Another row takes a reference to all blocks of a row.
  void share(std::span<BlockId const> blocks, BlockId* columns) noexcept {
    for_each_run(blocks, [&](RunId x) { stock_.pool().share(x); });
    std::copy(blocks.begin(), blocks.end(), columns);
  }
  /// New blocks up to `size` positions. Requires: they are available. O(new blocks).
  PAGEDKV_ALWAYS_INLINE void extend(std::int32_t r, std::int32_t size) {
    SequenceState& s = sequences_.state(r);
    s.size = size;
    std::int32_t const end = shape_.blocks(size);
    std::int32_t const begin = std::exchange(s.num_blocks, end);
    if (end == begin) return;
    BlockId* const columns = sequences_.columns(r) + begin;
    RunId const tail = begin > 0 ? runs().run_at_edge(columns[-1]) : -1;
    stock_.allocate_behind(tail, {columns, static_cast<std::size_t>(end - begin)},
                           sequences_.room(r));
    s.writable_tail = sequences_.room(r).first - 1;
    s.first_changed = std::min(s.first_changed, begin);
  }
  /// The tail may be written into without asking, until it is given up. (While a copy reads or
  /// fills what others had, each write asks.)
  void remember_tail(std::int32_t r) noexcept {
    BlockId const tail = sequences_.tail(r);
    Run const& run = runs()[runs().run_at_edge(tail)];
    bool const is_copied = run.has(Run::shared) && run.has(Run::held | Run::copy_target);
    if (!is_copied) sequences_.state(r).writable_tail = runs().place(tail);
  }
  /// Positions from `first` on get these ids.
  PAGEDKV_ALWAYS_INLINE void set_ids(std::int32_t r, std::int32_t first,
                                     std::span<TokenId const> ids) {
    SequenceState& s = sequences_.state(r);
    bool const in_tail = s.writable_tail != 0 && shape_.block(first) == s.num_blocks - 1;
    if (!in_tail) return this->ids(r).set(first, ids);
    TokenId* const to = stock_.runs().tokens(s.writable_tail) + shape_.offset(first);
    std::copy(ids.begin(), ids.end(), to);
    s.note_ids(first, first + static_cast<std::int32_t>(ids.size()));
  }
  /// What must happen to the last block before its owner writes into it.
  [[nodiscard]] Tail tail_of(std::int32_t r) const noexcept {
    BlockId const tail = sequences_.tail(r);
    Run const& run = runs()[runs().run_at_edge(tail)];
    if (run.references > 1 || stock_.pool().is_in_flight(run)) return Tail::copy;
    if (run.has(Run::published)) return Tail::copy_or_unpublish;
    return run.has(Run::has_twins) && stock_.is_twin(tail) ? Tail::leave_ring : Tail::write;
  }
  /// The tail is shared or published: this sequence gets a copy of its leading positions.
  PAGEDKV_NEVER_INLINE void copy_tail(std::int32_t r) {
    SequenceState& s = sequences_.state(r);
    std::int32_t const column = s.num_blocks - 1;
    BlockId const old = sequences_.columns(r)[column];
    BlockCopy copy{old, {}, shape_.offset(s.size)};
    if (stock_.is_copy_target(old)) {  // a chain collapses to its first source
      BlockCopy const& earlier = stock_.copies().into(old);
      copy.src = earlier.src;
      copy.num_tokens = std::min(copy.num_tokens, earlier.num_tokens);
    }
    stock_.hold_source(copy.src);
    stock_.allocate_behind(-1, {&copy.dst, 1}, sequences_.room(r));
    std::copy_n(runs().tokens(runs().place(old)), copy.num_tokens,
                stock_.runs().tokens(runs().place(copy.dst)));
    stock_.plan_copy(copy);
    if (column > 0) keep_behind_children(r, column);
    sequences_.columns(r)[column] = copy.dst;
    s.first_changed = std::min(s.first_changed, column);
    s.writable_tail = runs().place(copy.dst);
    release_run(r, stock_.isolate(old));
  }

  // ---- giving back ------------------------------------------------------------------------------

  /// From now on steps say which sequences they use.
  void use_is_told() noexcept { use_is_told_ = true; }
  /// Drops the sequence's reference to one of its runs.
  void release_run(std::int32_t r, RunId x) {
    Extent none;
    release_run(r, x, none);
  }
  /// Drops the columns from `keep` on, deepest first. O(runs), and O(blocks) that become free.
  PAGEDKV_ALWAYS_INLINE void release_columns(std::int32_t r, std::int32_t keep) {
    SequenceState& s = sequences_.state(r);
    Extent& room = sequences_.room(r);
    BlockId const* const row = sequences_.columns(r);
    while (s.num_blocks > keep) {
      RunId const x = runs().run_at_edge(row[s.num_blocks - 1]);
      std::int32_t const first = s.num_blocks - runs()[x].length;
      if (first < keep) stock_.split(x, keep - first);
      s.num_blocks = std::max(first, keep);
      release_run(r, x, room);
    }
    stock_.runs().give_room(room);
  }
  /// A published block at column `keep` leaves the row. Its parent mustn't be evicted before it by
  /// a `Reuse::none`, so it counts as used by others; and while it waits, so do its ancestors.
  void keep_behind_children(std::int32_t r, std::int32_t keep) noexcept {
    BlockId const* const row = sequences_.columns(r);
    if (!run_of(row[keep]).has(Run::published)) return;
    if (!run_of(row[keep - 1]).has(Run::shared)) stock_.mark_shared(stock_.isolate(row[keep - 1]));
    sequences_.state(r).left_children = true;
  }
  /// Releases the deepest blocks that no other sequence ever used and no copy holds, so that they
  /// go before all idle ones, deepest first.
  PAGEDKV_NEVER_INLINE void release_unwanted(std::int32_t r) {
    BlockId const* const row = sequences_.columns(r);
    std::int32_t end = sequences_.state(r).num_blocks;
    for (RunId x = -1; end > 0; end -= runs()[x].length) {
      x = runs().run_at_edge(row[end - 1]);
      if (runs()[x].references != 1 || stock_.may_be_followed(x)) break;
      if (stock_.has_a_twin(x)) return;
    }
    std::int32_t first = end;
    std::uint64_t leaves = UINT64_MAX;  // the step after which the run that follows leaves
    while (first > 0) {
      Run const& run = runs()[runs().run_at_edge(row[first - 1])];
      constexpr unsigned mask = Run::published | Run::shared | Run::held | Run::orphan;
      if (run.references != 1 || (run.flags & mask) != Run::published) break;
      if (run.num_children > (first == end ? 0 : 1)) break;  // other runs follow it
      // Others used its content, and it leaves later.
      std::uint64_t const fence = fence_of(r, run);
      if (deferred_ && fence > leaves) break;
      leaves = fence;
      first -= run.length;
    }
    if (first == end) return;
    release_columns(r, end);
    sequences_.state(r).num_blocks = first;
    for (std::int32_t j = first; j < end;) {
      RunId const x = runs().run_at_edge(row[j]);
      j += runs()[x].length;
      stock_.mark_unwanted(x);
      release_run(r, x);
    }
  }
  void release_pin(std::int32_t p) {
    auto const blocks = pins_.blocks(p);
    for (std::size_t end = blocks.size(); end > 0;) {
      RunId const x = runs().run_at_edge(blocks[end - 1]);
      end -= static_cast<std::size_t>(runs()[x].length);
      stock_.release(x, 0);
    }
  }

  // ---- what a row has ---------------------------------------------------------------------------

  /// Calls `visit(run)` from the first column on.
  template <class Visit>
  void for_each_run(std::span<BlockId const> blocks, Visit&& visit) const {
    for (std::size_t j = 0; j < blocks.size();) {
      RunId const x = runs().run_at_edge(blocks[j]);
      j += static_cast<std::size_t>(runs()[x].length);
      visit(x);
    }
  }
  /// Blocks that no other row references. O(runs).
  [[nodiscard]] std::int32_t unshared_blocks(std::int32_t r) const noexcept {
    std::int32_t n = 0;
    for_each_run(sequences_.blocks(r),
                 [&](RunId x) { n += runs()[x].references == 1 ? runs()[x].length : 0; });
    return n;
  }
  /// Positions in those. O(runs).
  [[nodiscard]] std::int32_t unshared_tokens(std::int32_t r) const noexcept {
    std::int32_t n = 0;
    std::int32_t left = sequences_.state(r).size;
    for_each_run(sequences_.blocks(r), [&](RunId x) {
      std::int32_t const tokens = std::min(runs()[x].length * shape_.tokens(), left);
      left -= tokens;
      n += runs()[x].references == 1 ? tokens : 0;
    });
    return n;
  }
  /// Marks the runs that can't be found any more in rows with a broken path. O(runs of all rows)
  /// per pass, until a pass marks nothing: a mark can break the path of another row's twins.
  void mark_orphans() noexcept {
    while (mark_orphans(sequences_) || mark_orphans(pins_)) {
    }
  }

 private:
  PAGEDKV_ALWAYS_INLINE void release_run(std::int32_t r, RunId x, Extent& room) {
    SequenceState const& s = sequences_.state(r);
    if (s.used_tick == stock_.pool().open_tick()) stock_.pool().note_batched_release();
    if (s.left_children) stock_.mark_shared(x);
    stock_.release(x, release_tick(s), room);
  }
  Run const& run_of(BlockId b) const noexcept { return runs()[runs().run_of(b)]; }

  /// The last step that may still use what the sequence gives back; 0: none (contract 11).
  [[nodiscard]] std::uint64_t release_tick(SequenceState const& s) const noexcept {
    if (deferred_) {
      bool const is_filled_elsewhere = s.external > 0 && s.committed < s.cached + s.external;
      if (!use_is_told_ || is_filled_elsewhere) return stock_.pool().open_tick();
    }
    return s.used_tick > stock_.pool().reclaimed_tick() ? s.used_tick : 0;
  }
  /// The step that the run would wait for if row `r` gave it back now; 0: none.
  [[nodiscard]] std::uint64_t fence_of(std::int32_t r, Run const& run) const noexcept {
    std::uint64_t const tick = std::max(run.stamp, release_tick(sequences_.state(r)));
    return tick > stock_.pool().reclaimed_tick() ? tick : 0;
  }
  bool mark_orphans(SequenceTable const& table) noexcept {
    bool any = false;
    for (std::int32_t r = 0; r < table.num_rows(); ++r) {
      if (!table.is_alive(r)) continue;
      bool broken = false;
      for_each_run(table.blocks(r), [&](RunId x) {
        std::int32_t const n = broken ? 0 : stock_.findable_blocks(x);
        if (n == runs()[x].length) return;
        broken = true;
        if (n > 0) stock_.split(x, n);
        any = stock_.mark_orphan(x) || any;
      });
    }
    return any;
  }

  BlockShape shape_;
  bool deferred_;
  bool use_is_told_ = false;
  Stock stock_;
  SequenceTable sequences_;
  SequenceTable pins_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

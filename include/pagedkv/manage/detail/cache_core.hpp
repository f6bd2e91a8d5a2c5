// SPDX-License-Identifier: Apache-2.0
/// \file
/// What `KvCache`, `Sequence`, `Pin` and `Batch` share: the sequences' states and the verbs,
/// composed from the rows and the block stock. Handles name a sequence by its row.
///
/// One rule shapes every verb: decide first, touch nothing; then act, where nothing can fail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/config.hpp>
#include <pagedkv/manage/detail/growth.hpp>
#include <pagedkv/manage/detail/prompt_verbs.hpp>
#include <pagedkv/manage/detail/publisher.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/manage/slot_mapping.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/types.hpp>

PAGEDKV_NAMESPACE_BEGIN

namespace detail {

template <class Policy>
class CacheCore : public PromptVerbs<Policy> {
  using Base = PromptVerbs<Policy>;

 public:
  using Ids = std::span<TokenId const>;
  using Base::Base;
  using Base::copies;
  using Base::pool;
  using Base::row;
  using Base::runs;
  using Base::sequences;
  using Base::shape;
  using Base::state;
  using Base::stock;
  using Base::would_fit;

  // ---- growing ----------------------------------------------------------------------------------

  [[nodiscard]] std::int32_t blocks_needed(std::int32_t r, std::int32_t n) const noexcept {
    return growth_of(r, n).blocks;
  }
  [[nodiscard]] bool would_fit(std::int32_t r, std::int32_t n) const noexcept {
    SequenceState const& s = state(r);
    if (n > most_tokens_ - s.size) return false;
    Growth const g = growth_of(r, n);
    return g.blocks - (g.tail == Tail::copy_or_unpublish ? 1 : 0) <= pool().num_available();
  }

  [[nodiscard]] PAGEDKV_ALWAYS_INLINE Result<TokenRange> append(std::int32_t r, Ids new_ids) {
    SequenceState& s = at(r);
    // The common step: one more token into a block that only this sequence has.
    if (new_ids.size() == 1 && s.known == s.size && s.size < most_tokens_) {
      std::int32_t const offset = shape().offset(s.size);
      if (offset != 0 && s.writable_tail != 0) {
        mutable_stock().runs().tokens(s.writable_tail)[offset] = new_ids[0];
        s.known = ++s.size;
        return TokenRange{s.size - 1, 1};
      }
    }
    return append_blocks(r, new_ids);
  }
  [[nodiscard]] Result<TokenRange> reserve(std::int32_t r, std::int32_t n) {
    auto const grown = grow(r, n);
    if (grown) rows_.ids(r).forget(grown->first);
    return grown;
  }
  void set_tokens(std::int32_t r, std::int32_t first, Ids new_ids) {
    SequenceState const& s = state(r);
    PAGEDKV_ASSERT(first >= s.committed, "set_tokens: positions below committed() are final");
    PAGEDKV_ASSERT(new_ids.size() <= static_cast<std::size_t>(s.size) &&
                       first <= s.size - static_cast<std::int32_t>(new_ids.size()),
                   "set_tokens: the positions must have been reserved");
    PAGEDKV_ASSERT(std::find(new_ids.begin(), new_ids.end(), unknown_token) == new_ids.end(),
                   "set_tokens: unknown_token is no token");
    rows_.set_ids(r, first, new_ids);
  }

  // ---- committing -------------------------------------------------------------------------------

  void commit(std::int32_t r, std::int32_t n) {
    if (advance(r, n)) publish(r);
  }
  /// The checks and the bookkeeping of `commit`. True if there are full blocks to deal with.
  [[nodiscard]] PAGEDKV_ALWAYS_INLINE bool advance(std::int32_t r, std::int32_t n) {
    SequenceState& s = at(r);
    PAGEDKV_ASSERT(n <= s.size, "commit: only positions that exist can be final");
    if (n <= s.committed) return false;
    PAGEDKV_ASSERT(s.known >= n || rows_.ids(r).known(n) >= n,
                   "commit: set_tokens first, an id is unknown");
    PAGEDKV_ASSERT(copies().num_pending() == 0 || !fills_later(r),
                   "commit: take_copies first, a planned copy fills this block");
    if (pool().new_blocks().size() != 0) mark_written(r, n);
    s.committed = n;
    return shape().block(n) > s.published_blocks;
  }
  /// Deals with the full blocks below `committed()`.
  PAGEDKV_NEVER_INLINE void publish(std::int32_t r) {
    SequenceState& s = at(r);
    std::int32_t const end = shape().block(s.committed);
    if (!may_publish(s)) {
      s.published_blocks = end;
      return;
    }
    auto const release = [this, r](RunId x) { rows_.release_run(r, x); };
    Publisher<Policy, decltype(release)>(mutable_stock(), rows_.sequences(), r,
                                         config_.twins == Twins::adopt, release)
        .publish(end);
  }
  /// Both are called before `publish`, each in a pass over several sequences.
  void prefetch_blocks(std::int32_t r) const noexcept {
    BlockId const* const next = sequences().columns(r) + state(r).published_blocks;
    runs().prefetch_where(next[0]);
    if (state(r).published_blocks > 0) runs().prefetch_where(next[-1]);
  }
  void prefetch_runs(std::int32_t r) const noexcept {
    BlockId const* const next = sequences().columns(r) + state(r).published_blocks;
    runs().prefetch(runs().run_at_edge(next[0]));
    if (state(r).published_blocks > 0) runs().prefetch(runs().run_at_edge(next[-1]));
  }

  // ---- shrinking, forking, leaving --------------------------------------------------------------

  void truncate(std::int32_t r, std::int32_t n) {
    SequenceState& s = at(r);
    PAGEDKV_ASSERT(n >= 0 && n <= s.size, "truncate: n must lie within size()");
    std::int32_t const keep = shape().blocks(n);
    if (keep < s.num_blocks) {
      if (keep > 0) rows_.keep_behind_children(r, keep);
      rows_.release_columns(r, keep);
      s.first_changed = std::min(s.first_changed, keep);
    }
    s.size = n;
    s.writable_tail = 0;
    s.committed = std::min(s.committed, n);
    s.known = std::min(s.known, n);
    s.published_blocks = std::min(s.published_blocks, shape().block(n));
  }

  [[nodiscard]] Result<std::int32_t> fork(std::int32_t parent, SequenceId id) {
    SequenceState& from = at(parent);
    if (from.committed != from.size) return Unexpected{Errc::uncommitted};
    if (sequences().full()) return Unexpected{Errc::no_free_sequences};
    from.writable_tail = 0;
    std::int32_t const child = this->start(id);
    rows_.share(row(parent), rows_.sequences().columns(child));
    SequenceState& s = at(child);
    s.size = s.committed = s.cached = from.size;
    s.known = from.known;
    s.num_blocks = from.num_blocks;
    s.published_blocks = from.published_blocks;
    s.epoch = from.epoch;
    s.publishes = from.publishes;
    s.left_children = from.left_children;
    rows_.sequences().extra(child) = rows_.sequences().extra(parent);
    ++counters().forks;
    return child;
  }

  PAGEDKV_NEVER_INLINE void close(std::int32_t r, Reuse reuse) {
    if (reuse == Reuse::none) rows_.release_unwanted(r);
    if (reuse == Reuse::resume) ++counters().preemptions;
    rows_.release_columns(r, 0);
    rows_.sequences().end(r);
  }
  /// A step uses the sequence without a `Batch`.
  void use(std::int32_t r, std::uint64_t tick) noexcept {
    rows_.use_is_told();
    at(r).used_tick = std::max(at(r).used_tick, tick);
  }

  // ---- pins -------------------------------------------------------------------------------------

  void unpin(std::int32_t p) {
    rows_.release_pin(p);
    rows_.pins().end(p);
  }

  // ---- steps ------------------------------------------------------------------------------------

  std::span<BlockCopy const> take_copies() { return mutable_stock().take_copies(); }
  Tick end_step() {
    std::uint64_t const tick = mutable_stock().pool().end_step();
    if (config_.reclaim == Reclaim::stream_ordered) mutable_stock().let_go(tick);
    return Tick{tick};
  }
  void reclaim(Tick tick) {
    PAGEDKV_ASSERT(tick.value() < pool().open_tick(), "reclaim: end_step first, the step is open");
    if (config_.reclaim == Reclaim::deferred) mutable_stock().let_go(tick.value());
  }

  // ---- upkeep -----------------------------------------------------------------------------------

  std::int32_t evict(std::span<BlockId const> blocks) {
    std::int32_t evicted = 0;
    for (BlockId const b : blocks) {
      check_block(b, "evict: the block is not of this pool");
      Run const* const run = this->run_of(b);
      if (run == nullptr || run->references != 0 || !run->has(Run::published)) continue;
      mutable_stock().unpublish(mutable_stock().isolate(b));
      ++evicted;
    }
    counters().evicted_blocks += static_cast<std::uint64_t>(evicted);
    return evicted;
  }
  std::int32_t unpublish(std::span<BlockId const> blocks) {
    using Condemned = typename BlockStock<Policy>::Condemned;
    std::int32_t condemned = 0;
    bool any = false;
    for (BlockId const b : blocks) {
      check_block(b, "unpublish: the block is not of this pool");
      Condemned const what = mutable_stock().condemn(b);
      condemned += what == Condemned::bearer ? 1 : 0;
      any = any || what != Condemned::nothing;
    }
    if (!any) return 0;
    rows_.mark_orphans();
    counters().unpublished_blocks +=
        static_cast<std::uint64_t>(condemned + mutable_stock().drop_unreachable());
    return condemned;
  }
  void reset() {
    mutable_stock().unpublish_all();
    ++epoch_;
    ++counters().resets;
  }
  [[nodiscard]] Stats stats() const noexcept {
    Stats s = stock().stats();
    s.num_blocks = config_.num_blocks;
    s.free = pool().num_free();
    s.idle = pool().num_idle();
    s.used = pool().num_used();
    s.quarantined = pool().num_quarantined();
    s.retained = pool().num_retained();
    s.sequences = sequences().num_alive();
    s.pins = this->pins().num_alive();
    for (std::int32_t r = 0; r < config_.max_sequences; ++r) {
      if (!sequences().is_alive(r)) continue;
      std::int64_t const slots = std::int64_t{state(r).num_blocks} * shape().tokens();
      s.owned_slots += slots;
      s.wasted_slots += slots - state(r).size;
    }
    return s;
  }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }

  // ---- for Batch --------------------------------------------------------------------------------

  void mark_batched(std::int32_t r) noexcept { at(r).used_tick = pool().open_tick(); }
  void mark_seen(std::int32_t r) noexcept { at(r).first_changed = SequenceState::unchanged; }
  void mark_unseen(std::int32_t r) noexcept { at(r).first_changed = 0; }
  /// A `Batch` says which sequences a step uses, and wants to know which blocks are new.
  void attach_batch() {
    rows_.use_is_told();
    mutable_stock().pool().new_blocks().track();
  }
  template <class Report>
  void take_new_blocks(Report&& report) {
    mutable_stock().pool().new_blocks().take(std::forward<Report>(report));
  }

  [[nodiscard]] std::int32_t unshared_blocks(std::int32_t r) const noexcept {
    return rows_.unshared_blocks(r);
  }
  [[nodiscard]] std::int32_t unshared_tokens(std::int32_t r) const noexcept {
    return rows_.unshared_tokens(r);
  }
  [[nodiscard]] TokenId token(std::int32_t r, std::int32_t position) const noexcept {
    BlockId const b = sequences().columns(r)[shape().block(position)];
    return runs().tokens(runs().place(b))[shape().offset(position)];
  }

 private:
  using Base::at;
  using Base::config_;
  using Base::counters;
  using Base::epoch_;
  using Base::most_tokens_;
  using Base::mutable_stock;
  using Base::rows_;

  PAGEDKV_NEVER_INLINE Result<TokenRange> append_blocks(std::int32_t r, Ids new_ids) {
    if (new_ids.size() > static_cast<std::size_t>(config_.max_sequence_tokens)) {
      return Unexpected{Errc::never_fits};
    }
    auto const n = static_cast<std::int32_t>(new_ids.size());
    std::int32_t const first = state(r).size;
    if (auto const grown = grow(r, n); !grown) return grown;
    rows_.set_ids(r, first, new_ids);
    return TokenRange{first, n};
  }

  void check_block([[maybe_unused]] BlockId b, [[maybe_unused]] char const* rule) const {
    PAGEDKV_ASSERT(b.value() >= 0 && b.value() < config_.num_blocks, rule);
  }
  [[nodiscard]] Growth growth_of(std::int32_t r, std::int32_t n) const noexcept {
    return growth(shape(), state(r), n, [&] { return rows_.tail_of(r); });
  }
  /// Adds n positions, or says why not.
  [[nodiscard]] PAGEDKV_ALWAYS_INLINE Result<TokenRange> grow(std::int32_t r, std::int32_t n) {
    PAGEDKV_ASSERT(n >= 0, "reserve: n must be 0 or more");
    SequenceState& s = at(r);
    if (n > most_tokens_ - s.size) return Unexpected{Errc::never_fits};
    Growth const g = growth_of(r, n);
    if ((g.blocks > pool().num_available() || g.tail != Tail::write) && !make_writable(r, g)) {
      return Unexpected{Errc::no_free_blocks};
    }
    TokenRange const added{s.size, n};
    rows_.extend(r, s.size + n);
    if (n > 0 && s.writable_tail == 0) rows_.remember_tail(r);
    return added;
  }
  /// The tail may be written into, and the blocks are there; or nothing has changed.
  PAGEDKV_NEVER_INLINE bool make_writable(std::int32_t r, Growth const& g) {
    BlockId const tail = g.tail == Tail::write ? BlockId{} : sequences().tail(r);
    if (g.blocks > pool().num_available()) {
      bool const in_place = g.tail == Tail::copy_or_unpublish;
      if (!in_place || g.blocks - 1 > pool().num_available()) return false;
      mutable_stock().make_writable(tail);
    } else if (g.copies()) {
      rows_.copy_tail(r);
    } else if (g.tail == Tail::leave_ring) {
      mutable_stock().leave_ring(tail);
    }
    return true;
  }
  /// Whether an untaken copy fills the block of the first position that isn't committed.
  bool fills_later(std::int32_t r) const noexcept {
    SequenceState const& s = state(r);
    if (shape().offset(s.committed) == 0) return false;
    return stock().is_copy_target(sequences().columns(r)[shape().block(s.committed)]);
  }
  /// Blocks with final positions are no longer new, reported or not: zeroing would destroy them.
  PAGEDKV_NEVER_INLINE void mark_written(std::int32_t r, std::int32_t n) noexcept {
    auto const first = static_cast<std::size_t>(shape().block(state(r).committed));
    auto const end = static_cast<std::size_t>(shape().blocks(n));
    mutable_stock().pool().new_blocks().forget(row(r).subspan(first, end - first));
  }
  [[nodiscard]] bool may_publish(SequenceState const& s) const noexcept {
    return s.publishes && s.epoch == epoch_;
  }
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A running request's blocks. `cache.open` and `fork` make it; its destructor gives them back.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/fwd.hpp>
#include <pagedkv/manage/detail/cache_core.hpp>
#include <pagedkv/manage/detail/verify.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Move-only handle. Positions `0 .. size() - 1` have slots; those below `committed()` are final.
/// Always: `num_blocks() == blocks_for(size(), block_tokens)`.
///
/// A failed verb changes nothing. A moved-from handle may only be destroyed, assigned to or asked
/// `is_open()`. Thread-safety: a handle belongs to its cache's writer. Must not outlive the cache.
template <class Policy>
class BasicSequence {
  using Core = detail::CacheCore<Policy>;

 public:
  BasicSequence(BasicSequence&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), row_(other.row_) {}
  BasicSequence& operator=(BasicSequence&& other) noexcept {
    if (this != &other) {
      release(Reuse::likely);
      core_ = std::exchange(other.core_, nullptr);
      row_ = other.row_;
    }
    return *this;
  }
  BasicSequence(BasicSequence const&) = delete;  ///< say `fork(id)`: it can fail
  BasicSequence& operator=(BasicSequence const&) = delete;
  /// Gives the blocks back, deepest first; published ones stay findable. O(blocks).
  ~BasicSequence() { release(Reuse::likely); }

  /// False once moved from or finished.
  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }
  [[nodiscard]] SequenceId id() const { return SequenceId{state().id}; }
  /// Positions, known or reserved.
  [[nodiscard]] std::int32_t size() const { return state().size; }
  /// Leading positions that are final.
  [[nodiscard]] std::int32_t committed() const { return state().committed; }
  /// Tokens found when it was opened (a fork: what it took over).
  [[nodiscard]] std::int32_t cached() const { return state().cached; }
  /// Positions after `cached()` that were announced as computed elsewhere.
  [[nodiscard]] std::int32_t external_tokens() const { return state().external; }
  [[nodiscard]] std::int32_t num_blocks() const { return state().num_blocks; }
  /// The block table: `[num_blocks()]`. Valid until the next non-const call on the cache or any of
  /// its handles.
  [[nodiscard]] std::span<BlockId const> blocks() const { return core().row(row_); }
  /// The id at a position, `unknown_token` where none is set. Requires: position < size().
  [[nodiscard]] TokenId token(std::int32_t position) const {
    PAGEDKV_ASSERT(position >= 0 && position < size(), "token: the position must exist");
    return core().token(row_, position);
  }

  /// n more positions without ids (lookahead, or ids that are still being computed).
  /// Effects: new blocks; may evict idle ones; may plan a copy of a shared or published tail.
  /// Returns the new positions. Errors: never_fits,
  /// no_free_blocks. Complexity: O(new blocks).
  Result<TokenRange> reserve(std::int32_t n) { return checked(core().reserve(row_, n)); }
  /// Names the tokens of reserved positions. Requires: first >= committed(), all below size().
  void set_tokens(std::int32_t first, std::span<TokenId const> ids) {
    core().set_tokens(row_, first, ids);
    detail::check(*core_);
  }
  /// `reserve` and `set_tokens` in one.
  Result<TokenRange> append(std::span<TokenId const> ids) {
    return checked(core().append(row_, ids));
  }
  /// Whether `reserve(n)` would succeed now. The same formula. O(1).
  [[nodiscard]] bool would_fit(std::int32_t n) const { return core().would_fit(row_, n); }
  /// Blocks that `reserve(n)` takes: new ones, and one for a copy.
  [[nodiscard]] std::int32_t blocks_needed(std::int32_t n) const {
    return core().blocks_needed(row_, n);
  }

  /// Writes the slots of `range` to `out`, [range.count], elements. Requires: the range exists and
  /// fits `out`. O(range).
  void slot_mapping(TokenRange range, std::span<Slot> out) const {
    PAGEDKV_ASSERT(range.first >= 0 && range.count >= 0 && range.first <= size() - range.count,
                   "slot_mapping: the positions must exist");
    PAGEDKV_ASSERT(out.size() >= static_cast<std::size_t>(range.count),
                   "slot_mapping: out must hold range.count slots");
    write_slots(core().shape(), core().row(row_), range, out.data());
  }

  /// Positions below n are final: their ids are known, drafts among them accepted, their K and V
  /// enqueued. Full blocks below n become findable; a block whose content is findable already
  /// becomes a twin. No effect for n <= committed(). Requires: n <= size(), ids known, copies
  /// taken. Complexity: O(new full blocks).
  void commit(std::int32_t n) {
    core().commit(row_, n);
    detail::check(*core_);
  }
  /// Forgets positions from n on. n may lie below `committed()`. Whole blocks after n are
  /// released, published ones stay findable; a published block cut in the middle is copied at the
  /// next write. Requires: n <= size(). Complexity: O(dropped blocks).
  void truncate(std::int32_t n) {
    core().truncate(row_, n);
    detail::check(*core_);
  }
  /// A second sequence with the same content that shares every block. The first divergent append of
  /// either copies the tail block only. Errors: uncommitted (`committed() != size()`),
  /// no_free_sequences. Complexity: O(blocks), about a nanosecond each.
  Result<BasicSequence> fork(SequenceId id) {
    auto const child = checked(core().fork(row_, id));
    if (!child) return Unexpected{child.error()};
    return Result<BasicSequence>{BasicSequence{core_, *child}};
  }
  /// Steps up to `tick` use the sequence without a `Batch` (which says so itself): what it gives
  /// back isn't written over before they are over. Requires: tick <= the cache's open tick. O(1).
  void used_by(Tick tick) {
    PAGEDKV_ASSERT(tick.value() <= core().pool().open_tick(),
                   "used_by: the step isn't open yet; say it when it is");
    core().use(row_, tick.value());
  }
  /// Releases with a hint about what comes next. O(blocks).
  void finish(Reuse reuse) && { release(reuse); }

  /// Blocks that no other row references: what releasing this sequence gives back. O(runs).
  [[nodiscard]] std::int32_t unshared_blocks() const { return core().unshared_blocks(row_); }
  /// Tokens in those blocks: what preempting this sequence costs at most. O(runs).
  [[nodiscard]] std::int32_t unshared_tokens() const { return core().unshared_tokens(row_); }

 private:
  friend class BasicKvCache<Policy>;
  friend class BasicBatch<Policy>;

  BasicSequence(Core* core, std::int32_t row) noexcept : core_(core), row_(row) {}

  Core& core() const {
    PAGEDKV_ASSERT(core_ != nullptr, "the sequence was moved from or finished");
    return *core_;
  }
  detail::SequenceState const& state() const { return core().state(row_); }
  template <class T>
  Result<T> checked(Result<T> const& result) const {
    detail::check(*core_);
    return result;
  }
  void release(Reuse reuse) {
    if (core_ == nullptr) return;
    core_->close(row_, reuse);
    detail::check(*std::exchange(core_, nullptr));
  }

  Core* core_;
  std::int32_t row_;
};

/// Holds what was cached of a prefix when it was made: pinned blocks count as used and are never
/// evicted. Move-only; releases at destruction. Must not outlive the cache.
template <class Policy>
class BasicPin {
  using Core = detail::CacheCore<Policy>;

 public:
  BasicPin(BasicPin&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), place_(other.place_) {}
  BasicPin& operator=(BasicPin&& other) noexcept {
    if (this != &other) {
      release();
      core_ = std::exchange(other.core_, nullptr);
      place_ = other.place_;
    }
    return *this;
  }
  BasicPin(BasicPin const&) = delete;
  BasicPin& operator=(BasicPin const&) = delete;
  ~BasicPin() { release(); }

  /// Tokens held: full blocks only, the one with the last token included.
  [[nodiscard]] std::int32_t num_tokens() const noexcept {
    return static_cast<std::int32_t>(blocks().size()) * core_->shape().tokens();
  }
  [[nodiscard]] std::span<BlockId const> blocks() const noexcept {
    return core_->pins().blocks(place_);
  }

 private:
  friend class BasicKvCache<Policy>;

  BasicPin(Core* core, std::int32_t place) noexcept : core_(core), place_(place) {}
  void release() {
    if (core_ == nullptr) return;
    core_->unpin(place_);
    detail::check(*std::exchange(core_, nullptr));
  }

  Core* core_;
  std::int32_t place_;
};

PAGEDKV_NAMESPACE_END

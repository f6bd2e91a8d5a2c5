// SPDX-License-Identifier: Apache-2.0
/// \file
/// The copies that the data plane must run before the step's writes (contract 8). Planned copies
/// wait to be taken; taken ones are remembered until their step has ended (deferred: its tick
/// reclaimed), because both ends are held that long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <oracle/detail/lazy_array.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// A destination is a freshly allocated block and is held until its copy is over, so that each
/// block is the destination of one copy at most: every table has `num_blocks` places. Holds are the
/// caller's: `add` asks for two, `drop` and `release` say which end.
class CopyPlan {
 public:
  explicit CopyPlan(std::int32_t num_blocks)
      : pending_(static_cast<std::size_t>(num_blocks)),
        place_(static_cast<std::size_t>(num_blocks)),
        handed_out_(static_cast<std::size_t>(num_blocks)),
        taken_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] std::int32_t num_pending() const noexcept {
    return static_cast<std::int32_t>(num_pending_);
  }
  [[nodiscard]] std::span<BlockCopy const> pending() const noexcept {
    return {pending_.data(), num_pending_};
  }
  /// The untaken copy into `dst`. Requires: there is one.
  [[nodiscard]] BlockCopy const& into(BlockId dst) const noexcept {
    return pending_[static_cast<std::size_t>(place_[at(dst)])];
  }

  /// Requires: `dst` is no end of a pending copy and `src` is the destination of none.
  void add(BlockCopy const& copy) noexcept {
    place_[at(copy.dst)] = num_pending();
    pending_[num_pending_++] = copy;
  }
  /// Forgets the untaken copy into `dst` and returns it. Requires: there is one.
  BlockCopy drop(BlockId dst) noexcept {
    auto const i = static_cast<std::size_t>(place_[at(dst)]);
    BlockCopy const dropped = pending_[i];
    pending_[i] = pending_[--num_pending_];
    place_[at(pending_[i].dst)] = static_cast<std::int32_t>(i);
    return dropped;
  }
  /// Hands out each pending copy, stamped with the open step. Valid until the next `take`.
  std::span<BlockCopy const> take(std::uint64_t tick) noexcept {
    std::copy_n(pending_.data(), num_pending_, handed_out_.data());
    for (std::size_t i = 0; i < num_pending_; ++i) {
      taken_[(first_taken_ + num_taken_++) % taken_.size()] = {pending_[i].src, pending_[i].dst,
                                                               tick};
    }
    return {handed_out_.data(), std::exchange(num_pending_, 0)};
  }
  /// Calls `unhold(block)` for both ends of every copy taken in a step up to `tick`, oldest first.
  template <class Unhold>
  void release(std::uint64_t tick, Unhold&& unhold) {
    while (num_taken_ > 0 && taken_[first_taken_].tick <= tick) {
      Taken const done = taken_[first_taken_];
      first_taken_ = (first_taken_ + 1) % taken_.size();
      --num_taken_;
      unhold(done.src);
      unhold(done.dst);
    }
  }
  /// Calls `visit(block)` for both ends of every taken copy that is still held.
  template <class Visit>
  void for_each_taken_end(Visit&& visit) const {
    for (std::size_t i = 0; i < num_taken_; ++i) {
      Taken const& t = taken_[(first_taken_ + i) % taken_.size()];
      visit(t.src);
      visit(t.dst);
    }
  }

 private:
  struct Taken {
    BlockId src;
    BlockId dst;
    std::uint64_t tick;
  };
  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }

  detail::LazyArray<BlockCopy> pending_;
  detail::LazyArray<std::int32_t> place_;
  detail::LazyArray<BlockCopy> handed_out_;
  detail::LazyArray<Taken> taken_;
  std::size_t num_pending_ = 0;
  std::size_t first_taken_ = 0;
  std::size_t num_taken_ = 0;
};

PAGEDKV_ORACLE_END

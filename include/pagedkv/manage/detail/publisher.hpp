// SPDX-License-Identifier: Apache-2.0
/// \file
/// From final positions to findable blocks: run by run, one look-up for each. What isn't found is
/// new, and so is all that follows it; what is found is a twin for as long as the tokens agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/manage/detail/block_stock.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// A view of one row, made per call. `release(run)` gives back a run of the row.
template <class Policy, class Release>
class Publisher {
  using Stock = BlockStock<Policy>;

 public:
  Publisher(Stock& stock, SequenceTable& rows, std::int32_t r, bool adopts, Release release)
      : stock_(stock),
        state_(rows.state(r)),
        row_(rows.columns(r)),
        keys_(rows.extra(r).get()),
        adopts_(adopts),
        release_(release) {}

  /// Deals with the full blocks below column `end`. A row publishes nothing after a block that
  /// can't be found. O(new full blocks).
  void publish(std::int32_t end) {
    std::int32_t j = std::exchange(state_.published_blocks, end);
    RunId parent = j == 0 ? -1 : stock_.content_ending_with(row_[j - 1]);
    if (parent >= 0 && !stock_.may_be_followed(parent)) return;
    while (j < end) {
      RunId const own = stock_.beginning_with(row_[j]);
      Run const& run = stock_.runs()[own];
      auto const extra = keys_ != nullptr ? keys_->block(j) : std::span<std::byte const>{};
      std::int32_t const next_keyed = keys_ != nullptr ? keys_->next_keyed(j + 1, end) : end;
      std::int32_t n = std::min(run.length, next_keyed - j);
      TokenId const* const tokens = stock_.runs().tokens(run.start);
      RunId const found = stock_.index().find(parent, tokens, extra);
      if (found < 0) {
        parent = stock_.publish(own, parent, n, extra);
      } else {
        n = std::min(n, stock_.runs()[found].length);
        n = stock_.index().common_blocks(found, tokens, n);
        parent = meet(j, own, found, n);
      }
      j += n;
    }
  }

 private:
  /// The first n blocks of `own`, at column j, are twins of those of `found`. Returns the run that
  /// bears their content afterwards.
  PAGEDKV_NEVER_INLINE RunId meet(std::int32_t j, RunId own, RunId found, std::int32_t n) {
    if (n < stock_.runs()[found].length) found = stock_.split(found, n);
    if (n < stock_.runs()[own].length) own = stock_.split(own, n);
    stock_.stats().twin_blocks += static_cast<std::uint64_t>(n);
    if (stock_.runs()[found].references == 0) {
      stock_.succeed(found, own);
    } else if (adopts_) {
      adopt(j, own, found);
    } else {
      stock_.join_rings(found, own);
    }
    return found;
  }
  void adopt(std::int32_t j, RunId own, RunId found) {
    auto const blocks = stock_.runs().blocks(found);
    stock_.pool().share(found);
    std::copy(blocks.begin(), blocks.end(), row_ + j);
    state_.first_changed = std::min(state_.first_changed, j);
    stock_.stats().adopted_blocks += blocks.size();
    release_(own);
  }

  Stock& stock_;
  SequenceState& state_;
  BlockId* row_;
  ExtraKeyTable const* keys_;
  bool adopts_;
  Release release_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The token ids of a row: written to the places of its blocks, and which of them are known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <pagedkv/detail/block_shape.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// A view, made per call.
class SequenceIds {
 public:
  SequenceIds(RunTable& runs, BlockShape shape, BlockId const* row, SequenceState& state) noexcept
      : runs_(runs), shape_(shape), row_(row), state_(state) {}

  /// Positions from `first` on get these ids. Requires: they exist, and are its own to write.
  void set(std::int32_t first, std::span<TokenId const> ids) {
    write(first, ids);
    state_.note_ids(first, first + static_cast<std::int32_t>(ids.size()));
  }
  PAGEDKV_ALWAYS_INLINE void write(std::int32_t first, std::span<TokenId const> ids) {
    TokenId const* from = ids.data();
    for_each_stretch(first, static_cast<std::int32_t>(ids.size()),
                     [&](TokenId* to, std::size_t count) {
                       std::memcpy(to, from, count * sizeof(TokenId));
                       from += count;
                     });
  }
  /// Ids from `first` on aren't known.
  void forget(std::int32_t first) {
    for_each_stretch(first, std::max(0, state_.size - first),
                     [](TokenId* to, std::size_t count) { std::fill_n(to, count, unknown_token); });
  }
  /// Leading positions with known ids, looking no further than `n`. O(1) unless ids came in
  /// disorder.
  [[nodiscard]] std::int32_t known(std::int32_t n) noexcept {
    while (state_.known < n && at(state_.known) != unknown_token) ++state_.known;
    return state_.known;
  }

 private:
  TokenId at(std::int32_t position) const noexcept {
    return runs_.tokens(runs_.place(row_[shape_.block(position)]))[shape_.offset(position)];
  }

  /// Calls `visit(ids, count)` for the positions, once for all that lie side by side.
  template <class Visit>
  PAGEDKV_ALWAYS_INLINE void for_each_stretch(std::int32_t first, std::int32_t count,
                                              Visit&& visit) {
    if (count == 0) return;
    do {
      std::int32_t const j = shape_.block(first);
      std::int32_t const offset = shape_.offset(first);
      std::int32_t const place = runs_.place(row_[j]);
      std::int32_t room = shape_.tokens() - offset;
      if (count > room) {
        Run const& run = runs_[runs_.run_of(row_[j])];
        room += (run.end() - 1 - place) * shape_.tokens();
      }
      std::int32_t const n = std::min(count, room);
      visit(runs_.tokens(place) + offset, static_cast<std::size_t>(n));
      first += n;
      count -= n;
    } while (count > 0);
  }

  RunTable& runs_;
  BlockShape shape_;
  BlockId const* row_;
  SequenceState& state_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

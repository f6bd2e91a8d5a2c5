// SPDX-License-Identifier: Apache-2.0
/// \file
/// The rows that handles name: what a sequence is, beside its blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <pagedkv/manage/block_table.hpp>
#include <pagedkv/manage/detail/place_arena.hpp>
#include <pagedkv/manage/prompt_key.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// 64 bytes, one per row. A pin uses `num_blocks` alone.
struct SequenceState {
  static constexpr std::int32_t unchanged = INT32_MAX;

  std::int32_t size = 0;
  std::int32_t committed = 0;
  std::int32_t num_blocks = 0;
  std::int32_t published_blocks = 0;  ///< leading blocks that commit has dealt with
  std::int32_t known = 0;             ///< leading positions whose ids are known, at least
  std::int32_t cached = 0;
  std::int32_t external = 0;
  std::int32_t first_changed = 0;  ///< lowest column that a Batch hasn't seen; `unchanged`: none
  std::uint64_t used_tick = 0;     ///< the last step that uses it, as far as is known
  std::uint64_t id = 0;
  std::uint32_t epoch = 0;
  std::uint32_t generation = 0;  ///< of the row: odd while a handle is alive
  bool publishes = false;
  bool left_children = false;  ///< a published block that follows the row may still exist
  /// The place of the last block while it has room, if it is known that only this sequence has it;
  /// else 0 (in a full block it means nothing). Spares the common append three dependent cache
  /// misses (the row, the block's place, its run).
  std::int32_t writable_tail = 0;

  /// Positions from `first` up to `end` have their ids now.
  void note_ids(std::int32_t first, std::int32_t end) noexcept {
    if (first <= known) known = std::max(known, end);
  }
};
static_assert(sizeof(SequenceState) == 64);

/// A fixed number of rows, each with a state, a block table row and, where a prompt has extra keys,
/// a reference to them.
class SequenceTable {
 public:
  SequenceTable(std::int32_t num_rows, std::int32_t width)
      : tables_(num_rows, width),
        states_(static_cast<std::size_t>(num_rows)),
        rooms_(static_cast<std::size_t>(num_rows)),
        extra_(static_cast<std::size_t>(num_rows)) {
    free_.reserve(states_.size());
    for (std::int32_t r = num_rows; r-- > 0;) free_.push_back(r);
  }

  [[nodiscard]] std::int32_t num_rows() const noexcept {
    return static_cast<std::int32_t>(states_.size());
  }
  [[nodiscard]] std::int32_t width() const noexcept { return tables_.width(); }
  [[nodiscard]] bool full() const noexcept { return free_.empty(); }
  [[nodiscard]] std::int32_t num_alive() const noexcept {
    return static_cast<std::int32_t>(states_.size() - free_.size());
  }
  /// How often a row was given back: rises whenever a handle goes.
  [[nodiscard]] std::uint64_t num_ended() const noexcept { return num_ended_; }
  [[nodiscard]] bool is_alive(std::int32_t r) const noexcept {
    return state(r).generation % 2 != 0;
  }

  [[nodiscard]] SequenceState& state(std::int32_t r) noexcept { return states_[at(r)]; }
  [[nodiscard]] SequenceState const& state(std::int32_t r) const noexcept { return states_[at(r)]; }
  /// The row's columns, [width()].
  [[nodiscard]] BlockId* columns(std::int32_t r) noexcept { return tables_.row(r); }
  [[nodiscard]] BlockId const* columns(std::int32_t r) const noexcept { return tables_.row(r); }
  /// Those in use.
  [[nodiscard]] std::span<BlockId const> blocks(std::int32_t r) const noexcept {
    return {tables_.row(r), static_cast<std::size_t>(state(r).num_blocks)};
  }
  [[nodiscard]] BlockId tail(std::int32_t r) const noexcept {
    return tables_.row(r)[state(r).num_blocks - 1];
  }
  /// Free places that the row keeps after its last block.
  [[nodiscard]] Extent& room(std::int32_t r) noexcept { return rooms_[at(r)]; }
  [[nodiscard]] Extent const& room(std::int32_t r) const noexcept { return rooms_[at(r)]; }
  [[nodiscard]] std::shared_ptr<ExtraKeyTable const>& extra(std::int32_t r) noexcept {
    return extra_[at(r)];
  }

  /// A fresh state. Requires: not full.
  std::int32_t start() noexcept {
    std::int32_t const r = free_.back();
    free_.pop_back();
    SequenceState& s = state(r);
    std::uint32_t const generation = s.generation + 1;
    s = {};
    s.generation = generation;
    return r;
  }
  PAGEDKV_ALWAYS_INLINE void end(std::int32_t r) noexcept {
    SequenceState& s = state(r);
    ++s.generation;
    s.num_blocks = 0;
    if (extra_[at(r)] != nullptr) extra_[at(r)].reset();
    free_.push_back(r);
    ++num_ended_;
  }

 private:
  static std::size_t at(std::int32_t r) noexcept { return static_cast<std::size_t>(r); }

  BlockTables tables_;
  std::vector<SequenceState> states_;
  std::vector<Extent> rooms_;
  std::vector<std::shared_ptr<ExtraKeyTable const>> extra_;
  std::vector<std::int32_t> free_;
  std::uint64_t num_ended_ = 0;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

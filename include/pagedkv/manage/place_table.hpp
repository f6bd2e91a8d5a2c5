// SPDX-License-Identifier: Apache-2.0
/// \file
/// Places: where blocks lie on the host. A place holds a block's number and its token ids; the
/// blocks of one run have neighbouring places. Their numbers are arbitrary:
///
///     places   | 7 8 9 10 11 | 12 13 |  ...
///     blocks   | 4 0 9  2  6 |  5  1 |           any numbers: what the pool had to give
///     runs     |   run 3     | run 8 |
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/detail/place_arena.hpp>
#include <pagedkv/manage/run.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Which block lies at which place, in which run. One writer; const calls may run together.
class PlaceTable {
 public:
  /// Places that a sequence takes beyond its need, so that its run grows where it is. Odd, so that
  /// equal columns of equally long sequences don't fall into the same few sets of the cache.
  static constexpr std::int32_t growth_room = 17;

  /// Places for that many blocks and rooms, and a quarter more, so that extents stay long.
  [[nodiscard]] static constexpr std::int64_t num_places(std::int32_t num_blocks,
                                                         std::int32_t num_rooms) noexcept {
    std::int64_t const needed =
        std::int64_t{num_blocks} + std::int64_t{num_rooms} * growth_room + 64;
    return std::min<std::int64_t>(needed + num_blocks / 4, INT32_MAX - 1);
  }

  /// `num_rooms`: sequences that may have room to grow. Requires: they fit `num_places` below 2^31.
  PlaceTable(std::int32_t num_blocks, std::int32_t block_tokens, std::int32_t num_rooms)
      : block_tokens_(static_cast<std::size_t>(block_tokens)),
        arena_(static_cast<std::int32_t>(num_places(num_blocks, num_rooms))),
        where_(static_cast<std::size_t>(num_blocks), "num_blocks"),
        ids_(at(arena_.end())),
        tokens_(at(arena_.end()) * block_tokens_, "num_blocks"),
        starts_(at(arena_.end()) / 64 + 1) {}

  [[nodiscard]] std::int32_t num_blocks() const noexcept {
    return static_cast<std::int32_t>(where_.size());
  }
  [[nodiscard]] detail::PlaceArena const& arena() const noexcept { return arena_; }
  [[nodiscard]] BlockId block_at(std::int32_t place) const noexcept { return ids_[at(place)]; }
  /// The token ids of the block at a place, [block_tokens]; those of the next place follow.
  [[nodiscard]] TokenId* tokens(std::int32_t place) noexcept {
    return &tokens_[at(place) * block_tokens_];
  }
  [[nodiscard]] TokenId const* tokens(std::int32_t place) const noexcept {
    return &tokens_[at(place) * block_tokens_];
  }

  /// Where a block lies. Requires: it is in a run.
  [[nodiscard]] std::int32_t place(BlockId b) const noexcept { return where_[at(b)].place; }
  /// Rises whenever published content leaves the block.
  [[nodiscard]] std::uint32_t generation(BlockId b) const noexcept {
    return where_[at(b)].generation;
  }
  void raise_generation(BlockId b) noexcept { ++where_[at(b)].generation; }
  /// The run of a block that is its first or its last.
  [[nodiscard]] RunId run_at_edge(BlockId b) const noexcept { return where_[at(b)].run; }
  /// The run of any block, or -1. O(run / 64).
  [[nodiscard]] RunId run_of(BlockId b) const noexcept {
    std::int32_t const place = where_[at(b)].place;
    if (place == 0 || ids_[at(place)] != b) return -1;
    std::size_t word = at(place) / 64;
    std::uint64_t bits = starts_[word] & ~std::uint64_t{0} >> (63 - at(place) % 64);
    while (bits == 0) bits = starts_[--word];
    std::size_t const start = word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits));
    return where_[at(ids_[start])].run;
  }
  /// Whether a run begins there.
  [[nodiscard]] bool is_start(std::int32_t place) const noexcept {
    return (starts_[at(place) / 64] >> (at(place) % 64) & 1) != 0;
  }
  void prefetch_where(BlockId b) const noexcept { detail::prefetch_write(&where_[at(b)]); }

 protected:
  /// `run` is right for the first and the last block of a run. Place 0: in no run yet.
  struct Where {
    std::int32_t place;
    RunId run;
    std::uint32_t generation;
  };

  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }
  static std::size_t at(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }
  void flip_start(std::int32_t place) noexcept {
    starts_[at(place) / 64] ^= std::uint64_t{1} << (at(place) % 64);
  }

  std::size_t block_tokens_;
  detail::PlaceArena arena_;
  detail::LazyArray<Where> where_;
  detail::LazyArray<BlockId> ids_;
  detail::LazyArray<TokenId> tokens_;
  detail::LazyArray<std::uint64_t> starts_;
};

PAGEDKV_NAMESPACE_END

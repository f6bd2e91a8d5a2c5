// SPDX-License-Identifier: Apache-2.0
/// \file
/// The words of the library as types. See docs/concepts.md for what each one means.
#pragma once

#include <cstdint>
#include <type_traits>

#include <pagedkv/detail/strong_id.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// A token id. Any value is a token except `unknown_token`.
using TokenId = std::int32_t;

/// Stands where a position is reserved and its token isn't known yet.
inline constexpr TokenId unknown_token = INT32_MIN;

/// `block * block_tokens + offset`. `padding_slot` is skipped by every kernel.
using Slot = std::int64_t;
inline constexpr Slot padding_slot = -1;

/// A block of the pool: dense, 0-based. Null is -1, and never stands in a block table.
using BlockId = detail::StrongId<struct BlockIdTag, std::int32_t>;
/// The caller's label of a sequence: it stands in events and logs and is never looked up.
using SequenceId = detail::StrongId<struct SequenceIdTag, std::uint64_t>;
/// Layers with one kind of attention. One group (0) today; index keys carry it from day one.
using GroupId = detail::StrongId<struct GroupIdTag, std::uint32_t>;
/// The number of a step. The first open step of a cache is tick 1.
using Tick = detail::StrongId<struct TickTag, std::uint64_t>;

/// Positions `first .. first + count - 1` of a sequence.
struct TokenRange {
  std::int32_t first = 0;
  std::int32_t count = 0;

  [[nodiscard]] constexpr std::int32_t end() const noexcept { return first + count; }
  [[nodiscard]] constexpr bool empty() const noexcept { return count == 0; }
  friend constexpr bool operator==(TokenRange const&, TokenRange const&) noexcept = default;
};

/// Copy the first `num_tokens` positions of block `src`, all layers, K, V and scales, into `dst`.
struct BlockCopy {
  BlockId src;
  BlockId dst;
  std::int32_t num_tokens = 0;

  friend constexpr bool operator==(BlockCopy const&, BlockCopy const&) noexcept = default;
};

/// Blocks needed by `tokens` positions. Exact for every non-negative int32.
[[nodiscard]] constexpr std::int32_t blocks_for(std::int32_t tokens,
                                                std::int32_t block_tokens) noexcept {
  return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
}

static_assert(std::is_trivially_copyable_v<BlockId> && std::is_trivially_copyable_v<BlockCopy>);

PAGEDKV_NAMESPACE_END

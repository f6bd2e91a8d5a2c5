// SPDX-License-Identifier: Apache-2.0
/// \file
/// What more positions take: the one formula of `would_fit`, `blocks_needed` and `reserve`
/// (contract 3).
#pragma once

#include <algorithm>
#include <cstdint>

#include <pagedkv/detail/block_shape.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// What must happen to a block that has room before its owner writes into it (contract 7).
enum class Tail : std::uint8_t {
  write,              ///< nothing: only its owner has it
  leave_ring,         ///< it is a twin
  copy,               ///< others have it, or a step in flight reads it
  copy_or_unpublish,  ///< it is published; no other row has it
};

struct Growth {
  std::int32_t blocks = 0;  ///< new ones and the copy
  Tail tail = Tail::write;

  [[nodiscard]] bool copies() const noexcept {
    return tail == Tail::copy || tail == Tail::copy_or_unpublish;
  }
};

/// `n` positions more than `s` has. `tail_of()` says what its last block needs; asked only where
/// that block has room.
template <class TailOf>
[[nodiscard]] Growth growth(BlockShape shape, SequenceState const& s, std::int32_t n,
                            TailOf&& tail_of) {
  n = std::min(n, INT32_MAX - s.size);
  Growth g{shape.blocks(s.size + n) - s.num_blocks, Tail::write};
  if (n == 0 || shape.offset(s.size) == 0) return g;
  g.tail = tail_of();
  if (g.copies()) ++g.blocks;
  return g;
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

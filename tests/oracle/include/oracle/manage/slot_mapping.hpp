// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where each position's K and V go: slot = block * block_tokens + offset, 64 bit throughout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <oracle/detail/block_shape.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// Calls `piece(block, offset, count)` for each block that `range` touches, in order.
/// `row`: the block table, [blocks_for(size)]. Requires: the row covers the range. O(blocks).
template <class Piece>
void for_each_piece(detail::BlockShape shape, std::span<BlockId const> row, TokenRange range,
                    Piece&& piece) {
  std::int32_t column = shape.block(range.first);
  std::int32_t offset = shape.offset(range.first);
  for (std::int32_t left = range.count; left > 0; ++column, offset = 0) {
    std::int32_t const count = std::min(left, shape.tokens() - offset);
    piece(row[static_cast<std::size_t>(column)], offset, count);
    left -= count;
  }
}

/// Writes the slots of `range` to `out`, [range.count]. O(range).
inline void write_slots(detail::BlockShape shape, std::span<BlockId const> row, TokenRange range,
                        Slot* out) {
  for_each_piece(shape, row, range, [&](BlockId b, std::int32_t offset, std::int32_t count) {
    Slot const first = Slot{b.value()} * shape.tokens() + offset;
    for (std::int32_t i = 0; i < count; ++i) *out++ = first + i;
  });
}

PAGEDKV_ORACLE_END

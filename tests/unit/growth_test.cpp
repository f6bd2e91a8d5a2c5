// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/growth.hpp>

#include <cstdint>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::detail::BlockShape;
using kv::detail::Growth;
using kv::detail::SequenceState;
using kv::detail::Tail;

namespace {

struct Row {
  char const* name;
  std::int32_t size;
  std::int32_t more;
  Tail tail;  ///< what its last block would say
  std::int32_t blocks;
  Tail expected;
  bool asks;  ///< whether the last block is asked at all
};

constexpr Row table[] = {
    {"nothing, of nothing", 0, 0, Tail::copy, 0, Tail::write, false},
    {"the first position", 0, 1, Tail::copy, 1, Tail::write, false},
    {"a whole block", 0, 4, Tail::copy, 1, Tail::write, false},
    {"one more than a block", 0, 5, Tail::copy, 2, Tail::write, false},
    {"after a full block", 8, 1, Tail::copy, 1, Tail::write, false},
    {"nothing, after a full block", 8, 0, Tail::copy, 0, Tail::write, false},
    {"nothing, after a block with room", 5, 0, Tail::copy, 0, Tail::write, false},
    {"into a block of one's own", 5, 1, Tail::write, 0, Tail::write, true},
    {"up to its end", 5, 3, Tail::write, 0, Tail::write, true},
    {"beyond its end", 5, 4, Tail::write, 1, Tail::write, true},
    {"into a twin", 5, 1, Tail::leave_ring, 0, Tail::leave_ring, true},
    {"beyond a twin", 7, 6, Tail::leave_ring, 2, Tail::leave_ring, true},
    {"into a shared block", 5, 1, Tail::copy, 1, Tail::copy, true},
    {"beyond a shared block", 5, 8, Tail::copy, 3, Tail::copy, true},
    {"into a published block", 6, 1, Tail::copy_or_unpublish, 1, Tail::copy_or_unpublish, true},
    {"beyond a published block", 6, 3, Tail::copy_or_unpublish, 2, Tail::copy_or_unpublish, true},
};

}  // namespace

TEST_CASE("growth: what more positions take") {
  BlockShape const shape(4);
  for (Row const& row : table) {
    CAPTURE(row.name);
    SequenceState s;
    s.size = row.size;
    s.num_blocks = shape.blocks(row.size);
    int asked = 0;
    Growth const g = growth(shape, s, row.more, [&] {
      ++asked;
      return row.tail;
    });
    CHECK(g.blocks == row.blocks);
    CHECK(g.tail == row.expected);
    CHECK(asked == (row.asks ? 1 : 0));
  }
}

TEST_CASE("growth: it copies where the tail is copied, for want of blocks or not") {
  CHECK_FALSE(Growth{1, Tail::write}.copies());
  CHECK_FALSE(Growth{1, Tail::leave_ring}.copies());
  CHECK(Growth{1, Tail::copy}.copies());
  CHECK(Growth{1, Tail::copy_or_unpublish}.copies());
}

TEST_CASE("growth: more positions than there are numbers take what the largest number takes") {
  auto const block_tokens = GENERATE(1, 3, 4, 16, 65536);
  CAPTURE(block_tokens);
  BlockShape const shape(block_tokens);
  SequenceState s;
  s.size = 7;
  s.num_blocks = shape.blocks(7);
  Growth const g = growth(shape, s, INT32_MAX, [] { return Tail::write; });
  CHECK(g.blocks == shape.blocks(INT32_MAX) - s.num_blocks);
}

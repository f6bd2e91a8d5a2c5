// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/slot_mapping.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::Slot;
using kv::TokenRange;
using kv::detail::BlockShape;

namespace {

std::vector<BlockId> const row{BlockId{7}, BlockId{0}, BlockId{3}};

std::vector<Slot> slots(std::int32_t block_tokens, std::vector<BlockId> const& blocks,
                        TokenRange range) {
  // One more than needed: nothing is written after the range.
  std::vector<Slot> out(static_cast<std::size_t>(range.count) + 1, -99);
  kv::write_slots(BlockShape(block_tokens), blocks, range, out.data());
  CHECK(out.back() == -99);
  out.pop_back();
  return out;
}

struct Piece {
  std::int32_t block, offset, count;
  bool operator==(Piece const&) const = default;
};
std::vector<Piece> pieces(std::int32_t block_tokens, TokenRange range) {
  std::vector<Piece> out;
  kv::for_each_piece(BlockShape(block_tokens), row, range,
                     [&](BlockId b, std::int32_t offset, std::int32_t count) {
                       out.push_back({b.value(), offset, count});
                     });
  return out;
}

}  // namespace

TEST_CASE("slot mapping: block times block_tokens plus offset") {
  CHECK(slots(4, row, {0, 12}) == std::vector<Slot>{28, 29, 30, 31, 0, 1, 2, 3, 12, 13, 14, 15});
  CHECK(slots(4, row, {3, 2}) == std::vector<Slot>{31, 0});
  CHECK(slots(4, row, {9, 1}) == std::vector<Slot>{13});
  CHECK(slots(4, row, {4, 0}).empty());
  CHECK(slots(4, row, {12, 0}).empty());  // at the end of the row: nothing is read
  CHECK(slots(3, row, {2, 5}) == std::vector<Slot>{23, 0, 1, 2, 9});
  CHECK(slots(1, row, {1, 2}) == std::vector<Slot>{0, 3});
}

TEST_CASE("slot mapping: 64 bit where blocks times tokens pass 32") {
  std::vector<BlockId> const far{BlockId{std::numeric_limits<std::int32_t>::max() - 2}};
  CHECK(slots(256, far, {255, 1}) == std::vector<Slot>{(Slot{1} << 31) * 256 - 3 * 256 + 255});
}

TEST_CASE("pieces: one for each block that the range touches") {
  CHECK(pieces(4, {0, 12}) == std::vector<Piece>{{7, 0, 4}, {0, 0, 4}, {3, 0, 4}});
  CHECK(pieces(4, {2, 7}) == std::vector<Piece>{{7, 2, 2}, {0, 0, 4}, {3, 0, 1}});
  CHECK(pieces(4, {5, 2}) == std::vector<Piece>{{0, 1, 2}});
  CHECK(pieces(4, {4, 4}) == std::vector<Piece>{{0, 0, 4}});
  CHECK(pieces(4, {12, 0}).empty());
}

TEST_CASE("block shape: shifts and divisions agree with blocks_for") {
  for (std::int32_t const n : {1, 2, 3, 4, 5, 16, 24, 100, 128}) {
    BlockShape const shape(n);
    CHECK(shape.tokens() == n);
    for (std::int32_t const p : {0, 1, n - 1, n, n + 1, 1000, std::numeric_limits<int>::max()}) {
      REQUIRE(shape.block(p) == p / n);
      REQUIRE(shape.offset(p) == p % n);
      REQUIRE(shape.blocks(p) == kv::blocks_for(p, n));
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/twin_rings.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::detail::TwinRings;

namespace {

using Blocks = std::vector<BlockId>;
BlockId block(std::int32_t id) { return BlockId{id}; }

/// The twins of a bearer, the oldest first.
Blocks twins(TwinRings const& rings, BlockId bearer) {
  Blocks out;
  for (BlockId b = rings.oldest(bearer); !b.is_null(); b = rings.younger(b)) out.push_back(b);
  return out;
}

}  // namespace

TEST_CASE("twin rings: at first nobody is in one") {
  TwinRings const rings(3);
  CHECK(rings.content(block(0)) == 0);
  CHECK(rings.oldest(block(2)).is_null());
}

TEST_CASE("twin rings: twins join at the end") {
  TwinRings rings(8);
  rings.join(5, block(0), block(3));
  rings.join(5, block(0), block(7));
  rings.join(5, block(0), block(1));
  CHECK(twins(rings, block(0)) == Blocks{block(3), block(7), block(1)});
  for (auto const id : {0, 3, 7, 1}) CHECK(rings.content(block(id)) == 5);
  CHECK(rings.content(block(2)) == 0);
}

TEST_CASE("twin rings: a twin leaves, wherever it is") {
  TwinRings rings(8);
  for (auto const id : {1, 2, 3}) rings.join(9, block(0), block(id));
  auto const leaver = GENERATE(1, 2, 3);
  rings.leave(block(0), block(leaver));
  CHECK(rings.content(block(leaver)) == 0);
  Blocks expected;
  for (auto const id : {1, 2, 3}) {
    if (id != leaver) expected.push_back(block(id));
  }
  CHECK(twins(rings, block(0)) == expected);
  rings.join(9, block(0), block(4));
  expected.push_back(block(4));
  CHECK(twins(rings, block(0)) == expected);
}

TEST_CASE("twin rings: a bearer whose last twin leaves is in no ring") {
  TwinRings rings(4);
  rings.join(9, block(0), block(1));
  rings.leave(block(0), block(1));
  CHECK(rings.content(block(0)) == 0);
  CHECK(twins(rings, block(0)).empty());
  rings.join(2, block(1), block(0));  // the other way round, another content
  CHECK(twins(rings, block(1)) == Blocks{block(0)});
  CHECK(rings.content(block(0)) == 2);
}

TEST_CASE("twin rings: the oldest twin succeeds, and the others are its twins") {
  TwinRings rings(6);
  for (auto const id : {4, 2, 3}) rings.join(9, block(0), block(id));
  rings.succeed(block(0));
  CHECK(rings.content(block(0)) == 0);
  CHECK(rings.content(block(4)) == 9);
  CHECK(twins(rings, block(4)) == Blocks{block(2), block(3)});
  rings.join(9, block(4), block(5));
  CHECK(twins(rings, block(4)) == Blocks{block(2), block(3), block(5)});
  rings.leave(block(4), block(2));
  rings.leave(block(4), block(5));
  rings.succeed(block(4));  // the only one left
  CHECK(rings.content(block(3)) == 0);
  CHECK(twins(rings, block(3)).empty());
}

TEST_CASE("twin rings: in a dissolved ring nobody is a twin") {
  TwinRings rings(6);
  for (auto const id : {1, 2}) rings.join(9, block(0), block(id));
  rings.join(7, block(3), block(4));
  rings.dissolve(block(0));
  for (auto const id : {0, 1, 2}) CHECK(rings.content(block(id)) == 0);
  CHECK(twins(rings, block(0)).empty());
  CHECK(twins(rings, block(3)) == Blocks{block(4)});
  rings.dissolve(block(5));  // one that has no ring
  CHECK(rings.content(block(5)) == 0);
}

TEST_CASE("twin rings: random joins, leaves and successions agree with deques") {
  constexpr std::int32_t n = 30;
  std::mt19937 random(8);
  TwinRings rings(n);
  // By place: the bearer, then its twins. A ring of one is none.
  std::map<std::int32_t, std::deque<BlockId>> model;
  std::map<BlockId, std::int32_t> in;
  auto const leave = [&](BlockId b) { in.erase(b); };
  auto const end_if_alone = [&](std::int32_t place) {
    if (model[place].size() > 1) return;
    for (BlockId const b : model[place]) leave(b);
    model.erase(place);
  };
  for (int step = 0; step < 20000; ++step) {
    auto const pick = static_cast<std::int32_t>(random() % n);
    BlockId const b{pick};
    std::int32_t const place = 1 + static_cast<std::int32_t>(random() % 6);
    bool const has_ring = model.contains(place);
    switch (random() % 8) {
      default:
        if (in.contains(b)) break;
        if (!has_ring) {
          BlockId const bearer{static_cast<std::int32_t>(random() % n)};
          if (bearer == b || in.contains(bearer)) break;
          model[place] = {bearer};
          in[bearer] = place;
        }
        rings.join(place, model[place].front(), b);
        model[place].push_back(b);
        in[b] = place;
        break;
      case 0:
      case 1:
      case 2: {
        if (!in.contains(b) || model[in[b]].front() == b) break;
        auto const content = in[b];
        rings.leave(model[content].front(), b);
        std::erase(model[content], b);
        leave(b);
        end_if_alone(content);
        break;
      }
      case 3:
        if (!has_ring) break;
        rings.succeed(model[place].front());
        leave(model[place].front());
        model[place].pop_front();
        end_if_alone(place);
        break;
      case 4:
        if (!has_ring || random() % 4 != 0) break;
        rings.dissolve(model[place].front());
        for (BlockId const twin : model[place]) leave(twin);
        model.erase(place);
    }
    for (std::int32_t i = 0; i < n; ++i) {
      bool const known = in.contains(BlockId{i});
      REQUIRE(rings.content(BlockId{i}) == (known ? in[BlockId{i}] : 0));
      if (!known) REQUIRE(rings.oldest(BlockId{i}).is_null());
    }
    for (auto const& [content, ring] : model) {
      REQUIRE(twins(rings, ring.front()) == Blocks(ring.begin() + 1, ring.end()));
    }
  }
}

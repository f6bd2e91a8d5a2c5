// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/new_blocks.hpp>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::detail::NewBlocks;

namespace {

using Blocks = std::vector<BlockId>;

Blocks numbered(std::vector<std::int32_t> const& ids) { return Blocks(ids.begin(), ids.end()); }
Blocks take(NewBlocks& blocks) {
  Blocks out;
  blocks.take([&](BlockId b) { out.push_back(b); });
  return out;
}

}  // namespace

TEST_CASE("new blocks: nothing is listed until somebody wants to know") {
  NewBlocks blocks(4);
  blocks.add(numbered({0, 1}));
  blocks.forget(numbered({0}));
  CHECK_FALSE(blocks.is_tracked());
  CHECK(blocks.size() == 0);
  blocks.track();
  CHECK(blocks.is_tracked());
  CHECK(take(blocks).empty());
  blocks.add(numbered({1}));
  CHECK(take(blocks) == numbered({1}));
}

TEST_CASE("new blocks: each is reported once, in order of allocation") {
  NewBlocks blocks(6);
  blocks.track();
  blocks.add(numbered({5, 2}));
  blocks.add(numbered({0}));
  CHECK(blocks.size() == 3);
  CHECK(take(blocks) == numbered({5, 2, 0}));
  CHECK(blocks.size() == 0);
  CHECK(take(blocks).empty());
}

TEST_CASE("new blocks: what isn't new any more isn't reported, unless it is allocated again") {
  NewBlocks blocks(6);
  blocks.track();
  blocks.add(numbered({1, 2, 3}));
  blocks.forget(numbered({2, 3, 5}));
  blocks.add(numbered({3}));
  CHECK(blocks.size() <= 3);  // a block is listed once
  CHECK(take(blocks) == numbered({1, 3}));
}

TEST_CASE("new blocks: asking for them again keeps what is listed") {
  NewBlocks blocks(6);
  blocks.track();
  blocks.add(numbered({1}));
  blocks.track();
  CHECK(take(blocks) == numbered({1}));
}

TEST_CASE("new blocks: the list never outgrows the pool, however long nobody asks") {
  constexpr std::int32_t n = 5;
  NewBlocks blocks(n);
  blocks.track();
  std::mt19937 random(4);
  std::set<BlockId> model;
  for (int step = 0; step < 3000; ++step) {
    BlockId const b{static_cast<std::int32_t>(random() % n)};
    if (random() % 2 == 0) {
      blocks.add({&b, 1});
      model.insert(b);
    } else {
      blocks.forget({&b, 1});
      model.erase(b);
    }
    REQUIRE(blocks.size() <= n);
    REQUIRE(blocks.size() >= static_cast<std::int32_t>(model.size()));
    if (step % 97 != 0) continue;
    auto const reported = take(blocks);
    REQUIRE(std::set<BlockId>(reported.begin(), reported.end()) == model);
    REQUIRE(reported.size() == model.size());
    model.clear();
  }
}

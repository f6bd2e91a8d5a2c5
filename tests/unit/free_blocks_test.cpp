// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/free_blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::detail::FreeBlocks;

namespace {

using Blocks = std::vector<BlockId>;

Blocks ids(std::vector<std::int32_t> const& numbers) {
  return Blocks(numbers.begin(), numbers.end());
}
Blocks take(FreeBlocks& free, std::size_t n) {
  Blocks out(n);
  out.resize(free.take(out));
  return out;
}
/// The one that is taken next comes last.
Blocks stack(FreeBlocks const& free) {
  Blocks out;
  free.for_each([&](BlockId b) { out.push_back(b); });
  return out;
}
Blocks reported(FreeBlocks& free) {
  Blocks out;
  free.new_blocks().take([&](BlockId b) { out.push_back(b); });
  return out;
}

}  // namespace

TEST_CASE("free blocks: all are free at first, block 0 is taken first") {
  FreeBlocks free(4);
  CHECK(free.size() == 4);
  CHECK(stack(free) == ids({3, 2, 1, 0}));
  CHECK(free.take() == BlockId{0});
  CHECK(take(free, 2) == ids({1, 2}));
  CHECK(free.size() == 1);
}

TEST_CASE("free blocks: no more are taken than there are") {
  FreeBlocks free(3);
  Blocks out(5, BlockId{77});
  CHECK(free.take(out) == 3);
  CHECK(out == ids({0, 1, 2, 77, 77}));
  CHECK(free.size() == 0);
  CHECK(free.take(out) == 0);
  CHECK(take(free, 0).empty());
  CHECK(FreeBlocks(0).size() == 0);
}

TEST_CASE("free blocks: what was given last is taken first") {
  FreeBlocks free(5);
  take(free, 5);
  free.give(BlockId{2});
  free.give(BlockId{4});
  CHECK(take(free, 2) == ids({4, 2}));
  SECTION("of several, the first one: they come back in the order in which they lay") {
    free.give(ids({3, 0, 1}), false);
    CHECK(stack(free) == ids({1, 0, 3}));
    CHECK(take(free, 3) == ids({3, 0, 1}));
  }
  SECTION("given in order, the last one") {
    free.give(ids({3, 0, 1}), true);
    CHECK(take(free, 3) == ids({1, 0, 3}));
  }
  SECTION("of one and of none there is one order") {
    bool const in_order = GENERATE(false, true);
    free.give(ids({3}), in_order);
    free.give(Blocks(), in_order);
    CHECK(stack(free) == ids({3}));
  }
}

TEST_CASE("free blocks: a block taken alone is reported, unless it is given back before") {
  FreeBlocks free(6);
  free.take();
  free.new_blocks().track();
  CHECK(reported(free).empty());
  free.take();
  CHECK(reported(free) == ids({1}));
  BlockId const b = free.take();
  free.give(b);
  CHECK(reported(free).empty());
  // If many are taken, the caller reports them: there may be victims among them.
  Blocks const many = take(free, 3);
  CHECK(reported(free).empty());
  free.new_blocks().add(many);
  free.give(ids({3, 4}), GENERATE(false, true));
  CHECK(reported(free) == ids({2}));
}

TEST_CASE("free blocks: random takes and gifts agree with a vector") {
  std::mt19937 random(11);
  auto const below = [&](std::size_t n) { return random() % n; };
  constexpr std::int32_t n = 30;
  FreeBlocks free(n);
  Blocks model;
  for (std::int32_t i = n; i-- > 0;) model.emplace_back(i);
  Blocks taken;
  for (int step = 0; step < 5000; ++step) {
    if (below(2) == 0) {
      Blocks expected;
      for (auto k = below(8); k > 0 && !model.empty(); --k) {
        expected.push_back(model.back());
        model.pop_back();
      }
      Blocks const out = take(free, expected.size());
      REQUIRE(out == expected);
      taken.insert(taken.end(), out.begin(), out.end());
    } else {
      std::shuffle(taken.begin(), taken.end(), random);
      auto const k = static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(taken.size(), 8) + 1));
      Blocks given(taken.end() - k, taken.end());
      taken.erase(taken.end() - k, taken.end());
      bool const in_order = below(2) == 0;
      free.give(given, in_order);
      if (!in_order) std::reverse(given.begin(), given.end());
      model.insert(model.end(), given.begin(), given.end());
    }
    REQUIRE(stack(free) == model);
    REQUIRE(free.size() == static_cast<std::int32_t>(model.size()));
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/sibling_lists.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::RunId;
using kv::RunTable;
using kv::TokenId;
using kv::detail::SiblingLists;

namespace {

using Ids = std::vector<RunId>;
constexpr std::int32_t num_blocks = 64;

struct Fixture {
  RunTable runs{num_blocks, 2, 1};
  SiblingLists siblings{num_blocks + 1};

  /// A run of `length` blocks after `parent`; every block begins with `token`.
  RunId run(RunId parent, TokenId token, std::int32_t length = 1) {
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i < length; ++i) blocks.emplace_back(next_block_++);
    kv::detail::Extent room;
    runs.lay(-1, false, blocks, 0, room);
    runs.give_room(room);
    RunId const x = runs.run_of(blocks[0]);
    for (BlockId const b : blocks) *runs.tokens(runs.place(b)) = token;
    hang(x, parent);
    return x;
  }
  void hang(RunId x, RunId parent) {
    runs[x].parent = parent;
    runs[x].parent_generation = parent >= 0 ? runs[parent].generation : 0;
  }
  RunId published(RunId parent, TokenId token, std::int32_t length = 1) {
    RunId const x = run(parent, token, length);
    siblings.link(runs, x);
    return x;
  }
  [[nodiscard]] Ids behind(RunId parent, std::uint32_t generation, TokenId token) const {
    Ids out;
    for (RunId x = siblings.newest(runs, parent, generation, token); x >= 0;
         x = siblings.older(x)) {
      out.push_back(x);
    }
    return out;
  }
  [[nodiscard]] Ids behind(RunId parent, TokenId token) const {
    return behind(parent, parent >= 0 ? runs[parent].generation : 0, token);
  }

 private:
  std::int32_t next_block_ = 0;
};

}  // namespace

TEST_CASE("sibling lists: none of capacity 0 is in use") {
  CHECK_FALSE(SiblingLists(0).in_use());
  CHECK(SiblingLists(1).in_use());
}

TEST_CASE("sibling lists: the newest comes first") {
  Fixture f;
  RunId const a = f.published(-1, 7);
  RunId const b = f.published(-1, 7);
  RunId const c = f.published(-1, 7);
  CHECK(f.behind(-1, 7) == Ids{c, b, a});
}

TEST_CASE("sibling lists: parent, its generation and the first token tell lists apart") {
  Fixture f;
  RunId const parent = f.published(-1, 1);
  RunId const a = f.published(parent, 7);
  RunId const b = f.published(parent, 8);
  RunId const c = f.published(-1, 7);
  CHECK(f.behind(parent, 7) == Ids{a});
  CHECK(f.behind(parent, 8) == Ids{b});
  CHECK(f.behind(-1, 7) == Ids{c});
  CHECK(f.behind(parent, 9).empty());
  std::uint32_t const generation = f.runs[parent].generation++;
  CHECK(f.behind(parent, 7).empty());
  RunId const d = f.published(parent, 7);
  CHECK(f.behind(parent, 7) == Ids{d});
  CHECK(f.behind(parent, generation, 7) == Ids{a});
}

TEST_CASE("sibling lists: what only hashes alike is told apart") {
  Fixture f;
  RunId const parent = f.published(-1, 1);
  f.published(parent, 7);
  std::size_t num_found = 0;
  for (std::int32_t i = 1; i < 100000; ++i) {
    num_found += f.behind(parent, static_cast<std::uint32_t>(i), 7).size();
    num_found += f.behind(parent, 0, 7 + i).size();
    num_found += f.behind(parent + i, 0, 7).size();
  }
  CHECK(num_found == 0);
}

TEST_CASE("sibling lists: one leaves, wherever it is") {
  Fixture f;
  Ids expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.begin(), f.published(-1, 7));
  auto const leaver = GENERATE(0, 1, 2);
  f.siblings.unlink(f.runs, expected[static_cast<std::size_t>(leaver)]);
  expected.erase(expected.begin() + leaver);
  CHECK(f.behind(-1, 7) == expected);
  expected.insert(expected.begin(), f.published(-1, 7));
  CHECK(f.behind(-1, 7) == expected);
}

TEST_CASE("sibling lists: the last one leaves nothing") {
  Fixture f;
  f.siblings.unlink(f.runs, f.published(-1, 7));
  CHECK(f.behind(-1, 7).empty());
  RunId const b = f.published(-1, 7);
  CHECK(f.behind(-1, 7) == Ids{b});
}

TEST_CASE("sibling lists: after a split the head stands where the run stood") {
  Fixture f;
  RunId const a = f.published(-1, 7, 3);
  RunId const b = f.published(-1, 7, 3);
  RunId const c = f.published(-1, 7, 3);
  auto const which = GENERATE(0, 1, 2);
  Ids expected{c, b, a};
  RunId const x = expected[static_cast<std::size_t>(which)];
  RunId const head = f.runs.split(x, 1);
  expected[static_cast<std::size_t>(which)] = head;
  f.siblings.replace(f.runs, x, head);
  CHECK(f.behind(-1, 7) == expected);
  f.hang(x, head);
  f.siblings.link(f.runs, x);
  CHECK(f.behind(head, 7) == Ids{x});
  CHECK(f.behind(-1, 7) == expected);
}

TEST_CASE("sibling lists: random publishes, splits and ends agree with lists") {
  std::mt19937 random(12);
  Fixture f;
  Ids unlinked;
  for (int i = 0; i < 20; ++i) unlinked.push_back(f.run(-1, static_cast<TokenId>(i % 3), 3));
  std::map<std::tuple<RunId, TokenId>, Ids> model;
  std::vector<RunId> linked;
  auto const list_of = [&](RunId x) -> Ids& {
    return model[{f.runs[x].parent, *f.runs.tokens(f.runs[x].start)}];
  };
  auto const some = [&](Ids& ids) -> RunId& { return ids[random() % ids.size()]; };
  for (int step = 0; step < 4000; ++step) {
    auto const action = random() % 8;
    if (action < 4 && !unlinked.empty()) {
      RunId& x = some(unlinked);
      // After one of few, so that lists are long.
      f.hang(x, linked.empty() || random() % 2 == 0 ? -1 : linked[0]);
      if (f.runs[x].parent == x) continue;
      f.siblings.link(f.runs, x);
      Ids& list = list_of(x);
      list.insert(list.begin(), x);
      linked.push_back(x);
      x = unlinked.back();
      unlinked.pop_back();
    } else if (action < 7 && !linked.empty()) {
      RunId& x = some(linked);
      f.siblings.unlink(f.runs, x);
      std::erase(list_of(x), x);
      unlinked.push_back(x);
      x = linked.back();
      linked.pop_back();
    } else if (!linked.empty()) {
      RunId const x = some(linked);
      if (f.runs[x].length < 2) continue;
      Ids& list = list_of(x);
      RunId const head = f.runs.split(x, 1);
      *std::find(list.begin(), list.end(), x) = head;
      f.siblings.replace(f.runs, x, head);
      f.hang(x, head);
      f.siblings.link(f.runs, x);
      list_of(x).insert(list_of(x).begin(), x);
      linked.push_back(head);
    }
    for (auto const& [key, list] : model) {
      REQUIRE(f.behind(std::get<0>(key), std::get<1>(key)) == list);
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/prefix_index.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::BlockIdentity;
using kv::Hash128;
using kv::testing::Blocks;
using kv::testing::iota;
using kv::testing::joined;
using kv::testing::Tokens;

namespace {

struct Colliding {
  static Hash128 root(std::uint64_t) noexcept { return {}; }
  static Hash128 content(std::span<kv::TokenId const>, std::uint64_t) noexcept { return {}; }
  static Hash128 extra(std::span<std::byte const>, std::uint64_t) noexcept { return {}; }
  static Hash128 chain(Hash128, Hash128) noexcept { return {}; }
};

/// An index over 32 blocks of 4 tokens, and the words to fill it.
template <class Hash>
struct Fixture {
  kv::BasicPrefixIndex<Hash> index;

  explicit Fixture(std::int32_t max_partial_candidates = 0)
      : index({.num_blocks = 32,
               .block_tokens = 4,
               .max_extra_key_bytes = 8,
               .max_partial_candidates = max_partial_candidates,
               .seed = 42}) {}

  /// Publishes block `id` with `tokens` behind `parent`; returns what is findable then.
  BlockId publish(std::int32_t id, BlockId parent, Tokens const& tokens,
                  std::string const& extra = {}) {
    BlockId const b{id};
    auto const bytes = std::as_bytes(std::span(extra));
    std::copy(tokens.begin(), tokens.end(), index.tokens(b));
    auto const hash = index.chained(index.hash(parent), tokens, bytes);
    auto const equal = index.publish(b, hash, index.identity(parent), bytes);
    return equal.is_null() ? b : equal;
  }
  /// The block behind `parent` with this content.
  BlockId find(BlockIdentity parent, Hash128 parent_hash, Tokens const& tokens,
               std::string const& extra = {}) const {
    auto const bytes = std::as_bytes(std::span(extra));
    return index.find(index.chained(parent_hash, tokens, bytes), parent, tokens, bytes);
  }
  BlockId find(BlockId parent, Tokens const& tokens, std::string const& extra = {}) const {
    return find(index.identity(parent), index.hash(parent), tokens, extra);
  }
  /// The leading blocks of a view, at most `max_blocks`.
  Blocks walk(kv::detail::PromptView const& view, std::int32_t max_blocks) const {
    Blocks out;
    auto const hit = [&](std::int32_t j, BlockId b) {
      CHECK(j == static_cast<std::int32_t>(out.size()));
      out.push_back(b);
    };
    auto const found = index.walk(view, max_blocks, hit, [](BlockId) {});
    CHECK(found.blocks == static_cast<std::int32_t>(out.size()));
    return out;
  }
  /// The leading blocks of `prompt`, by tokens alone and by a key's hashes: both must agree.
  Blocks walk(Tokens const& prompt) const {
    auto const n = static_cast<std::int32_t>(prompt.size() / 4);
    std::vector<Hash128> hashes;
    Hash128 chain = index.root_hash();
    for (std::int32_t j = 0; j < n; ++j) {
      auto const block = std::span(prompt).subspan(static_cast<std::size_t>(j) * 4, 4);
      hashes.push_back(chain = index.chained(chain, block, {}));
    }
    auto const by_tokens = walk({prompt, {}, nullptr}, n);
    CHECK(walk({prompt, hashes, nullptr}, n) == by_tokens);
    return by_tokens;
  }
};

constexpr BlockId none{};
BlockId block(std::int32_t id) { return BlockId{id}; }

}  // namespace

TEMPLATE_TEST_CASE("prefix index: a block is found by its content and its parent", "",
                   kv::Xxh3BlockHash, Colliding) {
  Fixture<TestType> f;
  auto const a = f.publish(3, none, iota(0, 4));
  auto const b = f.publish(7, a, iota(10, 4));
  CHECK(f.index.size() == 2);
  CHECK(f.find(none, iota(0, 4)) == a);
  CHECK(f.find(a, iota(10, 4)) == b);
  CHECK(f.find(none, iota(10, 4)).is_null());
  CHECK(f.find(b, iota(10, 4)).is_null());
  CHECK(f.find(a, {10, 11, 12, 14}).is_null());
  CHECK(f.index.parent(b) == BlockIdentity{a, f.index.generation(a)});
  CHECK(f.index.parent(a) == BlockIdentity{});
  CHECK(f.index.is_published(a));
  CHECK_FALSE(f.index.is_published(block(0)));
}

TEMPLATE_TEST_CASE("prefix index: the same content behind two parents is two blocks", "",
                   kv::Xxh3BlockHash, Colliding) {
  Fixture<TestType> f;
  auto const x = iota(50, 4);
  auto const a = f.publish(0, none, iota(0, 4));
  auto const c = f.publish(1, none, iota(4, 4));
  auto const ax = f.publish(2, a, x);
  CHECK(f.find(c, x).is_null());
  auto const cx = f.publish(3, c, x);
  CHECK(f.find(a, x) == ax);
  CHECK(f.find(c, x) == cx);
  // Behind a-x there is something, behind c-x isn't.
  auto const b = f.publish(4, ax, iota(60, 4));
  CHECK(f.walk(joined(joined(iota(0, 4), x), iota(60, 4))) == Blocks{a, ax, b});
  CHECK(f.walk(joined(joined(iota(4, 4), x), iota(60, 4))) == Blocks{c, cx});
}

TEMPLATE_TEST_CASE("prefix index: the first to be published stays, an equal one changes nothing",
                   "", kv::Xxh3BlockHash, Colliding) {
  Fixture<TestType> f;
  auto const a = f.publish(0, none, iota(0, 4));
  CHECK(f.publish(1, none, iota(0, 4)) == a);
  CHECK_FALSE(f.index.is_published(block(1)));
  CHECK(f.index.size() == 1);
  // Its content is told apart from others that hash alike.
  CHECK(f.publish(1, none, iota(1, 4)) == block(1));
  CHECK(f.publish(2, a, iota(0, 4)) == block(2));
  CHECK(f.index.size() == 3);
}

TEMPLATE_TEST_CASE("prefix index: extra keys are part of the content", "", kv::Xxh3BlockHash,
                   Colliding) {
  Fixture<TestType> f;
  auto const cat = f.publish(1, none, iota(0, 4), "cat");
  CHECK(f.find(none, iota(0, 4)).is_null());
  auto const plain = f.publish(0, none, iota(0, 4));
  auto const cats = f.publish(2, none, iota(0, 4), "cats");
  CHECK(f.find(none, iota(0, 4)) == plain);
  CHECK(f.find(none, iota(0, 4), "cat") == cat);
  CHECK(f.find(none, iota(0, 4), "cats") == cats);
  CHECK(f.find(none, iota(0, 4), "dog").is_null());
  auto const stored = f.index.extra(cats);
  CHECK(stored.size() == 4);
  CHECK(static_cast<char>(stored[3]) == 's');
}

TEMPLATE_TEST_CASE("prefix index: children of what has gone are never found again", "",
                   kv::Xxh3BlockHash, Colliding) {
  Fixture<TestType> f;
  auto const prompt = iota(0, 8);
  auto const a = f.publish(0, none, iota(0, 4));
  auto const b = f.publish(1, a, iota(4, 4));
  auto const old = f.index.identity(a);
  f.index.erase(a);
  CHECK_FALSE(f.index.is_published(a));
  CHECK(f.find(none, iota(0, 4)).is_null());
  CHECK(f.walk(prompt).empty());
  // The same block gets the same content: another generation, not the child's parent.
  CHECK(f.publish(0, none, iota(0, 4)) == a);
  CHECK(f.index.identity(a) != old);
  CHECK(f.walk(prompt) == Blocks{a});
  // Nor when other content moves in.
  f.index.erase(a);
  f.publish(0, none, iota(90, 4));
  CHECK(f.walk(joined(iota(90, 4), iota(4, 4))) == Blocks{a});
  CHECK(f.index.is_published(b));
}

TEMPLATE_TEST_CASE("prefix index: a walk finds the right child of many", "", kv::Xxh3BlockHash,
                   Colliding) {
  Fixture<TestType> f;
  auto const root = f.publish(0, none, iota(0, 4));
  Blocks children;
  for (std::int32_t i = 1; i < 20; ++i) children.push_back(f.publish(i, root, iota(100 * i, 4)));
  for (std::int32_t i = 1; i < 20; ++i) {
    CHECK(f.walk(joined(iota(0, 4), iota(100 * i, 4))) ==
          Blocks{root, children[static_cast<std::size_t>(i - 1)]});
  }
  CHECK(f.walk(joined(iota(0, 4), iota(1, 4))) == Blocks{root});
  CHECK(f.walk(iota(1, 8)).empty());
}

TEST_CASE("prefix index: a walk says from where on it guessed wrong, and guesses what it is told") {
  Fixture<kv::Xxh3BlockHash> f;
  auto const root = f.publish(0, none, iota(0, 4));
  auto const shared = f.publish(1, root, iota(4, 4));
  auto const left = f.publish(2, shared, iota(100, 4));
  f.publish(3, left, iota(104, 4));
  auto const right = f.publish(4, shared, iota(200, 4));
  f.publish(5, right, iota(204, 4));
  auto const walk = [&](Tokens const& behind) {
    auto const prompt = joined(iota(0, 8), behind);
    auto const found = f.index.walk(
        {prompt, {}, nullptr}, 4, [](auto...) {}, [](BlockId) {});
    return std::pair{found.blocks, found.first_unguessed};
  };
  CHECK(walk(iota(200, 8)) == std::pair{4, 0});  // the newest child, and nothing was told yet
  CHECK(walk(iota(100, 8)) == std::pair{4, 2});
  f.index.set_child(shared, left);
  CHECK(walk(iota(100, 8)) == std::pair{4, 0});
  CHECK(walk(iota(200, 8)) == std::pair{4, 2});
  // Where the prompt isn't cached any more no guess was wrong.
  CHECK(walk(iota(300, 8)) == std::pair{2, 0});
}

TEST_CASE("prefix index: a walk stops at the limit") {
  Fixture<kv::Xxh3BlockHash> f;
  BlockId parent;
  for (std::int32_t j = 0; j < 30; ++j) parent = f.publish(j, parent, iota(4 * j, 4));
  auto const prompt = iota(0, 120);
  CHECK(f.walk({prompt, {}, nullptr}, 11).size() == 11);
  CHECK(f.walk(prompt).size() == 30);
  f.index.erase(block(29));
  CHECK(f.walk(prompt).size() == 29);
}

TEST_CASE("partial match: the longest run of leading tokens, of equals the newest") {
  Fixture<kv::Xxh3BlockHash> f(4);
  auto const root = f.publish(0, none, iota(0, 4));
  f.publish(1, root, {5, 6, 1, 1});
  f.publish(2, root, {5, 6, 7, 2});
  f.publish(3, root, {5, 6, 7, 3});
  f.publish(4, root, {5, 9, 9, 9});
  f.publish(5, root, {8, 6, 7, 8});  // another first token
  auto const parent = f.index.identity(root);
  auto const match = [&](Tokens const& tokens) {
    auto const best = f.index.find_partial(parent, tokens, {});
    return std::pair{best.block, best.num_tokens};
  };
  CHECK(match({5, 6, 7, 8}) == std::pair{block(3), 3});
  CHECK(match({5, 6, 1, 8}) == std::pair{block(1), 3});
  CHECK(match({5, 6, 0, 0}) == std::pair{block(3), 2});
  CHECK(match({5, 6, 7}) == std::pair{block(3), 3});
  CHECK(match({5, 1, 1, 1}) == std::pair{block(4), 1});
  CHECK(match({1, 6, 7, 8}) == std::pair{none, 0});
  CHECK(match({}) == std::pair{none, 0});
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 8}, {}).num_tokens == 0);
}

TEST_CASE("partial match: only the newest candidates are compared") {
  Fixture<kv::Xxh3BlockHash> f(2);
  f.publish(1, none, {5, 6, 7, 1});
  f.publish(2, none, {5, 6, 1, 1});
  f.publish(3, none, {5, 1, 1, 1});
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block == block(2));
  // One of them goes: the next older one moves up.
  f.index.erase(block(3));
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block == block(1));
  f.index.erase(block(1));
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block == block(2));
  f.index.erase(block(2));
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block.is_null());
}

TEST_CASE("partial match: candidates come and go in any order, and leave nothing behind") {
  Fixture<kv::Xxh3BlockHash> f(4);
  std::vector<std::int32_t> order{1, 2, 3, 4};
  for (int round = 0; round < 240; ++round) {
    for (std::int32_t const i : order) f.publish(i, none, {5, 6, i, 0});
    auto left = order;
    std::next_permutation(order.begin(), order.end());
    for (std::int32_t const gone : order) {
      REQUIRE(f.index.find_partial({}, Tokens{5, 6, gone, 9}, {}).block == block(gone));
      f.index.erase(block(gone));
      std::erase(left, gone);
      auto const newest = left.empty() ? none : block(left.back());
      REQUIRE(f.index.find_partial({}, Tokens{5, 6, 9, 9}, {}).block == newest);
    }
  }
}

TEST_CASE("partial match: extra keys must be equal, and off means off") {
  Fixture<kv::Xxh3BlockHash> f(4);
  f.publish(1, none, {5, 6, 7, 1}, "cat");
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block.is_null());
  std::string const cat = "cat";
  CHECK(f.index.find_partial({}, Tokens{5, 6, 7, 9}, std::as_bytes(std::span(cat))).num_tokens ==
        3);
  Fixture<kv::Xxh3BlockHash> off;
  off.publish(1, none, {5, 6, 7, 1});
  CHECK(off.index.find_partial({}, Tokens{5, 6, 7, 9}, {}).block.is_null());
}

TEST_CASE("prefix index: the group keys every block") {
  using Index = kv::BasicPrefixIndex<Colliding>;
  Index index({.num_blocks = 4, .block_tokens = 4, .seed = 1, .group = kv::GroupId{2}});
  kv::PrefixIndex const zero({.num_blocks = 4, .block_tokens = 4, .seed = 1});
  kv::PrefixIndex const two(
      {.num_blocks = 4, .block_tokens = 4, .seed = 1, .group = kv::GroupId{2}});
  CHECK(zero.root_hash() != two.root_hash());
  auto const tokens = iota(0, 4);
  std::copy(tokens.begin(), tokens.end(), index.tokens(block(1)));
  CHECK(index.publish(block(1), {}, index.identity(none), {}).is_null());
  // Though every hash is equal: what hangs on another group's root is something else.
  CHECK(index.find({}, index.identity(none), tokens, {}) == block(1));
  CHECK(index.find({}, zero.identity(none), tokens, {}).is_null());
}

TEST_CASE("prefix index: it knows when only the extra keys differ") {
  Fixture<kv::Xxh3BlockHash> f;
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(0, 4)));
  f.publish(1, none, iota(0, 4), "cat");
  CHECK(f.index.has_root_under_other_keys(iota(0, 4)));
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(1, 4)));
  f.index.erase(block(1));
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(0, 4)));
}

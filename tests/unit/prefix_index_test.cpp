// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/prefix_index.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::Hash128;
using kv::Run;
using kv::RunHit;
using kv::RunId;
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

/// Xxh3, counted.
int num_chained = 0;
struct Counting : kv::Xxh3BlockHash {
  static Hash128 chain(Hash128 before, Hash128 content) noexcept {
    ++num_chained;
    return kv::Xxh3BlockHash::chain(before, content);
  }
};

constexpr RunId none = -1;

std::span<std::byte const> bytes(std::string const& text) { return std::as_bytes(std::span(text)); }

/// An index over 64 blocks of 4 tokens, and the words to fill it.
template <class Hash>
struct Fixture {
  static constexpr std::int32_t num_blocks = 64;
  kv::RunTable runs;
  kv::BasicPrefixIndex<Hash> index;

  explicit Fixture(std::int32_t max_partial_candidates = 0, kv::GroupId group = kv::GroupId{0})
      : runs(num_blocks, 4, num_blocks),  // places enough that no run is laid in pieces
        index(runs, {.block_tokens = 4,
                     .max_extra_key_bytes = 8,
                     .max_partial_candidates = max_partial_candidates,
                     .seed = 42,
                     .group = group}) {
    for (std::int32_t i = num_blocks; i-- > 0;) free_.emplace_back(i);
  }

  /// A run with these tokens that isn't findable.
  RunId lay(Tokens const& tokens) {
    Blocks blocks;
    for (std::size_t i = 0; i < tokens.size() / 4; ++i) {
      blocks.push_back(free_.back());
      free_.pop_back();
    }
    kv::detail::Extent room;
    runs.lay(-1, false, blocks, 0, room);
    runs.give_room(room);
    RunId const x = runs.run_of(blocks[0]);
    REQUIRE(runs.blocks(x).size() == blocks.size());
    std::copy(tokens.begin(), tokens.end(), runs.tokens(runs[x].start));
    return x;
  }
  /// The run that holds `tokens`, findable after `parent`.
  // Not inlined: g++ 12 would know the length and warn of the code for longer blocks.
#if defined(__GNUC__)
  [[gnu::noinline]]
#endif
  RunId
  publish(RunId parent, Tokens const& tokens, std::string const& extra = {}) {
    REQUIRE(index.find(parent, tokens.data(), bytes(extra)) == none);
    RunId const x = lay(tokens);
    index.publish(x, parent, bytes(extra));
    return x;
  }
  RunId find(RunId parent, Tokens const& tokens, std::string const& extra = {}) const {
    return index.find(parent, tokens.data(), bytes(extra));
  }
  RunId split(RunId x, std::int32_t k) {
    RunId const head = runs.split(x, k);
    index.split(x, head);
    return head;
  }
  /// Its blocks are free again.
  void erase(RunId x) {
    index.erase(x);
    auto const blocks = runs.blocks(x);
    free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
    runs[x].clear(Run::published);
    runs.dissolve(x);
  }
  std::vector<std::pair<RunId, std::int32_t>> walk(kv::detail::PromptView const& view,
                                                   std::int32_t max_blocks) const {
    std::vector<std::pair<RunId, std::int32_t>> out;
    index.walk(view, max_blocks, [&](RunHit hit) { out.emplace_back(hit.run, hit.blocks); });
    return out;
  }
  /// The leading blocks of `prompt` that are cached.
  Blocks walk(Tokens const& prompt, kv::detail::ExtraKeyTable const* extra = nullptr) const {
    Blocks out;
    for (auto const& [x, n] : walk({prompt, extra}, static_cast<std::int32_t>(prompt.size() / 4))) {
      auto const blocks = runs.blocks(x);
      out.insert(out.end(), blocks.begin(), blocks.begin() + n);
    }
    return out;
  }
  Blocks blocks(RunId x) const {
    auto const blocks = runs.blocks(x);
    return {blocks.begin(), blocks.end()};
  }
  [[nodiscard]] std::size_t num_free() const { return free_.size(); }

 private:
  Blocks free_;
};

using Hits = std::vector<std::pair<RunId, std::int32_t>>;
using Xxh3 = kv::Xxh3BlockHash;

}  // namespace

TEMPLATE_TEST_CASE("prefix index: a run is found by its first block and its parent", "", Xxh3,
                   Colliding) {
  Fixture<TestType> f;
  RunId const a = f.publish(none, iota(0, 4));
  RunId const b = f.publish(a, iota(10, 8));
  CHECK(f.index.size() == 2);
  CHECK(f.find(none, iota(0, 4)) == a);
  CHECK(f.find(a, iota(10, 4)) == b);
  CHECK(f.find(none, iota(10, 4)) == none);
  CHECK(f.find(a, iota(14, 4)) == none);  // its second block
  CHECK(f.find(b, iota(10, 4)) == none);
  CHECK(f.find(a, {10, 11, 12, 14}) == none);
  CHECK(f.runs[b].parent == a);
  CHECK(f.runs[a].parent == none);
  CHECK(f.runs[a].num_children == 1);
  CHECK(f.runs[a].has(Run::published));
}

TEMPLATE_TEST_CASE("prefix index: a run isn't found before it is published", "", Xxh3, Colliding) {
  Fixture<TestType> f;
  f.lay(iota(0, 4));
  CHECK(f.find(none, iota(0, 4)) == none);
  CHECK(f.index.size() == 0);
}

TEMPLATE_TEST_CASE("prefix index: the same content behind two parents is two runs", "", Xxh3,
                   Colliding) {
  Fixture<TestType> f;
  auto const x = iota(50, 4);
  RunId const a = f.publish(none, iota(0, 4));
  RunId const c = f.publish(none, iota(4, 4));
  RunId const ax = f.publish(a, x);
  CHECK(f.find(c, x) == none);
  RunId const cx = f.publish(c, x);
  CHECK(f.find(a, x) == ax);
  CHECK(f.find(c, x) == cx);
  // Something follows a-x, nothing follows c-x.
  RunId const b = f.publish(ax, iota(60, 4));
  auto const cached = [&](std::int32_t first) {
    return f.walk(joined(joined(iota(first, 4), x), iota(60, 4)));
  };
  CHECK(cached(0) == Blocks{f.blocks(a)[0], f.blocks(ax)[0], f.blocks(b)[0]});
  CHECK(cached(4) == Blocks{f.blocks(c)[0], f.blocks(cx)[0]});
}

TEMPLATE_TEST_CASE("prefix index: extra keys are part of the content", "", Xxh3, Colliding) {
  Fixture<TestType> f;
  RunId const cat = f.publish(none, iota(0, 4), "cat");
  CHECK(f.find(none, iota(0, 4)) == none);
  RunId const plain = f.publish(none, iota(0, 4));
  RunId const cats = f.publish(none, iota(0, 4), "cats");
  CHECK(f.find(none, iota(0, 4)) == plain);
  CHECK(f.find(none, iota(0, 4), "cat") == cat);
  CHECK(f.find(none, iota(0, 4), "cats") == cats);
  CHECK(f.find(none, iota(0, 4), "dog") == none);
  auto const stored = f.index.extra(cats);
  REQUIRE(stored.size() == 4);
  CHECK(static_cast<char>(stored[3]) == 's');
  // Also where the guess is tried.
  RunId const behind = f.publish(plain, iota(4, 4), "cat");
  CHECK(f.find(plain, iota(4, 4), "cat") == behind);
  CHECK(f.find(plain, iota(4, 4), "dog") == none);
  CHECK(f.find(plain, iota(4, 4)) == none);
}

TEMPLATE_TEST_CASE("prefix index: what hangs behind what has gone is never found again", "", Xxh3,
                   Colliding) {
  Fixture<TestType> f;
  auto const prompt = iota(0, 8);
  RunId const a = f.publish(none, iota(0, 4));
  RunId const b = f.publish(a, iota(4, 4));
  f.erase(a);
  CHECK(f.find(none, iota(0, 4)) == none);
  CHECK_FALSE(f.index.is_reachable(f.runs[b]));
  CHECK(f.walk(prompt).empty());
  // The same record gets the same content: another generation, not the child's parent.
  REQUIRE(f.publish(none, iota(0, 4)) == a);
  CHECK(f.walk(prompt) == f.blocks(a));
  CHECK(f.runs[a].num_children == 0);
  RunId const c = f.publish(a, iota(4, 4));
  CHECK(f.walk(prompt) == Blocks{f.blocks(a)[0], f.blocks(c)[0]});
  // Nor when other content moves in. What can't be reached is erased without harm to others.
  f.erase(b);
  CHECK(f.runs[a].num_children == 1);
  f.erase(c);
  CHECK(f.runs[a].num_children == 0);
  f.erase(a);
  REQUIRE(f.publish(none, iota(90, 4)) >= 0);
  CHECK(f.walk(joined(iota(90, 4), iota(4, 4))).size() == 1);
  CHECK(f.index.size() == 1);
}

TEMPLATE_TEST_CASE("prefix index: a run stays findable when what hangs behind it is forgotten", "",
                   Xxh3, Colliding) {
  Fixture<TestType> f;
  RunId const a = f.publish(none, iota(0, 4));
  RunId const b = f.publish(a, iota(4, 4));
  f.index.forget_children(a);
  CHECK(f.find(none, iota(0, 4)) == a);
  CHECK(f.find(a, iota(4, 4)) == none);
  CHECK_FALSE(f.index.is_reachable(f.runs[b]));
  CHECK(f.runs[a].num_children == 0);
}

TEMPLATE_TEST_CASE("prefix index: a walk finds the right child of many", "", Xxh3, Colliding) {
  Fixture<TestType> f;
  RunId const root = f.publish(none, iota(0, 4));
  std::vector<RunId> children;
  for (std::int32_t i = 1; i < 20; ++i) children.push_back(f.publish(root, iota(100 * i, 8)));
  for (std::int32_t i = 1; i < 20; ++i) {
    CHECK(f.walk({joined(iota(0, 4), iota(100 * i, 8)), nullptr}, 3) ==
          Hits{{root, 1}, {children[static_cast<std::size_t>(i - 1)], 2}});
  }
  CHECK(f.walk({joined(iota(0, 4), iota(1, 4)), nullptr}, 2) == Hits{{root, 1}});
  CHECK(f.walk(iota(1, 8)).empty());
}

TEST_CASE("prefix index: a walk ends inside a run where the tokens differ") {
  Fixture<Xxh3> f;
  RunId const a = f.publish(none, iota(0, 40));
  RunId const b = f.publish(a, iota(40, 8));
  auto prompt = iota(0, 48);
  CHECK(f.walk({prompt, nullptr}, 12) == Hits{{a, 10}, {b, 2}});
  for (std::int32_t differs = 1; differs < 10; ++differs) {
    auto other = prompt;
    other[static_cast<std::size_t>(4 * differs + differs % 4)] = -1;
    CHECK(f.walk({other, nullptr}, 12) == Hits{{a, differs}});
  }
  // And where the prompt ends, or the limit is.
  CHECK(f.walk({prompt, nullptr}, 7) == Hits{{a, 7}});
  CHECK(f.walk({prompt, nullptr}, 10) == Hits{{a, 10}});
  CHECK(f.walk({prompt, nullptr}, 11) == Hits{{a, 10}, {b, 1}});
  CHECK(f.walk({prompt, nullptr}, 1) == Hits{{a, 1}});
  CHECK(f.walk({prompt, nullptr}, 0).empty());
}

TEST_CASE("prefix index: common blocks are counted from the second on, to a limit") {
  Fixture<Xxh3> f;
  auto const tokens = iota(0, 32);
  RunId const x = f.publish(none, tokens);
  CHECK(f.index.common_blocks(x, tokens.data(), 8) == 8);
  CHECK(f.index.common_blocks(x, tokens.data(), 3) == 3);
  CHECK(f.index.common_blocks(x, tokens.data(), 1) == 1);
  auto other = tokens;
  other[9] = -1;
  CHECK(f.index.common_blocks(x, other.data(), 8) == 2);
}

TEST_CASE("prefix index: a block with extra keys begins a run") {
  Fixture<Xxh3> f;
  kv::MediaItem const image{{9, 2}, "c"};  // in block 2
  kv::ExtraKeys keys;
  keys.media = {&image, 1};
  kv::detail::ExtraKeyTable const extra(keys, 16, 4);
  auto const prompt = iota(0, 16);
  f.publish(none, prompt);  // the same tokens as text
  CHECK(f.walk(prompt).size() == 4);
  CHECK(f.walk(prompt, &extra).size() == 2);
}

TEST_CASE("prefix index: a path without branches isn't hashed") {
  Fixture<Counting> f;
  RunId const root = f.publish(none, iota(0, 4));
  CHECK(f.runs[root].has(Run::indexed));  // first blocks always are
  num_chained = 0;
  RunId const only = f.publish(root, iota(100, 4));
  RunId const leaf = f.publish(only, iota(200, 4));
  CHECK(f.find(root, iota(100, 4)) == only);
  CHECK(f.find(only, iota(200, 4)) == leaf);
  CHECK(f.find(root, iota(104, 4)) == none);  // another content where there is one child
  CHECK(f.find(leaf, iota(300, 4)) == none);
  f.erase(leaf);
  CHECK(f.find(only, iota(200, 4)) == none);
  CHECK(num_chained == 0);
  CHECK_FALSE(f.runs[only].has(Run::indexed));
}

TEMPLATE_TEST_CASE("prefix index: only the child used last may be missing in the table", "", Xxh3,
                   Colliding) {
  Fixture<TestType> f;
  RunId const root = f.publish(none, iota(0, 4));
  RunId const left = f.publish(root, iota(100, 4));
  RunId const right = f.publish(root, iota(200, 4));
  CHECK(f.runs[root].last_child == right);  // the newest, as nothing was told yet
  CHECK(f.runs[left].has(Run::indexed));
  CHECK_FALSE(f.runs[right].has(Run::indexed));
  f.index.use_last(root, left);
  CHECK(f.runs[root].last_child == left);
  CHECK(f.runs[right].has(Run::indexed));
  CHECK(f.runs[left].has(Run::indexed));  // it stays
  f.index.use_last(root, left);           // again
  CHECK(f.find(root, iota(100, 4)) == left);
  CHECK(f.find(root, iota(200, 4)) == right);
  // One that has gone is no answer.
  f.erase(left);
  CHECK(f.runs[root].last_child == none);
  CHECK(f.find(root, iota(100, 4)) == none);
  CHECK(f.find(root, iota(200, 4)) == right);
  RunId const next = f.publish(root, iota(300, 4));
  CHECK_FALSE(f.runs[next].has(Run::indexed));
  CHECK(f.find(root, iota(200, 4)) == right);
  CHECK(f.find(root, iota(300, 4)) == next);
}

TEMPLATE_TEST_CASE("prefix index: an unindexed run is indexed by what is published beside it", "",
                   Xxh3, Colliding) {
  Fixture<TestType> f;
  RunId const root = f.publish(none, iota(0, 4));
  RunId const x = f.publish(root, iota(4, 12), "cat");
  REQUIRE_FALSE(f.runs[x].has(Run::indexed));
  RunId const head = f.split(x, 1);
  CHECK(f.runs[root].last_child == head);
  CHECK(f.runs[head].last_child == x);
  CHECK_FALSE(f.runs[head].has(Run::indexed));
  RunId const beside_x = f.publish(head, iota(50, 4));
  RunId const beside_head = f.publish(root, iota(4, 4));
  CHECK(f.runs[head].has(Run::indexed));
  CHECK(f.runs[x].has(Run::indexed));
  CHECK(f.find(root, iota(4, 4), "cat") == head);
  CHECK(f.find(root, iota(4, 4)) == beside_head);
  CHECK(f.find(head, iota(8, 4)) == x);
  CHECK(f.find(head, iota(50, 4)) == beside_x);
  // A split of an indexed run: the head is in the table in its place.
  RunId const part = f.split(x, 1);
  CHECK(f.runs[part].has(Run::indexed));
  CHECK_FALSE(f.runs[x].has(Run::indexed));
  CHECK(f.find(head, iota(8, 4)) == part);
  CHECK(f.find(part, iota(12, 4)) == x);
}

TEMPLATE_TEST_CASE("prefix index: a detached run stays published, and nobody finds it", "", Xxh3,
                   Colliding) {
  Fixture<TestType> f(4);
  RunId const root = f.publish(none, iota(0, 4));
  RunId const x = f.publish(root, iota(4, 8));
  RunId const leaf = f.publish(x, iota(12, 4));
  bool const indexed = GENERATE(false, true);
  if (indexed) f.publish(root, iota(60, 4));
  REQUIRE(f.runs[x].has(Run::indexed) == indexed);
  std::int32_t const siblings = f.runs[root].num_children - 1;
  f.index.detach(x);
  CHECK(f.index.size() == 3 + siblings);
  CHECK(f.runs[x].has(Run::published));
  CHECK_FALSE(f.runs[x].has(Run::indexed));
  CHECK_FALSE(f.index.is_reachable(f.runs[x]));
  CHECK_FALSE(f.index.is_reachable(f.runs[leaf]));
  CHECK(f.runs[root].num_children == siblings);
  CHECK(f.runs[x].num_children == 0);
  CHECK(f.find(root, iota(4, 4)) == none);
  CHECK(f.find(x, iota(12, 4)) == none);
  CHECK(f.index.find_partial(root, 1, iota(4, 4), {}).block.is_null());
  // Nor its parts. The same content may be published anew.
  RunId const head = f.split(x, 1);
  CHECK_FALSE(f.index.is_reachable(f.runs[head]));
  CHECK(f.runs[head].has(Run::published));
  RunId const again = f.publish(root, iota(4, 8));
  CHECK(f.find(root, iota(4, 4)) == again);
  CHECK(f.index.find_partial(root, 1, iota(4, 4), {}).block == f.blocks(again)[0]);
  for (RunId const gone : {leaf, x, head}) f.erase(gone);
  CHECK(f.find(root, iota(4, 4)) == again);
  CHECK(f.runs[root].num_children == siblings + 1);
  CHECK(f.index.size() == 2 + siblings);
}

TEST_CASE("prefix index: a detached first block is no root") {
  Fixture<Xxh3> f;
  RunId const x = f.publish(none, iota(0, 4));
  f.index.detach(x);
  CHECK_FALSE(f.index.is_reachable(f.runs[x]));
  CHECK(f.find(none, iota(0, 4)) == none);
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(0, 4)));
  f.erase(x);
  CHECK(f.index.size() == 0);
}

TEMPLATE_TEST_CASE("prefix index: after a split both parts are found, and all behind them", "",
                   Xxh3, Colliding) {
  Fixture<TestType> f;
  RunId const root = f.publish(none, iota(0, 4));
  RunId const x = f.publish(root, iota(4, 16), "cat");
  RunId const leaf = f.publish(x, iota(20, 4));
  f.runs[x].last_child = leaf;
  RunId const head = f.split(x, 3);
  CHECK(f.index.size() == 4);
  CHECK(f.find(root, iota(4, 4), "cat") == head);
  CHECK(f.find(head, iota(16, 4)) == x);
  CHECK(f.find(x, iota(20, 4)) == leaf);
  CHECK(f.runs[head].parent == root);
  CHECK(f.runs[x].parent == head);
  CHECK(f.runs[root].num_children == 1);
  CHECK(f.runs[head].num_children == 1);
  CHECK(f.runs[x].num_children == 1);
  // The head is what the hint of the root means, and the first block's keys are the head's.
  CHECK(f.runs[root].last_child == head);
  CHECK(f.index.extra(head).size() == 3);
  CHECK(f.index.extra(x).empty());
  // Something else may follow the head now.
  RunId const branch = f.publish(head, iota(90, 4));
  CHECK(f.find(head, iota(90, 4)) == branch);
  CHECK(f.find(head, iota(16, 4)) == x);
  f.erase(x);
  CHECK(f.find(head, iota(16, 4)) == none);
  CHECK(f.find(root, iota(4, 4), "cat") == head);
  f.erase(branch);
  f.erase(head);
  CHECK(f.find(root, iota(4, 4), "cat") == none);
}

TEST_CASE("prefix index: a split run that can't be reached leaves its old parent alone") {
  Fixture<Xxh3> f;
  RunId const root = f.publish(none, iota(0, 4));
  RunId const x = f.publish(root, iota(4, 12));
  f.index.forget_children(root);
  f.runs[root].last_child = x;  // a stale hint
  RunId const head = f.split(x, 1);
  CHECK(f.runs[root].last_child == x);
  CHECK(f.find(root, iota(4, 4)) == none);
  f.erase(x);
  f.erase(head);
  CHECK(f.runs[root].num_children == 0);
  CHECK(f.index.size() == 1);
}

TEST_CASE("prefix index: chained hashes tell contents and prefixes apart") {
  Fixture<Xxh3> const f;
  auto const root = f.index.root_hash();
  auto const a = f.index.chained(root, iota(0, 4), {});
  CHECK(a != f.index.chained(root, iota(1, 4), {}));
  CHECK(a != f.index.chained(a, iota(0, 4), {}));
  CHECK(a != f.index.chained(root, iota(0, 4), bytes("cat")));
  CHECK(a == f.index.chained(root, iota(0, 4), {}));
}

TEST_CASE("prefix index: the group keys every run") {
  Fixture<Colliding> f(0, kv::GroupId{2});
  CHECK(Fixture<Xxh3>(0, kv::GroupId{2}).index.root_hash() != Fixture<Xxh3>().index.root_hash());
  RunId const x = f.publish(none, iota(0, 4));
  // Though every hash is equal: what follows another group's root is something else.
  CHECK(f.find(none, iota(0, 4)) == x);
  f.runs[x].parent_generation = 0;
  CHECK(f.find(none, iota(0, 4)) == none);
}

TEST_CASE("prefix index: it knows when only the extra keys differ") {
  Fixture<Xxh3> f;
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(0, 4)));
  RunId const x = f.publish(none, iota(0, 4), "cat");
  CHECK(f.index.has_root_under_other_keys(iota(0, 4)));
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(1, 4)));
  f.erase(x);
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(0, 4)));
  // Content that follows something is no root, nor is the inside of one.
  RunId const root = f.publish(none, iota(20, 8));
  f.publish(root, iota(40, 4));
  CHECK(f.index.has_root_under_other_keys(iota(20, 4)));
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(24, 4)));
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(40, 4)));
  // Nor is the same content in the same block when it follows something now.
  RunId const gone = f.publish(none, iota(80, 4));
  BlockId const block = f.blocks(gone)[0];
  f.erase(gone);
  REQUIRE(f.blocks(f.publish(root, iota(80, 4)))[0] == block);
  CHECK_FALSE(f.index.has_root_under_other_keys(iota(80, 4)));
}

// ---- partial matches
// ------------------------------------------------------------------------------

TEST_CASE("partial match: the longest run of leading tokens, of equals the newest") {
  Fixture<Xxh3> f(4);
  RunId const root = f.publish(none, iota(0, 4));
  std::map<int, RunId> runs;
  runs[1] = f.publish(root, {5, 6, 1, 1});
  runs[2] = f.publish(root, {5, 6, 7, 2});
  runs[3] = f.publish(root, {5, 6, 7, 3});
  runs[4] = f.publish(root, {5, 9, 9, 9});
  f.publish(root, {8, 6, 7, 8});  // another first token
  auto const match = [&](Tokens const& tokens) {
    auto const best = f.index.find_partial(root, 1, tokens, {});
    return std::pair{best.block, best.num_tokens};
  };
  auto const block = [&](int i) { return f.blocks(runs[i])[0]; };
  CHECK(match({5, 6, 7, 8}) == std::pair{block(3), 3});
  CHECK(match({5, 6, 1, 8}) == std::pair{block(1), 3});
  CHECK(match({5, 6, 0, 0}) == std::pair{block(3), 2});
  CHECK(match({5, 6, 7}) == std::pair{block(3), 3});
  CHECK(match({5, 1, 1, 1}) == std::pair{block(4), 1});
  CHECK(match({1, 6, 7, 8}) == std::pair{BlockId{}, 0});
  CHECK(match({}) == std::pair{BlockId{}, 0});
  CHECK(f.index.find_partial(none, 0, Tokens{5, 6, 7, 8}, {}).num_tokens == 0);
}

TEST_CASE("partial match: inside a run only its next block can follow") {
  Fixture<Xxh3> f(4);
  RunId const x = f.publish(none, iota(0, 16));
  f.publish(x, {8, 9, 0, 0});
  auto const match = [&](std::int32_t blocks, Tokens const& tokens, std::string const& extra = {}) {
    auto const best = f.index.find_partial(x, blocks, tokens, bytes(extra));
    return std::pair{best.block, best.num_tokens};
  };
  CHECK(match(2, {8, 9, 10, 0}) == std::pair{f.blocks(x)[2], 3});
  CHECK(match(1, {4, 0, 0, 0}) == std::pair{f.blocks(x)[1], 1});
  CHECK(match(2, {9, 9, 10, 0}) == std::pair{BlockId{}, 0});
  CHECK(match(2, {8, 9, 10, 0}, "cat") == std::pair{BlockId{}, 0});
  CHECK(match(4, {8, 9, 10, 0}).second == 2);  // after all of it: its children
}

TEST_CASE("partial match: it may end in the first block of a longer run") {
  Fixture<Xxh3> f(4);
  RunId const x = f.publish(none, iota(0, 16));
  auto const best = f.index.find_partial(none, 0, Tokens{0, 1, 2, 9}, {});
  CHECK(best.block == f.blocks(x)[0]);
  CHECK(best.num_tokens == 3);
}

TEST_CASE("partial match: only the newest candidates are compared") {
  Fixture<Xxh3> f(2);
  RunId const a = f.publish(none, {5, 6, 7, 1});
  RunId const b = f.publish(none, {5, 6, 1, 1});
  RunId const c = f.publish(none, {5, 1, 1, 1});
  auto const match = [&] { return f.index.find_partial(none, 0, Tokens{5, 6, 7, 9}, {}).block; };
  BlockId const of_a = f.blocks(a)[0];
  BlockId const of_b = f.blocks(b)[0];
  CHECK(match() == of_b);
  // One of them goes: the next older one moves up.
  f.erase(c);
  CHECK(match() == of_a);
  f.erase(a);
  CHECK(match() == of_b);
  f.erase(b);
  CHECK(match().is_null());
}

TEST_CASE("partial match: candidates come and go in any order, and leave nothing behind") {
  Fixture<Xxh3> f(4);
  std::vector<std::int32_t> order{1, 2, 3, 4};
  for (int round = 0; round < 240; ++round) {
    std::map<std::int32_t, RunId> runs;
    for (std::int32_t const i : order) runs[i] = f.publish(none, {5, 6, i, 0});
    auto left = order;
    std::next_permutation(order.begin(), order.end());
    auto const match = [&](std::int32_t token) {
      return f.index.find_partial(none, 0, Tokens{5, 6, token, 9}, {}).block;
    };
    for (std::int32_t const gone : order) {
      REQUIRE(match(gone) == f.blocks(runs[gone])[0]);
      f.erase(runs[gone]);
      std::erase(left, gone);
      REQUIRE(match(9) == (left.empty() ? BlockId{} : f.blocks(runs[left.back()])[0]));
    }
  }
}

TEST_CASE("partial match: a split moves no candidate") {
  Fixture<Xxh3> f(2);
  f.publish(none, {5, 6, 7, 1});
  RunId const b = f.publish(none, {5, 6, 1, 1, 5, 6, 7, 8});
  f.publish(none, {5, 1, 1, 1});
  RunId const head = f.split(b, 1);
  auto const match = [&](RunId parent) {
    return f.index.find_partial(parent, parent >= 0 ? 1 : 0, Tokens{5, 6, 7, 9}, {}).block;
  };
  CHECK(match(none) == f.blocks(head)[0]);
  CHECK(match(head) == f.blocks(b)[0]);
}

TEST_CASE("partial match: extra keys must be equal, and off means off") {
  Fixture<Xxh3> f(4);
  f.publish(none, {5, 6, 7, 1}, "cat");
  CHECK(f.index.find_partial(none, 0, Tokens{5, 6, 7, 9}, {}).block.is_null());
  CHECK(f.index.find_partial(none, 0, Tokens{5, 6, 7, 9}, bytes("cat")).num_tokens == 3);
  Fixture<Xxh3> off;
  RunId const x = off.publish(none, {5, 6, 7, 1, 5, 6, 7, 2});
  CHECK(off.index.find_partial(none, 0, Tokens{5, 6, 7, 9}, {}).block.is_null());
  CHECK(off.index.find_partial(x, 1, Tokens{5, 6, 7, 9}, {}).block.is_null());
}

// ---- against a map of prefixes
// --------------------------------------------------------------------

TEMPLATE_TEST_CASE("prefix index: random runs agree with a map of whole prefixes", "", Xxh3,
                   Colliding) {
  std::mt19937 random(9);
  Fixture<TestType> f;
  std::map<Tokens, BlockId> model;   // the prefix that ends with the block
  std::map<RunId, Tokens> prefixes;  // of every published run, its own tokens included
  auto const below = [&](std::size_t n) { return random() % n; };
  auto const some_prompt = [&] {
    Tokens prompt;
    for (auto j = 1 + below(7); j > 0; --j) {
      auto const first = static_cast<kv::TokenId>(below(2));
      prompt = joined(std::move(prompt), {first, 0, 0, static_cast<kv::TokenId>(below(2))});
    }
    return prompt;
  };
  auto const forget_behind = [&](Tokens const& prefix) {
    std::erase_if(model, [&](auto const& entry) {
      return entry.first.size() >= prefix.size() &&
             std::equal(prefix.begin(), prefix.end(), entry.first.begin());
    });
  };
  auto const split = [&](RunId x, std::int32_t k) {
    auto const behind = 4 * static_cast<std::size_t>(f.runs[x].length - k);
    RunId const head = f.split(x, k);
    prefixes[head] = prefixes[x];
    prefixes[head].resize(prefixes[x].size() - behind);
    return head;
  };
  for (int step = 0; step < 6000; ++step) {
    auto const prompt = some_prompt();
    Blocks expected;
    for (std::size_t end = 4; end <= prompt.size(); end += 4) {
      auto const found = model.find(Tokens(prompt.begin(), prompt.begin() + static_cast<int>(end)));
      if (found == model.end()) break;
      expected.push_back(found->second);
    }
    REQUIRE(f.walk(prompt) == expected);
    REQUIRE(f.index.size() == static_cast<std::int32_t>(prefixes.size()));
    auto const hits = f.walk({prompt, nullptr}, static_cast<std::int32_t>(prompt.size() / 4));
    if (hits.size() > 1 && below(4) == 0) {
      auto const i = 1 + below(hits.size() - 1);
      f.index.use_last(hits[i - 1].first, hits[i].first);
    }
    if (below(3) != 0) {  // publish the rest, or a part of it
      Tokens rest(prompt.begin() + 4 * static_cast<int>(expected.size()), prompt.end());
      if (rest.empty() || f.num_free() < rest.size() / 4) continue;
      rest.resize(4 * (1 + below(rest.size() / 4)));
      RunId parent = none;
      if (!hits.empty()) {
        parent = hits.back().first;
        std::int32_t const n = hits.back().second;
        if (n < f.runs[parent].length) parent = split(parent, n);
      }
      RunId const x = f.publish(parent, rest);
      Tokens prefix(prompt.begin(), prompt.begin() + 4 * static_cast<int>(expected.size()));
      for (std::size_t i = 0; i < rest.size(); i += 4) {
        prefix.insert(prefix.end(), rest.begin() + static_cast<int>(i),
                      rest.begin() + static_cast<int>(i) + 4);
        model[prefix] = f.blocks(x)[i / 4];
      }
      prefixes[x] = prefix;
      continue;
    }
    if (prefixes.empty()) continue;
    auto const some = std::next(prefixes.begin(), static_cast<int>(below(prefixes.size())));
    RunId const x = some->first;
    if (f.runs[x].length > 1 && below(2) == 0) {
      split(x, 1 + static_cast<std::int32_t>(below(f.blocks(x).size() - 1)));
      continue;
    }
    // Erased or detached, with what follows it or not: only what could be reached is in the map.
    auto const own = 4 * f.blocks(x).size();
    Tokens const first(some->second.begin(), some->second.end() - static_cast<int>(own) + 4);
    auto const in_map = model.find(first);
    if (in_map != model.end() && in_map->second == f.blocks(x)[0]) forget_behind(first);
    if (f.index.is_reachable(f.runs[x]) && below(4) == 0) {
      f.index.detach(x);
      continue;
    }
    f.erase(x);
    prefixes.erase(x);
  }
}

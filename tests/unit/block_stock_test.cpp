// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/block_stock.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockCopy;
using kv::BlockId;
using kv::CacheEvent;
using kv::Reclaim;
using kv::Run;
using kv::RunId;
using kv::testing::Blocks;
using kv::testing::iota;
using kv::testing::joined;
using kv::testing::Tokens;

namespace {

using Stock = kv::detail::BlockStock<kv::DefaultPolicy>;
using Condemned = Stock::Condemned;
constexpr RunId none = -1;

Blocks ids(std::vector<std::int32_t> const& numbers) {
  return Blocks(numbers.begin(), numbers.end());
}

/// "stored 3", "removed 1", "moved 1 to 3", "cleared".
class Log final : public kv::CacheObserver {
 public:
  void on_event(CacheEvent const& event) noexcept override {
    auto const name = std::to_string(event.block.value());
    switch (event.kind) {
      case CacheEvent::Kind::stored: lines_.push_back("stored " + name); break;
      case CacheEvent::Kind::removed: lines_.push_back("removed " + name); break;
      case CacheEvent::Kind::moved:
        lines_.push_back("moved " + std::to_string(event.from.value()) + " to " + name);
        break;
      case CacheEvent::Kind::cleared: lines_.push_back("cleared"); break;
    }
  }
  std::vector<std::string> take() { return std::exchange(lines_, {}); }

 private:
  std::vector<std::string> lines_;
};
using Lines = std::vector<std::string>;

/// The stock, and the words of an owner of runs in it. Blocks of 4 tokens.
struct Fixture {
  Log log;
  Stock stock;

  explicit Fixture(std::int32_t num_blocks, Reclaim reclaim = Reclaim::stream_ordered)
      : stock(config(num_blocks, reclaim, &log)) {}

  static kv::KvCacheConfig config(std::int32_t num_blocks, Reclaim reclaim, Log* log) {
    auto c = kv::testing::pool_of(num_blocks);
    c.reclaim = reclaim;
    c.observer = log;
    return c;
  }

  /// A run with these tokens and one owner.
  RunId own(Tokens const& tokens) {
    kv::detail::Extent room;
    Blocks blocks(tokens.size() / 4);
    stock.allocate_behind(none, blocks, room);
    stock.runs().give_room(room);
    RunId const x = stock.runs().run_of(blocks[0]);
    std::copy(tokens.begin(), tokens.end(), stock.runs().tokens(stock.runs()[x].start));
    return x;
  }
  /// Its first n blocks (0: all). Returns the run that they are the end of.
  RunId publish(RunId x, RunId parent = none, std::int32_t n = 0) {
    TokenIds const tokens = stock.runs().tokens(stock.runs()[x].start);
    REQUIRE(stock.index().find(parent, tokens, {}) == none);
    return stock.publish(x, parent, n == 0 ? stock.runs()[x].length : n, {});
  }
  RunId published(Tokens const& tokens, RunId parent = none) {
    return publish(own(tokens), parent);
  }
  /// Others had it, so that it doesn't become a part of `parent`.
  RunId apart(Tokens const& tokens, RunId parent) {
    RunId const x = own(tokens);
    stock.pool().share(x);
    stock.release(x, 0);
    return publish(x, parent);
  }
  RunId idle(Tokens const& tokens, RunId parent = none) {
    RunId const x = published(tokens, parent);
    stock.release(x, 0);
    return x;
  }
  /// Twins of the blocks of `x`.
  RunId twin(RunId x) {
    auto const* const tokens = stock.runs().tokens(stock.runs()[x].start);
    RunId const y = own(Tokens(tokens, tokens + 4 * stock.runs()[x].length));
    stock.join_rings(x, y);
    return y;
  }
  /// A planned copy of block `src` into a new block, whose run is returned.
  RunId copy(BlockId src) {
    stock.hold_source(src);
    RunId const dst = own(iota(9000, 4));
    stock.plan_copy({src, blocks(dst)[0], 2});
    return dst;
  }
  void finish_step() { stock.let_go(stock.pool().end_step()); }

  RunId find(Tokens const& tokens, RunId parent = none) const {
    return stock.index().find(parent, tokens.data(), {});
  }
  /// The blocks that bear the content of this prompt.
  Blocks cached(Tokens const& prompt) const {
    Blocks out;
    stock.index().walk({prompt, nullptr}, static_cast<std::int32_t>(prompt.size() / 4),
                       [&](kv::RunHit hit) {
                         auto const blocks = stock.runs().blocks(hit.run);
                         out.insert(out.end(), blocks.begin(), blocks.begin() + hit.blocks);
                       });
    return out;
  }
  Blocks blocks(RunId x) const {
    auto const blocks = stock.runs().blocks(x);
    return {blocks.begin(), blocks.end()};
  }
  RunId run_of(std::int32_t block) const { return stock.runs().run_of(BlockId{block}); }
  Run const& operator[](RunId x) const { return stock.runs()[x]; }
  std::uint32_t generation(std::int32_t block) const {
    return stock.runs().generation(BlockId{block});
  }
  /// free, idle, used, quarantined, retained
  std::array<std::int32_t, 5> counts() const {
    auto const& pool = stock.pool();
    return {pool.num_free(), pool.num_idle(), pool.num_used(), pool.num_quarantined(),
            pool.num_retained()};
  }
  Blocks idle_in_order() const {
    Blocks out;
    auto const& lru = stock.pool().eviction();
    for (RunId x = lru.front(); x >= 0; x = lru.after(stock.runs(), x)) {
      auto const of_run = blocks(x);
      out.insert(out.end(), of_run.rbegin(), of_run.rend());
    }
    return out;
  }

 private:
  using TokenIds = kv::TokenId const*;
};
using Counts = std::array<std::int32_t, 5>;

}  // namespace

// ---- taking and splitting
// -------------------------------------------------------------------------

TEST_CASE("block stock: new blocks join a tail that only its owner ever had") {
  Fixture f(12);
  kv::detail::Extent room;
  Blocks first(2);
  f.stock.allocate_behind(none, first, room);
  RunId const x = f.run_of(0);
  auto const more = [&] {
    Blocks blocks(1);
    f.stock.allocate_behind(x, blocks, room);
    return f.stock.runs().run_of(blocks[0]);
  };
  CHECK(more() == x);
  CHECK(f[x].length == 3);
  SECTION("not a published one") { f.publish(x); }
  SECTION("not one that others had") { f.stock.pool().share(x); }
  SECTION("not one that a copy reads") { f.stock.pool().hold(f.stock.split(x, 2)); }
  bool const was_split = f[x].length == 1;
  CHECK((more() == x) == was_split);  // the end of the split one is as new
}

TEST_CASE("block stock: what new blocks evict is counted, and told from the end of its path on") {
  Fixture f(4);
  f.idle(iota(0, 16));
  f.log.take();
  f.own(iota(100, 12));
  CHECK(f.stock.stats().evicted_blocks == 3);
  CHECK(f.log.take() == Lines{"removed 3", "removed 2", "removed 1"});
  CHECK(f.cached(iota(0, 16)) == ids({0}));
}

TEST_CASE("block stock: what hung behind an evicted end can't be found any more") {
  Fixture f(4);
  RunId const parent = f.idle(iota(0, 12));
  RunId const child = f.published(iota(12, 4), parent);  // its owner keeps it
  f.own(iota(100, 4));
  CHECK(f.cached(iota(0, 16)) == ids({0, 1}));
  CHECK_FALSE(f.stock.is_findable(child));
  CHECK(f.stock.is_findable(parent));
}

TEST_CASE("block stock: blocks are cut out of a run, and every part stays findable") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 24));
  RunId const middle = f.stock.cut_out(f.stock.runs().place(BlockId{2}), 2);
  CHECK(f.blocks(middle) == ids({2, 3}));
  CHECK(f.blocks(f.run_of(0)) == ids({0, 1}));
  CHECK(f.blocks(x) == ids({4, 5}));
  CHECK(f.blocks(f.stock.isolate(BlockId{0})) == ids({0}));
  CHECK(f.stock.isolate(BlockId{0}) == f.run_of(0));
  CHECK(f.cached(iota(0, 24)) == ids({0, 1, 2, 3, 4, 5}));
}

TEST_CASE("block stock: a run begins with a block, or ends with its content, after one split") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 24));
  CHECK(f.stock.beginning_with(BlockId{0}) == x);
  CHECK(f.stock.content_ending_with(BlockId{5}) == x);
  CHECK(f[x].length == 6);
  CHECK(f.blocks(f.stock.beginning_with(BlockId{4})) == ids({4, 5}));
  CHECK(f.blocks(f.stock.content_ending_with(BlockId{1})) == ids({0, 1}));
  CHECK(f.blocks(f.stock.content_ending_with(BlockId{2})) == ids({2}));
  CHECK(f.stock.runs().num_runs() == 4);
}

TEST_CASE("block stock: a hit is trimmed to the blocks that were hit") {
  Fixture f(4);
  RunId const x = f.idle(iota(0, 16));
  CHECK(f.stock.trim({x, 4}) == x);
  RunId const head = f.stock.trim({x, 1});
  CHECK(f.blocks(head) == ids({0}));
  CHECK(f.idle_in_order() == ids({3, 2, 1, 0}));
}

TEST_CASE("block stock: the child used last is said once a parent is known") {
  Fixture f(4);
  RunId const parent = f.published(iota(0, 4));
  RunId const a = f.apart(iota(10, 4), parent);
  RunId const b = f.apart(iota(20, 4), parent);
  CHECK(f[parent].last_child == b);
  f.stock.used_last(parent, a);
  CHECK(f[parent].last_child == a);
  f.stock.used_last(none, b);  // nothing to say
}

// ---- publishing
// -----------------------------------------------------------------------------------

TEST_CASE("block stock: a run that only its publisher has grows while it is published") {
  Fixture f(8);
  RunId const x = f.own(iota(0, 20));
  RunId const p = f.publish(x, none, 2);
  CHECK(f.blocks(p) == ids({0, 1}));
  CHECK(f.publish(x, p, 1) == p);
  CHECK(f.blocks(p) == ids({0, 1, 2}));
  CHECK(f.publish(x, p, 2) == p);
  CHECK(f.stock.runs().num_runs() == 1);
  CHECK(f.stock.stats().published_blocks == 5);
  CHECK(f.stock.index().size() == 1);
  CHECK(f.cached(iota(0, 20)) == ids({0, 1, 2, 3, 4}));
  CHECK(f.log.take() == Lines{"stored 0", "stored 1", "stored 2", "stored 3", "stored 4"});
}

TEST_CASE("block stock: a published run grows up to its bound") {
  constexpr std::int32_t most = kv::RunTable::max_run_blocks;
  Fixture f(most + 8);
  Tokens const tokens = iota(0, 4 * (most + 8));
  RunId const p = f.publish(f.own(tokens));
  REQUIRE(f[p].length == most);
  RunId const next = f.stock.publish(f.run_of(most), p, 1, {});
  CHECK(next != p);
  CHECK(f[p].length == most);
  CHECK(f[next].parent == p);
  CHECK(f.cached(tokens).size() == static_cast<std::size_t>(most + 1));
}

TEST_CASE("block stock: a published run doesn't grow where one part would differ from another") {
  Fixture f(12);
  RunId const x = f.own(iota(0, 12));
  RunId const p = f.publish(x, none, 1);
  std::string const image = "cat";
  std::span<std::byte const> extra;
  SECTION("something follows it") { f.published(iota(50, 4), p); }
  SECTION("others have it") { f.stock.pool().share(p); }
  SECTION("others had it") {
    f.stock.pool().share(p);
    f.stock.release(p, 0);
  }
  SECTION("others have what comes") { f.stock.pool().share(x); }
  SECTION("what comes is an end of a copy") { f.stock.pool().hold(f.stock.split(x, 1)); }
  SECTION("what comes has extra keys") { extra = std::as_bytes(std::span(image)); }
  RunId const next = f.run_of(1);
  RunId const y = f.stock.publish(next, p, 1, extra);
  CHECK(y != p);
  CHECK(f.blocks(p) == ids({0}));
  CHECK(f.blocks(y) == ids({1}));
  CHECK(f[y].parent == p);
}

TEST_CASE("block stock: runs that don't lie side by side stay apart") {
  Fixture f(8);
  RunId const p = f.own(iota(0, 4));
  f.own(iota(90, 4));
  RunId const x = f.own(iota(4, 4));
  f.publish(p);
  CHECK(f.publish(x, p) == x);
  CHECK(f.cached(iota(0, 8)) == ids({0, 2}));
}

// ---- twins
// ----------------------------------------------------------------------------------------

TEST_CASE("block stock: a new owner's blocks succeed those that nobody has") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  Fixture f(6, reclaim);
  RunId const x = f.idle(iota(0, 8));
  f.idle(iota(8, 4), x);
  RunId const y = f.own(iota(0, 8));
  auto const before = f.generation(1);
  f.log.take();
  f.stock.succeed(x, y);
  CHECK(f.cached(iota(0, 12)) == ids({3, 4, 2}));  // what follows stays
  CHECK(f.counts() == Counts{3, 1, 2, 0, 0});
  CHECK(f.stock.stats().moved_blocks == 2);
  CHECK(f.generation(1) == before + 1);
  CHECK(f.log.take() == Lines{"moved 1 to 4", "moved 0 to 3"});
  CHECK(f[f.run_of(3)].has(Run::shared));
  f.stock.release(f.run_of(3), 0);
  CHECK(f.idle_in_order() == ids({2, 4, 3}));
}

TEST_CASE("block stock: blocks that wait go on waiting when others bear their content") {
  Fixture f(4, Reclaim::deferred);
  RunId const x = f.published(iota(0, 8));
  f.stock.release(x, 1);
  RunId const y = f.own(iota(0, 8));
  f.stock.succeed(x, y);
  CHECK(f.counts() == Counts{0, 0, 2, 2, 0});
  CHECK(f.cached(iota(0, 8)) == ids({2, 3}));
  f.finish_step();
  CHECK(f.counts() == Counts{2, 0, 2, 0, 0});
}

TEST_CASE("block stock: the source of a copy is held when another block bears its content") {
  Fixture f(4);
  RunId const x = f.idle(iota(0, 4));
  f.copy(BlockId{0});
  CHECK(f.counts() == Counts{2, 0, 1, 0, 1});
  f.stock.succeed(x, f.own(iota(0, 4)));
  CHECK(f.cached(iota(0, 4)) == ids({2}));
  CHECK(f.counts() == Counts{1, 0, 2, 0, 1});
  CHECK(f.stock.take_copies().size() == 1);
  f.finish_step();
  CHECK(f.counts() == Counts{2, 0, 2, 0, 0});
}

TEST_CASE("block stock: twins hold nothing and are found by the content of another block") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 12));
  RunId const y = f.twin(x);
  CHECK(f[x].references == 1);
  CHECK_FALSE(f[x].has(Run::shared));
  CHECK(f.stock.is_twin(BlockId{4}));
  CHECK_FALSE(f.stock.is_twin(BlockId{1}));
  CHECK_FALSE(f.stock.is_twin(BlockId{7}));
  CHECK(f.stock.has_a_twin(y));
  CHECK_FALSE(f.stock.has_a_twin(x));
  CHECK(f.stock.findable_blocks(y) == 3);
  CHECK(f.stock.findable_blocks(x) == 3);
  CHECK_FALSE(f[y].has(Run::published));
  CHECK(f.cached(iota(0, 12)) == ids({0, 1, 2}));
  // The content of a twin ends where its bearer's does.
  RunId const content = f.stock.content_ending_with(BlockId{4});
  CHECK(f.blocks(content) == ids({0, 1}));
  CHECK(f.stock.content_ending_with(BlockId{5}) == f.run_of(2));
}

TEST_CASE("block stock: when the last owner of a bearer goes, the oldest twin bears the content") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 8));
  RunId const y = f.twin(x);
  f.twin(x);
  f.log.take();
  f.stock.pool().share(x);
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 8)) == ids({0, 1}));  // it still has an owner
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 8)) == ids({2, 3}));
  CHECK(f.log.take() == Lines{"moved 1 to 3", "moved 0 to 2"});
  CHECK(f.counts() == Counts{4, 0, 4, 0, 0});
  CHECK(f.stock.stats().moved_blocks == 2);
  CHECK(f.stock.stats().evicted_blocks == 0);
  CHECK(f[f.run_of(2)].has(Run::shared));
  CHECK_FALSE(f.stock.is_twin(BlockId{2}));
  CHECK(f.stock.is_twin(BlockId{4}));
  f.stock.release(f.run_of(2), 0);
  CHECK(f.cached(iota(0, 8)) == ids({4, 5}));
  f.stock.release(f.run_of(4), 0);
  CHECK(f.cached(iota(0, 8)) == ids({4, 5}));
  CHECK(f.counts() == Counts{6, 2, 0, 0, 0});
  CHECK(f.run_of(0) == none);
  CHECK(y >= 0);
}

TEST_CASE("block stock: a twin whose owner goes leaves its ring, and is free") {
  Fixture f(6);
  RunId const x = f.published(iota(0, 8));
  RunId const y = f.twin(x);
  f.twin(x);
  f.log.take();
  f.stock.release(y, 0);
  CHECK(f.log.take().empty());
  CHECK(f.counts() == Counts{2, 0, 4, 0, 0});
  CHECK(f.stock.rings().content(BlockId{2}) == 0);
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 8)) == ids({4, 5}));
}

TEST_CASE("block stock: where only a part of a run has twins, only that part is succeeded") {
  Fixture f(12);
  RunId const x = f.published(iota(0, 24));
  // Blocks 2 and 3 have twins side by side, 4 one that lies elsewhere, 0, 1 and 5 none.
  RunId const head = f.stock.split(x, 2);
  RunId const middle = f.stock.split(x, 2);
  RunId const fourth = f.stock.split(x, 1);
  f.twin(middle);                           // 6 and 7
  RunId const other = f.own(iota(500, 4));  // 8
  f.twin(fourth);                           // 9
  for (RunId const part : {head, x}) f.stock.runs()[part].set(Run::has_twins);
  f.log.take();
  for (RunId const part : {x, fourth, middle, head}) f.stock.release(part, 0);
  CHECK(f.log.take() == Lines{"moved 4 to 9", "moved 3 to 7", "moved 2 to 6"});
  CHECK(f.cached(iota(0, 24)) == ids({0, 1, 6, 7, 9, 5}));
  CHECK(f.idle_in_order() == ids({5, 1, 0}));
  CHECK(f.counts() == Counts{5, 3, 4, 0, 0});
  CHECK(f[other].references == 1);
}

TEST_CASE("block stock: one run is released piece by piece where its blocks differ in twins") {
  Fixture f(12);
  RunId const x = f.published(iota(0, 24));
  RunId const y = f.own(joined(iota(500, 4), joined(iota(8, 8), iota(504, 4))));  // 6, 7, 8, 9
  // As a row does it: the twins are a run of their own, the bearers are cut for them.
  f.stock.join_rings(f.stock.cut_out(f.stock.runs().place(BlockId{2}), 2),
                     f.stock.cut_out(f.stock.runs().place(BlockId{7}), 2));
  // A run may stay marked after the twins of its blocks have left.
  f.stock.runs()[f.run_of(0)].set(Run::has_twins);
  f.stock.leave_ring(BlockId{7});
  f.log.take();
  for (std::int32_t const block : {4, 2, 0}) f.stock.release(f.run_of(block), 0);
  CHECK(f.log.take() == Lines{"moved 3 to 8"});
  CHECK(f.cached(iota(0, 24)) == ids({0, 1, 2, 8, 4, 5}));
  CHECK(f.idle_in_order() == ids({5, 4, 2, 1, 0}));
  for (std::int32_t const block : {4, 2, 0}) CHECK_FALSE(f[f.run_of(block)].has(Run::has_twins));
  CHECK(x >= 0);
  CHECK(y >= 0);
}

TEST_CASE("block stock: a bearer and its twins lie in one run of twins: neighbours go together") {
  Fixture f(12);
  RunId const x = f.published(iota(0, 16));
  f.twin(x);
  f.stock.isolate(BlockId{6});  // 4, 5 | 6 | 7
  f.log.take();
  f.stock.release(x, 0);
  CHECK(f.log.take() == Lines{"moved 3 to 7", "moved 2 to 6", "moved 1 to 5", "moved 0 to 4"});
  CHECK(f.cached(iota(0, 16)) == ids({4, 5, 6, 7}));
  CHECK(f.counts() == Counts{8, 0, 4, 0, 0});
}

TEST_CASE("block stock: a twin that will be written into leaves its ring") {
  Fixture f(6);
  RunId const x = f.published(iota(0, 4));
  RunId const y = f.twin(x);
  f.stock.leave_ring(BlockId{1});
  CHECK_FALSE(f.stock.is_twin(BlockId{1}));
  CHECK_FALSE(f.stock.has_a_twin(y));
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 4)) == ids({0}));
  CHECK(f.counts() == Counts{4, 1, 1, 0, 0});
  f.stock.release(y, 0);
  CHECK(f.counts() == Counts{5, 1, 0, 0, 0});
}

TEST_CASE("block stock: a published block is written in place: its content goes or a twin has it") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 8));
  f.log.take();
  SECTION("no twin") {
    f.stock.make_writable(BlockId{1});
    CHECK(f.cached(iota(0, 8)) == ids({0}));
    CHECK(f.log.take() == Lines{"removed 1"});
    CHECK(f.stock.stats().unpublished_blocks == 1);
    CHECK_FALSE(f[f.run_of(1)].has(Run::published));
  }
  SECTION("a twin") {
    f.twin(x);
    f.stock.make_writable(BlockId{1});
    CHECK(f.cached(iota(0, 8)) == ids({0, 3}));
    CHECK(f.log.take() == Lines{"moved 1 to 3"});
    CHECK(f.stock.stats().unpublished_blocks == 0);
    CHECK(f.stock.is_twin(BlockId{2}));
  }
  CHECK(f[f.run_of(1)].references == 1);
  CHECK_FALSE(f.stock.is_twin(BlockId{1}));
  CHECK(f[f.run_of(1)].length == 1);
}

// ---- content that is wrong
// ------------------------------------------------------------------------

TEST_CASE("block stock: a condemned block is found no more, and no twin bears its content") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 8));
  f.twin(x);
  f.log.take();
  auto const before = f.generation(1);
  RunId const pair = f.run_of(2);
  CHECK(f.stock.condemn(BlockId{1}) == Condemned::bearer);
  CHECK(f.log.take() == Lines{"removed 1"});
  CHECK(f.generation(1) == before + 1);
  CHECK(f.cached(iota(0, 8)) == ids({0}));
  CHECK_FALSE(f.stock.is_twin(BlockId{3}));
  CHECK(f.stock.is_twin(BlockId{2}));
  REQUIRE(f[pair].length == 2);
  CHECK(f.stock.findable_blocks(pair) == 1);  // the leading ones
  CHECK(f.stock.findable_blocks(f.run_of(1)) == 0);
  CHECK(f[f.run_of(1)].references == 1);
  CHECK(f.stock.condemn(BlockId{1}) == Condemned::nothing);  // it bears nothing any more
  CHECK(f.stock.condemn(BlockId{3}) == Condemned::nothing);  // a twin of nothing
  CHECK(f.stock.condemn(BlockId{7}) == Condemned::nothing);  // free
}

TEST_CASE("block stock: a condemned twin never bears the content") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 4));
  f.twin(x);
  f.twin(x);
  CHECK(f.stock.condemn(BlockId{1}) == Condemned::twin);
  CHECK(f.stock.condemn(BlockId{1}) == Condemned::nothing);
  CHECK_FALSE(f[f.run_of(1)].has(Run::has_twins));
  CHECK(f.cached(iota(0, 4)) == ids({0}));
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 4)) == ids({2}));
}

TEST_CASE("block stock: what nobody has and hangs behind a condemned block is dropped") {
  Fixture f(8, Reclaim::deferred);
  RunId const root = f.idle(iota(0, 12));
  RunId const a = f.idle(iota(12, 8), root);
  RunId const waits = f.published(iota(20, 4), a);
  f.stock.release(waits, 1);
  RunId const owned = f.published(iota(40, 4), root);
  f.log.take();
  CHECK(f.stock.condemn(BlockId{1}) == Condemned::bearer);
  CHECK(f.log.take() == Lines{"removed 1"});
  CHECK(f.stock.drop_unreachable() == 4);
  auto told = f.log.take();
  std::sort(told.begin(), told.end());
  CHECK(told == Lines{"removed 2", "removed 3", "removed 4", "removed 5"});
  CHECK(f.cached(iota(0, 12)) == ids({0}));
  CHECK(f.counts() == Counts{1 + 4, 1, 1, 1, 0});
  CHECK(f[owned].has(Run::published));
  CHECK_FALSE(f.stock.is_findable(owned));
  CHECK(f.stock.drop_unreachable() == 0);
  f.finish_step();
  CHECK(f.counts() == Counts{6, 1, 1, 0, 0});
}

TEST_CASE("block stock: what hangs behind it is dropped in whatever order it was computed") {
  Fixture f(4);
  RunId const leaf = f.own(iota(8, 4));
  RunId const middle = f.own(iota(4, 4));
  RunId const root = f.published(iota(0, 4));
  f.publish(middle, root);
  f.publish(leaf, middle);
  for (RunId const x : {leaf, middle, root}) f.stock.release(x, 0);
  REQUIRE(f.cached(iota(0, 12)) == ids({2, 1, 0}));
  CHECK(f.stock.condemn(BlockId{2}) == Condemned::bearer);
  CHECK(f.stock.drop_unreachable() == 2);
  CHECK(f.counts() == Counts{4, 0, 0, 0, 0});
}

TEST_CASE("block stock: an orphan is kept by its owner, unfindable, and free when it goes") {
  Fixture f(6);
  RunId const parent = f.published(iota(0, 4));
  RunId const child = f.apart(iota(4, 8), parent);
  RunId const grandchild = f.apart(iota(12, 4), child);
  f.stock.condemn(BlockId{0});
  CHECK(f.stock.mark_orphan(child));
  CHECK_FALSE(f.stock.mark_orphan(child));  // nothing new
  CHECK_FALSE(f.stock.may_be_followed(child));
  CHECK(f.stock.may_be_followed(grandchild));
  f.log.take();
  CHECK_FALSE(f.stock.is_findable(child));
  CHECK(f[child].has(Run::published));
  CHECK_FALSE(f.stock.is_findable(grandchild));
  f.stock.pool().share(child);
  f.stock.release(child, 0);
  CHECK(f.log.take().empty());
  f.stock.release(child, 0);
  CHECK(f.log.take() == Lines{"removed 2", "removed 1"});
  CHECK(f.stock.stats().unpublished_blocks == 2);
  CHECK(f.counts() == Counts{4, 0, 2, 0, 0});
}

TEST_CASE("block stock: orphaned twins don't bear what others computed from good bytes") {
  Fixture f(8);
  RunId const x = f.published(iota(0, 8));
  RunId const y = f.twin(x);
  RunId const younger = f.twin(x);
  CHECK(f.stock.mark_orphan(y));
  CHECK_FALSE(f.stock.mark_orphan(y));
  CHECK_FALSE(f.stock.has_a_twin(y));
  CHECK(f.stock.findable_blocks(y) == 0);
  CHECK(f.stock.findable_blocks(younger) == 2);
  f.stock.release(x, 0);
  CHECK(f.cached(iota(0, 8)) == ids({4, 5}));
  RunId const z = f.own(iota(50, 4));
  CHECK_FALSE(f.stock.mark_orphan(z));  // neither findable nor a twin
  CHECK(f[z].flags == 0);
}

TEST_CASE("block stock: an orphan's content may be published anew while its owner keeps it") {
  Fixture f(8, Reclaim::deferred);
  RunId const parent = f.published(iota(0, 4));
  RunId const child = f.apart(iota(4, 4), parent);
  f.stock.release(f.apart(iota(8, 4), child), 1);
  CHECK(f.stock.pool().quarantine().waiting_children(child) == 1);
  CHECK(f.stock.mark_orphan(child));  // its parent is findable still
  CHECK(f.stock.pool().quarantine().waiting_children(child) == 0);
  CHECK(f[parent].num_children == 0);
  CHECK(f.cached(iota(0, 12)) == ids({0}));
  RunId const again = f.apart(iota(4, 4), parent);
  CHECK(f.cached(iota(0, 12)) == ids({0, 3}));
  f.stock.release(child, 0);
  CHECK(f.cached(iota(0, 12)) == ids({0, 3}));
  CHECK(f.stock.is_findable(again));
}

TEST_CASE(
    "block stock: nothing is findable after all is forgotten, and every owner keeps its own") {
  Fixture f(10);
  RunId const x = f.published(iota(0, 8));
  f.twin(x);
  RunId const idle = f.idle(iota(40, 8));
  RunId const held = f.idle(iota(80, 4));
  f.stock.hold_source(f.blocks(held)[0]);
  auto const before = f.generation(0);
  f.log.take();
  f.stock.unpublish_all();
  CHECK(f.log.take() == Lines{"cleared"});
  CHECK(f.stock.index().size() == 0);
  CHECK(f.counts() == Counts{5, 0, 4, 0, 1});
  CHECK_FALSE(f.stock.is_twin(BlockId{2}));
  CHECK(f[x].references == 1);
  CHECK(f[x].flags == 0);
  CHECK(f.generation(0) == before + 1);
  CHECK(f[idle].length == 0);
  f.stock.release(x, 0);
  CHECK(f.counts() == Counts{7, 0, 2, 0, 1});
}

// ---- copies
// ---------------------------------------------------------------------------------------

TEST_CASE("block stock: both ends of a copy are held until its step is over") {
  Fixture f(6);
  RunId const x = f.idle(iota(0, 12));
  RunId const dst = f.copy(BlockId{1});
  CHECK(f.counts() == Counts{2, 2, 1, 0, 1});  // the rest of the run is idle still
  CHECK(f.stock.is_copy_target(BlockId{3}));
  CHECK_FALSE(f.stock.is_copy_target(BlockId{0}));
  CHECK(f.stock.stats().copies == 1);
  CHECK(f[f.run_of(1)].has(Run::shared));
  auto const taken = f.stock.take_copies();
  REQUIRE(taken.size() == 1);
  CHECK(taken[0] == BlockCopy{BlockId{1}, BlockId{3}, 2});
  CHECK_FALSE(f.stock.is_copy_target(BlockId{3}));
  f.stock.release(dst, 0);
  CHECK(f.counts() == Counts{2, 2, 0, 0, 2});
  f.finish_step();
  CHECK(f.counts() == Counts{3, 3, 0, 0, 0});
  CHECK(f.cached(iota(0, 12)) == ids({0, 1, 2}));
  CHECK(x >= 0);
}

TEST_CASE("block stock: a copy is dropped with the last owner of its target, not before") {
  Fixture f(4);
  f.idle(iota(0, 4));
  RunId const dst = f.copy(BlockId{0});
  f.stock.pool().share(dst);
  f.stock.release(dst, 0);
  CHECK(f.stock.copies().num_pending() == 1);
  f.stock.release(dst, 0);
  CHECK(f.stock.copies().num_pending() == 0);
  CHECK(f.stock.stats().dropped_copies == 1);
  CHECK(f.counts() == Counts{3, 1, 0, 0, 0});
  CHECK(f.stock.take_copies().empty());
}

TEST_CASE("block stock: deferred: the step that runs a copy uses both its ends") {
  Fixture f(4, Reclaim::deferred);
  RunId const src = f.published(iota(0, 4));
  RunId const dst = f.copy(BlockId{0});
  auto const first = f.stock.pool().end_step();
  CHECK(f.stock.take_copies().size() == 1);
  CHECK(f[src].stamp == first + 1);
  CHECK(f[dst].stamp == first + 1);
  f.stock.release(src, 0);
  f.stock.release(dst, 0);
  f.stock.let_go(first);
  CHECK(f.counts() == Counts{2, 0, 0, 0, 2});
  f.finish_step();
  CHECK(f.counts() == Counts{3, 1, 0, 0, 0});
}

TEST_CASE("block stock: a taken copy's target isn't new any more") {
  Fixture f(4);
  f.stock.pool().new_blocks().track();
  RunId const src = f.published(iota(0, 4));
  f.copy(f.blocks(src)[0]);
  (void)f.stock.take_copies();
  Blocks reported;
  f.stock.pool().new_blocks().take([&](BlockId b) { reported.push_back(b); });
  CHECK(reported == ids({0}));
}

TEST_CASE("block stock: the source of a copy hands its content over and is held on") {
  Fixture f(6);
  RunId const x = f.published(iota(0, 8));
  f.twin(x);  // 2, 3
  f.copy(BlockId{1});
  f.stock.release(f.run_of(1), 0);
  f.stock.release(f.run_of(0), 0);
  CHECK(f.cached(iota(0, 8)) == ids({2, 3}));
  CHECK(f.stock.pool().num_retained() == 1);
  CHECK(f.stock.pool().holds(BlockId{1}) == 1);
  CHECK(f.run_of(1) != none);
  (void)f.stock.take_copies();
  f.finish_step();
  CHECK(f.run_of(1) == none);
  CHECK(f.counts() == Counts{3, 0, 3, 0, 0});
}

TEST_CASE("block stock: a run that nobody comes back for is as others once a copy reads it") {
  Fixture f(4);
  RunId const x = f.published(iota(0, 4));
  f.stock.mark_unwanted(x);
  CHECK(f[x].has(Run::leaves_first));
  f.stock.hold_source(BlockId{0});
  CHECK_FALSE(f[x].has(Run::leaves_first));
  RunId const y = f.own(iota(50, 4));
  f.stock.mark_shared(y);
  CHECK_FALSE(f[y].has(Run::shared));  // only what can be found has other users
  f.publish(y);
  f.stock.mark_shared(y);
  CHECK(f[y].has(Run::shared));
}

// ---- twins x copies x eviction
// --------------------------------------------------------------------

namespace {

/// Contents of one block, their bearers and twins in lists, and every hold counted.
class RandomStock {
 public:
  RandomStock(Reclaim reclaim, unsigned seed)
      : deferred_(reclaim == Reclaim::deferred), random_(seed), f_(num_blocks, reclaim) {}

  [[nodiscard]] std::string run(int num_steps) {
    for (int i = 0; i < num_steps && wrong_.empty(); ++i) {
      switch (below(12)) {
        case 0:
        case 1:
        case 2: compute(); break;
        case 3:
        case 4:
        case 5: release(); break;
        case 6: hit(); break;
        case 7: copy(); break;
        case 8: take_copies(); break;
        case 9: condemn(); break;
        case 10: make_writable(); break;
        default: end_step();
      }
      check();
    }
    while (!owned_.empty() && wrong_.empty()) release();
    take_copies();
    end_step();
    f_.finish_step();
    if (wrong_.empty()) {
      Counts const all_idle{num_blocks - static_cast<std::int32_t>(rings_.size()),
                            static_cast<std::int32_t>(rings_.size()), 0, 0, 0};
      require(f_.counts() == all_idle, "in the end blocks are idle or free");
    }
    return wrong_;
  }

 private:
  static constexpr std::int32_t num_blocks = 14;
  struct Taken {
    std::uint64_t tick;
    BlockCopy copy;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  void require(bool ok, char const* what) {
    if (!ok && wrong_.empty()) wrong_ = what;
  }
  Tokens tokens(int content) const { return iota(100 * content, 4); }
  RunId run(BlockId b) { return f_.stock.isolate(b); }
  bool is_target(BlockId b) const {
    return std::any_of(planned_.begin(), planned_.end(),
                       [&](BlockCopy const& c) { return c.dst == b; });
  }
  BlockId some_owned() {
    return std::next(owned_.begin(), static_cast<int>(below(owned_.size())))->first;
  }
  std::uint64_t tick() { return deferred_ && below(2) == 0 ? f_.stock.pool().open_tick() : 0; }
  /// A block from the pool: without owner, unheld; what it bore is gone.
  BlockId take() {
    RunId const x = f_.own(tokens(50));
    BlockId const b = f_.blocks(x)[0];
    require(!owned_.contains(b), "an owned block is handed out");
    require(holds_[b] == 0, "an end of a copy is handed out");
    std::erase_if(rings_, [&](auto const& ring) { return ring.second.front() == b; });
    owned_[b] = 1;
    return b;
  }

  void compute() {
    if (f_.stock.pool().num_available() == 0) return;
    int const content = static_cast<int>(below(5));
    BlockId const b = take();
    RunId const x = run(b);
    auto const ids = tokens(content);
    std::copy(ids.begin(), ids.end(), f_.stock.runs().tokens(f_.stock.runs()[x].start));
    RunId const found = f_.find(ids);
    require((found >= 0) == rings_.contains(content), "what is found");
    if (!wrong_.empty()) return;
    if (found < 0) {
      f_.publish(x);
      rings_[content] = {b};
    } else if (f_.stock.runs()[found].references == 0) {
      f_.stock.succeed(found, x);
      rings_[content] = {b};
    } else {
      f_.stock.join_rings(found, x);
      rings_[content].push_back(b);
    }
  }
  void release() {
    if (owned_.empty()) return;
    BlockId const b = some_owned();
    f_.stock.release(run(b), tick());
    if (--owned_[b] != 0) return;
    owned_.erase(b);
    leave(b, true);
    std::erase_if(planned_, [&](BlockCopy const& c) {
      if (c.dst == b) --holds_[c.src];
      return c.dst == b;
    });
  }
  /// b is written or has no owner. A bearer without twins keeps its content if `may_keep`.
  void leave(BlockId b, bool may_keep) {
    for (auto& [content, ring] : rings_) {
      auto const at = std::find(ring.begin(), ring.end(), b);
      if (at == ring.end()) continue;
      if (ring.size() == 1 && may_keep) return;
      ring.erase(at);
      if (ring.empty()) rings_.erase(content);
      return;
    }
  }
  void hit() {
    int const content = static_cast<int>(below(5));
    RunId const x = f_.find(tokens(content));
    if (x < 0) return;
    ++owned_[f_.blocks(x)[0]];
    f_.stock.pool().acquire(x);
  }
  void copy() {
    if (owned_.empty()) return;
    BlockId src = some_owned();
    if (RunId const x = f_.find(tokens(static_cast<int>(below(5)))); x >= 0 && below(2) == 0) {
      src = f_.blocks(x)[0];  // perhaps without owner
    }
    bool const idle = !owned_.contains(src);
    if (is_target(src) || f_.stock.pool().num_available() < (idle ? 2 : 1)) return;
    f_.stock.hold_source(src);
    ++holds_[src];
    BlockId const dst = take();
    BlockCopy const copy{src, dst, 1};
    f_.stock.plan_copy(copy);
    planned_.push_back(copy);
  }
  void take_copies() {
    auto const taken = f_.stock.take_copies();
    require(taken.size() == planned_.size(), "which copies");
    for (BlockCopy const& copy : planned_) {
      ++holds_[copy.dst];
      taken_.push_back({f_.stock.pool().open_tick(), copy});
    }
    planned_.clear();
  }
  void condemn() {
    BlockId const b{static_cast<std::int32_t>(below(num_blocks))};
    bool bears = false;
    for (auto const& [content, ring] : rings_) bears = bears || ring.front() == b;
    bool const is_twin = !bears && std::any_of(rings_.begin(), rings_.end(), [&](auto const& ring) {
      return std::find(ring.second.begin(), ring.second.end(), b) != ring.second.end();
    });
    Condemned const expected = bears     ? Condemned::bearer
                               : is_twin ? Condemned::twin
                                         : Condemned::nothing;
    require(f_.stock.condemn(b) == expected, "what it was");
    if (!bears) return leave(b, false);
    std::erase_if(rings_, [&](auto const& ring) { return ring.second.front() == b; });
  }
  void make_writable() {
    for (auto const& [content, ring] : rings_) {
      BlockId const b = ring.front();
      if (!owned_.contains(b) || owned_[b] != 1) continue;
      f_.stock.make_writable(b);
      return leave(b, false);
    }
  }
  void end_step() {
    std::uint64_t ended = f_.stock.pool().end_step();
    if (deferred_) ended -= below(2);
    f_.stock.let_go(ended);
    while (!taken_.empty() && taken_.front().tick <= ended) {
      --holds_[taken_.front().copy.src];
      --holds_[taken_.front().copy.dst];
      taken_.pop_front();
    }
  }

  void check() {
    for (int content = 0; content < 5; ++content) {
      RunId const x = f_.find(tokens(content));
      if (!rings_.contains(content)) {
        require(x < 0, "found without a bearer");
        continue;
      }
      require(x >= 0, "a borne content is found");
      if (!wrong_.empty()) return;
      auto const& ring = rings_[content];
      require(f_.blocks(x) == Blocks{ring.front()}, "the bearer");
      Blocks twins;
      for (BlockId b = f_.stock.rings().oldest(ring.front()); !b.is_null();
           b = f_.stock.rings().younger(b)) {
        twins.push_back(b);
      }
      require(twins == Blocks(ring.begin() + 1, ring.end()), "the ring");
    }
    for (std::int32_t i = 0; i < num_blocks; ++i) {
      BlockId const b{i};
      RunId const x = f_.stock.runs().run_of(b);
      auto const references = x >= 0 ? f_.stock.runs()[x].references : 0;
      require(references == (owned_.contains(b) ? owned_[b] : 0), "references");
      require(f_.stock.pool().holds(b) == holds_[b], "holds");
    }
    require(f_.stock.pool().num_used() == static_cast<std::int32_t>(owned_.size()), "num_used");
  }

  bool deferred_;
  std::mt19937 random_;
  Fixture f_;
  std::map<int, std::deque<BlockId>> rings_;  // by content: the bearer, then its twins
  std::map<BlockId, std::uint32_t> owned_;
  std::map<BlockId, std::uint32_t> holds_;
  std::vector<BlockCopy> planned_;
  std::deque<Taken> taken_;
  std::string wrong_;
};

}  // namespace

TEST_CASE("block stock: random twins, copies and evictions agree with lists") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  auto const seed = GENERATE(range(1U, 9U));
  CAPTURE(static_cast<int>(reclaim), seed);
  RandomStock stock(reclaim, seed);
  CHECK(stock.run(4000) == std::string());
}

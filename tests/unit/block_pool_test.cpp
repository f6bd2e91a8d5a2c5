// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/block_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::BlockPool;
using kv::BlockWord;
using kv::Reclaim;

namespace {

using Blocks = std::vector<BlockId>;

/// Remembers what the pool tells of its victims.
struct Victims {
  Blocks announced;
  Blocks evicted;
  void soon(BlockId) {}
  void next(BlockId b) { announced.push_back(b); }
  void evict(BlockId b) { evicted.push_back(b); }
};
constexpr auto nothing_special = [](BlockId, std::uint32_t) {
  FAIL("neither twin nor copy target");
};

Blocks allocate(BlockPool& pool, std::int32_t n, Victims* victims = nullptr) {
  Victims ignored;
  Blocks out(static_cast<std::size_t>(n));
  pool.allocate(out, victims != nullptr ? *victims : ignored);
  return out;
}
void release(BlockPool& pool, Blocks const& blocks, bool wait = false) {
  pool.release(blocks, wait, nothing_special);
}
void publish(BlockPool& pool, Blocks const& blocks) {
  for (BlockId const b : blocks) pool.set(b, BlockWord::published);
}
/// The step ends and the device has finished it.
void finish_step(BlockPool& pool) {
  pool.mark_reclaimed(pool.end_step());
  pool.flush();
}
Blocks idle_in_order(BlockPool const& pool) {
  Blocks out;
  for (BlockId b = pool.eviction().front(); !b.is_null(); b = pool.eviction().after(b)) {
    out.push_back(b);
  }
  return out;
}
Blocks sorted(Blocks blocks) {
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

struct Counts {
  std::int32_t free = 0, idle = 0, used = 0, quarantined = 0, retained = 0;
  bool operator==(Counts const&) const = default;
};
std::ostream& operator<<(std::ostream& out, Counts const& c) {
  return out << c.free << " free, " << c.idle << " idle, " << c.used << " used, " << c.quarantined
             << " quarantined, " << c.retained << " retained";
}
Counts counts(BlockPool const& pool) {
  Counts const c{pool.num_free(), pool.num_idle(), pool.num_used(), pool.num_quarantined(),
                 pool.num_retained()};
  CHECK(c.free + c.idle + c.used + c.quarantined + c.retained == pool.num_blocks());
  CHECK(pool.num_available() == c.free + c.idle);
  CHECK(pool.num_incoming() == c.quarantined + c.retained);
  return c;
}

}  // namespace

TEST_CASE("block pool: all blocks are free at first, block 0 is handed out first") {
  BlockPool pool(4);
  CHECK(counts(pool) == Counts{.free = 4});
  CHECK(allocate(pool, 3) == Blocks{BlockId{0}, BlockId{1}, BlockId{2}});
  CHECK(counts(pool) == Counts{.free = 1, .used = 3});
  CHECK(pool.references(BlockId{0}) == 1);
  CHECK(pool.references(BlockId{3}) == 0);
}

TEST_CASE("block pool: a block comes back with its last reference") {
  BlockPool pool(2);
  auto const b = allocate(pool, 1);
  pool.share({&b[0], 1});
  pool.acquire(b[0]);
  CHECK(pool.references(b[0]) == 3);
  release(pool, b);
  release(pool, b);
  CHECK(counts(pool) == Counts{.free = 1, .used = 1});
  pool.release_one(b[0], false, nothing_special);
  CHECK(counts(pool) == Counts{.free = 2});
}

TEST_CASE("block pool: unpublished blocks go free, published ones idle and stay so until needed") {
  BlockPool pool(4);
  auto const b = allocate(pool, 3);
  publish(pool, {b[0], b[1]});
  release(pool, b);
  CHECK(counts(pool) == Counts{.free = 2, .idle = 2});
  CHECK(pool.is_idle(b[0]));
  CHECK_FALSE(pool.is_idle(b[2]));
  Victims victims;
  CHECK(sorted(allocate(pool, 2, &victims)) == Blocks{b[2], BlockId{3}});
  CHECK(victims.evicted.empty());
}

TEST_CASE("block pool: a sequence is released tail first, so its tail is evicted first") {
  BlockPool pool(4);
  auto const b = allocate(pool, 4);
  publish(pool, b);
  release(pool, b);
  CHECK(idle_in_order(pool) == Blocks{b[3], b[2], b[1], b[0]});
  Victims victims;
  allocate(pool, 2, &victims);
  CHECK(victims.evicted == Blocks{b[3], b[2]});
  CHECK(victims.announced == victims.evicted);
  CHECK(counts(pool) == Counts{.idle = 2, .used = 2});
}

TEST_CASE("block pool: long releases and evictions keep their order") {
  constexpr std::int32_t n = 333;
  BlockPool pool(n);
  auto const b = allocate(pool, n);
  publish(pool, b);
  release(pool, b);
  Victims victims;
  auto const again = allocate(pool, n, &victims);
  CHECK(victims.evicted == Blocks(b.rbegin(), b.rend()));
  CHECK(again == victims.evicted);
}

TEST_CASE("block pool: a hit revives an idle block") {
  BlockPool pool(2);
  auto const b = allocate(pool, 2);
  publish(pool, b);
  release(pool, b);
  pool.acquire(b[1]);
  CHECK(counts(pool) == Counts{.idle = 1, .used = 1});
  CHECK(pool.has(b[1], BlockWord::published));
  Victims victims;
  CHECK(allocate(pool, 1, &victims) == Blocks{b[0]});
  CHECK(victims.evicted == Blocks{b[0]});
}

TEST_CASE("block pool: an evicted block starts anew") {
  BlockPool pool(1);
  auto const b = allocate(pool, 1);
  publish(pool, b);
  pool.share({&b[0], 1});
  release(pool, b);
  release(pool, b);
  allocate(pool, 1);
  CHECK(pool.word(b[0]) == 1);
}

TEST_CASE("block pool: leaves_first puts a block before all idle ones, once") {
  BlockPool pool(3);
  auto const b = allocate(pool, 3);
  publish(pool, b);
  release(pool, {b[0], b[1]});
  pool.set(b[2], BlockWord::leaves_first);
  release(pool, {b[2]});
  CHECK(idle_in_order(pool) == Blocks{b[2], b[1], b[0]});
  pool.acquire(b[2]);
  release(pool, {b[2]});
  CHECK(idle_in_order(pool) == Blocks{b[1], b[0], b[2]});
}

TEST_CASE("block pool: a hit while it waits makes a block one of many again") {
  BlockPool pool(3);
  auto const b = allocate(pool, 3);
  publish(pool, b);
  pool.set(b[2], BlockWord::leaves_first);
  release(pool, {b[2]}, true);
  pool.acquire(b[2]);
  release(pool, {b[0]});
  release(pool, {b[2]}, true);
  finish_step(pool);
  CHECK(idle_in_order(pool) == Blocks{b[0], b[2]});
}

TEST_CASE("block pool: deferred blocks wait for the tick that was open when they were released") {
  BlockPool pool(4, Reclaim::deferred);
  auto const b = allocate(pool, 4);
  publish(pool, {b[0]});
  release(pool, {b[0], b[1]});  // in step 1
  CHECK(counts(pool) == Counts{.used = 2, .quarantined = 2});
  auto const first = pool.end_step();
  release(pool, {b[2]});  // in step 2
  auto const second = pool.end_step();
  pool.mark_reclaimed(first);
  CHECK(counts(pool) == Counts{.used = 1, .quarantined = 3});  // until flush
  pool.flush();
  CHECK(counts(pool) == Counts{.free = 1, .idle = 1, .used = 1, .quarantined = 1});
  pool.mark_reclaimed(second);
  pool.flush();
  CHECK(counts(pool) == Counts{.free = 2, .idle = 1, .used = 1});
}

TEST_CASE("block pool: a waiting block that is published can be revived") {
  BlockPool pool(1, Reclaim::deferred);
  auto const b = allocate(pool, 1);
  publish(pool, b);
  release(pool, b);
  pool.acquire(b[0]);
  CHECK(counts(pool) == Counts{.used = 1});
  finish_step(pool);
  CHECK(counts(pool) == Counts{.used = 1});
}

TEST_CASE("block pool: blocks in the step's batch wait for its end") {
  BlockPool pool(2);
  auto const b = allocate(pool, 2);
  release(pool, {b[0]}, true);
  CHECK(counts(pool) == Counts{.used = 1, .quarantined = 1});
  CHECK_FALSE(pool.num_available() > 0);
  finish_step(pool);
  CHECK(counts(pool) == Counts{.free = 1, .used = 1});
}

TEST_CASE("block pool: after a batched release, blocks that were ever shared wait as well") {
  BlockPool pool(3);
  auto const b = allocate(pool, 3);
  pool.share({&b[0], 1});
  release(pool, {b[0]});
  pool.note_batched_release();
  CHECK_FALSE(pool.leaves_at_once(b[0]));
  CHECK(pool.leaves_at_once(b[1]));
  release(pool, b);
  CHECK(counts(pool) == Counts{.free = 2, .quarantined = 1});
  finish_step(pool);
  CHECK(counts(pool) == Counts{.free = 3});
}

TEST_CASE("block pool: an end of a copy isn't handed out until the copy is over") {
  BlockPool pool(2);
  auto const b = allocate(pool, 2);
  publish(pool, {b[0]});
  release(pool, {b[0]});
  SECTION("held while idle") { pool.hold(b[0]); }
  SECTION("held while owned, then released") {
    pool.acquire(b[0]);
    pool.hold(b[0]);
    CHECK(counts(pool) == Counts{.used = 2});
    release(pool, {b[0]});
  }
  SECTION("held twice") {
    pool.hold(b[0]);
    pool.hold(b[0]);
    CHECK(pool.holds(b[0]) == 2);
    pool.unhold(b[0]);
    pool.flush();
  }
  CHECK(counts(pool) == Counts{.used = 1, .retained = 1});
  CHECK_FALSE(pool.is_idle(b[0]));
  CHECK_FALSE(pool.leaves_at_once(b[0]));
  pool.flush();
  CHECK(pool.num_retained() == 1);
  pool.unhold(b[0]);
  pool.flush();
  CHECK(counts(pool) == Counts{.idle = 1, .used = 1});
  CHECK(pool.holds(b[0]) == 0);
}

TEST_CASE("block pool: a hit on a held block takes it out of the waiting ones") {
  BlockPool pool(1);
  auto const b = allocate(pool, 1);
  publish(pool, b);
  release(pool, b);
  pool.hold(b[0]);
  pool.acquire(b[0]);
  CHECK(counts(pool) == Counts{.used = 1});
  pool.unhold(b[0]);
  pool.flush();
  CHECK(counts(pool) == Counts{.used = 1});
  release(pool, b);
  CHECK(counts(pool) == Counts{.idle = 1});
}

TEST_CASE("block pool: a shared parent doesn't become evictable before a held child") {
  BlockPool pool(2);
  auto const b = allocate(pool, 2);
  publish(pool, b);
  pool.set(b[0], BlockWord::shared);
  pool.hold(b[1]);
  release(pool, b);
  CHECK(counts(pool) == Counts{.quarantined = 1, .retained = 1});
  finish_step(pool);
  CHECK(counts(pool) == Counts{.quarantined = 1, .retained = 1});
  pool.unhold(b[1]);
  finish_step(pool);
  CHECK(idle_in_order(pool) == Blocks{b[1], b[0]});
}

TEST_CASE("block pool: unpublishing an idle block frees it, an owned one stays owned") {
  BlockPool pool(2);
  auto const b = allocate(pool, 2);
  publish(pool, b);
  release(pool, {b[0]});
  pool.unpublish(b[0], true);
  CHECK(counts(pool) == Counts{.free = 1, .used = 1});
  pool.unpublish(b[1], true);
  CHECK(counts(pool) == Counts{.free = 1, .used = 1});
  release(pool, {b[1]});
  CHECK(counts(pool) == Counts{.free = 2});
}

TEST_CASE("block pool: an unpublished idle block may have to wait for the open step") {
  BlockPool pool(1, Reclaim::deferred);
  auto const b = allocate(pool, 1);
  publish(pool, b);
  release(pool, b);
  finish_step(pool);
  CHECK(counts(pool) == Counts{.idle = 1});
  pool.unpublish(b[0], false);
  CHECK(counts(pool) == Counts{.quarantined = 1});
  finish_step(pool);
  CHECK(counts(pool) == Counts{.free = 1});
}

TEST_CASE("block pool: each new block is reported once, while it is still new") {
  BlockPool pool(4);
  auto const reported = [&] {
    Blocks out;
    pool.take_fresh([&](BlockId b) { out.push_back(b); });
    return out;
  };
  auto const before = allocate(pool, 1);
  pool.track_fresh();
  auto const b = allocate(pool, 3);
  pool.clear(b[1], BlockWord::fresh);  // written already
  CHECK(reported() == Blocks{b[0], b[2]});
  CHECK(reported().empty());
  release(pool, {b[0]});
  CHECK(allocate(pool, 1) == Blocks{b[0]});
  CHECK(reported() == Blocks{b[0]});
  CHECK_FALSE(pool.has(before[0], BlockWord::fresh));
}

TEST_CASE("block pool: new blocks are never lost, however long nobody asks") {
  BlockPool pool(5);
  pool.track_fresh();
  auto const kept = allocate(pool, 2);
  for (int i = 0; i < 20; ++i) {
    auto const b = allocate(pool, 3);
    for (BlockId const x : b) pool.clear(x, BlockWord::fresh);
    release(pool, b);
  }
  Blocks out;
  pool.take_fresh([&](BlockId b) { out.push_back(b); });
  CHECK(sorted(out) == sorted(kept));
}

TEST_CASE("block pool: twins and copy targets are told apart at their last reference") {
  BlockPool pool(3);
  auto const b = allocate(pool, 3);
  pool.set(b[0], BlockWord::twin);
  pool.set(b[1], BlockWord::copy_target);
  pool.share({&b[0], 1});
  Blocks told;
  auto const special = [&](BlockId x, std::uint32_t word) {
    told.push_back(x);
    pool.clear(x, BlockWord::twin | BlockWord::copy_target);
    CHECK((word & (BlockWord::twin | BlockWord::copy_target)) != 0);
  };
  pool.release(b, false, special);
  CHECK(told == Blocks{b[1]});
  pool.release_one(b[0], false, special);
  CHECK(told == Blocks{b[1], b[0]});
  CHECK(counts(pool) == Counts{.free = 3});
}

TEST_CASE("block pool: random owners agree with a count by hand") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  constexpr std::int32_t n = 24;
  std::mt19937 random(5);
  BlockPool pool(n, reclaim);
  std::vector<Blocks> owners;
  std::set<BlockId> published;
  for (int step = 0; step < 4000; ++step) {
    auto const want = static_cast<std::int32_t>(random() % 5);
    switch (random() % 5) {
      case 0:
        if (want <= pool.num_available()) {
          Victims victims;
          owners.push_back(allocate(pool, want, &victims));
          for (BlockId const b : victims.evicted) REQUIRE(published.erase(b) == 1);
        }
        break;
      case 1:
        if (!owners.empty()) {
          auto const copy = owners[random() % owners.size()];
          pool.share(copy);
          owners.push_back(copy);
        }
        break;
      case 2:
        if (!owners.empty()) {
          for (BlockId const b : owners[random() % owners.size()]) {
            pool.set(b, BlockWord::published);
            published.insert(b);
          }
        }
        break;
      case 3:
        if (!owners.empty()) {
          auto const i = random() % owners.size();
          release(pool, owners[i], random() % 8 == 0);
          owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      default: finish_step(pool); break;
    }
    std::map<BlockId, std::uint32_t> references;
    for (auto const& blocks : owners) {
      for (BlockId const b : blocks) ++references[b];
    }
    std::int32_t waiting = 0;
    pool.for_each_waiting([&](BlockId b, std::uint64_t) {
      REQUIRE(pool.references(b) == 0);
      ++waiting;
    });
    std::int32_t idle = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      REQUIRE(pool.references(BlockId{i}) ==
              (references.contains(BlockId{i}) ? references[BlockId{i}] : 0));
      idle += pool.is_idle(BlockId{i}) ? 1 : 0;
    }
    REQUIRE(pool.num_used() == static_cast<std::int32_t>(references.size()));
    REQUIRE(pool.num_incoming() == waiting);
    REQUIRE(pool.num_idle() == idle);
  }
  owners.clear();
}

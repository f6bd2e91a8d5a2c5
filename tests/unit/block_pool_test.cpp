// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/block_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::BlockPool;
using kv::Reclaim;
using kv::Run;
using kv::RunId;
using kv::RunTable;

namespace {

using Blocks = std::vector<BlockId>;

Blocks sorted(Blocks blocks) {
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}
Blocks reversed(Blocks blocks) {
  std::reverse(blocks.begin(), blocks.end());
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

/// A pool and the words of its users. The test says what a published run follows.
struct Fixture {
  RunTable runs;
  BlockPool pool;
  Blocks evicted;     ///< in order
  int num_evict = 0;  ///< calls

  explicit Fixture(std::int32_t num_blocks, Reclaim reclaim = Reclaim::stream_ordered)
      : runs(num_blocks, 4, 4), pool(runs, reclaim) {}

  struct Listener {
    Fixture& f;
    void soon(RunId) const {}
    void evict(RunId x, std::int32_t n) const {
      auto const blocks = f.runs.blocks(x);
      for (std::int32_t i = 0; i < n; ++i) {
        f.evicted.push_back(blocks[blocks.size() - 1 - static_cast<std::size_t>(i)]);
      }
      f.pool.forget_children(x);
      ++f.num_evict;
    }
  };

  Blocks allocate(std::int32_t n) {
    Blocks out(static_cast<std::size_t>(n));
    pool.allocate(out, Listener{*this});
    return out;
  }
  RunId lay(Blocks const& blocks) {
    kv::detail::Extent room;
    runs.lay(-1, false, blocks, 0, room);
    runs.give_room(room);
    return runs.run_of(blocks[0]);
  }
  /// A run of n blocks with an owner.
  RunId owned(std::int32_t n) { return lay(allocate(n)); }
  void publish(RunId x, RunId parent = -1) {
    runs[x].set(Run::published);
    runs[x].parent = parent;
    if (parent >= 0) runs[x].parent_generation = runs[parent].generation;
  }
  RunId published(std::int32_t n, RunId parent = -1) {
    RunId const x = owned(n);
    publish(x, parent);
    return x;
  }
  RunId idle(std::int32_t n) {
    RunId const x = published(n);
    release(x);
    return x;
  }
  void release(RunId x, std::uint64_t tick = 0) {
    if (pool.drop(x, tick)) pool.settle(x);
  }
  void release_in_step(RunId x) { release(x, pool.open_tick()); }
  RunId split(RunId x, std::int32_t k) {
    RunId const head = runs.split(x, k);
    if (runs[x].has(Run::published)) publish(x, head);
    pool.split(x, head);
    return head;
  }
  /// The step ends and the device has finished it.
  void finish_step() {
    pool.mark_reclaimed(pool.end_step());
    pool.flush();
  }

  [[nodiscard]] Blocks blocks(RunId x) const {
    auto const blocks = runs.blocks(x);
    return {blocks.begin(), blocks.end()};
  }
  /// The next victims.
  [[nodiscard]] Blocks idle_in_order() const {
    Blocks out;
    for (RunId x = pool.eviction().front(); x >= 0; x = pool.eviction().after(runs, x)) {
      auto const of_run = reversed(blocks(x));
      out.insert(out.end(), of_run.begin(), of_run.end());
    }
    return out;
  }
  /// The one that is handed out next comes last.
  [[nodiscard]] Blocks free_stack() const {
    Blocks out;
    pool.free_blocks().for_each([&](BlockId b) { out.push_back(b); });
    return out;
  }
  [[nodiscard]] Counts counts() const {
    Counts const c{pool.num_free(), pool.num_idle(), pool.num_used(), pool.num_quarantined(),
                   pool.num_retained()};
    CHECK(c.free + c.idle + c.used + c.quarantined + c.retained == pool.num_blocks());
    CHECK(pool.num_available() == c.free + c.idle);
    CHECK(pool.num_incoming() == c.quarantined + c.retained);
    return c;
  }
};

Blocks ids(std::vector<std::int32_t> const& numbers) {
  return Blocks(numbers.begin(), numbers.end());
}

}  // namespace

// ---- taking
// ---------------------------------------------------------------------------------------

TEST_CASE("block pool: all blocks are free at first, block 0 is handed out first") {
  Fixture f(4);
  CHECK(f.counts() == Counts{.free = 4});
  CHECK(f.allocate(3) == ids({0, 1, 2}));
  CHECK(f.counts() == Counts{.free = 1, .used = 3});
  CHECK(f.evicted.empty());
}

TEST_CASE("block pool: allocate says how many of the blocks were free") {
  Fixture f(6);
  f.idle(4);
  Blocks out(5);
  CHECK(f.pool.allocate(out, Fixture::Listener{f}) == 2);
  CHECK(out == ids({4, 5, 3, 2, 1}));
  CHECK(f.evicted == ids({3, 2, 1}));
}

TEST_CASE("block pool: free blocks go first, and come back in the order in which they lay") {
  Fixture f(6);
  RunId const x = f.owned(3);
  f.release(x);
  CHECK(f.allocate(4) == ids({0, 1, 2, 3}));
}

TEST_CASE("block pool: a run comes back with its last reference") {
  Fixture f(3);
  RunId const x = f.owned(2);
  f.pool.share(x);
  f.pool.acquire(x);
  CHECK(f.runs[x].references == 3);
  CHECK(f.runs[x].has(Run::shared));
  CHECK_FALSE(f.pool.drop(x, 0));
  f.release(x);
  CHECK(f.counts() == Counts{.free = 1, .used = 2});
  f.release(x);
  CHECK(f.counts() == Counts{.free = 3});
}

TEST_CASE("block pool: unpublished runs go free, published ones idle and stay so until needed") {
  Fixture f(4);
  RunId const x = f.published(2);
  RunId const y = f.owned(1);
  CHECK_FALSE(f.pool.is_idle(f.runs[x]));
  f.release(y);
  f.release(x);
  CHECK(f.counts() == Counts{.free = 2, .idle = 2});
  CHECK(f.pool.is_idle(f.runs[x]));
  CHECK(sorted(f.allocate(2)) == ids({2, 3}));
  CHECK(f.evicted.empty());
}

TEST_CASE("block pool: a run gives blocks from its end, and its head stays where it was") {
  Fixture f(5);
  RunId const x = f.idle(4);
  RunId const y = f.idle(1);
  CHECK(f.allocate(2) == ids({3, 2}));
  CHECK(f.evicted == ids({3, 2}));
  CHECK(f.counts() == Counts{.idle = 3, .used = 2});
  CHECK(f.blocks(x) == ids({0, 1}));
  CHECK(f.idle_in_order() == ids({1, 0, 4}));
  CHECK(f.pool.is_idle(f.runs[y]));
}

TEST_CASE("block pool: the listener hears of victims before they are taken, once a run") {
  Fixture f(6);
  f.idle(2);
  f.idle(3);
  CHECK(f.allocate(5) == ids({5, 1, 0, 4, 3}));
  CHECK(f.num_evict == 2);
  CHECK(f.evicted == ids({1, 0, 4, 3}));
  CHECK(f.idle_in_order() == ids({2}));
}

TEST_CASE("block pool: long releases and evictions keep their order") {
  constexpr std::int32_t n = 333;
  Fixture f(n);
  std::vector<RunId> runs;
  for (std::int32_t left = n; left > 0; left -= 37) runs.push_back(f.published(std::min(left, 37)));
  for (auto x = runs.rbegin(); x != runs.rend(); ++x) f.release(*x);
  auto const again = f.allocate(n);
  for (std::int32_t i = 0; i < n; ++i) {
    REQUIRE(again[static_cast<std::size_t>(i)] == BlockId{n - 1 - i});
  }
  CHECK(again == f.evicted);
}

TEST_CASE("block pool: evicted blocks start anew") {
  Fixture f(2);
  RunId const x = f.published(2);
  f.pool.share(x);
  f.release(x);
  f.release(x);
  RunId const y = f.lay(f.allocate(1));
  CHECK(f.runs[y].flags == 0);
  CHECK(f.runs[y].references == 1);
  CHECK(f.pool.is_plain(f.runs[y], 0));
}

// ---- reviving
// -------------------------------------------------------------------------------------

TEST_CASE("block pool: a hit revives an idle run") {
  Fixture f(3);
  RunId const x = f.idle(2);
  RunId const y = f.idle(1);
  f.pool.acquire(x);
  CHECK(f.counts() == Counts{.idle = 1, .used = 2});
  CHECK(f.runs[x].has(Run::published));
  CHECK(f.runs[x].has(Run::shared));
  f.release(x);
  CHECK(f.idle_in_order() == ids({2, 1, 0}));
  CHECK(f.pool.is_idle(f.runs[y]));
}

TEST_CASE("block pool: a hit of a part revives that part alone") {
  Fixture f(5);
  RunId const x = f.idle(4);
  f.idle(1);
  RunId const head = f.split(x, 3);
  CHECK(f.idle_in_order() == ids({3, 2, 1, 0, 4}));  // a split moves nothing
  f.pool.acquire(head);
  CHECK(f.counts() == Counts{.idle = 2, .used = 3});
  CHECK(f.idle_in_order() == ids({3, 4}));
}

TEST_CASE("block pool: a split of an owned run is nobody's business but its owners'") {
  Fixture f(3);
  RunId const x = f.published(3);
  f.pool.share(x);
  RunId const head = f.split(x, 1);
  f.release(x);
  f.release(head);
  CHECK(f.counts() == Counts{.used = 3});
  f.release(x);
  CHECK(f.counts() == Counts{.idle = 2, .used = 1});
}

TEST_CASE("block pool: leaves_first puts a run before all idle ones, once") {
  Fixture f(4);
  RunId const x = f.published(2);
  RunId const y = f.published(2);
  f.release(x);
  f.runs[y].set(Run::leaves_first);
  f.release(y);
  CHECK(f.idle_in_order() == ids({3, 2, 1, 0}));
  f.pool.acquire(y);
  f.release(y);
  CHECK(f.idle_in_order() == ids({1, 0, 3, 2}));
}

TEST_CASE("block pool: unpublished blocks that leave first were given back in the other order") {
  Fixture f(4);
  RunId const x = f.owned(3);
  f.runs[x].set(Run::leaves_first);
  f.release(x);
  CHECK(f.free_stack() == ids({3, 0, 1, 2}));
}

TEST_CASE("block pool: a hit while it waits makes a run one of many again") {
  Fixture f(3);
  RunId const x = f.published(1);
  RunId const y = f.published(1);
  f.runs[y].set(Run::leaves_first);
  f.release_in_step(y);
  f.pool.acquire(y);
  f.release(x);
  f.release_in_step(y);
  f.finish_step();
  CHECK(f.idle_in_order() == ids({0, 1}));
}

// ---- waiting for steps
// ----------------------------------------------------------------------------

TEST_CASE("block pool: blocks in the step's batch wait for its end") {
  Fixture f(2);
  RunId const x = f.owned(1);
  f.owned(1);
  f.release_in_step(x);
  CHECK(f.counts() == Counts{.used = 1, .quarantined = 1});
  f.pool.flush();
  CHECK(f.pool.num_available() == 0);
  f.finish_step();
  CHECK(f.counts() == Counts{.free = 1, .used = 1});
}

TEST_CASE("block pool: after a batched release, blocks that were ever shared wait as well") {
  Fixture f(3);
  RunId const x = f.owned(1);
  RunId const y = f.owned(2);
  f.pool.share(x);
  f.release(x);
  f.pool.note_batched_release();
  f.release(x);
  f.release(y);
  CHECK(f.counts() == Counts{.free = 2, .quarantined = 1});
  f.finish_step();
  CHECK(f.counts() == Counts{.free = 3});
  // In the next step no sequence of that batch is left.
  RunId const z = f.owned(1);
  f.pool.share(z);
  f.release(z);
  f.release(z);
  CHECK(f.counts() == Counts{.free = 3});
}

TEST_CASE("block pool: a shared published run waits while anything does, a private one doesn't") {
  Fixture f(4);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  RunId const other = f.published(1);
  RunId const unpublished = f.owned(1);
  f.runs[parent].set(Run::shared);
  f.runs[unpublished].set(Run::shared);
  f.release_in_step(child);
  f.release(parent);
  f.release(other);
  f.release(unpublished);
  CHECK(f.counts() == Counts{.free = 1, .idle = 1, .quarantined = 2});
  f.finish_step();
  CHECK(f.idle_in_order() == ids({2, 1, 0}));
}

TEST_CASE("block pool: a parent waits for a child that waits, though only its owner ever had it") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  Fixture f(2, reclaim);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  f.release_in_step(child);
  f.release(parent);
  CHECK(f.counts() == Counts{.quarantined = 2});
  f.finish_step();
  CHECK(f.idle_in_order() == ids({1, 0}));
}

TEST_CASE("block pool: deferred blocks wait for the last step that used them") {
  Fixture f(4, Reclaim::deferred);
  RunId const x = f.published(1);
  RunId const y = f.owned(1);
  RunId const z = f.owned(1);
  f.release_in_step(x);
  f.release_in_step(y);
  CHECK(f.counts() == Counts{.free = 1, .used = 1, .quarantined = 2});
  auto const first = f.pool.end_step();
  f.release(z, f.pool.open_tick());
  auto const second = f.pool.end_step();
  CHECK(first + 1 == second);
  f.pool.mark_reclaimed(first);
  CHECK(f.pool.reclaimed_tick() == first);
  CHECK(f.counts() == Counts{.free = 1, .quarantined = 3});  // until flush
  f.pool.flush();
  CHECK(f.counts() == Counts{.free = 2, .idle = 1, .quarantined = 1});
  f.pool.mark_reclaimed(second);
  f.pool.mark_reclaimed(first);  // an older report changes nothing
  f.pool.flush();
  CHECK(f.counts() == Counts{.free = 3, .idle = 1});
}

TEST_CASE("block pool: deferred: a run that no step in flight uses is free at once") {
  Fixture f(3, Reclaim::deferred);
  RunId const x = f.owned(1);
  RunId const y = f.published(1);
  auto const tick = f.pool.end_step();
  f.release(x);
  f.release(y, tick - 1);
  CHECK(f.counts() == Counts{.free = 2, .idle = 1});
}

TEST_CASE("block pool: deferred: every owner's last step counts, not only the last owner's") {
  Fixture f(1, Reclaim::deferred);
  RunId const x = f.owned(1);
  f.pool.share(x);
  auto const used = f.pool.open_tick();
  CHECK_FALSE(f.pool.drop(x, used));
  CHECK(f.pool.is_in_flight(f.runs[x]));
  f.pool.end_step();
  f.release(x, 0);
  CHECK(f.counts() == Counts{.quarantined = 1});
  f.pool.mark_reclaimed(used);
  f.pool.flush();
  CHECK(f.counts() == Counts{.free = 1});
}

TEST_CASE("block pool: in flight means deferred, shared and not reclaimed") {
  auto const reclaim = GENERATE(Reclaim::deferred, Reclaim::stream_ordered);
  Fixture f(2, reclaim);
  RunId const x = f.owned(1);
  RunId const y = f.owned(1);
  f.pool.share(x);
  CHECK_FALSE(f.pool.drop(x, f.pool.open_tick()));
  CHECK(f.pool.is_in_flight(f.runs[x]) == (reclaim == Reclaim::deferred));
  f.runs[y].stamp = 1;
  CHECK_FALSE(f.pool.is_in_flight(f.runs[y]));
  f.finish_step();
  CHECK_FALSE(f.pool.is_in_flight(f.runs[x]));
}

TEST_CASE("block pool: plain is one owner's, with these flags, used by no step in flight") {
  Fixture f(1, Reclaim::deferred);
  RunId const x = f.owned(1);
  CHECK(f.pool.is_plain(f.runs[x], 0));
  CHECK_FALSE(f.pool.is_plain(f.runs[x], Run::published));
  f.runs[x].stamp = 1;
  CHECK_FALSE(f.pool.is_plain(f.runs[x], 0));
  f.finish_step();
  CHECK(f.pool.is_plain(f.runs[x], 0));
  f.publish(x);
  CHECK(f.pool.is_plain(f.runs[x], Run::published));
  f.pool.share(x);
  CHECK_FALSE(f.pool.is_plain(f.runs[x], Run::published));
  f.release(x);
  CHECK_FALSE(f.pool.is_plain(f.runs[x], Run::published));  // others may have seen it
}

TEST_CASE("block pool: a waiting run that is published can be revived") {
  Fixture f(2, Reclaim::deferred);
  RunId const x = f.published(2);
  f.release_in_step(x);
  f.pool.acquire(x);
  CHECK(f.counts() == Counts{.used = 2});
  f.finish_step();
  CHECK(f.counts() == Counts{.used = 2});
}

TEST_CASE("block pool: a part of a waiting run is revived, the rest waits on") {
  Fixture f(4, Reclaim::deferred);
  RunId const x = f.published(4);
  f.release_in_step(x);
  RunId const head = f.split(x, 2);
  f.pool.acquire(head);
  CHECK(f.counts() == Counts{.used = 2, .quarantined = 2});
  f.release_in_step(head);
  f.finish_step();
  CHECK(f.idle_in_order() == ids({3, 2, 1, 0}));
}

TEST_CASE("block pool: deferred: a parent never leaves before what waits behind it") {
  Fixture f(3, Reclaim::deferred);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  SECTION("it is given back later, by an owner that no step used") {
    f.release_in_step(child);
    f.release(parent);
    CHECK(f.counts() == Counts{.free = 1, .quarantined = 2});
    f.finish_step();
  }
  SECTION("it waits already, in front of the child") {
    f.release_in_step(parent);
    f.release_in_step(child);
    f.finish_step();
  }
  SECTION("it waits for an older step") {
    f.release_in_step(parent);
    auto const first = f.pool.end_step();
    f.release_in_step(child);
    f.pool.mark_reclaimed(first);
    f.pool.flush();
    CHECK(f.counts() == Counts{.free = 1, .quarantined = 2});
    f.finish_step();
  }
  SECTION("the child is held") {
    f.pool.hold(child);
    f.release_in_step(child);
    f.release_in_step(parent);
    f.finish_step();
    CHECK(f.counts() == Counts{.free = 1, .quarantined = 1, .retained = 1});
    f.pool.unhold(BlockId{1});
    f.pool.flush();
  }
  CHECK(f.counts() == Counts{.free = 1, .idle = 2});
  CHECK(f.idle_in_order() == ids({1, 0}));
}

TEST_CASE("block pool: a parent that leaves first stands before its children and goes with them") {
  Fixture f(2, Reclaim::deferred);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  for (RunId const x : {parent, child}) {
    f.runs[x].set(Run::leaves_first);
    f.release_in_step(x);
  }
  f.finish_step();
  CHECK(f.idle_in_order() == ids({1, 0}));
}

TEST_CASE("block pool: what the open step uses besides waits for it, wherever it is") {
  Fixture f(3, Reclaim::deferred);
  RunId const owned = f.owned(1);
  RunId const waiting = f.owned(1);
  f.release_in_step(waiting);
  auto const first = f.pool.end_step();
  f.pool.use_in_open_step(owned);
  f.pool.use_in_open_step(waiting);
  f.pool.mark_reclaimed(first);
  f.pool.flush();
  f.release(owned);
  CHECK(f.counts() == Counts{.free = 1, .quarantined = 2});
  f.finish_step();
  CHECK(f.counts() == Counts{.free = 3});
}

TEST_CASE("block pool: stream order needs no mark of use") {
  Fixture f(1);
  RunId const x = f.owned(1);
  f.pool.use_in_open_step(x);
  f.release(x);
  CHECK(f.counts() == Counts{.free = 1});
}

// ---- holds
// ----------------------------------------------------------------------------------------

TEST_CASE("block pool: an end of a copy isn't handed out until the copy is over") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  Fixture f(2, reclaim);
  RunId const x = f.idle(1);
  f.owned(1);
  SECTION("held while idle") { f.pool.hold(x); }
  SECTION("held while owned, then released") {
    f.pool.acquire(x);
    f.pool.hold(x);
    CHECK(f.counts() == Counts{.used = 2});
    f.release(x);
  }
  SECTION("held twice") {
    f.pool.hold(x);
    f.pool.hold(x);
    CHECK(f.pool.holds(BlockId{0}) == 2);
    f.pool.unhold(BlockId{0});
    f.pool.flush();
  }
  SECTION("held while it waits") {
    f.pool.acquire(x);
    f.release_in_step(x);
    f.pool.hold(x);
    f.finish_step();
  }
  CHECK(f.counts() == Counts{.used = 1, .retained = 1});
  CHECK_FALSE(f.pool.is_idle(f.runs[x]));
  f.pool.flush();
  CHECK(f.pool.num_retained() == 1);
  f.pool.unhold(BlockId{0});
  CHECK(f.counts() == Counts{.used = 1, .quarantined = 1});  // until flush
  f.finish_step();
  CHECK(f.counts() == Counts{.idle = 1, .used = 1});
  CHECK(f.pool.holds(BlockId{0}) == 0);
}

TEST_CASE("block pool: a hit on a held run takes it out of the waiting ones") {
  Fixture f(1);
  RunId const x = f.idle(1);
  f.pool.hold(x);
  f.pool.acquire(x);
  CHECK(f.counts() == Counts{.used = 1});
  f.pool.unhold(BlockId{0});
  f.pool.flush();
  CHECK(f.counts() == Counts{.used = 1});
  f.release(x);
  CHECK(f.counts() == Counts{.idle = 1});
}

TEST_CASE("block pool: a shared parent doesn't become evictable before a held child") {
  Fixture f(2);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  f.runs[parent].set(Run::shared);
  f.pool.hold(child);
  f.release(child);
  f.release(parent);
  CHECK(f.counts() == Counts{.quarantined = 1, .retained = 1});
  f.finish_step();
  CHECK(f.counts() == Counts{.quarantined = 1, .retained = 1});
  f.pool.unhold(BlockId{1});
  f.finish_step();
  CHECK(f.idle_in_order() == ids({1, 0}));
}

// ---- content
// --------------------------------------------------------------------------------------

TEST_CASE("block pool: unpublishing an idle run frees it, an owned one stays owned") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  Fixture f(4, reclaim);
  RunId const x = f.idle(2);
  RunId const y = f.published(2);
  f.runs[y].set(Run::orphan | Run::has_twins | Run::leaves_first | Run::shared);
  f.pool.unpublish(x);
  CHECK(f.counts() == Counts{.free = 2, .used = 2});
  f.pool.unpublish(y);
  CHECK(f.counts() == Counts{.free = 2, .used = 2});
  CHECK(f.runs[y].flags == Run::shared);
  f.release(y);
  CHECK(f.counts() == Counts{.free = 4});
}

TEST_CASE("block pool: an unpublished waiting run waits on, without content") {
  Fixture f(2, Reclaim::deferred);
  RunId const parent = f.published(1);
  RunId const child = f.published(1, parent);
  f.release_in_step(child);
  f.release(parent);
  f.runs[child].set(Run::leaves_first);
  f.pool.unpublish(child);
  CHECK(f.runs[child].flags == (Run::waiting | Run::leaves_first));
  CHECK(f.pool.quarantine().waiting_children(parent) == 0);
  CHECK(f.counts() == Counts{.quarantined = 2});
  f.finish_step();
  CHECK(f.counts() == Counts{.free = 1, .idle = 1});
}

TEST_CASE("block pool: all idle runs become free at once, in order of block numbers") {
  Fixture f(7);
  RunId const a = f.idle(3);
  f.idle(2);
  f.published(1);
  f.pool.acquire(a);
  f.release(a);  // now after the other one
  REQUIRE(f.idle_in_order() == ids({4, 3, 2, 1, 0}));
  f.pool.free_idle();
  CHECK(f.counts() == Counts{.free = 6, .used = 1});
  CHECK(f.free_stack() == ids({6, 0, 1, 2, 3, 4}));
  CHECK(f.pool.eviction().front() == -1);
  CHECK(f.runs.num_runs() == 1);
}

TEST_CASE("block pool: blocks that bear the content of idle ones free those") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  Fixture f(4, reclaim);
  RunId const x = f.idle(2);
  RunId const y = f.owned(2);
  f.pool.exchange(x, y);
  CHECK(f.counts() == Counts{.free = 2, .used = 2});
  CHECK(f.blocks(x) == ids({2, 3}));
  CHECK(f.runs[x].references == 1);
  CHECK(f.runs[x].flags == (Run::published | Run::shared));
  CHECK(f.free_stack() == ids({1, 0}));
  CHECK(f.runs.run_of(BlockId{0}) == -1);
  f.release(x);
  CHECK(f.counts() == Counts{.free = 2, .idle = 2});
}

TEST_CASE("block pool: blocks that bear the content of waiting ones leave them where they wait") {
  Fixture f(5, Reclaim::deferred);
  RunId const first = f.owned(1);
  RunId const x = f.published(1);
  RunId const last = f.owned(1);
  RunId const y = f.owned(1);
  for (RunId const waiting : {first, x, last}) f.release_in_step(waiting);
  f.runs[x].set(Run::leaves_first);
  f.pool.exchange(x, y);
  CHECK(f.counts() == Counts{.free = 1, .used = 1, .quarantined = 3});
  CHECK(f.blocks(x) == ids({3}));
  CHECK(f.runs[x].stamp == 0);
  CHECK(f.runs[x].flags == (Run::published | Run::shared));
  CHECK(f.runs[y].stamp == 1);
  f.finish_step();
  CHECK(f.free_stack() == ids({4, 0, 1, 2}));
}

TEST_CASE("block pool: holds and marks go with the blocks when others bear their content") {
  Fixture f(2);
  RunId const x = f.idle(1);
  RunId const y = f.owned(1);
  f.pool.hold(x);
  f.runs[y].set(Run::copy_target);
  f.pool.exchange(x, y);
  CHECK(f.counts() == Counts{.used = 1, .retained = 1});
  CHECK(f.runs[x].flags == (Run::published | Run::shared | Run::copy_target));
  CHECK(f.runs[y].has(Run::held));
  CHECK(f.blocks(y) == ids({0}));
  f.pool.unhold(BlockId{0});
  f.finish_step();
  CHECK(f.counts() == Counts{.free = 1, .used = 1});
}

TEST_CASE("block pool: the heir of owned blocks takes their references, they take its") {
  Fixture f(2);
  RunId const x = f.published(1);
  RunId const y = f.owned(1);
  f.pool.share(y);
  f.runs[x].set(Run::has_twins);
  f.runs[y].set(Run::has_twins);
  f.pool.exchange(x, y);
  CHECK(f.runs[x].references == 2);
  CHECK(f.blocks(x) == ids({1}));
  CHECK(f.runs[x].has(Run::has_twins));
  CHECK(f.runs[y].references == 1);
  CHECK(f.runs[y].flags == 0);
  f.release(y);
  CHECK(f.counts() == Counts{.free = 1, .used = 1});
}

// ---- new blocks
// -----------------------------------------------------------------------------------

TEST_CASE("block pool: each new block is reported once, while it is still new") {
  Fixture f(5);
  auto const reported = [&] {
    Blocks out;
    f.pool.new_blocks().take([&](BlockId b) { out.push_back(b); });
    return out;
  };
  f.allocate(1);
  f.pool.new_blocks().track();
  RunId const x = f.owned(1);
  RunId const y = f.owned(2);
  CHECK(reported() == ids({1, 2, 3}));
  CHECK(reported().empty());
  f.release(x);
  CHECK(f.allocate(1) == ids({1}));
  CHECK(reported() == ids({1}));
  RunId const z = f.owned(1);
  f.release(z);  // free again before the question
  CHECK(reported().empty());
  f.publish(y);
  f.release(y);
  f.allocate(2);  // a free one and a victim
  CHECK(reported() == ids({4, 3}));
}

// ---- against a count by hand
// ----------------------------------------------------------------------

namespace {

/// Every block by itself: a stack, a list, and its owners.
class RandomPool {
 public:
  RandomPool(Reclaim reclaim, unsigned seed)
      : deferred_(reclaim == Reclaim::deferred), random_(seed), f_(num_blocks, reclaim) {
    for (std::int32_t i = num_blocks; i-- > 0;) free_.emplace_back(i);
  }

  [[nodiscard]] std::string run(int num_steps) {
    for (int i = 0; i < num_steps && wrong_.empty(); ++i) {
      switch (below(10)) {
        case 0:
        case 1: allocate(); break;
        case 2: share(); break;
        case 3: publish(); break;
        case 4:
        case 5: release(); break;
        case 6: revive(); break;
        case 7: evict(); break;
        case 8: f_.pool.end_step(); break;
        default: reclaim();
      }
      check();
    }
    return wrong_;
  }

 private:
  static constexpr std::int32_t num_blocks = 24;
  struct Block {
    std::uint32_t references = 0;
    bool published = false;
    std::uint64_t stamp = 0;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  void require(bool ok, char const* what) {
    if (!ok && wrong_.empty()) wrong_ = what;
  }
  Block& at(BlockId b) { return blocks_[static_cast<std::size_t>(b.value())]; }
  /// Here no run follows another one: what waits for children has tests of its own.
  RunId split(RunId x, std::int32_t k) {
    RunId const head = f_.runs.split(x, k);
    f_.pool.split(x, head);
    f_.pool.forget_children(head);
    return head;
  }
  /// A run begins (ends) with this block.
  void cut_before(BlockId b) {
    RunId const x = f_.runs.run_of(b);
    std::int32_t const k = f_.runs.place(b) - f_.runs[x].start;
    if (k > 0) split(x, k);
  }
  void cut_behind(BlockId b) {
    RunId const x = f_.runs.run_of(b);
    std::int32_t const k = f_.runs.place(b) + 1 - f_.runs[x].start;
    if (k < f_.runs[x].length) split(x, k);
  }
  std::vector<RunId> runs_of(Blocks const& row) const {
    std::vector<RunId> out;
    for (std::size_t i = 0; i < row.size(); i += f_.runs.blocks(out.back()).size()) {
      out.push_back(f_.runs.run_of(row[i]));
    }
    return out;
  }

  void allocate() {
    auto const n = 1 + below(6);
    if (n > free_.size() + idle_.size()) return;
    Blocks expected;
    Blocks victims;
    while (expected.size() < n) {
      if (!free_.empty()) {
        expected.push_back(free_.back());
        free_.pop_back();
      } else {
        expected.push_back(idle_.front());
        victims.push_back(idle_.front());
        idle_.erase(idle_.begin());
      }
    }
    f_.evicted.clear();
    Blocks const out = f_.allocate(static_cast<std::int32_t>(n));
    require(out == expected, "which blocks");
    require(f_.evicted == victims, "which victims");
    if (!wrong_.empty()) return;
    f_.lay(out);
    for (BlockId const b : out) at(b) = {.references = 1};
    owners_.push_back(out);
  }
  void share() {
    if (owners_.empty()) return;
    Blocks row = owners_[below(owners_.size())];
    row.resize(1 + below(row.size()));
    cut_behind(row.back());
    for (RunId const x : runs_of(row)) f_.pool.share(x);
    for (BlockId const b : row) ++at(b).references;
    owners_.push_back(row);
  }
  void publish() {
    if (owners_.empty()) return;
    Blocks row = owners_[below(owners_.size())];
    row.resize(1 + below(row.size()));
    cut_behind(row.back());
    for (RunId const x : runs_of(row)) f_.publish(x);
    for (BlockId const b : row) at(b).published = true;
  }
  void release() {
    if (owners_.empty()) return;
    auto const i = below(owners_.size());
    Blocks const row = owners_[i];
    owners_.erase(owners_.begin() + static_cast<std::ptrdiff_t>(i));
    std::uint64_t const tick = deferred_ ? f_.pool.open_tick() - below(3) % f_.pool.open_tick() : 0;
    auto const runs = runs_of(row);
    for (auto x = runs.rbegin(); x != runs.rend(); ++x) f_.release(*x, tick);
    for (auto b = row.rbegin(); b != row.rend(); ++b) {
      at(*b).stamp = std::max(at(*b).stamp, tick);
      if (--at(*b).references == 0) settle(*b);
    }
  }
  void settle(BlockId b) {
    if (at(b).stamp <= reclaimed_) return place(b);
    auto to = waiting_.end();
    while (to != waiting_.begin() && at(*std::prev(to)).stamp > at(b).stamp) --to;
    waiting_.insert(to, b);
  }
  void place(BlockId b) { (at(b).published ? idle_ : free_).push_back(b); }
  /// The front of some run without owner.
  void revive() {
    Blocks nobodys = idle_;
    std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(nobodys),
                 [&](BlockId b) { return at(b).published; });
    if (nobodys.empty()) return;
    RunId x = f_.runs.run_of(nobodys[below(nobodys.size())]);
    auto const k = 1 + static_cast<std::int32_t>(below(f_.runs.blocks(x).size()));
    if (k < f_.runs[x].length) x = split(x, k);
    Blocks const row = f_.blocks(x);
    f_.pool.acquire(x);
    for (BlockId const b : row) {
      ++at(b).references;
      std::erase(idle_, b);
      std::erase(waiting_, b);
    }
    owners_.push_back(row);
  }
  void evict() {
    if (idle_.empty()) return;
    BlockId const b = idle_[below(idle_.size())];
    cut_behind(b);
    cut_before(b);
    f_.pool.unpublish(f_.runs.run_of(b));
    std::erase(idle_, b);
    at(b).published = false;
    free_.push_back(b);
  }
  void reclaim() {
    if (!deferred_ || f_.pool.open_tick() == 1) return;
    reclaimed_ = std::max<std::uint64_t>(reclaimed_, f_.pool.open_tick() - 1 - below(2));
    f_.pool.mark_reclaimed(reclaimed_);
    f_.pool.flush();
    while (!waiting_.empty() && at(waiting_.front()).stamp <= reclaimed_) {
      place(waiting_.front());
      waiting_.erase(waiting_.begin());
    }
  }

  void check() {
    require(f_.free_stack() == free_, "the free blocks");
    require(f_.idle_in_order() == idle_, "the idle blocks");
    Blocks waiting;
    for (RunId x = f_.pool.quarantine().front(); x >= 0; x = f_.runs[x].next) {
      for (BlockId const b : reversed(f_.blocks(x))) waiting.push_back(b);
    }
    require(waiting == waiting_, "the waiting blocks");
    require(f_.pool.num_free() == static_cast<std::int32_t>(free_.size()), "num_free");
    require(f_.pool.num_idle() == static_cast<std::int32_t>(idle_.size()), "num_idle");
    require(f_.pool.num_quarantined() == static_cast<std::int32_t>(waiting_.size()),
            "num_quarantined");
    std::int32_t used = 0;
    for (std::int32_t i = 0; i < num_blocks; ++i) {
      BlockId const b{i};
      used += at(b).references != 0 ? 1 : 0;
      RunId const x = f_.runs.run_of(b);
      if (x < 0) {
        require(at(b).references == 0, "an owned block is in a run");
        continue;
      }
      require(f_.runs[x].references == at(b).references, "references");
      require(f_.runs[x].has(Run::published) == at(b).published, "published");
    }
    require(f_.pool.num_used() == used, "num_used");
  }

  bool deferred_;
  std::mt19937 random_;
  Fixture f_;
  std::vector<Block> blocks_{static_cast<std::size_t>(num_blocks)};
  Blocks free_;
  Blocks idle_;
  Blocks waiting_;
  std::vector<Blocks> owners_;
  std::uint64_t reclaimed_ = 0;
  std::string wrong_;
};

}  // namespace

TEST_CASE("block pool: random owners agree with blocks counted one by one") {
  auto const reclaim = GENERATE(Reclaim::stream_ordered, Reclaim::deferred);
  auto const seed = GENERATE(5U, 6U, 7U);
  CAPTURE(seed);
  RandomPool pool(reclaim, seed);
  CHECK(pool.run(20000) == std::string());
}

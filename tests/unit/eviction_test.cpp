// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/eviction.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <random>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::EvictionPolicy;
using kv::LruEviction;
using kv::Run;
using kv::RunId;
using kv::RunTable;

namespace {

using Ids = std::vector<RunId>;

/// The opposite of the default: released last, evicted first. Threads nothing through the records.
class MruEviction {
 public:
  [[nodiscard]] RunId front() const noexcept { return runs_.empty() ? -1 : runs_.front(); }
  [[nodiscard]] RunId after(RunTable const&, RunId x) const noexcept {
    auto const next = std::next(std::find(runs_.begin(), runs_.end(), x));
    return next == runs_.end() ? -1 : *next;
  }
  void push_back(RunTable&, RunId x) { runs_.push_front(x); }
  void push_front(RunTable&, RunId x) { runs_.push_front(x); }
  void erase(RunTable&, RunId x) { runs_.remove(x); }
  void insert_after(RunTable&, RunId x, RunId head) {
    runs_.insert(std::next(std::find(runs_.begin(), runs_.end(), x)), head);
  }
  template <class Prefetch>
  void soon(RunTable const&, Prefetch&&) {}

 protected:
  std::list<RunId> runs_;
};
struct MruPolicy {
  using Hash = kv::Xxh3BlockHash;
  using Eviction = MruEviction;
};
/// The default's order, kept elsewhere.
class ListEviction : public MruEviction {
 public:
  void push_back(RunTable&, RunId x) { runs_.push_back(x); }
};
struct ListPolicy {
  using Hash = kv::Xxh3BlockHash;
  using Eviction = ListEviction;
};

// Rejected: each lacks one thing.
struct NeedsAnArgument : LruEviction {
  explicit NeedsAnArgument(int) {}
};
struct NoFront : LruEviction {
  void front() const noexcept {}
};
struct FrontIsABlock : LruEviction {
  [[nodiscard]] BlockId front() const noexcept { return {}; }
};
struct FrontIsNotConst : LruEviction {
  [[nodiscard]] RunId front() noexcept { return LruEviction::front(); }
};
struct NoAfter : LruEviction {
  void after(RunTable const&, RunId) const noexcept {}
};
struct NoPushBack : LruEviction {
  void push_back(RunTable&, RunId) = delete;
};
struct NoPushFront : LruEviction {
  void push_front(RunTable&, RunId) = delete;
};
struct NoErase : LruEviction {
  void erase(RunTable&, RunId) = delete;
};
struct NoInsertAfter : LruEviction {
  void insert_after(RunTable&, RunId, RunId) = delete;
};
struct InsertsWithoutAHead : LruEviction {
  void insert_after(RunTable&, RunId) {}
};
struct NoSoon : LruEviction {
  void soon(RunTable&, void (*)(RunId)) = delete;
};
struct SoonTellsNobody : LruEviction {
  void soon(RunTable const&) {}
};

static_assert(EvictionPolicy<LruEviction>);
static_assert(EvictionPolicy<MruEviction>);
static_assert(!EvictionPolicy<NeedsAnArgument>);
static_assert(!EvictionPolicy<NoFront>);
static_assert(!EvictionPolicy<FrontIsABlock>);
static_assert(!EvictionPolicy<FrontIsNotConst>);
static_assert(!EvictionPolicy<NoAfter>);
static_assert(!EvictionPolicy<NoPushBack>);
static_assert(!EvictionPolicy<NoPushFront>);
static_assert(!EvictionPolicy<NoErase>);
static_assert(!EvictionPolicy<NoInsertAfter>);
static_assert(!EvictionPolicy<InsertsWithoutAHead>);
static_assert(!EvictionPolicy<NoSoon>);
static_assert(!EvictionPolicy<SoonTellsNobody>);
static_assert(!EvictionPolicy<int>);

/// n runs of `length` blocks without references.
struct Fixture {
  RunTable runs;
  LruEviction lru;

  explicit Fixture(std::int32_t n, std::int32_t length = 1) : runs(n * length, 1, 1) {
    for (std::int32_t i = 0; i < n; ++i) {
      std::vector<BlockId> blocks;
      for (std::int32_t k = 0; k < length; ++k) blocks.emplace_back(i * length + k);
      kv::detail::Extent room;
      runs.lay(-1, false, blocks, 0, room);
      runs.give_room(room);
      RunId const x = runs.run_of(blocks[0]);
      REQUIRE(x == i);
      runs[x].references = 0;
    }
  }
  void push_back(Ids const& ids) {
    for (RunId const x : ids) lru.push_back(runs, x);
  }
  [[nodiscard]] Ids order() const {
    Ids out;
    for (RunId x = lru.front(); x >= 0; x = lru.after(runs, x)) out.push_back(x);
    return out;
  }
  /// As the pool does it. Returns the victim.
  template <class Prefetch>
  RunId evict(Prefetch&& prefetch) {
    RunId const x = lru.front();
    lru.soon(runs, prefetch);
    lru.erase(runs, x);
    return x;
  }
};

}  // namespace

TEST_CASE("lru: released first, evicted first") {
  Fixture f(4);
  CHECK(f.lru.front() == -1);
  f.push_back({2, 0, 3});
  CHECK(f.order() == Ids{2, 0, 3});
  for (RunId const x : {2, 0, 3}) CHECK(f.evict([](RunId) {}) == x);
  CHECK(f.lru.front() == -1);
  f.push_back({1});
  CHECK(f.order() == Ids{1});
}

TEST_CASE("lru: what is pushed to the front goes before all others") {
  Fixture f(4);
  f.push_back({1});
  f.lru.push_front(f.runs, 0);
  f.lru.push_front(f.runs, 3);
  CHECK(f.order() == Ids{3, 0, 1});
}

TEST_CASE("lru: a revived run is no victim, and is last when it comes back") {
  Fixture f(4);
  f.push_back({0, 1, 2, 3});
  f.lru.erase(f.runs, 0);
  f.lru.erase(f.runs, 2);
  CHECK(f.order() == Ids{1, 3});
  f.push_back({0});
  CHECK(f.order() == Ids{1, 3, 0});
}

TEST_CASE("lru: the head of a split run goes right after the rest of it") {
  Fixture f(3, 4);
  f.push_back({0, 1, 2});
  auto const x = GENERATE(0, 1, 2);
  RunId const head = f.runs.split(x, 1);
  f.lru.insert_after(f.runs, x, head);
  Ids expected{0, 1, 2};
  expected.insert(expected.begin() + x + 1, head);
  CHECK(f.order() == expected);
}

TEST_CASE("lru: in a series of evictions, runs are named before they are the front") {
  constexpr std::int32_t n = 100;
  Fixture f(n);
  for (RunId x = n; x-- > 0;) f.push_back({x});
  Ids named;
  Ids victims;
  for (std::int32_t i = 0; i < n; ++i) {
    victims.push_back(f.evict([&](RunId later) { named.push_back(later); }));
  }
  REQUIRE(named.size() == n);
  // Pushed 8 places later, named by the call 4 places later.
  for (std::size_t i = 4; i + 4 < n; ++i) CHECK(named[i] == victims[i + 4]);
}

TEST_CASE("lru: hints of runs that are evicted, revived or gone always name a record") {
  Fixture f(12);
  std::mt19937 random(2);
  int num_wrong = 0;
  auto const check = [&](RunId later) {
    num_wrong += later >= 0 && later < f.runs.num_records() ? 0 : 1;
  };
  for (int step = 0; step < 3000; ++step) {
    auto const x = static_cast<RunId>(random() % 12);
    auto const order = f.order();
    if (std::find(order.begin(), order.end(), x) == order.end()) {
      random() % 4 == 0 ? f.lru.push_front(f.runs, x) : f.lru.push_back(f.runs, x);
    } else if (random() % 2 == 0) {
      f.lru.erase(f.runs, x);
    } else {
      f.evict(check);
    }
  }
  CHECK(num_wrong == 0);
}

TEST_CASE("lru: the hint of a run that waits belongs to those who wait") {
  Fixture f(12);
  f.push_back({0});
  f.lru.erase(f.runs, 0);
  f.runs[0].set(Run::waiting);
  f.runs[0].jump = 5;
  f.push_back({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(f.runs[0].jump == 5);
}

TEST_CASE("lru: random pushes, splits and erases agree with a list") {
  constexpr std::int32_t n = 40;
  std::mt19937 random(11);
  Fixture f(n, 6);
  std::list<RunId> model;
  Ids all;
  for (RunId x = 0; x < n; ++x) all.push_back(x);
  for (int step = 0; step < 5000; ++step) {
    RunId const x = all[random() % all.size()];
    auto const at = std::find(model.begin(), model.end(), x);
    if (at != model.end() && random() % 4 == 0 && f.runs[x].length > 1) {
      RunId const head = f.runs.split(x, 1);
      f.lru.insert_after(f.runs, x, head);
      model.insert(std::next(at), head);
      all.push_back(head);
    } else if (at != model.end() && random() % 2 == 0) {
      REQUIRE(f.evict([](RunId) {}) == model.front());
      model.pop_front();
    } else if (at != model.end()) {
      f.lru.erase(f.runs, x);
      model.erase(at);
    } else if (random() % 8 == 0) {
      f.lru.push_front(f.runs, x);
      model.push_front(x);
    } else {
      f.lru.push_back(f.runs, x);
      model.push_back(x);
    }
    REQUIRE(f.order() == Ids(model.begin(), model.end()));
  }
}

namespace {

using namespace kv::testing;

/// Prompts of one block, the older one first; what is left of them when a third one comes.
template <class Policy>
std::pair<std::int32_t, std::int32_t> survivors() {
  kv::BasicKvCache<Policy> cache(pool_of(2));
  auto const old_prompt = iota(100, 4);
  auto const new_prompt = iota(200, 4);
  leave_idle(cache, old_prompt);
  leave_idle(cache, new_prompt);
  auto const seq = running(cache, 1, iota(300, 4));
  // One token more: a prompt's last one is never hit.
  return {cache.match(cache.hash(joined(old_prompt, {0}))),
          cache.match(cache.hash(joined(new_prompt, {0})))};
}

}  // namespace

TEST_CASE("a cache evicts what its policy says") {
  CHECK(survivors<kv::DefaultPolicy>() == std::pair{0, 4});
  CHECK(survivors<MruPolicy>() == std::pair{4, 0});
}

TEST_CASE("a policy's runs are shortened, split, revived and dropped like the default's") {
  auto const program = []<class Policy>(kv::BasicKvCache<Policy>& cache) {
    std::vector<std::int32_t> left;
    auto const look = [&] {
      for (auto const first : {100, 200, 300}) {
        left.push_back(cache.match(cache.hash(joined(iota(first, 24), {0}))));
      }
      CHECK_VERIFIED(cache);
    };
    leave_idle(cache, iota(100, 16));  // 4 blocks each: one run
    leave_idle(cache, iota(200, 16));
    leave_idle(cache, iota(300, 24));  // 4 free blocks and two victims
    look();
    // A hit of two blocks splits the run of four; given back, they are what was released last.
    { auto const seq = running(cache, 2, joined(iota(200, 8), {0})); }
    look();
    // A part of an idle run goes by name, from its middle.
    auto const blocks = blocks_of(running(cache, 3, iota(300, 24)));
    CHECK(cache.evict(std::span(blocks).subspan(2, 1)) == 1);
    look();
    { auto const seq = running(cache, 4, iota(400, 24)); }
    look();
    { auto const seq = running(cache, 5, iota(500, 8), {.publish = false}); }
    auto seq = running(cache, 6, iota(600, 12));
    std::move(seq).finish(kv::Reuse::none);
    look();
    cache.reset();
    CHECK(cache.stats().free == 12);
    look();
    return left;
  };
  kv::KvCache by_default(pool_of(12));
  kv::BasicKvCache<ListPolicy> by_list(pool_of(12));
  CHECK(program(by_list) == program(by_default));
}

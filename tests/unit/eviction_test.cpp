// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/eviction.hpp>

#include <cstdint>
#include <list>
#include <random>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::EvictionPolicy;
using kv::LruEviction;

namespace {

/// The opposite of the default: released last, evicted first.
class MruEviction {
 public:
  explicit MruEviction(std::int32_t) {}

  [[nodiscard]] std::int32_t size() const noexcept {
    return static_cast<std::int32_t>(blocks_.size());
  }
  [[nodiscard]] BlockId front() const noexcept {
    return blocks_.empty() ? BlockId{} : blocks_.front();
  }
  [[nodiscard]] BlockId after(BlockId b) const noexcept {
    auto const next = std::next(std::find(blocks_.begin(), blocks_.end(), b));
    return next == blocks_.end() ? BlockId{} : *next;
  }
  void push_back(BlockId b) { blocks_.push_front(b); }
  void push_front(BlockId b) { blocks_.push_front(b); }
  void erase(BlockId b) { blocks_.remove(b); }
  template <class Soon>
  BlockId pop_front(Soon&&) {
    BlockId const b = blocks_.front();
    blocks_.pop_front();
    return b;
  }
  void prefetch(BlockId) const noexcept {}

 private:
  std::list<BlockId> blocks_;
};
struct MruPolicy {
  using Hash = kv::Xxh3BlockHash;
  using Eviction = MruEviction;
};

// Rejected: each lacks one thing.
struct NoSize : LruEviction {
  using LruEviction::LruEviction;
  void size() const noexcept {}
};
struct NoPushFront : LruEviction {
  using LruEviction::LruEviction;
  void push_front(BlockId) = delete;
};
struct PopsNothing : LruEviction {
  using LruEviction::LruEviction;
  template <class Soon>
  void pop_front(Soon&&) noexcept {}
};
struct ThrowingFront : LruEviction {
  using LruEviction::LruEviction;
  [[nodiscard]] BlockId front() const noexcept(false) { return LruEviction::front(); }
};
struct WithoutPoolSize {
  LruEviction inner{1};
};

static_assert(EvictionPolicy<LruEviction>);
static_assert(EvictionPolicy<MruEviction>);
static_assert(!EvictionPolicy<NoSize>);
static_assert(!EvictionPolicy<NoPushFront>);
static_assert(!EvictionPolicy<PopsNothing>);
static_assert(!EvictionPolicy<ThrowingFront>);
static_assert(!EvictionPolicy<WithoutPoolSize>);
static_assert(!EvictionPolicy<int>);

constexpr auto ignore = [](BlockId) {};

std::vector<std::int32_t> in_order(LruEviction const& lru) {
  std::vector<std::int32_t> ids;
  for (BlockId b = lru.front(); !b.is_null(); b = lru.after(b)) ids.push_back(b.value());
  return ids;
}

}  // namespace

TEST_CASE("lru: released first, evicted first") {
  LruEviction lru(4);
  CHECK(lru.front().is_null());
  for (std::int32_t const i : {2, 0, 3}) lru.push_back(BlockId{i});
  CHECK(lru.size() == 3);
  CHECK(in_order(lru) == std::vector<std::int32_t>{2, 0, 3});
  CHECK(lru.pop_front(ignore) == BlockId{2});
  CHECK(lru.pop_front(ignore) == BlockId{0});
  CHECK(lru.pop_front(ignore) == BlockId{3});
  CHECK(lru.size() == 0);
  CHECK(lru.front().is_null());
}

TEST_CASE("lru: what is pushed to the front goes before all others") {
  LruEviction lru(4);
  lru.push_back(BlockId{1});
  lru.push_front(BlockId{0});
  lru.push_front(BlockId{3});
  CHECK(in_order(lru) == std::vector<std::int32_t>{3, 0, 1});
}

TEST_CASE("lru: a revived block is no victim, and is last when it comes back") {
  LruEviction lru(4);
  for (std::int32_t i = 0; i < 4; ++i) lru.push_back(BlockId{i});
  lru.erase(BlockId{0});
  lru.erase(BlockId{2});
  CHECK(in_order(lru) == std::vector<std::int32_t>{1, 3});
  lru.push_back(BlockId{0});
  CHECK(in_order(lru) == std::vector<std::int32_t>{1, 3, 0});
}

TEST_CASE("lru: soon names the block that is popped sixteen places later") {
  constexpr std::int32_t n = 100;
  LruEviction lru(n);
  for (std::int32_t i = n; i-- > 0;) lru.push_back(BlockId{i});
  std::vector<BlockId> hinted;
  std::vector<BlockId> popped;
  while (lru.size() > 0) {
    popped.push_back(lru.pop_front([&](BlockId b) { hinted.push_back(b); }));
  }
  REQUIRE(hinted.size() == n);
  for (std::size_t i = 0; i + 16 < n; ++i) CHECK(hinted[i] == popped[i + 16]);
}

TEST_CASE("lru: random pushes, erases and pops agree with a list") {
  constexpr std::int32_t n = 40;
  std::mt19937 random(11);
  LruEviction lru(n);
  std::list<std::int32_t> model;
  for (int step = 0; step < 5000; ++step) {
    auto const id = static_cast<std::int32_t>(random() % n);
    auto const at = std::find(model.begin(), model.end(), id);
    if (random() % 4 == 0 && !model.empty()) {
      // Hints may be stale; they always name a block of the pool.
      BlockId const victim =
          lru.pop_front([](BlockId b) { REQUIRE((b.value() >= 0 && b.value() < n)); });
      REQUIRE(victim.value() == model.front());
      model.pop_front();
    } else if (at != model.end()) {
      lru.erase(BlockId{id});
      model.erase(at);
    } else if (random() % 8 == 0) {
      lru.push_front(BlockId{id});
      model.push_front(id);
    } else {
      lru.push_back(BlockId{id});
      model.push_back(id);
    }
    REQUIRE(lru.size() == static_cast<std::int32_t>(model.size()));
    REQUIRE(in_order(lru) == std::vector<std::int32_t>(model.begin(), model.end()));
  }
}

TEST_CASE("a cache evicts what its policy says") {
  using namespace kv::testing;
  auto const old_prompt = iota(100, 4);
  auto const new_prompt = iota(200, 4);
  auto const newcomer = iota(300, 4);
  auto const survivors = [&](auto& cache) {
    leave_idle(cache, old_prompt);
    leave_idle(cache, new_prompt);
    auto const seq = running(cache, 1, newcomer);
    // One token more: a prompt's last one is never hit.
    return std::pair{cache.match(cache.hash(joined(old_prompt, {0}))),
                     cache.match(cache.hash(joined(new_prompt, {0})))};
  };
  kv::KvCache lru(pool_of(2));
  CHECK(survivors(lru) == std::pair{0, 4});
  kv::BasicKvCache<MruPolicy> mru(pool_of(2));
  CHECK(survivors(mru) == std::pair{4, 0});
}

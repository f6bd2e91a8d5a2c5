// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/eviction.hpp>

#include <cstdint>
#include <list>
#include <random>
#include <span>
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
  void push_back(std::span<BlockId const> blocks) {
    for (BlockId const b : blocks) blocks_.push_front(b);
  }
  void push_front(BlockId b) { blocks_.push_front(b); }
  void erase(BlockId b) { blocks_.remove(b); }
  template <class Soon>
  void pop_front(std::span<BlockId> out, Soon&&) {
    for (BlockId& b : out) {
      b = blocks_.front();
      blocks_.pop_front();
    }
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
struct PopsOne : LruEviction {
  using LruEviction::LruEviction;
  BlockId pop_front() noexcept { return {}; }
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
static_assert(!EvictionPolicy<PopsOne>);
static_assert(!EvictionPolicy<ThrowingFront>);
static_assert(!EvictionPolicy<WithoutPoolSize>);
static_assert(!EvictionPolicy<int>);

constexpr auto ignore = [](BlockId) {};

void push_back(LruEviction& lru, std::vector<std::int32_t> const& ids) {
  std::vector<BlockId> blocks;
  for (auto const id : ids) blocks.emplace_back(id);
  lru.push_back(blocks);
}
template <class Soon>
std::vector<std::int32_t> pop_front(LruEviction& lru, std::int32_t n, Soon&& soon) {
  std::vector<BlockId> out(static_cast<std::size_t>(n));
  lru.pop_front(out, soon);
  std::vector<std::int32_t> ids;
  for (BlockId const b : out) ids.push_back(b.value());
  return ids;
}
std::vector<std::int32_t> in_order(LruEviction const& lru) {
  std::vector<std::int32_t> ids;
  for (BlockId b = lru.front(); !b.is_null(); b = lru.after(b)) ids.push_back(b.value());
  return ids;
}

}  // namespace

TEST_CASE("lru: released first, evicted first") {
  LruEviction lru(4);
  CHECK(lru.front().is_null());
  push_back(lru, {2, 0});
  push_back(lru, {3});
  CHECK(lru.size() == 3);
  CHECK(in_order(lru) == std::vector<std::int32_t>{2, 0, 3});
  CHECK(pop_front(lru, 2, ignore) == std::vector<std::int32_t>{2, 0});
  CHECK(lru.front() == BlockId{3});
  CHECK(pop_front(lru, 1, ignore) == std::vector<std::int32_t>{3});
  CHECK(lru.size() == 0);
  CHECK(lru.front().is_null());
  push_back(lru, {1});
  CHECK(in_order(lru) == std::vector<std::int32_t>{1});
}

TEST_CASE("lru: what is pushed to the front goes before all others") {
  LruEviction lru(4);
  push_back(lru, {1});
  lru.push_front(BlockId{0});
  lru.push_front(BlockId{3});
  CHECK(in_order(lru) == std::vector<std::int32_t>{3, 0, 1});
}

TEST_CASE("lru: a revived block is no victim, and is last when it comes back") {
  LruEviction lru(4);
  push_back(lru, {0, 1, 2, 3});
  lru.erase(BlockId{0});
  lru.erase(BlockId{2});
  CHECK(in_order(lru) == std::vector<std::int32_t>{1, 3});
  push_back(lru, {0});
  CHECK(in_order(lru) == std::vector<std::int32_t>{1, 3, 0});
}

TEST_CASE("lru: nothing in, nothing out") {
  LruEviction lru(4);
  push_back(lru, {});
  CHECK(lru.size() == 0);
  push_back(lru, {2});
  CHECK(pop_front(lru, 0, ignore).empty());
  CHECK(in_order(lru) == std::vector<std::int32_t>{2});
}

TEST_CASE("lru: soon names the block that is popped sixteen places later") {
  constexpr std::int32_t n = 100;
  LruEviction lru(n);
  for (std::int32_t i = n; i > 0; i -= 2) push_back(lru, {i - 1, i - 2});
  std::vector<std::int32_t> hinted;
  auto const popped = pop_front(lru, n, [&](BlockId b) { hinted.push_back(b.value()); });
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
    auto const other = static_cast<std::int32_t>(random() % n);
    auto const has = [&](std::int32_t i) {
      return std::find(model.begin(), model.end(), i) != model.end();
    };
    if (random() % 4 == 0) {
      auto const count = static_cast<std::int32_t>(random() % (model.size() + 1));
      // Hints may be stale; they always name a block of the pool.
      auto const victims =
          pop_front(lru, count, [](BlockId b) { REQUIRE((b.value() >= 0 && b.value() < n)); });
      auto const end = std::next(model.begin(), count);
      REQUIRE(victims == std::vector<std::int32_t>(model.begin(), end));
      model.erase(model.begin(), end);
    } else if (has(id)) {
      lru.erase(BlockId{id});
      model.remove(id);
    } else if (random() % 8 == 0) {
      lru.push_front(BlockId{id});
      model.push_front(id);
    } else if (other != id && !has(other)) {
      push_back(lru, {id, other});
      model.push_back(id);
      model.push_back(other);
    } else {
      push_back(lru, {id});
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

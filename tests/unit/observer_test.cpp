// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/observer.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using namespace kv::testing;
using kv::BlockId;
using kv::CacheEvent;
using kv::SequenceId;
using Kind = kv::CacheEvent::Kind;

namespace {

/// A router's copy of the cache: it knows nothing but the events, and distrusts each.
class Mirror final : public kv::CacheObserver {
 public:
  using Identity = std::pair<std::int32_t, std::uint32_t>;
  struct Stored {
    Identity parent;
    Tokens tokens;
    std::string extra;
    bool operator==(Stored const&) const = default;
  };

  void on_event(CacheEvent const& e) noexcept override {
    gapless = gapless && e.number == next++;
    switch (e.kind) {
      case Kind::stored: {
        Identity const parent{e.parent.value(), e.parent_generation};
        parents_first = parents_first && (e.parent.is_null() || is_reachable(parent));
        std::string extra;
        for (std::byte const b : e.extra_keys) extra.push_back(static_cast<char>(b));
        fresh = fresh && map.try_emplace({e.block.value(), e.generation},
                                         Stored{parent, {e.tokens.begin(), e.tokens.end()}, extra})
                             .second;
        break;
      }
      case Kind::removed: known = known && map.erase({e.block.value(), e.generation}) == 1; break;
      case Kind::cleared: map.clear(); break;
      case Kind::moved: move(e); break;
    }
    kinds.push_back(e.kind);
  }
  /// Tokens that a router would expect to be cached of a prompt.
  std::int32_t match(Tokens const& prompt) const {
    Identity at{-1, 0};
    std::int32_t matched = 0;
    for (std::size_t j = 0; j + 4 < prompt.size(); j += 4) {
      Tokens const block(prompt.begin() + static_cast<std::ptrdiff_t>(j),
                         prompt.begin() + static_cast<std::ptrdiff_t>(j) + 4);
      auto const child = std::find_if(map.begin(), map.end(), [&](auto const& entry) {
        return entry.second.parent == at && entry.second.tokens == block &&
               entry.second.extra.empty();
      });
      if (child == map.end()) break;
      at = child->first;
      matched += 4;
    }
    return matched;
  }
  /// Whether a look-up that begins at the first block could come here.
  bool is_reachable(Identity at) const {
    auto const found = map.find(at);
    return found != map.end() &&
           (found->second.parent.first < 0 || is_reachable(found->second.parent));
  }
  bool all_well() const { return gapless && parents_first && fresh && known; }

  std::map<Identity, Stored> map;
  std::vector<Kind> kinds;
  std::uint64_t next = 0;
  bool gapless = true;
  bool parents_first = true;
  bool fresh = true;
  bool known = true;

 private:
  /// Another key for the same content; what follows it stays where it is.
  void move(CacheEvent const& e) {
    Identity const from{e.from.value(), e.from_generation};
    Identity const to{e.block.value(), e.generation};
    auto node = map.extract(from);
    known = known && !node.empty();
    fresh = fresh && !map.contains(to);
    if (node.empty()) return;
    node.key() = to;
    map.insert(std::move(node));
    for (auto& [identity, stored] : map) {
      if (stored.parent == from) stored.parent = to;
    }
  }
};

kv::KvCacheConfig observed(std::int32_t num_blocks, Mirror& mirror) {
  auto config = pool_of(num_blocks);
  config.observer = &mirror;
  return config;
}

}  // namespace

TEST_CASE("events: a commit stores full blocks, parent before child") {
  Mirror mirror;
  kv::KvCache cache(observed(8, mirror));
  auto seq = running(cache, 1, iota(0, 9));
  CHECK(mirror.kinds == std::vector<Kind>{Kind::stored, Kind::stored});
  CHECK(mirror.all_well());
  CHECK(mirror.match(iota(0, 10)) == 8);
  // A draft isn't news.
  REQUIRE(seq.append(iota(9, 5)).has_value());
  CHECK(mirror.kinds.size() == 2);
}

TEST_CASE("events: an event carries what a router needs to know") {
  struct Recorder final : kv::CacheObserver {
    void on_event(CacheEvent const& e) noexcept override {
      event = e;
      tokens.assign(e.tokens.begin(), e.tokens.end());
      extra_bytes = e.extra_keys.size();
    }
    CacheEvent event;
    Tokens tokens;
    std::size_t extra_bytes = 0;
  } recorder;
  auto config = pool_of(8);
  config.observer = &recorder;
  kv::KvCache cache(config);
  auto const key = cache.hash(iota(0, 8), {.salt = "tenant"});
  auto seq = cache.open(SequenceId{1}, key, {.reserve = 8});
  REQUIRE(seq.has_value());
  seq->commit(4);
  CHECK(recorder.event.kind == Kind::stored);
  CHECK(recorder.event.number == 0);
  CHECK(recorder.event.block == seq->blocks()[0]);
  CHECK(recorder.event.parent.is_null());
  CHECK(recorder.event.hash == key.hashes()[0]);
  CHECK(recorder.tokens == iota(0, 4));
  CHECK(recorder.extra_bytes == 5 + 6);
  seq->commit(8);
  CHECK(recorder.event.number == 1);
  CHECK(recorder.event.block == seq->blocks()[1]);
  CHECK(recorder.event.parent == seq->blocks()[0]);
  CHECK(recorder.event.parent_generation == cache.generation(seq->blocks()[0]));
  CHECK(recorder.event.hash == key.hashes()[1]);
  CHECK(recorder.event.parent_hash == key.hashes()[0]);
  CHECK(recorder.tokens == iota(4, 4));
  CHECK(recorder.extra_bytes == 0);
  CHECK(recorder.event.group == kv::GroupId{0});
}

TEST_CASE("events: an evicted block is removed, its descendants before it") {
  Mirror mirror;
  kv::KvCache cache(observed(3, mirror));
  leave_idle(cache, iota(0, 12));
  auto const seq = running(cache, 2, iota(100, 4));
  CHECK(mirror.kinds ==
        std::vector<Kind>{Kind::stored, Kind::stored, Kind::stored, Kind::removed, Kind::stored});
  CHECK(mirror.match(iota(0, 13)) == 8);
  CHECK(mirror.all_well());
}

TEST_CASE("events: a twin is no news, and bears the content when the block before it goes") {
  struct Recorder final : kv::CacheObserver {
    void on_event(CacheEvent const& e) noexcept override { events.push_back(e); }
    std::vector<CacheEvent> events;
  } recorder;
  auto config = pool_of(8);
  config.observer = &recorder;
  kv::KvCache cache(config);
  auto const key = cache.hash(iota(0, 4));
  std::optional first = running(cache, 1, iota(0, 5));
  auto const second = running(cache, 2, iota(0, 5), {.read = false});
  CHECK(recorder.events.size() == 1);
  auto const from = first->blocks()[0];
  auto const generation = cache.generation(from);
  REQUIRE(from != second.blocks()[0]);
  first.reset();
  REQUIRE(recorder.events.size() == 2);
  CacheEvent const& moved = recorder.events[1];
  CHECK(moved.kind == Kind::moved);
  CHECK(moved.number == 1);
  CHECK(moved.block == second.blocks()[0]);
  CHECK(moved.generation == cache.generation(second.blocks()[0]));
  CHECK(moved.from == from);
  CHECK(moved.from_generation == generation);
  CHECK(moved.hash == key.hashes()[0]);
  CHECK(cache.generation(from) == generation + 1);
}

TEST_CASE("events: a move changes the key of the content, and its children stay behind it") {
  Mirror mirror;
  kv::KvCache cache(observed(8, mirror));
  std::optional first = running(cache, 1, iota(0, 9));
  auto const second = running(cache, 2, iota(0, 5), {.read = false});
  first.reset();
  CHECK(mirror.kinds == std::vector<Kind>{Kind::stored, Kind::stored, Kind::moved});
  CHECK(mirror.match(iota(0, 9)) == 8);
  CHECK(mirror.all_well());
}

TEST_CASE("events: what was unpublished is removed, and so is what follows it when it can go") {
  Mirror mirror;
  kv::KvCache cache(observed(8, mirror));
  leave_idle(cache, iota(0, 13));
  auto const owner = running(cache, 1, iota(0, 9));  // two blocks of the three are owned
  BlockId const first = owner.blocks()[0];
  CHECK(cache.unpublish({&first, 1}) == 1);
  CHECK(mirror.kinds ==
        std::vector<Kind>{Kind::stored, Kind::stored, Kind::stored, Kind::removed, Kind::removed});
  CHECK(mirror.map.size() == 1);  // the second block, which is owned
  CHECK(mirror.match(iota(0, 13)) == 0);
  CHECK(mirror.all_well());
}

TEST_CASE("events: targeted eviction and reset are told") {
  Mirror mirror;
  kv::KvCache cache(observed(8, mirror));
  BlockId first;
  {
    auto const seq = running(cache, 1, iota(0, 8));
    first = seq.blocks()[0];
  }
  CHECK(cache.evict({&first, 1}) == 1);
  CHECK(mirror.kinds.back() == Kind::removed);
  CHECK(mirror.map.size() == 1);
  CHECK(mirror.match(iota(0, 9)) == 0);
  cache.reset();
  CHECK(mirror.kinds.back() == Kind::cleared);
  CHECK(mirror.map.empty());
  leave_idle(cache, iota(0, 8));
  CHECK(mirror.match(iota(0, 9)) == 8);
  CHECK(mirror.all_well());
}

TEST_CASE("events: replayed, they give the map that the cache has, at any moment") {
  auto const twins = GENERATE(kv::Twins::keep, kv::Twins::adopt);
  auto const reclaim = GENERATE(kv::Reclaim::stream_ordered, kv::Reclaim::deferred);
  Mirror mirror;
  auto config = observed(12, mirror);
  config.twins = twins;
  config.reclaim = reclaim;
  kv::KvCache cache(config);
  std::mt19937 random(9);
  std::vector<kv::Sequence> live;
  auto const some_prompt = [&] {
    Tokens prompt(1 + random() % 20);
    for (auto& t : prompt) t = static_cast<kv::TokenId>(random() % 2);
    return prompt;
  };
  for (int step = 0; step < 3000; ++step) {
    auto const prompt = some_prompt();
    switch (random() % 6) {
      case 0:
      case 1: {
        auto seq = cache.open(SequenceId{1}, prompt, {.read = random() % 4 != 0});
        if (seq) live.push_back(*std::move(seq));
        break;
      }
      case 2:
        if (!live.empty())
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
        break;
      case 3:
        if (!live.empty()) {
          auto& seq = live[random() % live.size()];
          seq.truncate(static_cast<std::int32_t>(random() % static_cast<unsigned>(seq.size() + 1)));
        }
        break;
      case 4:
        if (step % 40 == 0) cache.reset();
        if (step % 3 == 0 && !live.empty()) {
          auto const blocks = live[random() % live.size()].blocks();
          if (blocks.empty()) break;
          BlockId const bad = blocks[random() % blocks.size()];
          cache.unpublish({&bad, 1});
        }
        break;
      default:
        if (!live.empty()) {
          auto& seq = live[random() % live.size()];
          if (seq.append(prompt)) {
            (void)cache.take_copies();
            seq.commit(seq.size());
          }
        }
    }
    if (step % 3 == 0) cache.reclaim(cache.end_step());
    REQUIRE(mirror.all_well());
    REQUIRE(mirror.match(prompt) == cache.match(cache.hash(prompt)));
  }
}

// SPDX-License-Identifier: Apache-2.0
// Contract 6, its other half: content that is known to be wrong can't be found, nor what follows
// it.
#include <map>

#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;
using Kind = kv::CacheEvent::Kind;

namespace {

/// A router's map; notes a child that is stored where no look-up could come.
class ParentWatch : public kv::CacheObserver {
 public:
  using Identity = std::pair<std::int32_t, std::uint32_t>;

  void on_event(kv::CacheEvent const& e) noexcept override {
    Identity const at{e.block.value(), e.generation};
    switch (e.kind) {
      case Kind::stored: {
        Identity const parent{e.parent.value(), e.parent_generation};
        orphans += e.parent.is_null() || is_reachable(parent) ? 0 : 1;
        parents[at] = parent;
        break;
      }
      case Kind::removed:
        unknown += parents.erase(at) == 1 ? 0 : 1;
        ++removed;
        break;
      case Kind::cleared: parents.clear(); break;
      case Kind::moved: {
        Identity const from{e.from.value(), e.from_generation};
        auto node = parents.extract(from);
        unknown += node.empty() ? 1 : 0;
        if (node.empty()) break;
        node.key() = at;
        parents.insert(std::move(node));
        for (auto& entry : parents) {
          if (entry.second == from) entry.second = at;
        }
        break;
      }
    }
  }
  bool is_reachable(Identity at) const {
    auto const found = parents.find(at);
    return found != parents.end() && (found->second.first < 0 || is_reachable(found->second));
  }

  std::map<Identity, Identity> parents;
  int orphans = 0;
  int unknown = 0;
  int removed = 0;
};

kv::KvCacheConfig watched(ParentWatch& watch, std::int32_t num_blocks) {
  auto config = small_pool(num_blocks);
  config.observer = &watch;
  return config;
}

Ids blocks_cached(kv::KvCache& cache, Tokens const& prompt) {
  auto const pin = cache.pin(cache.hash(prompt));
  REQUIRE(pin.has_value());
  auto const blocks = pin->blocks();
  return Ids(blocks.begin(), blocks.end());
}

}  // namespace

TEST_CASE("contract 6: what an owner holds can be made unfindable, and the owner keeps it") {
  ParentWatch watch;
  kv::KvCache cache(watched(watch, 8));
  auto seq = std::optional(started(cache, 1, count_from(0, 8)));
  auto const row = ids_of(*seq);
  std::uint32_t const generation = cache.generation(row[1]);
  CHECK(cache.unpublish(Ids{row[1]}) == 1);
  CHECK(watch.removed == 1);
  CHECK(cache.generation(row[1]) == generation + 1);
  CHECK_FALSE(cache.is_published(row[1]));
  CHECK(cached_tokens(cache, count_from(0, 9)) == 4);
  CHECK(ids_of(*seq) == row);
  CHECK(seq->size() == 8);
  CHECK(seq->committed() == 8);
  CHECK(cache.stats().used == 2);
  CHECK(cache.stats().unpublished_blocks == 1);
  CHECK(cache.unpublish(Ids{row[1]}) == 0);  // again: it bears nothing
  seq.reset();
  CHECK(cache.stats().idle == 1);
  CHECK(cache.stats().free == 7);
  CHECK(cache.verify());
}

TEST_CASE("contract 6: an idle block that is unpublished is free at once, with what follows it") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    ParentWatch watch;
    auto config = watched(watch, 8);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    leave_cached(cache, 1, count_from(0, 16));
    leave_cached(cache, 2, count_from(0, 8) + count_from(50, 4));  // another branch
    cache.reclaim(cache.end_step());
    CHECK(cache.stats().idle == 5);
    auto const row = blocks_cached(cache, count_from(0, 16));
    CHECK(cache.unpublish(Ids{row[1]}) == 1);
    CHECK(cache.stats().idle == 1);
    CHECK(cache.stats().free == 7);
    CHECK(watch.removed == 4);
    CHECK(cache.stats().unpublished_blocks == 4);
    CHECK(cached_tokens(cache, count_from(0, 17)) == 4);
    CHECK(cache.unpublish(Ids{row[1], row[2]}) == 0);  // free blocks bear nothing
    // The same content again is something new.
    leave_cached(cache, 3, count_from(0, 8));
    CHECK(cached_tokens(cache, count_from(0, 17)) == 8);
    CHECK(watch.orphans == 0);
    CHECK(watch.unknown == 0);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 6: waiting blocks that are unpublished wait on, and are free then") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    ParentWatch watch;
    auto config = watched(watch, 8);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
    Ids row;
    {
      auto const seq = started(cache, 1, count_from(0, 12));
      row = ids_of(seq);
      batch.begin_step();
      REQUIRE(batch.add(seq, {11, 1}).has_value());
    }
    CHECK(cache.incoming_blocks() == 3);
    CHECK(cache.unpublish(Ids{row[1]}) == 1);
    CHECK(watch.removed == 2);
    CHECK(cache.incoming_blocks() == 3);
    CHECK(cached_tokens(cache, count_from(0, 13)) == 4);
    finish_step(cache);
    CHECK(cache.incoming_blocks() == 0);
    CHECK(cache.stats().idle == 1);
    CHECK(cache.stats().free == 7);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 6: an owned descendant can't be found, and is free when it is given back") {
  ParentWatch watch;
  kv::KvCache cache(watched(watch, 8));
  auto seq = std::optional(started(cache, 1, count_from(0, 16)));
  auto guest = std::optional(started(cache, 2, count_from(0, 13)));  // three blocks, and its own
  auto const row = ids_of(*seq);
  CHECK(cache.unpublish(Ids{row[0]}) == 1);
  CHECK(watch.removed == 1);
  CHECK(cached_tokens(cache, count_from(0, 17)) == 0);
  CHECK(cache.is_published(row[1]));  // until the last owner goes
  auto const hopeful = cache.open(SequenceId{3}, count_from(0, 17));
  REQUIRE(hopeful.has_value());
  CHECK(hopeful->cached() == 0);
  seq.reset();
  CHECK(watch.removed == 2);  // the fourth block
  CHECK(cache.stats().idle == 0);
  CHECK(cache.is_published(row[1]));
  guest.reset();
  CHECK(watch.removed == 4);
  CHECK(cache.stats().unpublished_blocks == 4);
  CHECK(cache.stats().idle == 0);
  CHECK(cache.stats().free == 8);
  CHECK(watch.parents.empty());
  CHECK(cache.verify());
}

TEST_CASE("contract 6: a row publishes nothing after a block that was unpublished") {
  ParentWatch watch;
  kv::KvCache cache(watched(watch, 16));
  auto seq = std::optional(started(cache, 1, count_from(0, 8)));
  auto const row = ids_of(*seq);

  SECTION("its own last block") {
    CHECK(cache.unpublish(Ids{row[1]}) == 1);
    fill(cache, *seq, count_from(0, 16));
    CHECK(seq->committed() == 16);
    CHECK(cached_tokens(cache, count_from(0, 17)) == 4);
    CHECK_FALSE(cache.is_published(seq->blocks()[2]));
  }
  SECTION("an earlier block") {
    CHECK(cache.unpublish(Ids{row[0]}) == 1);
    fill(cache, *seq, count_from(0, 16));
    CHECK_FALSE(cache.is_published(seq->blocks()[2]));
    CHECK(cached_tokens(cache, count_from(0, 17)) == 0);
  }
  SECTION("a fork, made before or after") {
    auto before = seq->fork(SequenceId{2});
    REQUIRE(before.has_value());
    CHECK(cache.unpublish(Ids{row[0]}) == 1);
    auto after = seq->fork(SequenceId{3});
    REQUIRE(after.has_value());
    fill(cache, *before, count_from(0, 12));
    fill(cache, *after, count_from(0, 8) + count_from(50, 4));
    CHECK_FALSE(cache.is_published(before->blocks()[2]));
    CHECK_FALSE(cache.is_published(after->blocks()[2]));
  }
  SECTION("a row whose block is a twin of it") {
    auto twin = started(cache, 2, count_from(0, 8), {.read = false});
    CHECK(cache.unpublish(Ids{row[0]}) == 1);
    fill(cache, twin, count_from(0, 12));
    CHECK_FALSE(cache.is_published(twin.blocks()[2]));
  }
  SECTION("a twin that is bad itself") {
    auto twin = started(cache, 2, count_from(0, 8), {.read = false});
    CHECK(cache.unpublish(Ids{twin.blocks()[1]}) == 0);
    fill(cache, twin, count_from(0, 12));
    CHECK_FALSE(cache.is_published(twin.blocks()[2]));
    CHECK(cached_tokens(cache, count_from(0, 13)) == 8);
  }
  SECTION("another row computes the content anew, and publishes again") {
    CHECK(cache.unpublish(Ids{row[0]}) == 1);
    auto other = started(cache, 2, count_from(0, 12));
    CHECK(other.cached() == 0);
    CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
    // The first row's blocks don't stand under what is new.
    fill(cache, *seq, count_from(0, 16));
    CHECK_FALSE(cache.is_published(seq->blocks()[3]));
    CHECK(cached_tokens(cache, count_from(0, 17)) == 12);
  }
  CHECK(watch.orphans == 0);
  CHECK(watch.unknown == 0);
  CHECK(cache.verify());
  seq.reset();
  CHECK(cache.verify());
}

TEST_CASE("contract 6: a truncated row publishes again where its blocks are good") {
  kv::KvCache cache(small_pool(16));
  auto seq = started(cache, 1, count_from(0, 12));
  auto const row = ids_of(seq);
  CHECK(cache.unpublish(Ids{row[2]}) == 1);
  seq.truncate(8);
  fill(cache, seq, count_from(0, 8) + count_from(50, 4));
  CHECK(cached_tokens(cache, count_from(0, 8) + count_from(50, 5)) == 12);
  CHECK(cache.verify());
}

TEST_CASE("contract 6: pinned blocks are unpublished like owned ones") {
  ParentWatch watch;
  auto config = watched(watch, 8);
  kv::KvCache cache(config);
  leave_cached(cache, 1, count_from(0, 12));
  {
    auto const pin = cache.pin(cache.hash(count_from(0, 8)));
    REQUIRE(pin.has_value());
    CHECK(cache.unpublish(Ids{pin->blocks()[0]}) == 1);
    // The third block has no owner, the second one belongs to the pin.
    CHECK(watch.removed == 2);
    CHECK(cache.stats().used == 2);
    CHECK(cached_tokens(cache, count_from(0, 13)) == 0);
    CHECK(cache.verify());
  }
  CHECK(watch.removed == 3);
  CHECK(cache.stats().free == 8);
  CHECK(cache.verify());
}

TEST_CASE("contract 6: unpublish takes blocks in any order, twice, and of any state") {
  ParentWatch watch;
  kv::KvCache cache(watched(watch, 16));
  leave_cached(cache, 1, count_from(0, 16));
  auto const owner = started(cache, 2, count_from(100, 8));
  auto const row = blocks_cached(cache, count_from(0, 16));
  auto const own = ids_of(owner);
  kv::BlockId free;
  for (std::int32_t i = 0; i < 16; ++i) {
    kv::BlockId const b{i};
    if (cache.references(b) == 0 && !cache.is_published(b)) free = b;
  }
  REQUIRE_FALSE(free.is_null());
  // Deepest first, so that both are still borne when their turn comes.
  CHECK(cache.unpublish(Ids{row[3], free, own[1], row[2], own[1]}) == 3);
  CHECK(cached_tokens(cache, count_from(0, 17)) == 8);
  CHECK(cached_tokens(cache, count_from(100, 9)) == 4);
  CHECK(cache.unpublish({}) == 0);
  CHECK(cache.verify());
  auto const misuse = outcome_of([] {
    kv::KvCache other(small_pool(4));
    (void)other.unpublish(Ids{kv::BlockId{4}});
  });
  CHECK(misuse.aborted);
}

// SPDX-License-Identifier: Apache-2.0
// Contracts 8 and 9: copies, twins.
#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;

TEST_CASE("contract 8: each copy is handed out once") {
  kv::KvCache cache(small_pool(8));
  auto seq = started(cache, 1, count_from(0, 6));
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  kv::BlockId const tail = seq.blocks()[1];
  REQUIRE(fork->append(Tokens{7}).has_value());
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0] == kv::BlockCopy{tail, fork->blocks()[1], 2});
  CHECK(cache.take_copies().empty());
  finish_step(cache);
  CHECK(cache.take_copies().empty());
}

TEST_CASE("contract 8: a chain of untaken copies collapses to its first source") {
  kv::KvCache cache(small_pool(8));
  auto a = started(cache, 1, count_from(0, 6));
  auto b = a.fork(SequenceId{2});
  REQUIRE(b.has_value());
  kv::BlockId const tail = a.blocks()[1];
  REQUIRE(b->append(Tokens{7}).has_value());
  b->truncate(6);  // the copy into what remains stays
  auto c = b->fork(SequenceId{3});
  REQUIRE(c.has_value());
  REQUIRE(c->append(Tokens{8}).has_value());
  auto const taken = cache.take_copies();
  std::vector<kv::BlockCopy> const copies(taken.begin(), taken.end());
  REQUIRE(copies.size() == 2);
  std::set<kv::BlockId> sources, destinations;
  for (auto const& copy : copies) {
    CHECK(copy.src == tail);
    CHECK(copy.num_tokens == 2);
    sources.insert(copy.src);
    destinations.insert(copy.dst);
  }
  CHECK(destinations == std::set<kv::BlockId>{b->blocks()[1], c->blocks()[1]});
  CHECK(destinations.count(tail) == 0);
}

TEST_CASE("contract 8: releasing a destination that was not taken drops its copy") {
  kv::KvCache cache(small_pool(8));
  auto seq = started(cache, 1, count_from(0, 6));
  {
    auto fork = seq.fork(SequenceId{2});
    REQUIRE(fork.has_value());
    REQUIRE(fork->append(Tokens{7}).has_value());
  }
  CHECK(cache.take_copies().empty());
  CHECK(cache.stats().dropped_copies == 1);
  auto fork = seq.fork(SequenceId{3});
  REQUIRE(fork.has_value());
  REQUIRE(fork->append(Tokens{7}).has_value());
  fork->truncate(4);
  CHECK(cache.take_copies().empty());
  CHECK(cache.stats().dropped_copies == 2);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: what fits isn't starved by its own twins, whenever blocks come back") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(3);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    auto gone = std::optional(started(cache, 1, {}));
    auto stays = started(cache, 2, {});
    for (auto* seq : {&*gone, &stays}) REQUIRE(seq->append(count_from(0, 4)).has_value());
    for (auto* seq : {&*gone, &stays}) seq->commit(4);
    CHECK(cache.stats().twin_blocks == 1);
    gone.reset();
    cache.reclaim(cache.end_step());
    // Alone in the cache, it can have every block of it.
    CHECK(stays.append(count_from(50, 8)).has_value());
    stays.commit(12);
    CHECK(stays.num_blocks() == 3);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 8: both ends of a copy are held until the step that took it has ended") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(4);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    kv::BlockId src, dst;
    {
      auto seq = started(cache, 1, count_from(0, 3));
      auto fork = seq.fork(SequenceId{2});
      REQUIRE(fork.has_value());
      REQUIRE(fork->append(Tokens{7}).has_value());
      src = seq.blocks()[0];
      dst = fork->blocks()[0];
      REQUIRE(cache.take_copies().size() == 1);
    }
    // Nobody owns the two ends any more; the step's copy still reads and fills them.
    CHECK(cache.available_blocks() == 2);
    CHECK(cache.incoming_blocks() == 2);
    auto hungry = cache.open(SequenceId{3}, count_from(50, 8), {.reserve = 8});
    REQUIRE(hungry.has_value());
    for (auto const b : hungry->blocks()) {
      CHECK(b != src);
      CHECK(b != dst);
    }
    CHECK_FALSE(hungry->would_fit(1));
    auto const tick = cache.end_step();
    if (reclaim == kv::Reclaim::deferred) {
      CHECK_FALSE(hungry->would_fit(1));
      cache.reclaim(tick);
    }
    CHECK(cache.available_blocks() == 2);
    CHECK(hungry->would_fit(8));
  }
}

TEST_CASE("contract 8: an untaken copy holds its source when its owner goes") {
  kv::KvCache cache(small_pool(3));
  std::optional<kv::Sequence> seq = started(cache, 1, count_from(0, 3));
  auto fork = seq->fork(SequenceId{2});
  REQUIRE(fork.has_value());
  REQUIRE(fork->append(Tokens{7}).has_value());
  kv::BlockId const src = seq->blocks()[0];
  seq.reset();
  auto other = cache.open(SequenceId{3}, count_from(50, 4), {.reserve = 4});
  REQUIRE(other.has_value());
  CHECK(other->blocks()[0] != src);
  CHECK_FALSE(other->would_fit(1));
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].src == src);
}

TEST_CASE("contract 8: committing over an untaken copy is a checked error") {
  auto const early = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = started(cache, 1, count_from(0, 6));
    auto fork = seq.fork(SequenceId{2});
    (void)fork->append(Tokens{7});
    fork->commit(7);
  });
  CHECK(early.aborted);
  auto const in_time = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = started(cache, 1, count_from(0, 6));
    auto fork = seq.fork(SequenceId{2});
    (void)fork->append(Tokens{7});
    (void)cache.take_copies();
    fork->commit(7);
  });
  CHECK_FALSE(in_time.aborted);
}

TEST_CASE("contract 9: the first publish wins and the twin holds one reference on it") {
  auto config = small_pool(16);
  Listener listener;
  config.observer = &listener;
  kv::KvCache cache(config);
  Tokens const prompt = count_from(0, 8);
  auto a = std::optional(started(cache, 1, prompt));
  auto b = std::optional(started(cache, 2, prompt, {.read = false}));
  auto const firsts = ids_of(*a);
  auto const twins = ids_of(*b);
  CHECK(firsts[0] != twins[0]);  // tables are append-only
  CHECK(cache.is_published(firsts[1]));
  CHECK_FALSE(cache.is_published(twins[1]));
  CHECK(cache.stats().twin_blocks == 2);
  CHECK(listener.heard.size() == 2);
  CHECK(cache.references(firsts[1]) == 2);

  // The twin block holds it, not each of its owners.
  auto fork = std::optional(*b->fork(SequenceId{3}));
  CHECK(cache.references(firsts[1]) == 2);
  CHECK(cache.references(twins[1]) == 2);

  // The firsts stay used, and findable, as long as the twins live.
  a.reset();
  CHECK(cache.references(firsts[1]) == 1);
  CHECK(cache.stats().used == 4);
  CHECK(cache.stats().idle == 0);
  b.reset();
  CHECK(cache.references(firsts[1]) == 1);
  fork.reset();
  CHECK(cache.references(firsts[1]) == 0);
  CHECK(cache.stats().idle == 2);
  CHECK(cache.stats().free == 14);
  CHECK(listener.heard.size() == 2);  // nothing was removed
}

TEST_CASE("contract 9: children are indexed under the first") {
  kv::KvCache cache(small_pool(16));
  Tokens const prompt = count_from(0, 8);
  auto a = std::optional(started(cache, 1, prompt));
  auto b = std::optional(started(cache, 2, prompt, {.read = false}));
  fill(cache, *b, count_from(0, 12));
  a.reset();
  b.reset();
  CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
}

TEST_CASE("contract 9: a twin written into lets its first go") {
  kv::KvCache cache(small_pool(16));
  auto a = std::optional(started(cache, 1, count_from(0, 4)));
  auto b = started(cache, 2, count_from(0, 4), {.read = false});
  kv::BlockId const first = a->blocks()[0];
  kv::BlockId const twin = b.blocks()[0];
  b.truncate(2);
  CHECK(cache.references(first) == 2);
  REQUIRE(b.append(Tokens{70, 71}).has_value());
  CHECK(b.blocks()[0] == twin);  // nobody else reads it: written in place
  CHECK(cache.take_copies().empty());
  CHECK(cache.references(first) == 1);
  a.reset();
  CHECK(cache.stats().idle == 1);
}

TEST_CASE("contract 9: an allocation that would fail first adopts the asking sequence's twins") {
  kv::KvCache cache(small_pool(4));
  Tokens const prompt = count_from(0, 8);
  auto a = std::optional(started(cache, 1, prompt));
  auto b = started(cache, 2, prompt, {.read = false});
  auto const firsts = ids_of(*a);
  a.reset();
  CHECK(cache.available_blocks() == 0);
  CHECK(b.would_fit(8));
  CHECK_FALSE(b.would_fit(9));
  auto const never = b.reserve(9);
  REQUIRE_FALSE(never.has_value());
  CHECK(cache.references(firsts[0]) == 1);
  REQUIRE(b.reserve(8).has_value());
  CHECK(b.num_blocks() == 4);
  CHECK(b.blocks()[0] == firsts[0]);
  CHECK(b.blocks()[1] == firsts[1]);
  CHECK(cache.references(firsts[0]) == 1);
  CHECK(cache.stats().adopted_blocks == 2);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: Twins::adopt switches the row and lists it in the next batch") {
  auto config = small_pool(16);
  config.twins = kv::Twins::adopt;
  kv::KvCache cache(config);
  Tokens const prompt = count_from(0, 8);
  auto a = started(cache, 1, prompt);
  auto b = cache.open(SequenceId{2}, prompt, {.reserve = 8, .read = false});
  REQUIRE(b.has_value());
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
  batch.begin_step();
  REQUIRE(batch.add(*b, {0, 8}).has_value());
  std::vector<kv::RowChange> changes(16);
  kv::BatchBuffers buffers;
  buffers.row_changes = changes;
  REQUIRE(batch.build(buffers).has_value());
  b->commit(8);
  CHECK(ids_of(*b) == ids_of(a));
  finish_step(cache);
  CHECK(cache.stats().used == 2);
  CHECK(cache.stats().free == 14);

  batch.begin_step();
  auto const step = batch.build(buffers);
  REQUIRE(step.has_value());
  CHECK(step->num_row_changes == 2);
  std::set<kv::BlockId> listed;
  for (int i = 0; i < step->num_row_changes; ++i)
    listed.insert(kv::BlockId{changes[std::size_t(i)].block});
  CHECK(listed == std::set<kv::BlockId>{a.blocks()[0], a.blocks()[1]});
}

TEST_CASE("contract 9: a removed event comes with the last findable copy only") {
  auto config = small_pool(4);
  Listener listener;
  config.observer = &listener;
  kv::KvCache cache(config);
  auto a = std::optional(started(cache, 1, count_from(0, 4)));
  auto b = std::optional(started(cache, 2, count_from(0, 4), {.read = false}));
  a.reset();
  b.reset();
  CHECK(listener.heard.size() == 1);
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);
  auto const all = cache.open(SequenceId{3}, count_from(50, 16), {.reserve = 16});
  REQUIRE(all.has_value());
  REQUIRE(listener.heard.size() == 2);
  CHECK(listener.heard[1].kind == kv::CacheEvent::Kind::removed);
  CHECK(listener.heard[1].block == listener.heard[0].block);
  CHECK(listener.heard[1].generation == listener.heard[0].generation);
}

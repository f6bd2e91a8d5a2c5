// SPDX-License-Identifier: Apache-2.0
// Contract 9: one bearer per content.
#include <pagedkv/step/planner_numbers.hpp>

#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;
using Kind = kv::CacheEvent::Kind;

namespace {

constexpr kv::OpenOptions without_hits{.read = false};

kv::KvCacheConfig heard_by(Listener& listener, std::int32_t num_blocks,
                           kv::Reclaim reclaim = kv::Reclaim::stream_ordered) {
  auto config = small_pool(num_blocks);
  config.observer = &listener;
  config.reclaim = reclaim;
  return config;
}

std::vector<Kind> kinds_of(Listener const& listener) {
  std::vector<Kind> kinds;
  for (auto const& e : listener.heard) kinds.push_back(e.kind);
  return kinds;
}

/// Which of `blocks` bear content.
std::vector<bool> bearing(kv::KvCache const& cache, Ids const& blocks) {
  std::vector<bool> out;
  for (auto const b : blocks) out.push_back(cache.is_published(b));
  return out;
}

}  // namespace

TEST_CASE("contract 9: a second block with the same content holds nothing") {
  Listener listener;
  kv::KvCache cache(heard_by(listener, 16));
  Tokens const prompt = count_from(0, 8);
  auto a = started(cache, 1, prompt);
  auto b = started(cache, 2, prompt, without_hits);
  auto const bearers = ids_of(a);
  auto const twins = ids_of(b);
  CHECK(bearing(cache, bearers) == std::vector{true, true});
  CHECK(bearing(cache, twins) == std::vector{false, false});
  CHECK(cache.stats().twin_blocks == 2);
  CHECK(cache.stats().published_blocks == 2);
  CHECK(cache.stats().moved_blocks == 0);
  CHECK(listener.heard.size() == 2);
  for (std::size_t j = 0; j < 2; ++j) {
    CHECK(bearers[j] != twins[j]);
    CHECK(cache.references(bearers[j]) == 1);
    CHECK(cache.references(twins[j]) == 1);
  }
  CHECK(a.unshared_blocks() == 2);
  CHECK(b.unshared_blocks() == 2);
  // References alone: the fork of a twin is a second owner of the twin, not of its bearer.
  auto const fork = b.fork(SequenceId{3});
  REQUIRE(fork.has_value());
  CHECK(cache.references(bearers[1]) == 1);
  CHECK(cache.references(twins[1]) == 2);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: when the last owner of a bearer goes, its oldest twin bears the content") {
  Listener listener;
  kv::KvCache cache(heard_by(listener, 16));
  Tokens const prompt = count_from(0, 8);
  std::vector<std::optional<kv::Sequence>> all;
  for (std::uint64_t id = 1; id <= 4; ++id)
    all.emplace_back(started(cache, id, prompt, without_hits));
  std::vector<Ids> rows;
  for (auto const& seq : all) rows.push_back(ids_of(*seq));
  listener.heard.clear();

  // The third is the first to leave: a twin that goes is no news.
  all[2].reset();
  CHECK(listener.heard.empty());
  all[0].reset();
  CHECK(bearing(cache, rows[0]) == std::vector{false, false});
  CHECK(bearing(cache, rows[1]) == std::vector{true, true});
  // Deepest first, each with the block that bore it before.
  REQUIRE(kinds_of(listener) == std::vector{Kind::moved, Kind::moved});
  for (std::size_t i : {0U, 1U}) {
    std::size_t const j = 1 - i;
    CHECK(listener.heard[i].block == rows[1][j]);
    CHECK(listener.heard[i].generation == cache.generation(rows[1][j]));
    CHECK(listener.heard[i].from == rows[0][j]);
    CHECK(listener.heard[i].from_generation + 1 == cache.generation(rows[0][j]));
  }
  CHECK(cache.stats().moved_blocks == 2);
  CHECK(cache.stats().used == 4);
  CHECK(cache.stats().free == 12);
  all[1].reset();
  CHECK(bearing(cache, rows[3]) == std::vector{true, true});
  CHECK(ids_of(*all[3]) == rows[3]);
  all[3].reset();  // no twin is left: the content is idle
  CHECK(cache.stats().idle == 2);
  CHECK(cached_tokens(cache, prompt + Tokens{9}) == 8);
  CHECK(listener.heard.size() == 4);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: a twin lasts as long as any of its owners") {
  kv::KvCache cache(small_pool(16));
  auto a = std::optional(started(cache, 1, count_from(0, 4)));
  auto b = std::optional(started(cache, 2, count_from(0, 4), without_hits));
  auto fork = b->fork(SequenceId{3});
  REQUIRE(fork.has_value());
  kv::BlockId const twin = b->blocks()[0];
  b.reset();
  a.reset();
  CHECK(cache.is_published(twin));
  CHECK(fork->blocks()[0] == twin);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: content that no sequence owns moves to the block that meets it") {
  for (auto const twins : {kv::Twins::keep, kv::Twins::adopt}) {
    CAPTURE(int(twins));
    Listener listener;
    auto config = heard_by(listener, 8);
    config.twins = twins;
    kv::KvCache cache(config);
    Ids before;
    {
      auto const seq = started(cache, 1, count_from(0, 12));
      before = ids_of(seq);
    }
    listener.heard.clear();
    auto const seq = started(cache, 2, count_from(0, 8), without_hits);
    auto const row = ids_of(seq);
    CHECK(bearing(cache, row) == std::vector{true, true});
    CHECK(bearing(cache, before) == std::vector{false, false, true});
    CHECK(std::find(row.begin(), row.end(), before[0]) == row.end());
    CHECK(kinds_of(listener) == std::vector{Kind::moved, Kind::moved});
    CHECK(cache.stats().free == 5);
    CHECK(cache.stats().idle == 1);
    CHECK(cache.stats().twin_blocks == 2);
    CHECK(cache.stats().moved_blocks == 2);
    CHECK(cache.stats().adopted_blocks == 0);
    // What follows the content is found as before.
    CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 9: a block that waits hands its content over and goes on waiting") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    for (auto const twins : {kv::Twins::keep, kv::Twins::adopt}) {
      CAPTURE(int(reclaim), int(twins));
      Listener listener;
      auto config = heard_by(listener, 8, reclaim);
      config.twins = twins;
      kv::KvCache cache(config);
      kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
      Ids waiting;
      {
        auto const seq = started(cache, 1, count_from(0, 8));
        waiting = ids_of(seq);
        batch.begin_step();
        REQUIRE(batch.add(seq, {7, 1}).has_value());
      }
      CHECK(cache.incoming_blocks() == 2);
      auto const heir = started(cache, 2, count_from(0, 8), without_hits);
      CHECK(bearing(cache, ids_of(heir)) == std::vector{true, true});
      CHECK(bearing(cache, waiting) == std::vector{false, false});
      CHECK(cache.incoming_blocks() == 2);
      CHECK(cache.stats().moved_blocks == 2);
      auto const other = started(cache, 3, count_from(50, 13));
      CHECK_FALSE(cache.would_fit(cache.hash(count_from(90, 4)), {.reserve = 4}));
      finish_step(cache);
      CHECK(cache.incoming_blocks() == 0);
      CHECK(cache.stats().free == 2);
      CHECK(cache.stats().idle == 0);
      CHECK(cache.verify());
    }
  }
}

TEST_CASE("contract 9: a block that a copy holds hands its content over and stays held") {
  kv::KvCache cache(small_pool(8));
  auto owner = std::optional(started(cache, 1, count_from(0, 8)));
  auto reader = owner->fork(SequenceId{2});
  REQUIRE(reader.has_value());
  reader->truncate(6);
  REQUIRE(reader->append(Tokens{70}).has_value());
  kv::BlockId const source = owner->blocks()[1];
  kv::BlockId const target = reader->blocks()[1];
  owner.reset();
  CHECK(cache.stats().retained == 1);
  auto heir = cache.open(SequenceId{3}, count_from(0, 8), {.reserve = 8, .read = false});
  REQUIRE(heir.has_value());
  heir->commit(8);  // the copy isn't taken yet
  CHECK(cache.is_published(heir->blocks()[1]));
  CHECK_FALSE(cache.is_published(source));
  CHECK(cache.stats().retained == 1);
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0] == kv::BlockCopy{source, target, 2});
  finish_step(cache);
  CHECK(cache.stats().retained == 0);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: content that moved counts as used by others") {
  kv::KvCache cache(small_pool(8));
  leave_cached(cache, 1, count_from(0, 4));
  leave_cached(cache, 2, count_from(50, 4));
  auto seq = started(cache, 3, count_from(0, 4), without_hits);
  std::move(seq).finish(kv::Reuse::none);
  auto const all = cache.open(SequenceId{4}, count_from(90, 28), {.reserve = 28});
  REQUIRE(all.has_value());  // one of the two had to go: the older one
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);
  CHECK(cached_tokens(cache, count_from(50, 5)) == 0);
}

TEST_CASE("contract 9: children are published under the content, whichever block bears it") {
  kv::KvCache cache(small_pool(16));
  Tokens const prompt = count_from(0, 8);
  auto a = std::optional(started(cache, 1, prompt));
  auto b = std::optional(started(cache, 2, prompt, without_hits));
  fill(cache, *b, count_from(0, 12));
  CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
  a.reset();
  CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
  fill(cache, *b, count_from(0, 16));
  b.reset();
  CHECK(cached_tokens(cache, count_from(0, 17)) == 16);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: a twin that is written into leaves, and needs no block for it") {
  kv::KvCache cache(small_pool(3));
  auto a = std::optional(started(cache, 1, count_from(0, 4)));
  auto b = started(cache, 2, count_from(0, 4), without_hits);
  auto c = started(cache, 3, count_from(0, 4), without_hits);
  kv::BlockId const twin = b.blocks()[0];
  CHECK(cache.available_blocks() == 0);
  b.truncate(2);
  CHECK(b.blocks_needed(2) == 0);
  CHECK(b.would_fit(2));
  REQUIRE(b.append(Tokens{70, 71}).has_value());
  CHECK(b.blocks()[0] == twin);  // no other row has it: written in place
  CHECK(cache.take_copies().empty());
  b.commit(4);
  CHECK(cached_tokens(cache, Tokens{0, 1, 70, 71, 9}) == 4);
  a.reset();
  CHECK(cache.is_published(c.blocks()[0]));
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: a bearer that is written in place hands its content over") {
  Listener listener;
  kv::KvCache cache(heard_by(listener, 2));
  auto a = started(cache, 1, count_from(0, 4));
  auto const b = started(cache, 2, count_from(0, 4), without_hits);
  kv::BlockId const bearer = a.blocks()[0];
  listener.heard.clear();
  a.truncate(2);
  CHECK(a.would_fit(2));
  REQUIRE(a.append(Tokens{70, 71}).has_value());
  CHECK(a.blocks()[0] == bearer);
  CHECK(cache.take_copies().empty());
  REQUIRE(kinds_of(listener) == std::vector{Kind::moved});
  CHECK(listener.heard[0].from == bearer);
  CHECK(listener.heard[0].block == b.blocks()[0]);
  CHECK(cache.stats().unpublished_blocks == 0);
  CHECK(cache.stats().moved_blocks == 1);
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);
  a.commit(4);
  CHECK(cached_tokens(cache, Tokens{0, 1, 70, 71, 9}) == 4);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: a twin in the middle of a row, and others beside it") {
  // Only the middle one of three blocks has a twin when its owner goes.
  Listener listener;
  kv::KvCache cache(heard_by(listener, 16));
  auto a = std::optional(started(cache, 1, count_from(0, 12)));
  auto b = std::optional(started(cache, 2, count_from(0, 8)));  // shares one block ...
  auto const own = ids_of(*b)[1];
  CHECK(own != ids_of(*a)[1]);  // ... and computes another
  auto const row = ids_of(*a);
  listener.heard.clear();
  a.reset();
  CHECK(bearing(cache, row) == std::vector{true, false, true});
  CHECK(cache.is_published(own));
  CHECK(kinds_of(listener) == std::vector{Kind::moved});
  CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
  CHECK(cache.stats().idle == 1);
  CHECK(cache.stats().used == 2);
  b.reset();
  CHECK(cached_tokens(cache, count_from(0, 13)) == 12);
  CHECK(cache.stats().idle == 3);
  CHECK(cache.verify());
}

TEST_CASE("contract 9: a call never fails because of a twin") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(4);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
    Tokens const prompt = count_from(0, 8);
    auto a = std::optional(started(cache, 1, prompt));
    auto b = started(cache, 2, prompt, without_hits);
    auto const row = ids_of(b);
    CHECK(cache.available_blocks() == 0);
    a.reset();
    // Two blocks are b's, two can be had: as if a had computed something else.
    CHECK(cache.available_blocks() == 2);
    CHECK(kv::pool_numbers(cache).available_blocks == 2);
    CHECK(kv::preemption_cost(b).blocks == 2);
    CHECK(b.blocks_needed(8) == 2);
    CHECK(b.would_fit(8));
    CHECK_FALSE(b.would_fit(9));
    REQUIRE(b.append(count_from(50, 8)).has_value());
    b.commit(16);
    CHECK(ids_of(b)[0] == row[0]);
    CHECK(ids_of(b)[1] == row[1]);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 9: Twins::keep never changes an entry of a row, deferred or not") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(8);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
    std::vector<kv::RowChange> changes(32);
    kv::BatchBuffers buffers;
    buffers.row_changes = changes;
    auto a = std::optional(started(cache, 1, count_from(0, 8)));
    auto b = started(cache, 2, count_from(0, 8), without_hits);
    auto const sent = ids_of(b);
    batch.begin_step();
    REQUIRE(batch.add(b, {7, 1}).has_value());
    REQUIRE(batch.add(*a, {7, 1}).has_value());
    REQUIRE(batch.build(buffers).has_value());
    auto const unchanged = [&](std::int32_t tokens) {
      REQUIRE(b.append(count_from(50, tokens)).has_value());
      b.commit(b.size());
      batch.begin_step();
      REQUIRE(batch.add(b, {b.size() - 1, 1}).has_value());
      auto const step = batch.build(buffers);
      REQUIRE(step.has_value());
      auto const row = ids_of(b);
      CHECK(std::equal(sent.begin(), sent.end(), row.begin()));
      for (auto const& change : std::span(changes).first(std::size_t(step->num_row_changes))) {
        if (change.row == batch.row_of(b)) CHECK(change.column >= std::int32_t(sent.size()));
      }
      finish_step(cache);
    };
    finish_step(cache);
    unchanged(8);  // as a twin
    a.reset();
    unchanged(8);                                         // as the heir
    CHECK_FALSE(b.append(count_from(0, 9)).has_value());  // in need
    CHECK(std::equal(sent.begin(), sent.end(), ids_of(b).begin()));
    CHECK(cache.stats().adopted_blocks == 0);
    CHECK(cache.verify());
  }
}

TEST_CASE("contract 9: Twins::adopt switches the row and lists it in the next batch") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(16);
    config.twins = kv::Twins::adopt;
    config.reclaim = reclaim;
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
    CHECK(cache.references(a.blocks()[0]) == 2);
    CHECK(cache.stats().adopted_blocks == 2);
    CHECK(cache.incoming_blocks() == 2);  // b's own: the step uses them
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
}

TEST_CASE("contract 9: a removed event comes when no block bears the content any more") {
  Listener listener;
  kv::KvCache cache(heard_by(listener, 4));
  auto a = std::optional(started(cache, 1, count_from(0, 4)));
  auto b = std::optional(started(cache, 2, count_from(0, 4), without_hits));
  kv::BlockId const heir = b->blocks()[0];
  a.reset();
  b.reset();
  CHECK(kinds_of(listener) == std::vector{Kind::stored, Kind::moved});
  std::uint32_t const generation = cache.generation(heir);
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);
  auto const all = cache.open(SequenceId{3}, count_from(50, 16), {.reserve = 16});
  REQUIRE(all.has_value());
  REQUIRE(kinds_of(listener) == std::vector{Kind::stored, Kind::moved, Kind::removed});
  CHECK(listener.heard[2].block == heir);
  CHECK(listener.heard[2].generation == generation);
  CHECK(cache.generation(heir) == generation + 1);
}

TEST_CASE("contract 9: no twin of a block that was unpublished bears its content") {
  Listener listener;
  kv::KvCache cache(heard_by(listener, 8));
  auto a = std::optional(started(cache, 1, count_from(0, 8)));
  auto b = std::optional(started(cache, 2, count_from(0, 8), without_hits));
  auto const row = ids_of(*a);
  auto const twins = ids_of(*b);
  listener.heard.clear();

  SECTION("the bearer is bad") {
    CHECK(cache.unpublish(Ids{row[0]}) == 1);
    CHECK(kinds_of(listener) == std::vector{Kind::removed});
    CHECK(bearing(cache, twins) == std::vector{false, false});
    a.reset();
    CHECK(cached_tokens(cache, count_from(0, 9)) == 0);
    // The second block followed the bad one: its content goes with it, and moves to no block as
    // something that can be found.
    b.reset();
    CHECK(cached_tokens(cache, count_from(0, 9)) == 0);
    CHECK(cache.stats().free == 8);
  }
  SECTION("the twin is bad") {
    CHECK(cache.unpublish(Ids{twins[1]}) == 0);
    CHECK(listener.heard.empty());
    CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
    a.reset();
    // The first block's content moves to its twin; the second one stays where it is.
    CHECK(bearing(cache, twins) == std::vector{true, false});
    CHECK(bearing(cache, row) == std::vector{false, true});
    CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
    CHECK(cache.stats().idle == 1);
  }
  SECTION("the bearer is bad, and has no owner any more") {
    a.reset();
    CHECK(bearing(cache, twins) == std::vector{true, true});
    b.reset();
    CHECK(cache.unpublish(Ids{twins[0]}) == 1);
    CHECK(cache.stats().free == 8);
  }
  CHECK(cache.verify());
}

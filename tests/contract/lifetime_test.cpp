// SPDX-License-Identifier: Apache-2.0
// Contracts 10 and 11: tail goes first, lifetime on a GPU.
#include <pagedkv/step/planner_numbers.hpp>
#include <pagedkv/step/step_planner.hpp>

#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;

namespace {

/// Opens sequences of one block until one of `watched` has been handed out; returns which.
template <class Cache>
kv::BlockId first_taken(Cache& cache, std::vector<kv::Sequence>& holders, Ids const& watched) {
  for (std::uint64_t id = 100;; ++id) {
    auto seq = cache.open(SequenceId{id}, count_from(kv::TokenId(id) * 10, 1), {.reserve = 1});
    if (!seq) return {};
    kv::BlockId const got = seq->blocks()[0];
    holders.push_back(std::move(*seq));
    if (std::find(watched.begin(), watched.end(), got) != watched.end()) return got;
  }
}

kv::KvCacheConfig many_handles(std::int32_t num_blocks) {
  auto config = small_pool(num_blocks);
  config.max_sequences = num_blocks + 4;
  return config;
}

}  // namespace

TEST_CASE("contract 10: a sequence is released from its deepest block") {
  kv::KvCache cache(many_handles(6));
  Ids table;
  {
    auto const seq = started(cache, 1, count_from(0, 16));
    table = ids_of(seq);
  }
  std::vector<kv::Sequence> holders;
  for (int depth = 3; depth >= 0; --depth) {
    CHECK(first_taken(cache, holders, table) == table[std::size_t(depth)]);
    CHECK(cached_tokens(cache, count_from(0, 17)) == depth * block_tokens);
  }
}

TEST_CASE("contract 10: blocks without published content are reused before any cached one") {
  kv::KvCache cache(many_handles(8));
  Ids cached, scratch;
  {
    auto const old = started(cache, 1, count_from(0, 8));
    cached = ids_of(old);
  }
  {
    auto const drafts = cache.open(SequenceId{2}, count_from(50, 12), {.reserve = 12});
    REQUIRE(drafts.has_value());
    scratch = ids_of(*drafts);
  }
  std::vector<kv::Sequence> holders;
  for (int i = 0; i < 6; ++i) {
    auto seq = cache.open(SequenceId{9}, count_from(900 + i, 1), {.reserve = 1});
    REQUIRE(seq.has_value());
    CHECK(std::find(cached.begin(), cached.end(), seq->blocks()[0]) == cached.end());
    holders.push_back(std::move(*seq));
  }
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
}

TEST_CASE("contract 10: a hit moves a block to the young end") {
  kv::KvCache cache(many_handles(4));
  leave_cached(cache, 1, count_from(0, 8));
  leave_cached(cache, 2, count_from(50, 8));
  { auto const hit = cache.open(SequenceId{3}, count_from(0, 9)); }
  std::vector<kv::Sequence> holders;
  for (int i = 0; i < 2; ++i) {
    auto seq = cache.open(SequenceId{9}, count_from(900 + i, 1), {.reserve = 1});
    REQUIRE(seq.has_value());
    holders.push_back(std::move(*seq));
  }
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
  CHECK(cached_tokens(cache, count_from(50, 9)) == 0);
}

TEST_CASE("contract 10: match, would_fit and admission are no use of a block") {
  kv::KvCache cache(many_handles(4));
  leave_cached(cache, 1, count_from(0, 8));
  leave_cached(cache, 2, count_from(50, 8));
  auto const key = cache.hash(count_from(0, 9));
  CHECK(cache.match(key) == 8);
  CHECK(cache.would_fit(key));
  CHECK(cache.admission(key).cached_tokens == 8);
  auto const next = cache.open(SequenceId{9}, count_from(900, 1), {.reserve = 1});
  CHECK(cache.match(key) == 4);
}

namespace {

/// Takes all blocks one by one; at no time may a block survive the one before it.
void require_tail_first(kv::KvCache& cache, Ids const& table) {
  std::vector<kv::Sequence> holders;
  while (!first_taken(cache, holders, table).is_null()) {
    for (std::size_t j = 1; j < table.size(); ++j) {
      CHECK_FALSE((!cache.is_published(table[j - 1]) && cache.is_published(table[j])));
    }
  }
}

}  // namespace

TEST_CASE("contract 10: the ancestors of a block that a copy still holds outlive it") {
  // The deepest block is the source of a copy; all are given back within the step.
  kv::KvCache cache(many_handles(8));
  Ids table;
  {
    auto seq = started(cache, 1, count_from(0, 12));
    table = ids_of(seq);
    seq.truncate(10);
    REQUIRE(seq.append(Tokens{70}).has_value());
    REQUIRE(cache.take_copies().size() == 1);
  }
  SECTION("within the step") { require_tail_first(cache, table); }
  SECTION("after it") {
    finish_step(cache);
    require_tail_first(cache, table);
  }
}

TEST_CASE("contract 10: a source that became a parent leaves after its child") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = many_handles(8);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    Ids table;
    {
      auto seq = started(cache, 1, count_from(0, 2));
      auto fork = seq.fork(SequenceId{2});
      REQUIRE(fork.has_value());
      REQUIRE(fork->append(Tokens{50}).has_value());
      REQUIRE(cache.take_copies().size() == 1);
      fill(cache, seq, count_from(0, 8));  // in place: now it has content and a child
      table = ids_of(seq);
    }
    finish_step(cache);
    require_tail_first(cache, table);
  }
}

TEST_CASE("contract 10: a child whose copy ends before its own tick still goes first") {
  auto config = many_handles(8);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  Ids table;
  kv::Tick copied;
  {
    auto seq = started(cache, 1, count_from(0, 8));
    table = ids_of(seq);
    auto fork = seq.fork(SequenceId{2});
    REQUIRE(fork.has_value());
    fork->truncate(6);
    REQUIRE(fork->append(Tokens{50}).has_value());
    REQUIRE(cache.take_copies().size() == 1);
    copied = cache.end_step();
  }
  kv::Tick const released = cache.end_step();
  cache.reclaim(copied);
  cache.reclaim(released);
  require_tail_first(cache, table);
}

TEST_CASE("contract 10: blocks of a batched sequence wait together with their parents") {
  kv::KvCache cache(many_handles(8));
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
  Ids table;
  {
    auto seq = started(cache, 1, count_from(0, 12));
    table = ids_of(seq);
    batch.begin_step();
    REQUIRE(batch.add(seq, {11, 1}).has_value());
  }
  // A hit on the first block only, outside the batch.
  { auto const guest = cache.open(SequenceId{2}, count_from(0, 5)); }
  finish_step(cache);
  require_tail_first(cache, table);
}

TEST_CASE("contract 10: finish(none) puts what only this sequence used in front, deepest first") {
  kv::KvCache cache(many_handles(8));
  leave_cached(cache, 1, count_from(50, 8));  // older, yet to be kept
  auto shared = std::optional(started(cache, 2, count_from(0, 4)));
  Ids table;
  {
    auto seq = started(cache, 3, count_from(0, 12));
    table = ids_of(seq);
    std::move(seq).finish(kv::Reuse::none);
  }
  shared.reset();
  std::vector<kv::Sequence> holders;
  Ids all = table;
  while (cache.stats().free > 0) {
    auto seq = cache.open(SequenceId{9}, count_from(900, 1), {.reserve = 1});
    holders.push_back(std::move(*seq));
  }
  CHECK(first_taken(cache, holders, table) == table[2]);
  CHECK(first_taken(cache, holders, table) == table[1]);
  CHECK(cached_tokens(cache, count_from(50, 9)) == 8);
  CHECK(cached_tokens(cache, count_from(0, 5)) == 4);  // another one referenced it
}

TEST_CASE("contract 10: evict skips owned blocks and leaves descendants to their order") {
  kv::KvCache cache(many_handles(8));
  auto const owner = started(cache, 1, count_from(50, 4));
  Ids table;
  {
    auto const seq = started(cache, 2, count_from(0, 8));
    table = ids_of(seq);
  }
  CHECK(cache.evict(Ids{owner.blocks()[0], table[0], table[0]}) == 1);
  CHECK(cached_tokens(cache, count_from(50, 5)) == 4);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 0);
  CHECK(cache.stats().idle == 1);
  CHECK(cache.stats().evicted_blocks == 1);
  CHECK(cache.verify());
}

TEST_CASE("contract 11: deferred blocks take new content only after their tick is reclaimed") {
  auto config = small_pool(4);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  Ids table;
  {
    auto const seq = started(cache, 1, count_from(0, 10));
    table = ids_of(seq);
  }
  CHECK(cache.available_blocks() == 1);
  CHECK(cache.incoming_blocks() == 3);
  // Quarantined and published: still found.
  CHECK(cached_tokens(cache, count_from(0, 10)) == 8);
  auto const failed = cache.open(SequenceId{2}, count_from(50, 8), {.reserve = 8});
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error() == kv::Errc::no_free_blocks);
  auto const t1 = cache.end_step();
  auto const t2 = cache.end_step();
  CHECK(cache.available_blocks() == 1);
  cache.reclaim(t1);
  CHECK(cache.available_blocks() == 4);
  CHECK(cache.incoming_blocks() == 0);
  auto const fits = cache.open(SequenceId{3}, count_from(50, 16), {.reserve = 16});
  CHECK(fits.has_value());
  cache.reclaim(t2);
}

TEST_CASE("contract 11: what a later step gave back waits for that later step") {
  auto config = small_pool(4);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  auto first = std::optional(started(cache, 1, count_from(0, 4)));
  auto second = std::optional(started(cache, 2, count_from(50, 4)));
  first.reset();
  auto const t1 = cache.end_step();
  second.reset();
  auto const t2 = cache.end_step();
  cache.reclaim(t1);
  CHECK(cache.available_blocks() == 3);
  CHECK(cache.incoming_blocks() == 1);
  cache.reclaim(t2);
  CHECK(cache.available_blocks() == 4);
}

TEST_CASE("contract 11: content in flight that is found again isn't written over before reclaim") {
  auto config = small_pool(3);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  auto const other = started(cache, 1, count_from(90, 1));
  auto gone = std::optional(started(cache, 2, count_from(0, 8)));
  cache.reclaim(cache.end_step());
  gone.reset();  // step 2 may still read its two blocks
  auto heir = cache.open(SequenceId{3}, count_from(0, 9), {.reserve = 8});
  REQUIRE(heir.has_value());
  REQUIRE(heir->cached() == 8);
  heir->truncate(6);
  CHECK(cache.is_in_flight(heir->blocks()[1]));
  // Its own block, published, and none to copy it into: not now.
  CHECK_FALSE(heir->would_fit(2));
  CHECK(heir->append(count_from(70, 2)).error() == kv::Errc::no_free_blocks);
  auto const waiting = kv::running_request(cache, *heir, 8);
  CHECK(waiting.tail_copy == kv::TailCopy::until_reclaim);
  kv::StepPlanner planner({});
  CHECK(planner.plan(kv::pool_numbers(cache), {&waiting, 1}, {}).outcome == kv::StepOutcome::wait);
  auto const tick = cache.end_step();
  CHECK_FALSE(heir->would_fit(2));
  cache.reclaim(tick);
  CHECK(heir->would_fit(2));
  CHECK(heir->append(count_from(70, 2)).has_value());
  CHECK(cache.verify());
}

TEST_CASE("contract 11: blocks of a batched sequence aren't given to another before end_step") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(4);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
    std::optional<kv::Sequence> seq = started(cache, 1, count_from(0, 6));
    finish_step(cache);
    batch.begin_step();
    REQUIRE(seq->append(Tokens{7}).has_value());
    REQUIRE(batch.add(*seq, {6, 1}).has_value());
    seq.reset();  // cancelled in the middle of the step
    CHECK(cache.available_blocks() == 2);
    CHECK(cache.incoming_blocks() == 2);
    CHECK_FALSE(cache.would_fit(cache.hash(count_from(50, 9)), {.reserve = 9}));
    finish_step(cache);
    CHECK(cache.available_blocks() == 4);
    CHECK(cache.incoming_blocks() == 0);
  }
}

TEST_CASE("contract 11: a sharer outside the batch doesn't hand out what the batch still reads") {
  kv::KvCache cache(small_pool(4));
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
  std::optional<kv::Sequence> seq = started(cache, 1, count_from(0, 6));
  auto fork = std::optional(*seq->fork(SequenceId{2}));
  batch.begin_step();
  REQUIRE(batch.add(*seq, {5, 1}).has_value());
  seq.reset();
  fork.reset();  // never in the batch, but the last owner
  CHECK(cache.available_blocks() == 2);
  CHECK(cache.incoming_blocks() == 2);
  finish_step(cache);
  CHECK(cache.available_blocks() == 4);
}

TEST_CASE("contract 11: stream ordered blocks come back at once outside a batch") {
  kv::KvCache cache(small_pool(4));
  leave_cached(cache, 1, count_from(0, 6));
  CHECK(cache.available_blocks() == 4);
  CHECK(cache.incoming_blocks() == 0);
}

TEST_CASE("contract 11: reclaiming the open step is a checked error") {
  auto const open = outcome_of([] {
    auto config = small_pool(4);
    config.reclaim = kv::Reclaim::deferred;
    kv::KvCache cache(config);
    cache.reclaim(cache.open_tick());
  });
  CHECK(open.aborted);
  auto const ended = outcome_of([] {
    auto config = small_pool(4);
    config.reclaim = kv::Reclaim::deferred;
    kv::KvCache cache(config);
    cache.reclaim(cache.end_step());
  });
  CHECK_FALSE(ended.aborted);
}

TEST_CASE("contract 11: an ancestor moves among what waits, though an idle block is between") {
  auto config = small_pool(24);
  config.reclaim = kv::Reclaim::deferred;
  config.partial_hits = true;
  kv::KvCache cache(config);
  started(cache, 9, count_from(100, 8)).used_by(cache.open_tick());
  cache.reclaim(cache.end_step());
  {
    auto const path = started(cache, 1, count_from(0, 12));
    cache.end_step();
    leave_cached(cache, 2, count_from(0, 10) + count_from(50, 1));  // a copy of the last block
    cache.reclaim(cache.end_step());
  }
  {
    // Untaken copies from the first and the last block: these two wait, the middle one is idle.
    auto const first = cache.open(SequenceId{3}, count_from(0, 2) + count_from(60, 2));
    auto const last = cache.open(SequenceId{4}, count_from(0, 10) + count_from(70, 1));
    CHECK(first->cached() == 2);
    CHECK(last->cached() == 10);
    CHECK(cache.verify());
    started(cache, 5, count_from(200, 3)).used_by(cache.open_tick());
    CHECK(cache.verify());
  }
  CHECK(cache.verify());
  auto const other = cache.open(SequenceId{6}, count_from(100, 2) + count_from(80, 2));
  CHECK(other->cached() == 2);
  CHECK(cache.verify());
}

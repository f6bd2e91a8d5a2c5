// SPDX-License-Identifier: Apache-2.0
// Contract 8: copies.
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
    // The two ends have no owner any more; the step's copy still reads and fills them.
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

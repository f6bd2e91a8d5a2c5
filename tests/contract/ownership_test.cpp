// SPDX-License-Identifier: Apache-2.0
// Contracts 1 to 4: no leak, all or nothing, prediction equals allocation, never is not "not now".
#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::Errc;
using kv::SequenceId;

TEST_CASE("contract 1: destroying a handle at any point of a step gives every block back") {
  // The points of one request's life, in order; the request is cancelled after `point` of them.
  for (int point = 0; point <= 8; ++point) {
    CAPTURE(point);
    kv::KvCache cache(small_pool(16));
    kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 0});
    Tokens const prompt = count_from(0, 10);
    leave_cached(cache, 1, prompt);
    {
      auto opened = cache.open(SequenceId{2}, prompt);
      REQUIRE(opened.has_value());
      kv::Sequence seq = std::move(*opened);
      if (point >= 1) REQUIRE(seq.reserve(6).has_value());
      if (point >= 2) seq.set_tokens(8, Tokens{1, 2, 3, 4});
      if (point >= 3) {
        batch.begin_step();
        REQUIRE(batch.add(seq, {8, 4}).has_value());
      }
      if (point >= 4) REQUIRE(batch.build({}).has_value());
      if (point >= 5) (void)cache.take_copies();
      if (point >= 6) batch.commit();
      if (point >= 7) finish_step(cache);
      if (point >= 8) seq.truncate(5);
      kv::Stats const s = cache.stats();
      CHECK(sum_of_states(s) == s.num_blocks);
    }
    CHECK(cache.stats().sequences == 0);
    CHECK(cache.stats().used == 0);
    require_no_leak(cache);
  }
}

TEST_CASE("contract 1: a fork, its copy and its parent give back all blocks, in any order") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    for (int order = 0; order < 3; ++order) {
      CAPTURE(order, int(reclaim));
      auto config = small_pool(16);
      config.reclaim = reclaim;
      kv::KvCache cache(config);
      std::vector<std::optional<kv::Sequence>> all;
      all.emplace_back(started(cache, 1, count_from(0, 6)));
      for (std::uint64_t id : {2U, 3U}) {
        auto forked = all[0]->fork(SequenceId{id});
        REQUIRE(forked.has_value());
        all.emplace_back(std::move(*forked));
        REQUIRE(all.back()->append(Tokens{7}).has_value());
      }
      if (order == 1) (void)cache.take_copies();
      for (int i = 0; i < 3; ++i) {
        all[std::size_t((i + order) % 3)].reset();
        kv::Stats const s = cache.stats();
        CHECK(sum_of_states(s) == s.num_blocks);
        CHECK(cache.verify());
      }
      require_no_leak(cache);
    }
  }
}

TEST_CASE("contract 1: a cache destroyed with live handles is a checked error") {
  auto const with_sequence = outcome_of([] {
    std::optional<kv::KvCache> cache(small_pool(4));
    auto seq = cache->open(SequenceId{1}, count_from(0, 3));
    cache.reset();
  });
  CHECK(with_sequence.aborted);
  CHECK_FALSE(with_sequence.message.empty());
  auto const with_pin = outcome_of([] {
    std::optional<kv::KvCache> cache(small_pool(4));
    leave_cached(*cache, 1, count_from(0, 4));
    auto pin = cache->pin(cache->hash(count_from(0, 4)));
    cache.reset();
  });
  CHECK(with_pin.aborted);
  auto const alone = outcome_of([] {
    std::optional<kv::KvCache> cache(small_pool(4));
    leave_cached(*cache, 1, count_from(0, 4));
    cache.reset();
  });
  CHECK_FALSE(alone.aborted);
}

TEST_CASE("contract 2: a call that fails changes no reference, no order and no counter") {
  auto config = small_pool(6);
  Listener listener;
  config.observer = &listener;
  kv::KvCache cache(config);
  Tokens const first = count_from(0, 8);
  Tokens const second = count_from(100, 8);
  leave_cached(cache, 1, first);  // evicted first, its deepest block foremost
  leave_cached(cache, 2, second);
  auto const holder = started(cache, 3, count_from(200, 4));

  auto const snapshot = [&] {
    std::vector<std::uint64_t> out;
    for (std::int32_t b = 0; b < 6; ++b) {
      out.push_back(cache.references(kv::BlockId{b}));
      out.push_back(cache.is_published(kv::BlockId{b}) ? 1 : 0);
      out.push_back(cache.generation(kv::BlockId{b}));
    }
    return out;
  };
  auto const blocks_before = snapshot();
  kv::Stats const before = cache.stats();
  std::size_t const events_before = listener.heard.size();

  // Hits two idle blocks, then lacks one: 6 blocks, 5 of them reachable.
  auto failed = cache.open(SequenceId{4}, cache.hash(first + count_from(300, 16)), {.reserve = 24});
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error() == Errc::no_free_blocks);
  auto never = cache.open(SequenceId{4}, cache.hash(first + count_from(300, 17)), {.reserve = 25});
  REQUIRE_FALSE(never.has_value());
  CHECK(never.error() == Errc::never_fits);

  CHECK(snapshot() == blocks_before);
  CHECK(cache.stats() == before);
  CHECK(listener.heard.size() == events_before);
  CHECK(cache.take_copies().empty());
  CHECK(cache.verify());

  // The order of eviction didn't move: the failed calls' hit doesn't count as a use of `first`.
  auto next = cache.open(SequenceId{5}, count_from(400, 8), {.reserve = 8});
  REQUIRE(next.has_value());
  CHECK(cached_tokens(cache, first + Tokens{9}) == 4);
  CHECK(cached_tokens(cache, second + Tokens{9}) == 8);
}

TEST_CASE("contract 2: a reserve that fails leaves the sequence, its fork and the pool alone") {
  kv::KvCache cache(small_pool(4));
  auto seq = started(cache, 1, count_from(0, 6));
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  auto const table = ids_of(*fork);
  kv::Stats const before = cache.stats();
  // One copy and two more blocks; two are free.
  auto const failed = fork->reserve(7);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error() == Errc::no_free_blocks);
  CHECK(cache.stats() == before);
  CHECK(fork->size() == 6);
  CHECK(ids_of(*fork) == table);
  CHECK(cache.take_copies().empty());
  auto const appended = fork->append(count_from(0, 7));
  REQUIRE_FALSE(appended.has_value());
  CHECK(cache.stats() == before);
  CHECK(fork->reserve(6).has_value());
}

TEST_CASE("contract 2: open without a free handle changes nothing") {
  auto config = small_pool(8);
  config.max_sequences = 2;
  kv::KvCache cache(config);
  leave_cached(cache, 1, count_from(0, 8));
  auto const a = cache.open(SequenceId{1}, count_from(0, 9));
  auto const b = cache.open(SequenceId{2}, count_from(50, 9));
  kv::Stats const before = cache.stats();
  auto const c = cache.open(SequenceId{3}, count_from(0, 9), {.reserve = 9});
  REQUIRE_FALSE(c.has_value());
  CHECK(c.error() == Errc::no_free_sequences);
  CHECK(cache.stats() == before);
  auto const forked = const_cast<kv::Sequence&>(*a).fork(SequenceId{4});
  REQUIRE_FALSE(forked.has_value());
  CHECK(forked.error() == Errc::no_free_sequences);
  CHECK(cache.stats() == before);
}

TEST_CASE("contract 3: would_fit says what reserve does, copies counted") {
  for (std::int32_t num_blocks = 2; num_blocks <= 8; ++num_blocks) {
    for (std::int32_t n = 0; n <= 24; ++n) {
      for (bool const forked : {false, true}) {
        CAPTURE(num_blocks, n, forked);
        kv::KvCache cache(small_pool(num_blocks));
        auto seq = started(cache, 1, count_from(0, 6));
        std::optional<kv::Sequence> other;
        if (forked) other.emplace(std::move(*seq.fork(SequenceId{2})));
        bool const predicted = seq.would_fit(n);
        std::int32_t const needed = seq.blocks_needed(n);
        std::int32_t const available = cache.available_blocks();
        bool const fitted = seq.reserve(n).has_value();
        CHECK(fitted == predicted);
        std::int32_t const copies = forked && n > 0 ? 1 : 0;
        CHECK(needed == kv::blocks_for(6 + n, block_tokens) - 2 + copies);
        CHECK(fitted == (needed <= available));
        if (fitted) CHECK(available - cache.available_blocks() == needed);
      }
    }
  }
}

TEST_CASE("contract 3: would_fit says what open does, idle hits counted as taken") {
  for (std::int32_t num_blocks = 2; num_blocks <= 6; ++num_blocks) {
    for (std::int32_t reserve = 0; reserve <= 24; ++reserve) {
      for (bool const partial : {false, true}) {
        CAPTURE(num_blocks, reserve, partial);
        auto config = small_pool(num_blocks);
        config.partial_hits = partial;
        kv::KvCache cache(config);
        leave_cached(cache, 1, count_from(0, 8));
        auto const key = cache.hash(count_from(0, 6));
        kv::OpenOptions const options{.reserve = reserve};
        bool const predicted = cache.would_fit(key, options);
        auto const admission = cache.admission(key, options);
        std::int32_t const available = cache.available_blocks();
        auto const opened = cache.open(SequenceId{2}, key, options);
        CHECK(opened.has_value() == predicted);
        if (opened) {
          CHECK(admission.blocks_needed <= available);
          CHECK(admission.cached_tokens == opened->cached());
          CHECK(available - cache.available_blocks() == admission.blocks_needed);
        }
      }
    }
  }
}

TEST_CASE("contract 3: the last block of the pool can be had") {
  kv::KvCache cache(small_pool(3));
  auto seq = cache.open(SequenceId{1}, count_from(0, 12), {.reserve = 12});
  REQUIRE(seq.has_value());
  CHECK(cache.available_blocks() == 0);
  CHECK(seq->num_blocks() == 3);
}

TEST_CASE("contract 4: what can never fit is told apart from what doesn't fit now") {
  auto config = small_pool(4);
  config.max_sequence_tokens = 14;
  kv::KvCache cache(config);
  auto holder = cache.open(SequenceId{1}, count_from(0, 8), {.reserve = 8});
  REQUIRE(holder.has_value());

  SECTION("open") {
    auto const now = cache.open(SequenceId{2}, count_from(50, 12), {.reserve = 12});
    REQUIRE_FALSE(now.has_value());
    CHECK(now.error() == Errc::no_free_blocks);
    // Fits the pool, not max_sequence_tokens.
    auto const never = cache.open(SequenceId{2}, count_from(50, 15), {.reserve = 15});
    REQUIRE_FALSE(never.has_value());
    CHECK(never.error() == Errc::never_fits);
  }
  SECTION("reserve") {
    auto const fits = holder->reserve(6);
    REQUIRE(fits.has_value());
    CHECK(holder->size() == 14);
    auto const never = holder->reserve(1);
    REQUIRE_FALSE(never.has_value());
    CHECK(never.error() == Errc::never_fits);
  }
  SECTION("more blocks than the pool has") {
    auto wide = small_pool(4);
    kv::KvCache narrow(wide);
    auto const never = narrow.open(SequenceId{2}, count_from(50, 17), {.reserve = 17});
    REQUIRE_FALSE(never.has_value());
    CHECK(never.error() == Errc::never_fits);
    auto seq = narrow.open(SequenceId{2}, count_from(50, 16), {.reserve = 16});
    REQUIRE(seq.has_value());
    auto const more = seq->reserve(1);
    REQUIRE_FALSE(more.has_value());
    CHECK(more.error() == Errc::never_fits);
  }
}

TEST_CASE("contract 4: pins only make no_free_blocks") {
  kv::KvCache cache(small_pool(4));
  leave_cached(cache, 1, count_from(0, 12));
  auto const pin = cache.pin(cache.hash(count_from(0, 12)));
  REQUIRE(pin.has_value());
  CHECK(pin->num_tokens() == 12);
  CHECK(cache.stats().used == 3);
  auto const failed = cache.open(SequenceId{2}, count_from(50, 8), {.reserve = 8});
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error() == Errc::no_free_blocks);
}

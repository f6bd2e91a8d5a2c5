// SPDX-License-Identifier: Apache-2.0
// Contracts 5 to 7 and 12: exact hits, nothing unfinished, immutable blocks, epochs.
#include <string>

#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::Errc;
using kv::SequenceId;
using CollidingCache = kv::BasicKvCache<CollidingPolicy>;

TEMPLATE_TEST_CASE("contract 5: a block is found after its own parent only", "", kv::KvCache,
                   CollidingCache) {
  TestType cache(small_pool(16));
  Tokens const a = count_from(0, 4), x = count_from(10, 4), b = count_from(20, 4),
               c = count_from(30, 4), y = count_from(40, 4), end{99};
  leave_cached(cache, 1, a + x + b);
  leave_cached(cache, 2, c + y);
  // Others after the same parents: more than the child that was used last is looked through.
  leave_cached(cache, 4, a + count_from(50, 4));
  leave_cached(cache, 5, c + count_from(60, 4));
  // C-X-B shares no prefix with A-X-B, however much the hashes agree.
  CHECK(cached_tokens(cache, c + x + b + end) == 4);
  CHECK(cached_tokens(cache, x + b + end) == 0);
  CHECK(cached_tokens(cache, a + b + end) == 4);
  // X and B are one run: its first block doesn't speak for the others.
  CHECK(cached_tokens(cache, a + x + c + end) == 8);
  // The right ones are still found.
  CHECK(cached_tokens(cache, a + x + b + end) == 12);
  CHECK(cached_tokens(cache, c + y + end) == 8);
  auto const seq = cache.open(SequenceId{3}, c + x + b + end);
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 4);
}

TEMPLATE_TEST_CASE("contract 5: salts, adapters and media never meet", "", kv::KvCache,
                   CollidingCache) {
  TestType cache(small_pool(64));
  Tokens const prompt = count_from(0, 9);
  std::vector<kv::MediaItem> const cat{{{1, 3}, "x"}}, cat_later{{{2, 2}, "x"}}, dog{{{1, 3}, "y"}},
      second_block{{{5, 3}, "x"}};
  std::vector<kv::ExtraKeys> const worlds{
      {},
      {.salt = "x"},
      {.salt = "y"},
      {.adapter = "x"},
      {.adapter = "x", .adapter_generation = 1},
      {.salt = "x", .adapter = "x"},
      {.salt = "xx"},
      {.media = cat},
      {.media = cat_later},
      {.media = dog},
      {.salt = "x", .media = cat},
  };
  std::set<kv::BlockId> firsts;
  for (auto const& world : worlds) {
    auto const key = cache.hash(prompt, world);
    CHECK(cache.match(key) == 0);
    auto seq = cache.open(SequenceId{1}, key);
    REQUIRE(seq.has_value());
    fill(cache, *seq, prompt);
    firsts.insert(seq->blocks()[0]);
  }
  CHECK(firsts.size() == worlds.size());
  for (auto const& world : worlds) CHECK(cached_tokens(cache, prompt, world) == 8);
  // An item in the second block keys that block, not the first.
  CHECK(cached_tokens(cache, prompt, {.media = second_block}) == 4);
  // Computed in one go with the first or not, that block isn't found without its key.
  for (Tokens const& text : {prompt, count_from(50, 9)}) {
    auto const key = cache.hash(text, {.media = second_block});
    {
      auto seq = cache.open(SequenceId{2}, key);
      REQUIRE(seq.has_value());
      fill(cache, *seq, text);
    }
    CHECK(cached_tokens(cache, text, {.media = second_block}) == 8);
    CHECK(cached_tokens(cache, text) == (text == prompt ? 8 : 4));
  }
}

TEMPLATE_TEST_CASE("contract 5: content after an evicted parent isn't found after its successor",
                   "", kv::KvCache, CollidingCache) {
  TestType cache(small_pool(8));
  Tokens const a = count_from(0, 4), x = count_from(10, 4), end{99};
  leave_cached(cache, 1, a + x);
  auto const seq = cache.open(SequenceId{2}, a + end);
  REQUIRE(seq.has_value());
  kv::BlockId const parent = seq->blocks()[0];
  { auto const gone = std::move(*const_cast<kv::Result<typename TestType::SequenceType>*>(&seq)); }
  CHECK(cache.evict(std::vector{parent}) == 1);
  CHECK(cached_tokens(cache, a + x + end) == 0);
  // The same id takes other content: its old child must not continue that.
  Ids taken;
  std::vector<typename TestType::SequenceType> holders;
  for (std::uint64_t id = 10; cache.stats().free > 0; ++id) {
    Tokens const other = count_from(kv::TokenId(id) * 100, 4);
    holders.push_back(started(cache, id, other));
    taken.push_back(holders.back().blocks()[0]);
    CHECK(cached_tokens(cache, other + x + end) == 4);
  }
  CHECK(std::find(taken.begin(), taken.end(), parent) != taken.end());
  // The same content again is a new parent: the old child stays unfound, a new one is published.
  holders.clear();
  leave_cached(cache, 3, a);
  CHECK(cached_tokens(cache, a + x + end) == 4);
  leave_cached(cache, 4, a + x);
  CHECK(cached_tokens(cache, a + x + end) == 8);
}

TEMPLATE_TEST_CASE("contract 5: cutting a path anywhere changes nothing that is found", "",
                   kv::KvCache, CollidingCache) {
  // Hits, forks, truncations and copies hold parts of what was computed in one go.
  Tokens const path = count_from(0, 24), end{99};
  for (std::int32_t cut = 1; cut <= 6; ++cut) {
    CAPTURE(cut);
    TestType cache(small_pool(32));
    leave_cached(cache, 1, path);
    auto const head = Tokens(path.begin(), path.begin() + cut * block_tokens);
    auto holder = std::optional(started(cache, 2, head + Tokens{50, 51, 52, 53, 54}));
    CHECK(holder->cached() == cut * block_tokens);
    auto fork = holder->fork(SequenceId{3});
    REQUIRE(fork.has_value());
    fork->truncate(cut * block_tokens - 1);
    REQUIRE(fork->append(Tokens{60, 61}).has_value());
    (void)cache.take_copies();
    for (std::int32_t n = 0; n <= 6; ++n) {
      auto const prompt = Tokens(path.begin(), path.begin() + n * block_tokens);
      CHECK(cached_tokens(cache, prompt + end) == n * block_tokens);
      // What follows one block isn't found after another one, nor at the beginning.
      auto const rest = Tokens(path.begin() + n * block_tokens, path.end());
      if (n > 0) CHECK(cached_tokens(cache, rest + end) == 0);
      if (n > 1)
        CHECK(cached_tokens(cache, head + rest + end) == (n == cut ? 24 : cut * block_tokens));
    }
    CHECK(cached_tokens(cache, head + Tokens{50, 51, 52, 53, 54}) == (cut + 1) * block_tokens);
    holder.reset();
    CHECK(cached_tokens(cache, path + end) == 24);
    CHECK(cache.verify());
  }
}

TEMPLATE_TEST_CASE("contract 5: what was evicted from the end of a path isn't found again", "",
                   kv::KvCache, CollidingCache) {
  Tokens const path = count_from(0, 24), end{99};
  for (std::int32_t taken = 1; taken <= 5; ++taken) {
    CAPTURE(taken);
    TestType cache(small_pool(6));
    leave_cached(cache, 1, path);
    std::int32_t const left = (6 - taken) * block_tokens;
    auto const head = Tokens(path.begin(), path.begin() + left);
    {
      auto const other = started(cache, 2, count_from(1000, taken * block_tokens));
      CHECK(cached_tokens(cache, path + end) == left);
      // Its blocks are of the same ids; nothing of the path is found in them.
      CHECK(cached_tokens(cache, head + count_from(1000, 4) + end) == left);
    }
    // Another continuation of what is left, and then the path again.
    leave_cached(cache, 3, head + count_from(2000, 4));
    CHECK(cached_tokens(cache, path + end) == left);
    CHECK(cached_tokens(cache, head + count_from(2000, 5)) == left + 4);
    leave_cached(cache, 4, path);
    CHECK(cached_tokens(cache, path + end) == 24);
    CHECK(cache.verify());
  }
}

TEMPLATE_TEST_CASE("contract 5: a child of content that went isn't found after its successor", "",
                   kv::KvCache, CollidingCache) {
  // The middle of a path goes and comes back with the same tokens: it is new, without children.
  TestType cache(small_pool(16));
  Tokens const path = count_from(0, 16), end{99};
  leave_cached(cache, 1, path);
  Ids row;
  {
    auto const seq = cache.open(SequenceId{2}, path + end);
    row = ids_of(*seq);
  }
  std::uint32_t const generation = cache.generation(row[1]);
  CHECK(cache.evict(Ids{row[1]}) == 1);
  CHECK(cache.generation(row[1]) == generation + 1);
  CHECK(cached_tokens(cache, path + end) == 4);
  leave_cached(cache, 3, Tokens(path.begin(), path.begin() + 8));
  CHECK(cached_tokens(cache, path + end) == 8);
  // Content that moves to another block is the same content, and keeps its children.
  leave_cached(cache, 4, path);
  CHECK(cached_tokens(cache, path + end) == 16);
  auto const again = started(cache, 5, Tokens(path.begin(), path.begin() + 8), {.read = false});
  CHECK(cache.is_published(again.blocks()[1]));
  CHECK(cached_tokens(cache, path + end) == 16);
  CHECK(cache.verify());
}

TEMPLATE_TEST_CASE("contract 5: a run that begins anew has none of the children of before", "",
                   kv::KvCache, CollidingCache) {
  auto config = small_pool(32);
  config.max_sequences = 16;
  TestType cache(config);
  Tokens const a = count_from(0, 4), x = count_from(10, 4), end{99};
  leave_cached(cache, 1, a + x);
  leave_cached(cache, 3, a + count_from(20, 4));  // x isn't the child used last
  Ids row;
  {
    auto const seq = cache.open(SequenceId{2}, a + x + end);
    row = ids_of(*seq);
  }
  leave_cached(cache, 4, a + count_from(20, 5));
  CHECK(cache.evict(Ids{row[0]}) == 1);  // x stays idle, after nothing
  // Other content in the same places, each with children of its own.
  std::vector<typename TestType::SequenceType> holders;
  for (kv::TokenId id = 10; id < 12; ++id) {
    Tokens const other = count_from(id * 100, 4);
    holders.push_back(started(cache, std::uint64_t(id), other));
    holders.push_back(started(cache, std::uint64_t(id), other + count_from(id * 100 + 50, 4)));
    CHECK(holders.back().cached() == 4);
    holders.push_back(started(cache, std::uint64_t(id), other + count_from(id * 100 + 70, 4)));
    CHECK(cached_tokens(cache, other + x + end) == 4);
    CHECK(cached_tokens(cache, other + count_from(id * 100 + 50, 5)) == 8);
  }
  CHECK(cache.verify());
}

TEST_CASE("contract 5: extra keys that are too long are refused, not cut") {
  auto config = small_pool(8);
  config.max_extra_key_bytes = 32;
  kv::KvCache cache(config);
  std::string const long_salt(33, 's');
  auto const key = cache.hash(count_from(0, 9), {.salt = long_salt});
  auto const opened = cache.open(SequenceId{1}, key);
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error() == Errc::extra_keys_too_long);
  CHECK(cache.stats() == kv::KvCache(config).stats());
}

TEST_CASE("contract 5: the last token is never a hit") {
  kv::KvCache cache(small_pool(8));
  leave_cached(cache, 1, count_from(0, 8));
  CHECK(cached_tokens(cache, count_from(0, 8)) == 4);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
  auto const seq = cache.open(SequenceId{2}, count_from(0, 8));
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 4);
  CHECK(seq->committed() == 4);
  CHECK(seq->size() == 4);
}

TEST_CASE("contract 5: a partial hit shares exactly the equal leading tokens, by a copy") {
  auto config = small_pool(8);
  config.partial_hits = true;
  kv::KvCache cache(config);
  leave_cached(cache, 1, Tokens{1, 2, 3, 4, 5, 6, 7, 8});
  auto const source = [&] {
    auto const seq = cache.open(SequenceId{2}, Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9});
    return seq->blocks()[1];
  }();
  auto const seq = cache.open(SequenceId{3}, Tokens{1, 2, 3, 4, 5, 6, 0, 0, 0});
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 6);
  CHECK(seq->size() == 6);
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0] == kv::BlockCopy{source, seq->blocks()[1], 2});
  CHECK(seq->blocks()[1] != source);
  // Other extra keys: not even a part.
  CHECK(cached_tokens(cache, Tokens{1, 2, 3, 4, 5, 6, 0}, {.salt = "s"}) == 0);
}

TEST_CASE("contract 6: nothing reserved, drafted or uncommitted is ever found") {
  kv::KvCache cache(small_pool(16));
  Tokens const prompt = count_from(0, 13);
  auto seq = cache.open(SequenceId{1}, prompt, {.reserve = 12});
  REQUIRE(seq.has_value());
  CHECK(cached_tokens(cache, prompt) == 0);
  (void)cache.take_copies();
  seq->commit(7);
  CHECK(cached_tokens(cache, prompt) == 4);
  seq->commit(8);
  CHECK(cached_tokens(cache, prompt) == 8);
  // Drafts fill the third block and are rejected; the block is never published.
  seq->truncate(9);
  REQUIRE(seq->append(Tokens{7, 7, 7}).has_value());
  CHECK(cached_tokens(cache, count_from(0, 9) + Tokens{7, 7, 7, 0}) == 8);
  seq->commit(10);
  seq->truncate(10);
  CHECK(cached_tokens(cache, count_from(0, 9) + Tokens{7, 7, 7, 0}) == 8);
  CHECK(cache.stats().published_blocks == 2);
}

TEST_CASE("contract 6: committing unknown, missing or uncopied positions is a checked error") {
  auto const unknown = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = cache.open(SequenceId{1}, count_from(0, 4));
    (void)seq->reserve(4);
    seq->commit(2);
  });
  CHECK(unknown.aborted);
  auto const missing = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = cache.open(SequenceId{1}, count_from(0, 4), {.reserve = 4});
    seq->commit(5);
  });
  CHECK(missing.aborted);
  auto const rewritten = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = started(cache, 1, count_from(0, 4));
    seq.set_tokens(3, Tokens{7});
  });
  CHECK(rewritten.aborted);
  auto const fine = outcome_of([] {
    kv::KvCache cache(small_pool(8));
    auto seq = cache.open(SequenceId{1}, count_from(0, 4));
    (void)seq->reserve(4);
    seq->set_tokens(0, Tokens{1, 2});
    seq->commit(2);
  });
  CHECK_FALSE(fine.aborted);
}

TEST_CASE("contract 6: publish = false leaves nothing to find") {
  kv::KvCache cache(small_pool(16));
  Tokens const prompt = count_from(0, 9);
  {
    auto const seq = started(cache, 1, prompt, {.publish = false});
    CHECK(cached_tokens(cache, prompt) == 0);
  }
  CHECK(cached_tokens(cache, prompt) == 0);
  CHECK(cache.stats().free == 16);
}

TEST_CASE("contract 7: writing into a published block copies it first") {
  kv::KvCache cache(small_pool(8));
  auto seq = started(cache, 1, count_from(0, 8));
  kv::BlockId const published = seq.blocks()[1];
  seq.truncate(6);
  REQUIRE(seq.append(Tokens{70, 71}).has_value());
  CHECK(seq.blocks()[1] != published);
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0] == kv::BlockCopy{published, seq.blocks()[1], 2});
  seq.commit(8);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
  CHECK(cached_tokens(cache, count_from(0, 6) + Tokens{70, 71, 0}) == 8);
}

TEST_CASE("contract 7: an append to a shared tail copies it once and only for one of the two") {
  kv::KvCache cache(small_pool(8));
  auto seq = started(cache, 1, count_from(0, 6));
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  kv::BlockId const tail = seq.blocks()[1];
  REQUIRE(fork->append(Tokens{7}).has_value());
  CHECK(fork->blocks()[1] != tail);
  CHECK(seq.blocks()[1] == tail);
  REQUIRE(fork->append(Tokens{8}).has_value());
  REQUIRE(seq.append(Tokens{9}).has_value());
  CHECK(seq.blocks()[1] == tail);
  CHECK(cache.take_copies().size() == 1);
}

TEST_CASE("contract 7: the first append after a fork copies, the parent's too") {
  kv::KvCache cache(small_pool(8));
  auto seq = started(cache, 1, count_from(0, 5));
  fill(cache, seq, count_from(0, 6));  // one token alone, the short way
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  kv::BlockId const tail = fork->blocks()[1];
  REQUIRE(seq.append(Tokens{7}).has_value());
  CHECK(seq.blocks()[1] != tail);
  CHECK(fork->blocks()[1] == tail);
  CHECK(cache.take_copies().size() == 1);
}

TEST_CASE("contract 7: a sole owner with no block free unpublishes and writes in place") {
  auto config = small_pool(2);
  Listener listener;
  config.observer = &listener;
  kv::KvCache cache(config);
  auto seq = started(cache, 1, count_from(0, 8));
  kv::BlockId const tail = seq.blocks()[1];
  seq.truncate(6);
  CHECK(cache.available_blocks() == 0);
  CHECK(seq.would_fit(2));
  REQUIRE(seq.append(Tokens{70, 71}).has_value());
  CHECK(seq.blocks()[1] == tail);
  CHECK(cache.take_copies().empty());
  REQUIRE(listener.heard.size() == 3);
  CHECK(listener.heard[2].kind == kv::CacheEvent::Kind::removed);
  CHECK(listener.heard[2].block == tail);
  CHECK(cache.stats().unpublished_blocks == 1);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 4);
  seq.commit(8);
  CHECK(cached_tokens(cache, count_from(0, 6) + Tokens{70, 71, 0}) == 8);
}

TEST_CASE("contract 7: a shared block is never written in place, room or not") {
  kv::KvCache cache(small_pool(2));
  auto seq = started(cache, 1, count_from(0, 6));
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  auto const failed = fork->append(Tokens{7});
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error() == Errc::no_free_blocks);
}

TEST_CASE("contract 12: after reset nothing older is found, and older sequences never publish") {
  auto config = small_pool(16);
  Listener listener;
  config.observer = &listener;
  kv::KvCache cache(config);
  Tokens const old_prompt = count_from(0, 9);
  auto const key = cache.hash(old_prompt);
  leave_cached(cache, 1, old_prompt);
  auto live = started(cache, 2, count_from(50, 6));
  auto young = started(cache, 5, count_from(70, 2));  // nothing published yet
  cache.reset();
  CHECK(listener.heard.back().kind == kv::CacheEvent::Kind::cleared);
  CHECK(cache.match(key) == 0);
  CHECK(cache.stats().idle == 0);
  CHECK(cache.stats().used == 3);
  std::size_t const events = listener.heard.size();

  // The live sequence goes on and so do its forks; neither publishes.
  auto fork = live.fork(SequenceId{3});
  REQUIRE(fork.has_value());
  fill(cache, live, count_from(50, 9));
  fill(cache, *fork, count_from(50, 10));
  auto young_fork = young.fork(SequenceId{6});
  REQUIRE(young_fork.has_value());
  fill(cache, young, count_from(70, 9));
  fill(cache, *young_fork, count_from(70, 10));
  CHECK(cached_tokens(cache, count_from(70, 9)) == 0);
  CHECK(listener.heard.size() == events);
  CHECK(cached_tokens(cache, count_from(50, 9)) == 0);

  // A key made before is still good, and what is computed now is found.
  auto again = cache.open(SequenceId{4}, key);
  REQUIRE(again.has_value());
  CHECK(again->cached() == 0);
  fill(cache, *again, old_prompt);
  CHECK(cache.match(key) == 8);
}

TEST_CASE("contract 12: reset keeps untaken copies of live sequences, and pins unpublished") {
  kv::KvCache cache(small_pool(16));
  leave_cached(cache, 3, count_from(50, 4));
  auto pin = cache.pin(cache.hash(count_from(50, 4)));
  REQUIRE(pin.has_value());
  auto seq = started(cache, 1, count_from(0, 6));
  auto fork = seq.fork(SequenceId{2});
  REQUIRE(fork.has_value());
  REQUIRE(fork->append(Tokens{7}).has_value());
  std::int32_t const used = cache.stats().used;
  cache.reset();
  CHECK(cache.stats().used == used);
  CHECK(cache.take_copies().size() == 1);
  CHECK(cached_tokens(cache, count_from(50, 5)) == 0);
  CHECK(cache.verify());
  { auto const dropped = std::move(*pin); }
  CHECK(cache.stats().used == used - 1);
}

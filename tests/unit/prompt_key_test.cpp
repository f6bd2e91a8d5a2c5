// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/prompt_key.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace kv::testing;
using kv::Errc;
using kv::ExtraKeys;
using kv::Hash128;
using kv::MediaItem;
using kv::SequenceId;
using kv::Xxh3BlockHash;
using kv::detail::ExtraKeyTable;

namespace {

std::vector<Hash128> hashes_of(kv::PromptKey const& key) {
  return {key.hashes().begin(), key.hashes().end()};
}
/// Encoded keys of one block.
std::vector<std::byte> encoded(ExtraKeys const& keys, std::int32_t block = 0) {
  ExtraKeyTable const table(keys, 16, 4);
  auto const bytes = table.block(block);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("prompt key: one chained hash for each full block") {
  kv::KvCache const cache(pool_of(8));
  auto const prompt = iota(10, 11);
  auto const key = cache.hash(prompt);
  CHECK(key.num_tokens() == 11);
  CHECK(Tokens(key.tokens().begin(), key.tokens().end()) == prompt);
  auto const seed = cache.config().hash_seed;
  std::vector<Hash128> by_hand{Xxh3BlockHash::root(seed)};
  for (std::size_t j = 0; j < 2; ++j) {
    auto const block = std::span(prompt).subspan(4 * j, 4);
    by_hand.push_back(Xxh3BlockHash::chain(by_hand.back(), Xxh3BlockHash::content(block, seed)));
  }
  by_hand.erase(by_hand.begin());
  CHECK(hashes_of(key) == by_hand);
  CHECK(key.longest_extra_key_bytes() == 0);
  CHECK(cache.hash(iota(0, 3)).hashes().empty());
  CHECK(cache.hash({}).num_tokens() == 0);
}

TEST_CASE("prompt key: what it was made from may go, and copies share what it holds") {
  kv::KvCache const cache(pool_of(8));
  auto const make = [&] {
    Tokens const prompt = iota(3, 9);
    std::string const salt = "a tenant";
    return cache.hash(prompt, {.salt = salt});
  };
  auto const key = make();
  auto const copy = key;
  CHECK(Tokens(key.tokens().begin(), key.tokens().end()) == iota(3, 9));
  CHECK(copy.tokens().data() == key.tokens().data());
  CHECK(copy.hashes().data() == key.hashes().data());
}

TEST_CASE("prompt key: salt, adapter and its generation key every block") {
  kv::KvCache const cache(pool_of(8));
  auto const prompt = iota(0, 12);
  std::vector<kv::PromptKey> const keys{
      cache.hash(prompt),
      cache.hash(prompt, {.salt = "x"}),
      cache.hash(prompt, {.salt = "y"}),
      cache.hash(prompt, {.adapter = "x"}),
      cache.hash(prompt, {.adapter = "x", .adapter_generation = 1}),
      cache.hash(prompt, {.salt = "x", .adapter = "x"}),
  };
  for (std::size_t j = 0; j < 3; ++j) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (auto const& key : keys) seen.insert({key.hashes()[j].low, key.hashes()[j].high});
    CHECK(seen.size() == keys.size());
  }
}

TEST_CASE("prompt key: a media item keys the blocks it overlaps and all behind them") {
  kv::KvCache const cache(pool_of(8));
  auto const prompt = iota(0, 20);
  MediaItem const cat[] = {{.positions = {6, 3}, .id = "cat"}};  // blocks 1 and 2
  MediaItem const dog[] = {{.positions = {6, 3}, .id = "dog"}};
  auto const with_cat = cache.hash(prompt, {.media = cat});
  auto const with_dog = cache.hash(prompt, {.media = dog});
  auto const bare = cache.hash(prompt);
  CHECK(with_cat.hashes()[0] == bare.hashes()[0]);
  CHECK(with_cat.hashes()[0] == with_dog.hashes()[0]);
  for (std::size_t j = 1; j < 5; ++j) {
    CHECK(with_cat.hashes()[j] != bare.hashes()[j]);
    CHECK(with_cat.hashes()[j] != with_dog.hashes()[j]);
  }
  CHECK(encoded({.media = cat}, 0).empty());
  CHECK_FALSE(encoded({.media = cat}, 1).empty());
  CHECK_FALSE(encoded({.media = cat}, 2).empty());
  CHECK(encoded({.media = cat}, 3).empty());
}

TEST_CASE("prompt key: the place of a media item within its block counts") {
  MediaItem const early[] = {{.positions = {0, 2}, .id = "cat"}};
  MediaItem const late[] = {{.positions = {1, 2}, .id = "cat"}};
  MediaItem const longer[] = {{.positions = {0, 3}, .id = "cat"}};
  CHECK(encoded({.media = early}) != encoded({.media = late}));
  CHECK(encoded({.media = early}) != encoded({.media = longer}));
  // The middle of a long item isn't its beginning.
  MediaItem const begins[] = {{.positions = {4, 8}, .id = "cat"}};
  CHECK(encoded({.media = begins}, 1) != encoded({.media = begins}, 2));
}

TEST_CASE("extra keys: encodings are told apart by tag and length") {
  CHECK(encoded({}).empty());
  CHECK(encoded({.salt = "ab"}) != encoded({.adapter = "ab"}));
  // An image's place and an adapter's generation are both eight bytes: only the tag differs.
  MediaItem const item[] = {{.positions = {0, 4}, .id = "ab"}};
  CHECK(encoded({.media = item}).size() == encoded({.adapter = "ab"}).size());
  CHECK(encoded({.media = item}) !=
        encoded({.adapter = "ab", .adapter_generation = std::uint64_t{4} << 32}));
  // Without lengths these would be one string of bytes.
  MediaItem const one[] = {{.positions = {0, 4}, .id = "ab"}, {.positions = {0, 4}, .id = "c"}};
  MediaItem const other[] = {{.positions = {0, 4}, .id = "a"}, {.positions = {0, 4}, .id = "bc"}};
  CHECK(encoded({.media = one}) != encoded({.media = other}));
  CHECK(encoded({.salt = "a"}) == encoded({.salt = "a"}));
  // Salt and adapter stand in block 0 only: the chain carries them on.
  CHECK(encoded({.salt = "ab", .adapter = "cd"}, 1).empty());
}

TEST_CASE("extra keys: the table ends with the prompt") {
  MediaItem const item[] = {{.positions = {0, 100}, .id = "film"}};
  ExtraKeyTable const table({.media = item}, 10, 4);
  CHECK_FALSE(table.block(2).empty());
  CHECK(table.block(3).empty());
  CHECK(table.longest() == table.block(0).size());
}

TEST_CASE("extra keys: more bytes than a block has room for are refused, not cut") {
  auto config = pool_of(8);
  config.max_extra_key_bytes = 16;
  kv::KvCache cache(config);
  auto const prompt = iota(0, 8);
  // One byte of tag and four of length stand before the text.
  auto const fits = cache.hash(prompt, {.salt = "elevenbytes"});
  auto const too_long = cache.hash(prompt, {.salt = "twelve bytes"});
  CHECK(fits.longest_extra_key_bytes() == 16);
  CHECK(too_long.longest_extra_key_bytes() == 17);
  CHECK(cache.open(SequenceId{1}, fits).has_value());
  auto const before = cache.stats();
  auto const refused = cache.open(SequenceId{1}, too_long);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error() == Errc::extra_keys_too_long);
  auto const unpinned = cache.pin(too_long);
  REQUIRE_FALSE(unpinned.has_value());
  CHECK(unpinned.error() == Errc::extra_keys_too_long);
  CHECK(cache.stats() == before);
}

TEST_CASE("prompt key: tenants, adapters and images never meet in a cache") {
  kv::KvCache cache(pool_of(16));
  auto const prompt = iota(0, 9);
  MediaItem const cat[] = {{.positions = {1, 2}, .id = "cat"}};
  MediaItem const dog[] = {{.positions = {1, 2}, .id = "dog"}};
  std::vector<ExtraKeys> const all{{},
                                   {.salt = "a"},
                                   {.salt = "b"},
                                   {.adapter = "a"},
                                   {.adapter = "a", .adapter_generation = 1},
                                   {.media = cat},
                                   {.media = dog}};
  for (auto const& keys : all) {
    auto const key = cache.hash(prompt, keys);
    CHECK(cache.match(key) == 0);
    {
      auto seq = cache.open(SequenceId{1}, key, {.reserve = 9});
      REQUIRE(seq.has_value());
      seq->commit(9);
    }
    CHECK(cache.match(key) == 8);
  }
  for (auto const& keys : all) CHECK(cache.match(cache.hash(prompt, keys)) == 8);
  CHECK_VERIFIED(cache);
}

TEST_CASE("prompt key: it serves any cache of the same block size and seed") {
  kv::KvCache const one(pool_of(8));
  kv::KvCache other(pool_of(4));
  auto const prompt = iota(0, 9);
  leave_idle(other, prompt);
  CHECK(other.match(one.hash(prompt)) == 8);
  auto config = pool_of(8);
  SECTION("another seed") { config.hash_seed = 1; }
  SECTION("another block size") { config.block_tokens = 2; }
  kv::KvCache const stranger(config);
  auto const key = stranger.hash(prompt);
  auto const outcome = outcome_of([&] { (void)one.match(key); });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.message, contains_text("another seed or block size"));
}

TEST_CASE("prompt key: it stays valid across a reset") {
  kv::KvCache cache(pool_of(8));
  auto const prompt = iota(0, 9);
  auto const key = cache.hash(prompt);
  leave_idle(cache, prompt);
  cache.reset();
  CHECK(cache.match(key) == 0);
  leave_idle(cache, prompt);
  CHECK(cache.match(key) == 8);
}

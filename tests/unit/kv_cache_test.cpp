// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/kv_cache.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace kv::testing;
using kv::BlockId;
using kv::Errc;
using kv::HitEnd;
using kv::OpenOptions;
using kv::SequenceId;
using kv::Tick;

namespace {

static_assert(!std::is_copy_constructible_v<kv::KvCache>);
static_assert(!std::is_move_constructible_v<kv::KvCache>);
static_assert(!std::is_convertible_v<kv::KvCacheConfig, kv::KvCache>);

/// Every hash is equal: only equality of contents keeps prompts apart.
struct CollidingPolicy {
  struct Hash {
    static kv::Hash128 root(std::uint64_t) noexcept { return {}; }
    static kv::Hash128 content(std::span<kv::TokenId const>, std::uint64_t) noexcept { return {}; }
    static kv::Hash128 extra(std::span<std::byte const>, std::uint64_t) noexcept { return {}; }
    static kv::Hash128 chain(kv::Hash128, kv::Hash128) noexcept { return {}; }
  };
  using Eviction = kv::LruEviction;
};

/// Says how many blocks were hashed.
struct CountingPolicy {
  struct Hash : kv::Xxh3BlockHash {
    static inline int num_hashed = 0;
    static kv::Hash128 content(std::span<kv::TokenId const> tokens, std::uint64_t seed) noexcept {
      ++num_hashed;
      return kv::Xxh3BlockHash::content(tokens, seed);
    }
  };
  using Eviction = kv::LruEviction;
};

template <class Code>
std::string refusal(Code&& code) {
  auto const outcome = outcome_of(std::forward<Code>(code));
  return outcome.aborted ? outcome.message : "";
}

// What the smallest program calls: an engine's own pieces and a data plane of one row per slot.
using View = std::vector<kv::TokenId>;
struct Rows {};
void copy_blocks(View& view, std::span<kv::BlockCopy const> copies) {
  for (auto const& c : copies) {
    for (std::int32_t i = 0; i < c.num_tokens; ++i) {
      view[static_cast<std::size_t>(c.dst.value() * 16 + i)] =
          view[static_cast<std::size_t>(c.src.value() * 16 + i)];
    }
  }
}
void write_kv(View& view, int, std::span<kv::TokenId const> k, Rows,
              std::vector<kv::Slot> const& slots, Rows) {
  for (std::size_t i = 0; i < k.size(); ++i) view[static_cast<std::size_t>(slots[i])] = k[i];
}
Errc report(Errc code) { return code; }

}  // namespace

TEST_CASE("cache: the smallest program") {
  View view(4096 * 16);
  auto const all = iota(0, 100);
  std::span<kv::TokenId const> const prompt = all;
  auto const program = [&](kv::KvCache& cache) -> std::optional<Errc> {
    constexpr int layer = 0;
    Rows const v{};
    Rows const scales{};

    auto seq = cache.open(kv::SequenceId{1}, prompt);  // longest cached prefix
    if (!seq) return report(seq.error());
    std::vector<kv::Slot> slots(prompt.size() - static_cast<std::size_t>(seq->size()));
    auto const k = prompt.subspan(prompt.size() - slots.size());
    auto range = seq->append(prompt.subspan(seq->size()));
    if (!range) return report(range.error());
    copy_blocks(view, cache.take_copies());  // copy-on-write, before the writes
    seq->slot_mapping(*range, slots);        // where each K/V row goes
    write_kv(view, layer, k, v, slots, scales);
    seq->commit(seq->size());  // full blocks are now shareable

    for (std::size_t p = 0; p < prompt.size(); ++p) {
      auto const block = static_cast<std::size_t>(seq->blocks()[p / 16].value());
      CHECK(view[block * 16 + p % 16] == prompt[p]);
    }
    return {};
  };

  kv::KvCache cache{
      {.block_tokens = 16, .num_blocks = 4096, .max_sequences = 64, .max_sequence_tokens = 32768}};
  CHECK_FALSE(program(cache).has_value());
  CHECK(cache.stats().prefix_hit_tokens == 0);
  CHECK_FALSE(program(cache).has_value());
  CHECK(cache.stats().prefix_hit_tokens == 96);

  kv::KvCache small{{.num_blocks = 6}};
  CHECK(program(small) == Errc::never_fits);
}

TEST_CASE("open: the longest cached prefix, never the last token") {
  kv::KvCache cache(pool_of(16));
  leave_idle(cache, iota(0, 12));
  auto const cached = [&](Tokens const& prompt) {
    auto const key = cache.hash(prompt);
    auto const seq = cache.open(SequenceId{9}, key);
    REQUIRE(seq.has_value());
    CHECK(seq->cached() == seq->size());
    CHECK(seq->committed() == seq->size());
    CHECK(cache.match(key) == seq->cached());
    auto const by_tokens = cache.open(SequenceId{9}, prompt);
    REQUIRE(by_tokens.has_value());
    CHECK(blocks_of(*by_tokens) == blocks_of(*seq));
    return seq->cached();
  };
  CHECK(cached({}) == 0);
  CHECK(cached(iota(0, 1)) == 0);
  CHECK(cached(iota(0, 4)) == 0);
  CHECK(cached(iota(0, 5)) == 4);
  CHECK(cached(iota(0, 12)) == 8);
  CHECK(cached(iota(0, 13)) == 12);
  CHECK(cached(iota(0, 40)) == 12);
  CHECK(cached(joined(iota(0, 6), iota(50, 6))) == 4);
  CHECK(cached(iota(4, 12)) == 0);
}

TEST_CASE("open: reserve says how many positions exist in all, with the prompt's ids") {
  kv::KvCache cache(pool_of(16));
  leave_idle(cache, iota(0, 8));
  auto const key = cache.hash(iota(0, 10));
  auto const open = [&](OpenOptions const& options) {
    auto seq = cache.open(SequenceId{1}, key, options);
    REQUIRE(seq.has_value());
    return std::pair{seq->size(), tokens_of(*seq)};
  };
  CHECK(open({.reserve = 0}) == std::pair{8, iota(0, 8)});
  CHECK(open({.reserve = 3}) == std::pair{8, iota(0, 8)});
  CHECK(open({.reserve = 9}) == std::pair{9, iota(0, 9)});
  CHECK(open({.reserve = 12}) == std::pair{12, joined(iota(0, 10), Tokens(2, kv::unknown_token))});
  CHECK(open({.external_tokens = 9}) == std::pair{9, iota(0, 9)});
}

TEST_CASE("open: what is told not to read or not to publish doesn't") {
  kv::KvCache cache(pool_of(16));
  { auto const hidden = running(cache, 1, iota(0, 9), {.publish = false}); }
  CHECK(cache.stats().idle == 0);
  leave_idle(cache, iota(0, 9));
  auto const fresh = running(cache, 2, iota(0, 9), {.read = false});
  CHECK(fresh.cached() == 0);
  CHECK(cache.stats().hit_ends[HitEnd::not_read] == 1);
}

TEST_CASE("open: a failure names its reason and changes nothing") {
  auto config = pool_of(4);
  config.max_sequences = 2;
  config.max_sequence_tokens = 40;
  kv::KvCache cache(config);
  leave_idle(cache, iota(0, 4));
  auto const running_one = running(cache, 1, iota(100, 8));
  auto const before = cache.stats();
  auto const fails = [&](Tokens const& prompt, OpenOptions const& options) {
    auto const key = cache.hash(prompt);
    auto const seq = cache.open(SequenceId{3}, key, options);
    REQUIRE_FALSE(seq.has_value());
    CHECK(cache.stats() == before);
    CHECK(cache.match(cache.hash(iota(0, 5))) == 4);
    CHECK_FALSE(cache.would_fit(key, options));
    CHECK_VERIFIED(cache);
    return seq.error();
  };
  // More blocks than the pool has, or more tokens than a sequence may have: told at once.
  CHECK(fails(iota(0, 17), {}) == Errc::never_fits);
  CHECK(fails(iota(0, 1), {.reserve = 17}) == Errc::never_fits);
  CHECK(fails(iota(0, 41), {}) == Errc::never_fits);
  // Not now.
  CHECK(fails(iota(200, 9), {.reserve = 9}) == Errc::no_free_blocks);
  // The idle block of the hit can't be counted as room as well.
  CHECK(fails(iota(0, 9), {.reserve = 9}) == Errc::no_free_blocks);
  auto const second = cache.open(SequenceId{2}, Tokens{});
  auto const full = cache.open(SequenceId{3}, Tokens{});
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error() == Errc::no_free_sequences);
}

TEST_CASE("admission: open finds room exactly when blocks_needed is available") {
  kv::KvCache cache(pool_of(6));
  leave_idle(cache, iota(0, 8));
  auto const key = cache.hash(iota(0, 12));
  auto const idle = cache.admission(key, {.reserve = 12});
  CHECK(idle.cached_tokens == 8);
  CHECK(idle.blocks_needed == 3);  // two idle blocks are revived, one is new
  auto const holder = running(cache, 1, iota(0, 9));
  auto const shared = cache.admission(key, {.reserve = 12});
  CHECK(shared.cached_tokens == 8);
  CHECK(shared.blocks_needed == 1);
  CHECK(cache.admission(key, {.reserve = 12, .read = false}).blocks_needed == 3);
  for (std::int32_t n = 0; n <= 24; ++n) {
    OpenOptions const options{.reserve = n};
    auto const needed = cache.admission(key, options).blocks_needed;
    bool const fits = needed <= cache.available_blocks();
    auto const before = cache.available_blocks();
    CHECK(cache.would_fit(key, options) == fits);
    auto const seq = cache.open(SequenceId{2}, key, options);
    CHECK(seq.has_value() == fits);
    if (seq) CHECK(before - cache.available_blocks() == needed);
  }
}

TEST_CASE("partial hits: the rest of the prefix comes by a copy") {
  auto config = pool_of(8);
  config.partial_hits = true;
  kv::KvCache cache(config);
  leave_idle(cache, iota(0, 8));
  auto const prompt = joined(iota(0, 7), iota(70, 3));
  auto const key = cache.hash(prompt);
  CHECK(cache.match(key) == 7);
  auto seq = cache.open(SequenceId{1}, key);
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 7);
  CHECK(tokens_of(*seq) == iota(0, 7));
  auto const copies = cache.take_copies();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].dst == seq->blocks()[1]);
  CHECK(copies[0].num_tokens == 3);
  CHECK(cache.stats().partial_hit_tokens == 3);
  CHECK(cache.stats().hit_blocks == 1);
  cache.end_step();
  CHECK_VERIFIED(cache);
  kv::KvCache off(pool_of(8));
  leave_idle(off, iota(0, 8));
  CHECK(off.match(off.hash(prompt)) == 4);
}

TEST_CASE("partial hits: given up when only holding the source doesn't fit") {
  auto config = pool_of(2);
  config.partial_hits = true;
  kv::KvCache cache(config);
  leave_idle(cache, iota(0, 4));
  auto const key = cache.hash(joined(iota(0, 3), iota(70, 4)));
  CHECK(cache.admission(key, {.reserve = 4}).cached_tokens == 3);
  CHECK(cache.admission(key, {.reserve = 7}).cached_tokens == 0);
  CHECK(cache.would_fit(key, {.reserve = 7}));
  auto const seq = cache.open(SequenceId{1}, key, {.reserve = 7});
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 0);
  CHECK(cache.take_copies().empty());
  CHECK(cache.stats().hit_ends[HitEnd::capacity] == 1);
}

TEST_CASE("stats: each open counts once and says why its hit ended") {
  kv::KvCache cache(pool_of(16));
  leave_idle(cache, iota(0, 8));
  auto const before = cache.stats();
  CHECK(before.opens == 1);
  CHECK(before.prefix_query_tokens == 8);
  CHECK(before.hit_ends[HitEnd::no_block] == 1);
  auto const ends = [&](kv::PromptKey const& key, HitEnd end, OpenOptions const& options = {}) {
    auto const earlier = cache.stats().hit_ends;
    auto const seq = cache.open(SequenceId{1}, key, options);
    REQUIRE(seq.has_value());
    auto expected = earlier;
    ++expected[end];
    CHECK(cache.stats().hit_ends == expected);
  };
  ends(cache.hash(iota(0, 12)), HitEnd::no_block);
  ends(cache.hash(iota(0, 8)), HitEnd::last_token);
  ends(cache.hash(iota(0, 9)), HitEnd::last_token);
  ends(cache.hash(iota(0, 8), {.salt = "other"}), HitEnd::salt_or_adapter);
  ends(cache.hash(iota(0, 8)), HitEnd::not_read, {.read = false});
  auto const after = cache.stats();
  CHECK(after.opens == 6);
  CHECK(after.prefix_query_tokens == 8 + 12 + 8 + 9 + 8 + 8);
  CHECK(after.prefix_hit_tokens == 8 + 4 + 8);
  CHECK(after.hit_blocks == 5);
}

TEST_CASE("stats: a preempted request that comes back is counted apart") {
  kv::KvCache cache(pool_of(16));
  {
    auto seq = running(cache, 1, iota(0, 9));
    std::move(seq).finish(kv::Reuse::resume);
  }
  auto const seq = running(cache, 1, iota(0, 9), {.resumed = true});
  auto const s = cache.stats();
  CHECK(s.opens == 1);
  CHECK(s.resumed_opens == 1);
  CHECK(s.prefix_query_tokens == 9);
  CHECK(s.prefix_hit_tokens == 0);
  CHECK(s.resumed_query_tokens == 9);
  CHECK(s.resumed_hit_tokens == 8);
  CHECK(s.preemptions == 1);
}

TEST_CASE("stats: owned and wasted slots, once a table") {
  kv::KvCache cache(pool_of(16));
  auto a = running(cache, 1, iota(0, 9));
  auto const b = a.fork(SequenceId{2});
  auto const s = cache.stats();
  CHECK(s.owned_slots == 24);
  CHECK(s.wasted_slots == 6);
  CHECK(s.internal_fragmentation() == 0.25);
  CHECK(s.usage() == 3.0 / 16);
  CHECK(s.sequences == 2);
}

TEST_CASE("pin: holds what is cached, the block of the last token included") {
  kv::KvCache cache(pool_of(4));
  leave_idle(cache, iota(0, 8));
  std::optional<kv::Pin> pin;
  {
    auto pinned = cache.pin(cache.hash(iota(0, 8)));
    REQUIRE(pinned.has_value());
    pin = *std::move(pinned);
  }
  CHECK(pin->num_tokens() == 8);
  CHECK(pin->blocks().size() == 2);
  CHECK(cache.stats().used == 2);
  CHECK(cache.stats().pins == 1);
  CHECK(cache.stats().opens == 1);  // not a request
  // Others can't push it out; too large for what is left is "not now".
  auto const tight = cache.open(SequenceId{1}, iota(100, 12), {.reserve = 12});
  REQUIRE_FALSE(tight.has_value());
  CHECK(tight.error() == Errc::no_free_blocks);
  pin.reset();
  CHECK(cache.stats().used == 0);
  CHECK(cache.open(SequenceId{1}, iota(100, 12), {.reserve = 12}).has_value());
}

TEST_CASE("pin: nothing cached is nothing held, and handles are bounded") {
  kv::KvCache cache(pool_of(4));
  auto const key = cache.hash(iota(0, 8));
  auto const one = cache.pin(key);
  auto const two = cache.pin(key);
  REQUIRE(two.has_value());
  CHECK(two->num_tokens() == 0);
  auto const three = cache.pin(key);
  REQUIRE_FALSE(three.has_value());
  CHECK(three.error() == Errc::no_free_sequences);
}

TEST_CASE("evict: drops what nobody owns, and what hangs behind it can't be found") {
  kv::KvCache cache(pool_of(8));
  Blocks blocks;
  {
    auto const seq = running(cache, 1, iota(0, 12));
    blocks = blocks_of(seq);
    CHECK(cache.evict(blocks) == 0);  // owned
  }
  BlockId const middle = blocks[1];
  auto const generation = cache.generation(middle);
  CHECK(cache.evict({&middle, 1}) == 1);
  CHECK(cache.generation(middle) == generation + 1);
  CHECK(cache.match(cache.hash(iota(0, 13))) == 4);
  CHECK(cache.stats().evicted_blocks == 1);
  CHECK(cache.stats().idle == 2);
  CHECK(cache.evict({&middle, 1}) == 0);  // free already
  CHECK_THAT(refusal([&] {
               BlockId const stranger{8};
               cache.evict({&stranger, 1});
             }),
             contains_text("not of this pool"));
}

TEST_CASE("reset: nothing older is found, and older sequences publish no more") {
  kv::KvCache cache(pool_of(16));
  leave_idle(cache, iota(0, 8));
  auto old = running(cache, 1, iota(50, 6));
  auto const pin = cache.pin(cache.hash(iota(50, 4)));
  REQUIRE(pin->num_tokens() == 4);
  cache.reset();
  CHECK(cache.stats().idle == 0);
  CHECK(cache.stats().resets == 1);
  CHECK(cache.match(cache.hash(iota(0, 9))) == 0);
  compute(cache, old, iota(56, 8));
  auto forked = old.fork(SequenceId{2});
  REQUIRE(forked.has_value());
  compute(cache, *forked, iota(64, 4));
  CHECK(cache.match(cache.hash(iota(50, 30))) == 0);
  CHECK(tokens_of(old) == iota(50, 14));
  // Not even what they compute anew.
  forked->truncate(0);
  compute(cache, *forked, iota(50, 12));
  old.truncate(0);
  compute(cache, old, iota(50, 12));
  CHECK(cache.match(cache.hash(iota(50, 30))) == 0);
  for (BlockId const b : old.blocks()) CHECK_FALSE(cache.is_published(b));
  leave_idle(cache, iota(0, 8));
  CHECK(cache.match(cache.hash(iota(0, 9))) == 8);
  CHECK_VERIFIED(cache);
}

TEST_CASE("steps: ticks count from one and only the past can be reclaimed") {
  auto config = pool_of(4);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  CHECK(cache.open_tick() == Tick{1});
  { auto const seq = running(cache, 1, iota(0, 8)); }
  CHECK(cache.incoming_blocks() == 2);
  CHECK(cache.available_blocks() == 2);
  CHECK(cache.match(cache.hash(iota(0, 9))) == 8);  // on its way back, and findable
  CHECK_THAT(refusal([&] { cache.reclaim(Tick{1}); }), contains_text("end_step first"));
  CHECK(cache.end_step() == Tick{1});
  CHECK(cache.open_tick() == Tick{2});
  CHECK(cache.incoming_blocks() == 2);
  cache.reclaim(Tick{1});
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.available_blocks() == 4);
}

TEST_CASE("verify: tells a broken cache from a sound one by its rule") {
  kv::KvCache cache(pool_of(4));
  auto const seq = running(cache, 1, iota(0, 8));
  CHECK(static_cast<bool>(cache.verify()));
  CHECK(cache.verify().broken == nullptr);
  // A block's state is private; its ids aren't protected from a wild pointer.
  auto const row = seq.blocks();
  auto* const wild = const_cast<BlockId*>(row.data());
  BlockId const kept = wild[0];
  wild[0] = wild[1];
  auto const broken = cache.verify();
  wild[0] = kept;
  CHECK_FALSE(static_cast<bool>(broken));
  CHECK(broken.broken != nullptr);
  CHECK(static_cast<bool>(cache.verify()));
}

TEST_CASE("cache: it can't go before its handles") {
  CHECK_THAT(refusal([] {
               auto cache = std::make_unique<kv::KvCache>(pool_of(4));
               auto const seq = cache->open(SequenceId{1}, iota(0, 3));
               cache.reset();
             }),
             contains_text("destroy every Sequence and Pin first"));
  CHECK_THAT(refusal([] {
               auto cache = std::make_unique<kv::KvCache>(pool_of(4));
               auto const pin = cache->pin(cache->hash(iota(0, 3)));
               cache.reset();
             }),
             contains_text("destroy every Sequence and Pin first"));
}

TEST_CASE("cache: when every hash collides, hits are still exact") {
  kv::BasicKvCache<CollidingPolicy> cache(pool_of(16));
  auto const a = iota(0, 4);
  auto const x = iota(10, 4);
  auto const b = iota(20, 4);
  auto const c = iota(30, 4);
  auto const y = iota(40, 4);
  leave_idle(cache, joined(joined(a, x), b));
  leave_idle(cache, joined(c, y));
  auto const match = [&](Tokens const& prompt, kv::ExtraKeys const& keys = {}) {
    return cache.match(cache.hash(joined(prompt, {0}), keys));
  };
  CHECK(match(joined(joined(a, x), b)) == 12);
  CHECK(match(joined(joined(c, x), b)) == 4);
  CHECK(match(joined(c, y)) == 8);
  CHECK(match(joined(a, y)) == 4);
  CHECK(match(x) == 0);
  CHECK(match(a, {.salt = "tenant"}) == 0);
}

TEST_CASE("cache: of several children the one that was opened last is found without hashing") {
  if (PAGEDKV_ASSERT_LEVEL >= 2) return;  // each verb ends with a recount, which hashes
  kv::BasicKvCache<CountingPolicy> cache(pool_of(32));
  auto const head = iota(0, 16);
  auto const a = joined(head, iota(100, 9));
  auto const b = joined(head, iota(200, 9));
  leave_idle(cache, a);
  leave_idle(cache, b);
  auto const hashed = [](auto&& look_up) {
    int const before = CountingPolicy::Hash::num_hashed;
    look_up();
    return CountingPolicy::Hash::num_hashed - before;
  };
  auto const open = [&](Tokens const& prompt) {
    return hashed([&] {
      auto const seq = cache.open(SequenceId{1}, prompt);
      REQUIRE(seq.has_value());
      CHECK(seq->cached() == 24);
    });
  };
  CHECK(open(b) == 1);  // the first block of a prompt has no parent that could name it
  CHECK(open(a) == 3);  // and the child that was used last until now is put into the table, once
  CHECK(open(a) == 1);
  CHECK(open(b) == 2);
  CHECK(open(b) == 1);
  // A question leaves no trace, nor does a call that fails.
  CHECK(cache.match(cache.hash(a)) == 24);
  CHECK(open(b) == 1);
  auto const other = running(cache, 2, iota(1000, 64));
  auto const refused = cache.open(SequenceId{3}, a, {.reserve = 100});
  CHECK((!refused && refused.error() == Errc::no_free_blocks));
  CHECK(open(b) == 1);
  CHECK_VERIFIED(cache);
}

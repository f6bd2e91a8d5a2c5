// SPDX-License-Identifier: Apache-2.0
// Contracts 13 to 18: scales, offsets, determinism, no allocation, cost of a step, threads.
// The long versions of 15, 16 and 18 are tests/determinism, tests/alloc and tests/threads.
#include <chrono>
#include <cstring>
#include <string>
#include <type_traits>

#include <pagedkv/model/geometry.hpp>

#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;

TEST_CASE("contract 13: what a block copy moves includes the scales") {
  // A copy names blocks, never bytes: K, V and scales of all layers are one block.
  static_assert(std::is_same_v<decltype(kv::BlockCopy::src), kv::BlockId>);
  kv::Geometry plain;
  plain.num_layers = 2;
  plain.num_kv_heads = 3;
  plain.head_dim_k = plain.head_dim_v = 64;
  plain.block_tokens = 16;
  plain.format = kv::KvFormat{kv::Element::fp8_e4m3, kv::Granularity::per_tensor};
  auto scaled = plain;
  scaled.format = kv::KvFormat{kv::Element::fp8_e4m3, kv::Granularity::per_token_head};
  CHECK(plain.bytes_per_block() == 2 * 2 * 3 * 64 * 16);
  // One f32 for each of K and V, layer, head and position.
  CHECK(scaled.bytes_per_block() - plain.bytes_per_block() == 2 * 2 * 3 * 16 * 4);
}

TEST_CASE("contract 14: slots beyond 2^31 are exact and padding is -1") {
  static_assert(std::is_same_v<kv::Slot, std::int64_t>);
  static_assert(kv::padding_slot == -1);
  // 33,000 blocks of 65,536 slots: the test asks the function that the verb calls.
  std::vector<kv::BlockId> row{kv::BlockId{32999}, kv::BlockId{32768}};
  std::vector<kv::Slot> slots(3);
  kv::write_slots(kv::detail::BlockShape(65536), row, {65535, 3}, slots.data());
  CHECK(slots[0] == kv::Slot{32999} * 65536 + 65535);
  CHECK(slots[1] == kv::Slot{32768} * 65536);
  CHECK(slots[1] == kv::Slot{1} << 31);
  CHECK(slots[2] == (kv::Slot{1} << 31) + 1);
}

TEST_CASE("contract 14: what a batch pads is -1, and lengths and tables past the end are 0") {
  kv::KvCache cache(small_pool(8));
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 16, .max_blocks_per_sequence = 4});
  auto seq = cache.open(SequenceId{1}, count_from(0, 5), {.reserve = 5});
  REQUIRE(seq.has_value());
  batch.begin_step();
  REQUIRE(batch.add(*seq, {0, 5}).has_value());
  batch.pad_to(8, 3);
  std::vector<kv::Slot> slots(8, 77);
  std::vector<std::int32_t> offsets(4, 77), lengths(3, 77), indptr(4, 77), indices(8, 77),
      last(3, 77), table(12, 77);
  kv::BatchBuffers buffers;
  buffers.slot_mapping = slots;
  buffers.query_offsets = offsets;
  buffers.sequence_lengths = lengths;
  buffers.indptr = indptr;
  buffers.indices = indices;
  buffers.last_block_len = last;
  auto const step = batch.build(buffers);
  REQUIRE(step.has_value());
  CHECK(step->num_tokens == 5);
  CHECK(step->padded_tokens == 8);
  CHECK(step->padded_sequences == 3);
  for (std::size_t i = 5; i < 8; ++i) CHECK(slots[i] == kv::padding_slot);
  CHECK(offsets == std::vector<std::int32_t>{0, 5, 5, 5});
  CHECK(lengths == std::vector<std::int32_t>{5, 0, 0});
  CHECK(indptr == std::vector<std::int32_t>{0, 2, 2, 2});
  CHECK(last == std::vector<std::int32_t>{1, 0, 0});
  batch.copy_table(table);
  CHECK(table[0] == seq->blocks()[0].value());
  CHECK(table[1] == seq->blocks()[1].value());
  for (std::size_t i = 2; i < 12; ++i) CHECK(table[i] == 0);
}

namespace {

/// A fixed program; returns everything observable as text.
template <class Cache>
std::string life(kv::KvCacheConfig config) {
  Listener listener;
  config.observer = &listener;
  std::string out;
  auto const note = [&](auto value) { out += std::to_string(value) + " "; };
  {
    Cache cache(config);
    std::vector<typename Cache::SequenceType> all;
    for (std::uint64_t round = 0; round < 150; ++round) {
      Tokens const prompt = count_from(kv::TokenId(round % 3), kv::TokenId(round % 7) * 2 + 5);
      auto seq = cache.open(SequenceId{round}, prompt);
      if (!seq) {
        all.erase(all.begin());
        continue;
      }
      if (seq->append(std::span(prompt).subspan(std::size_t(seq->size())))) {
        for (auto const& c : cache.take_copies()) {
          note(c.src.value());
          note(c.dst.value());
          note(c.num_tokens);
        }
        seq->commit(seq->size());
        if (auto fork = seq->fork(SequenceId{1000 + round}); fork && fork->append(Tokens{9})) {
          for (auto const b : fork->blocks()) note(b.value());
        }
      }
      for (auto const b : seq->blocks()) note(b.value());
      all.push_back(std::move(*seq));
      cache.end_step();
    }
  }
  for (auto const& e : listener.heard) {
    note(int(e.kind));
    note(e.number);
    note(e.block.value());
    note(e.generation);
    note(e.parent.value());
  }
  return out;
}

}  // namespace

TEST_CASE("contract 15: the same calls give the same ids, victims, copies and events") {
  auto const config = small_pool(12);
  auto const once = life<kv::KvCache>(config);
  CHECK(once.size() > 500);
  CHECK(life<kv::KvCache>(config) == once);
  // Not even the hash decides anything but speed.
  auto seeded = config;
  seeded.hash_seed = 42;
  CHECK(life<kv::KvCache>(seeded) == once);
  CHECK(life<kv::BasicKvCache<CollidingPolicy>>(config) == once);
  CHECK(kv::KvCacheConfig{}.hash_seed == 0x9E3779B97F4A7C15ULL);
}

namespace {

/// Counts what it is asked. Static: the cache makes its own.
struct CountingEviction : kv::LruEviction {
  static inline std::int64_t operations = 0;
  [[nodiscard]] kv::RunId front() const noexcept {
    ++operations;
    return LruEviction::front();
  }
  [[nodiscard]] kv::RunId after(kv::RunTable const& runs, kv::RunId x) const noexcept {
    ++operations;
    return LruEviction::after(runs, x);
  }
  void push_back(kv::RunTable& runs, kv::RunId x) noexcept {
    ++operations;
    LruEviction::push_back(runs, x);
  }
  void push_front(kv::RunTable& runs, kv::RunId x) noexcept {
    ++operations;
    LruEviction::push_front(runs, x);
  }
  void erase(kv::RunTable& runs, kv::RunId x) noexcept {
    ++operations;
    LruEviction::erase(runs, x);
  }
  void insert_after(kv::RunTable& runs, kv::RunId x, kv::RunId head) noexcept {
    ++operations;
    LruEviction::insert_after(runs, x, head);
  }
};
struct CountingPolicy {
  using Hash = kv::Xxh3BlockHash;
  using Eviction = CountingEviction;
};

struct Cost {
  std::int64_t operations = 0;
  double seconds = 1e9;
};

/// One step of 8 running sequences and one request that comes and goes, with `idle` cached blocks
/// in a pool that has `spare` more. Operations of one step, best time of several.
Cost step_cost(std::int32_t idle) {
  using Cache = kv::BasicKvCache<CountingPolicy>;
  kv::KvCacheConfig config = small_pool(idle + 512);
  config.max_sequences = 16;
  config.max_sequence_tokens = std::max(idle * block_tokens, 4096);
  Cache cache(config);
  if (idle > 0) leave_cached(cache, 1, count_from(1'000'000, idle * block_tokens));
  std::vector<Cache::SequenceType> running;
  for (std::uint64_t id = 0; id < 8; ++id) {
    running.push_back(started(cache, id, count_from(kv::TokenId(id) * 1000, 40)));
  }
  Cost cost;
  for (int repeat = 0; repeat < 60; ++repeat) {
    auto const operations = CountingEviction::operations;
    auto const begin = std::chrono::steady_clock::now();
    for (auto& seq : running)
      fill(cache, seq, [&] {
        Tokens longer(std::size_t(seq.size()) + 4, 5);
        return longer;
      }());
    { auto const guest = started(cache, 99, count_from(500'000 + repeat * 100, 20)); }
    for (auto& seq : running) seq.truncate(40);
    auto const key = cache.hash(count_from(0, 41));
    (void)cache.match(key);
    (void)cache.would_fit(key, {.reserve = 80});
    (void)cache.stats();
    cache.end_step();
    double const seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    cost.operations = CountingEviction::operations - operations;
    cost.seconds = std::min(cost.seconds, seconds);
  }
  return cost;
}

}  // namespace

TEST_CASE("contract 17: the cost of a step doesn't depend on how much is cached") {
  if (PAGEDKV_ASSERT_LEVEL >= 2) return;  // each verb ends with a recount of the pool
  Cost const none = step_cost(0);
  Cost const some = step_cost(1'000);
  Cost const much = step_cost(200'000);
  CHECK(some.operations == none.operations);
  CHECK(much.operations == none.operations);
  // 200 times as much cached; a scan or a copy of the pool would show as hundreds of times.
  CHECK(much.seconds < 8 * none.seconds);
}

TEST_CASE("contract 18: a cache can't be copied or moved, a handle only moved") {
  static_assert(!std::is_copy_constructible_v<kv::KvCache>);
  static_assert(!std::is_move_constructible_v<kv::KvCache>);
  static_assert(!std::is_copy_constructible_v<kv::Sequence>);
  static_assert(std::is_nothrow_move_constructible_v<kv::Sequence>);
  static_assert(!std::is_copy_constructible_v<kv::Pin>);
  static_assert(std::is_nothrow_move_constructible_v<kv::Pin>);
  kv::KvCache cache(small_pool(4));
  auto a = started(cache, 1, count_from(0, 4));
  kv::Sequence b = std::move(a);
  CHECK(b.size() == 4);
  CHECK(cache.stats().sequences == 1);
  b = started(cache, 2, count_from(50, 4));  // what it held goes back
  CHECK(cache.stats().sequences == 1);
  CHECK(cache.stats().used == 1);
}

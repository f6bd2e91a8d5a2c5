// SPDX-License-Identifier: Apache-2.0
/// \file
/// Small verbs that the contract tests share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/step/batch.hpp>

#include "catch.hpp"
#include "misuse.hpp"

namespace pagedkv::testing {

using Tokens = std::vector<TokenId>;
using Ids = std::vector<BlockId>;

inline constexpr std::int32_t block_tokens = 4;

inline KvCacheConfig small_pool(std::int32_t num_blocks) {
  KvCacheConfig config;
  config.block_tokens = block_tokens;
  config.num_blocks = num_blocks;
  config.max_sequences = 8;
  config.max_sequence_tokens = 1024;
  return config;
}

/// first, first + 1, ...
inline Tokens count_from(TokenId first, std::int32_t n) {
  Tokens out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<TokenId>(i);
  return out;
}
inline Tokens operator+(Tokens a, Tokens const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Appends what `prompt` has beyond the sequence's positions and makes all of it final.
template <class Cache, class Sequence>
void fill(Cache& cache, Sequence& seq, Tokens const& prompt) {
  auto const rest = std::span(prompt).subspan(static_cast<std::size_t>(seq.size()));
  if (!rest.empty()) REQUIRE(seq.append(rest).has_value());
  (void)cache.take_copies();
  seq.commit(seq.size());
}

/// A sequence with `prompt` computed and committed.
template <class Cache>
auto started(Cache& cache, std::uint64_t id, Tokens const& prompt, OpenOptions options = {}) {
  auto opened = cache.open(SequenceId{id}, prompt, options);
  REQUIRE(opened.has_value());
  fill(cache, *opened, prompt);
  return std::move(*opened);
}

/// Computes `prompt` once and leaves its full blocks idle.
template <class Cache>
void leave_cached(Cache& cache, std::uint64_t id, Tokens const& prompt) {
  auto const seq = started(cache, id, prompt);
}

template <class Sequence>
Ids ids_of(Sequence const& seq) {
  auto const blocks = seq.blocks();
  return Ids(blocks.begin(), blocks.end());
}

template <class Cache>
std::int32_t cached_tokens(Cache const& cache, Tokens const& prompt, ExtraKeys const& keys = {}) {
  return cache.match(cache.hash(prompt, keys));
}

inline std::int32_t sum_of_states(Stats const& s) {
  return s.free + s.idle + s.used + s.quarantined + s.retained;
}

/// Ends the open step and lets the device finish it.
template <class Cache>
Tick finish_step(Cache& cache) {
  Tick const tick = cache.end_step();
  cache.reclaim(tick);
  return tick;
}

/// Everything that `verify()` and the public counters say about a cache with nothing alive in it.
template <class Cache>
void require_no_leak(Cache& cache) {
  (void)cache.take_copies();
  finish_step(cache);
  Stats const s = cache.stats();
  CHECK(s.sequences == 0);
  CHECK(s.pins == 0);
  CHECK(s.free + s.idle == s.num_blocks);
  CHECK(cache.verify());
}

/// What a listener hears, by value.
struct Heard {
  CacheEvent::Kind kind;
  std::uint64_t number;
  BlockId block;
  std::uint32_t generation;
  BlockId parent;
  std::uint32_t parent_generation;
  Tokens tokens;
  BlockId from;
  std::uint32_t from_generation;
  friend bool operator==(Heard const&, Heard const&) = default;
};
class Listener : public CacheObserver {
 public:
  std::vector<Heard> heard;
  void on_event(CacheEvent const& e) noexcept override {
    heard.push_back({e.kind, e.number, e.block, e.generation, e.parent, e.parent_generation,
                     Tokens(e.tokens.begin(), e.tokens.end()), e.from, e.from_generation});
  }
};

/// All hashes are equal: only comparisons keep contents apart.
struct CollidingHash {
  static Hash128 root(std::uint64_t) noexcept { return {}; }
  static Hash128 content(std::span<TokenId const>, std::uint64_t) noexcept { return {}; }
  static Hash128 extra(std::span<std::byte const>, std::uint64_t) noexcept { return {}; }
  static Hash128 chain(Hash128, Hash128) noexcept { return {}; }
};
struct CollidingPolicy {
  using Hash = CollidingHash;
  using Eviction = LruEviction;
};

}  // namespace pagedkv::testing

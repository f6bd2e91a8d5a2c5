// SPDX-License-Identifier: Apache-2.0
/// \file
/// The library and the oracle under the same names, and everything about them that has to be told
/// apart. What only one of them has (counters, kinds of events, verbs) isn't named here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <oracle/oracle.hpp>
#include <pagedkv/pagedkv.hpp>

#include "differential_options.hpp"

namespace pagedkv::testing::differential {

template <class Policy>
struct LibrarySystem {
  using Config = KvCacheConfig;
  using Cache = BasicKvCache<Policy>;
  using Sequence = BasicSequence<Policy>;
  using Pin = BasicPin<Policy>;
  using Batch = BasicBatch<Policy>;
  using PromptKey = pagedkv::PromptKey;
  using OpenOptions = pagedkv::OpenOptions;
  using ExtraKeys = pagedkv::ExtraKeys;
  using MediaItem = pagedkv::MediaItem;
  using Stats = pagedkv::Stats;
  using Observer = CacheObserver;
  using Event = CacheEvent;
  using BatchLimits = pagedkv::BatchLimits;
  using BatchBuffers = pagedkv::BatchBuffers;
  using BatchStep = pagedkv::BatchStep;
  using RowMove = pagedkv::RowMove;
  using RowChange = pagedkv::RowChange;
  using BlockRun = pagedkv::BlockRun;
  using Reclaim = pagedkv::Reclaim;
  using Twins = pagedkv::Twins;
  using Reuse = pagedkv::Reuse;

  /// The first rule that its own tables break, or null.
  static char const* broken(Cache const& cache) {
    auto const report = cache.verify();
    return report ? nullptr : report.broken;
  }
};

template <class Policy>
struct OracleSystem {
  using Config = pagedkv_oracle::KvCacheConfig;
  using Cache = pagedkv_oracle::BasicKvCache<Policy>;
  using Sequence = pagedkv_oracle::BasicSequence<Policy>;
  using Pin = pagedkv_oracle::BasicPin<Policy>;
  using Batch = pagedkv_oracle::BasicBatch<Policy>;
  using PromptKey = pagedkv_oracle::PromptKey;
  using OpenOptions = pagedkv_oracle::OpenOptions;
  using ExtraKeys = pagedkv_oracle::ExtraKeys;
  using MediaItem = pagedkv_oracle::MediaItem;
  using Stats = pagedkv_oracle::Stats;
  using Observer = pagedkv_oracle::CacheObserver;
  using Event = pagedkv_oracle::CacheEvent;
  using BatchLimits = pagedkv_oracle::BatchLimits;
  using BatchBuffers = pagedkv_oracle::BatchBuffers;
  using BatchStep = pagedkv_oracle::BatchStep;
  using RowMove = pagedkv_oracle::RowMove;
  using RowChange = pagedkv_oracle::RowChange;
  using BlockRun = pagedkv_oracle::BlockRun;
  using Reclaim = pagedkv_oracle::Reclaim;
  using Twins = pagedkv_oracle::Twins;
  using Reuse = pagedkv_oracle::Reuse;

  static char const* broken(Cache const&) { return nullptr; }
};

/// A list of numbers: the form of all that is compared.
using Words = std::vector<std::int64_t>;

template <class... Numbers>
void put(Words& words, Numbers... numbers) {
  (words.push_back(static_cast<std::int64_t>(numbers)), ...);
}

/// Every field of every event.
template <class System>
class Recorder final : public System::Observer {
 public:
  Words words;

  void on_event(typename System::Event const& e) noexcept override {
    put(words, e.kind, e.number, e.group.value(), e.block.value(), e.generation, e.parent.value(),
        e.parent_generation, e.hash.low, e.hash.high, e.parent_hash.low, e.parent_hash.high,
        e.tokens.size());
    for (auto const token : e.tokens) put(words, token);
    put(words, e.extra_keys.size());
    for (auto const byte : e.extra_keys) put(words, byte);
  }
};

inline constexpr std::size_t num_counters = 34;
using Counters = std::array<std::int64_t, num_counters>;
inline constexpr std::array<char const*, num_counters> counter_names = {"num_blocks",
                                                                        "free",
                                                                        "idle",
                                                                        "used",
                                                                        "quarantined",
                                                                        "retained",
                                                                        "sequences",
                                                                        "pins",
                                                                        "owned_slots",
                                                                        "wasted_slots",
                                                                        "opens",
                                                                        "resumed_opens",
                                                                        "prefix_query_tokens",
                                                                        "prefix_hit_tokens",
                                                                        "partial_hit_tokens",
                                                                        "resumed_query_tokens",
                                                                        "resumed_hit_tokens",
                                                                        "external_tokens",
                                                                        "hit_blocks",
                                                                        "published_blocks",
                                                                        "twin_blocks",
                                                                        "adopted_blocks",
                                                                        "evicted_blocks",
                                                                        "unpublished_blocks",
                                                                        "copies",
                                                                        "dropped_copies",
                                                                        "forks",
                                                                        "preemptions",
                                                                        "no_block",
                                                                        "last_token",
                                                                        "salt_or_adapter",
                                                                        "capacity",
                                                                        "not_read",
                                                                        "resets"};

template <class Stats>
Counters counters(Stats const& s) {
  auto const n = [](auto value) { return static_cast<std::int64_t>(value); };
  auto const& ends = s.hit_ends.counts;
  return {n(s.num_blocks),
          n(s.free),
          n(s.idle),
          n(s.used),
          n(s.quarantined),
          n(s.retained),
          n(s.sequences),
          n(s.pins),
          n(s.owned_slots),
          n(s.wasted_slots),
          n(s.opens),
          n(s.resumed_opens),
          n(s.prefix_query_tokens),
          n(s.prefix_hit_tokens),
          n(s.partial_hit_tokens),
          n(s.resumed_query_tokens),
          n(s.resumed_hit_tokens),
          n(s.external_tokens),
          n(s.hit_blocks),
          n(s.published_blocks),
          n(s.twin_blocks),
          n(s.adopted_blocks),
          n(s.evicted_blocks),
          n(s.unpublished_blocks),
          n(s.copies),
          n(s.dropped_copies),
          n(s.forks),
          n(s.preemptions),
          n(ends[0]),
          n(ends[1]),
          n(ends[2]),
          n(ends[3]),
          n(ends[4]),
          n(s.resets)};
}

/// One of the two caches with its handles, which both sides keep at the same places.
template <class S>
struct Side {
  using System = S;

  Recorder<S> recorder;
  std::optional<typename S::Cache> cache;
  std::optional<typename S::Batch> batch;
  std::vector<std::optional<typename S::Sequence>> sequences;
  std::vector<std::optional<typename S::Pin>> pins;
  Words words;

  void start(Drawn const& d) {
    typename S::Config c;
    c.block_tokens = d.block_tokens;
    c.num_blocks = d.num_blocks;
    c.max_sequences = d.max_sequences;
    c.max_sequence_tokens = d.max_sequence_tokens;
    c.max_pins = d.max_pins;
    c.max_extra_key_bytes = 40;
    c.reclaim = d.deferred ? S::Reclaim::deferred : S::Reclaim::stream_ordered;
    c.twins = d.adopt ? S::Twins::adopt : S::Twins::keep;
    c.partial_hits = d.partial_hits;
    c.max_partial_candidates = d.max_partial_candidates;
    c.observer = d.observed ? &recorder : nullptr;
    cache.emplace(c);
    sequences.resize(static_cast<std::size_t>(d.max_sequences) + 1);
    pins.resize(static_cast<std::size_t>(d.max_pins) + 1);
    if (!d.batched) return;
    typename S::BatchLimits limits;
    limits.max_sequences = d.batch_sequences;
    limits.max_tokens = d.batch_tokens;
    limits.max_blocks_per_sequence = d.batch_width;
    batch.emplace(*cache, limits);
  }
};

/// The arrays of one `Batch::build`, each some elements longer or shorter than needed.
template <class S>
struct Arrays {
  std::vector<Slot> slot_mapping;
  std::array<std::vector<std::int32_t>, 5> plain;
  std::vector<typename S::RowMove> row_moves;
  std::vector<typename S::RowChange> row_changes;
  std::vector<BlockId> new_blocks;
  std::vector<typename S::BlockRun> runs;
  std::vector<BlockCopy> copies;

  static constexpr int num_arrays = 11;

  /// `extra(i)`: elements of array i beyond what is needed; far below: left out.
  template <class Extra>
  Arrays(typename S::BatchStep const& need, Extra&& extra) {
    int i = 0;
    auto const size = [&](int n) { return static_cast<std::size_t>(std::max(0, n + extra(i++))); };
    slot_mapping.resize(size(need.padded_tokens), 77);
    int const n = need.padded_sequences;
    int const needs[] = {n + 1, n, n + 1, need.num_indices, n};
    for (std::size_t k = 0; k < 5; ++k) plain[k].resize(size(needs[k]), 77);
    row_moves.resize(size(need.num_row_moves), {-7, -7});
    row_changes.resize(size(need.num_row_changes), {-7, -7, -7});
    new_blocks.resize(size(need.num_new_blocks));
    runs.resize(size(need.num_runs), {BlockId{}, -7, -7, -7});
    copies.resize(size(need.num_copies));
  }

  typename S::BatchBuffers buffers() {
    typename S::BatchBuffers out;
    out.slot_mapping = slot_mapping;
    out.query_offsets = plain[0];
    out.sequence_lengths = plain[1];
    out.indptr = plain[2];
    out.indices = plain[3];
    out.last_block_len = plain[4];
    out.row_moves = row_moves;
    out.row_changes = row_changes;
    out.new_blocks = new_blocks;
    out.runs = runs;
    out.copies = copies;
    return out;
  }

  void put_all(Words& words) const {
    for (auto const slot : slot_mapping) put(words, slot);
    for (auto const& array : plain) words.insert(words.end(), array.begin(), array.end());
    for (auto const& m : row_moves) put(words, m.from, m.to);
    for (auto const& c : row_changes) put(words, c.row, c.column, c.block);
    for (auto const b : new_blocks) put(words, b.value());
    for (auto const& r : runs) put(words, r.block.value(), r.offset, r.count, r.first_token);
    for (auto const& c : copies) put(words, c.src.value(), c.dst.value(), c.num_tokens);
  }
};

template <class BatchStep>
void put_step(Words& words, BatchStep const& s) {
  put(words, s.num_sequences, s.num_tokens, s.padded_sequences, s.padded_tokens, s.num_indices,
      s.num_row_moves, s.num_row_changes, s.num_new_blocks, s.num_runs, s.num_copies,
      s.common_prefix_blocks);
}

}  // namespace pagedkv::testing::differential

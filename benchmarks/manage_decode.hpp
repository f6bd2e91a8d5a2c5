// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a step of running sequences costs.
#pragma once

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "bench_support.hpp"
#include "manage_systems.hpp"

namespace bench {

/// A step's arrays.
struct Arrays {
  explicit Arrays(std::size_t sequences, std::size_t blocks)
      : slots(sequences),
        query_offsets(sequences + 1),
        lengths(sequences),
        indptr(sequences + 1),
        indices(blocks),
        last_block_len(sequences),
        moves(sequences),
        changes(blocks),
        new_blocks(blocks),
        runs(sequences),
        copies(sequences) {}

  [[nodiscard]] kv::BatchBuffers spans() {
    return {slots, query_offsets, lengths,    indptr, indices, last_block_len,
            moves, changes,       new_blocks, runs,   copies};
  }

  std::vector<kv::Slot> slots;
  std::vector<std::int32_t> query_offsets, lengths, indptr, indices, last_block_len;
  std::vector<kv::RowMove> moves;
  std::vector<kv::RowChange> changes;
  std::vector<kv::BlockId> new_blocks;
  std::vector<kv::BlockRun> runs;
  std::vector<kv::BlockCopy> copies;
};

/// 256 sequences decode from 1,024 to 1,040 tokens, 16 steps, and go back.
template <class System>
class Decoder {
 public:
  static constexpr std::int32_t num_sequences = 256;
  static constexpr std::int32_t num_steps = block_tokens;
  static constexpr std::int32_t first_tokens = 1024;
  static constexpr std::int32_t first_blocks = first_tokens / block_tokens;

  Decoder(std::int32_t idle_blocks, Checks& checks) : idle_blocks_(idle_blocks), checks_(checks) {
    age(cache_, num_blocks);
    aged_ = cache_.stats().evicted_blocks;
    fill_idle();
    Prompts const prompts(first_tokens);
    for (std::int32_t i = 0; i < num_sequences; ++i) {
      auto seq = prefill(cache_, i, prompts.make(i));
      checks_.require(seq && seq->cached() == 0, "the sequence is new");
      sequences_.push_back(std::move(*seq));
    }
    cache_.end_step();
    batch_.emplace(cache_, kv::BatchLimits{num_sequences, num_sequences, 0});
    check_idle();
    sample();
    step(0);  // the rows' columns are listed once
    go_back();
  }
  ~Decoder() { batch_.reset(); }
  Decoder(Decoder const&) = delete;
  Decoder& operator=(Decoder const&) = delete;

  /// The tokens of the steps to come, distinct. Not timed.
  void sample() {
    std::int32_t token = ++turn_ % 1024 * num_sequences * num_steps;
    for (auto& tokens : sampled_) {
      for (kv::TokenId& t : tokens) t = token++;
    }
  }
  /// What is timed.
  void decode() {
    new_blocks_ = changes_ = 0;
    for (std::int32_t i = 0; i < num_steps; ++i) step(i);
  }
  /// Back to 1,024 tokens; what that leaves idle is evicted. Checks what the steps did. Not timed.
  void go_back() {
    check_arrays();
    std::vector<kv::BlockId> dropped;
    for (auto& seq : sequences_) {
      dropped.push_back(seq.blocks().back());
      published_ += cache_.is_published(dropped.back()) ? 1 : 0;
      seq.truncate(first_tokens);
    }
    evicted_ += cache_.evict(dropped);
    check_idle();
  }
  /// After n turns of `decode` and `go_back`.
  void check(std::int64_t n) {
    checks_.require(published_ == n * num_sequences, "each sequence publishes one block");
    checks_.require(evicted_ == published_, "and only that is evicted");
    checks_.require(cache_.stats().evicted_blocks - aged_ == static_cast<std::uint64_t>(evicted_),
                    "the free blocks suffice");
  }

 private:
  using Cache = typename System::Cache;
  /// The same for all numbers of idle blocks, and some to spare.
  static constexpr std::int32_t num_blocks = 131072;
  static constexpr std::int32_t max_row_blocks = num_sequences * (first_blocks + 1);

  void fill_idle() {
    constexpr std::int32_t prompt_blocks = 1000;
    Prompts const prompts(prompt_blocks * block_tokens);
    for (std::int32_t i = 0; i < idle_blocks_ / prompt_blocks; ++i) {
      auto const seq = prefill(cache_, i, prompts.make(num_sequences + i));
      checks_.require(seq && seq->cached() == 0, "the idle prompt is new");
    }
  }
  void step(std::int32_t i) {
    auto const& tokens = sampled_[static_cast<std::size_t>(i)];
    batch_->begin_step();
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      auto const range = sequences_[s].append({&tokens[s], 1});
      (void)batch_->add(sequences_[s], *range);
    }
    auto const built = batch_->build(spans_);
    checks_.require(built && built->num_tokens == num_sequences, "one token a sequence");
    new_blocks_ += built->num_new_blocks;
    changes_ += built->num_row_changes;
    batch_->commit();
    cache_.end_step();
  }
  /// The last step's arrays against the sequences.
  void check_arrays() {
    std::size_t index = 0;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      auto const& seq = sequences_[s];
      std::int32_t const last = seq.size() - 1;
      kv::BlockId const tail = seq.blocks().back();
      kv::Slot const slot = kv::Slot{tail.value()} * block_tokens + last % block_tokens;
      bool const right = arrays_.slots[s] == slot && arrays_.lengths[s] == seq.size() &&
                         arrays_.query_offsets[s + 1] == static_cast<std::int32_t>(s) + 1 &&
                         arrays_.indptr[s] == static_cast<std::int32_t>(index) &&
                         arrays_.last_block_len[s] == last % block_tokens + 1 &&
                         arrays_.runs[s].block == tail;
      checks_.require(right, "the arrays describe the sequences");
      for (kv::BlockId const b : seq.blocks()) {
        checks_.require(arrays_.indices[index++] == b.value(), "indices are the rows");
      }
    }
    if (sequences_[0].size() < first_tokens + num_steps) return;  // the first step of all
    checks_.require(new_blocks_ == num_sequences, "each sequence gets one new block");
    checks_.require(changes_ == num_sequences, "and lists it once");
  }
  void check_idle() {
    kv::Stats const stats = cache_.stats();
    checks_.require(stats.idle == idle_blocks_, "as many idle blocks as before");
    checks_.require(stats.used == num_sequences * first_blocks, "all sequences have 1,024 tokens");
  }

  std::int32_t idle_blocks_;
  Checks& checks_;
  Cache cache_{config_of(num_blocks, num_sequences)};
  std::vector<typename Cache::SequenceType> sequences_;
  std::optional<typename System::Batch> batch_;
  Arrays arrays_{num_sequences, max_row_blocks};
  kv::BatchBuffers const spans_ = arrays_.spans();
  std::array<std::array<kv::TokenId, num_sequences>, num_steps> sampled_{};
  std::int32_t turn_ = 0;
  std::int32_t new_blocks_ = 0;
  std::int32_t changes_ = 0;
  std::int64_t published_ = 0;
  std::uint64_t aged_ = 0;  ///< blocks evicted before the first step
  std::int64_t evicted_ = 0;
};

template <class System>
void decode_step(benchmark::State& state) {
  Checks checks(state);
  Decoder<System> decoder(static_cast<std::int32_t>(state.range(0)), checks);
  Laps laps;
  for (auto _ : state) {
    decoder.sample();
    laps.start();
    decoder.decode();
    laps.stop();
    decoder.go_back();
  }
  decoder.check(state.iterations());
  count_ns(state, "ns_per_sequence", laps,
           Decoder<System>::num_sequences * Decoder<System>::num_steps);
}

}  // namespace bench

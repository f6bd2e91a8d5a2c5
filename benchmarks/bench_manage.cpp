// SPDX-License-Identifier: Apache-2.0
/// \file
/// How fast is the manager? One benchmark a question, each beside the same code over a naive cache
/// (`naive_` + its name). docs/performance.md says how to run it and what was seen.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "bench_support.hpp"
#include "naive_cache.hpp"

namespace {

using namespace bench;
using Tokens = std::span<kv::TokenId const>;

struct Paged {
  using Cache = kv::KvCache;
  using Batch = kv::Batch;
  using Pool = kv::BlockPool;

  static void allocate(Pool& pool, std::span<kv::BlockId> out) { pool.allocate(out, NoVictim{}); }
  static void release(Pool& pool, std::span<kv::BlockId const> blocks) {
    pool.release(blocks, false, [](kv::BlockId, std::uint32_t) {});
  }

 private:
  struct NoVictim {
    void soon(kv::BlockId) const noexcept {}
    void next(kv::BlockId) const noexcept {}
    void evict(kv::BlockId) const noexcept {}
  };
};
struct Naive {
  using Cache = NaiveCache;
  using Batch = NaiveBatch;
  using Pool = NaivePool;

  static void allocate(Pool& pool, std::span<kv::BlockId> out) { pool.allocate(out); }
  static void release(Pool& pool, std::span<kv::BlockId const> blocks) { pool.release(blocks); }
};

kv::KvCacheConfig config_of(std::int32_t num_blocks, std::int32_t running = 8) {
  kv::KvCacheConfig config;
  config.block_tokens = block_tokens;
  config.num_blocks = num_blocks;
  config.max_sequences = running;
  config.max_sequence_tokens = long_prompt_tokens;
  return config;
}

// ---- pool ---------------------------------------------------------------------------------------

template <class System>
void pool_allocate_release(benchmark::State& state) {
  constexpr std::int32_t num_blocks = 8192;
  typename System::Pool pool(num_blocks);
  std::vector<kv::BlockId> blocks(num_blocks);
  Checks checks(state);
  Laps laps;
  time_all(state, laps, [&] {
    System::allocate(pool, blocks);
    checks.require(pool.num_available() == 0, "all blocks are handed out");
    System::release(pool, blocks);
    benchmark::ClobberMemory();
  });
  checks.require(pool.num_available() == num_blocks, "all blocks are back");
  std::vector<bool> seen(num_blocks);
  for (kv::BlockId const b : blocks) seen[static_cast<std::size_t>(b.value())] = true;
  checks.require(std::accumulate(seen.begin(), seen.end(), 0) == num_blocks, "each block once");
  count_ns(state, "ns_per_block", laps, num_blocks);
}

// ---- prompts that are cached --------------------------------------------------------------------

/// Opens `num_prompts` cached prompts in turn: exact match, acquire, release.
template <class System>
void open_cached(benchmark::State& state, std::int32_t num_blocks, std::int32_t num_prompts) {
  typename System::Cache cache(config_of(num_blocks));
  age(cache, num_blocks);
  Prompts const prompts(long_prompt_tokens);
  std::vector<std::vector<kv::TokenId>> cached;
  Checks checks(state);
  for (std::int32_t i = 0; i < num_prompts; ++i) {
    cached.push_back(prompts.make(i));
    auto const seq = prefill(cache, i, cached.back());
    checks.require(seq && seq->cached() == 0, "the prompt is new");
    checks.require(seq && is_scattered(seq->blocks()), "its blocks are scattered");
  }
  cache.end_step();

  constexpr std::int32_t hit_tokens = long_prompt_tokens - block_tokens;  // never the last token
  std::size_t next = 0;
  std::int64_t missed = 0;
  Laps laps;
  time_all(state, laps, [&] {
    auto const seq = cache.open(kv::SequenceId{next}, Tokens(cached[next]));
    missed += seq && seq->cached() == hit_tokens ? 0 : 1;
    if (++next == cached.size()) next = 0;
  });
  checks.require(missed == 0, "all but the last block is found");
  kv::Stats const stats = cache.stats();
  checks.require(stats.idle == num_prompts * long_prompt_blocks && stats.used == 0,
                 "all blocks are idle again");
  count_tokens(state, laps, hit_tokens);
}
template <class System>
void prefix_warm(benchmark::State& state) {
  open_cached<System>(state, 16384, 1);
}
template <class System>
void prefix_warm_rotating(benchmark::State& state) {
  open_cached<System>(state, 131072, 60);
}

// ---- prompts that are new -----------------------------------------------------------------------

/// In a pool full of idle blocks each new prompt evicts the oldest: look-up, allocate, publish,
/// release. A lap is one prompt.
template <class System>
Laps open_new(benchmark::State& state) {
  auto const num_blocks = static_cast<std::int32_t>(state.range(0));
  typename System::Cache cache(config_of(num_blocks));
  age(cache, num_blocks);
  Prompts const prompts(long_prompt_tokens);
  std::vector<kv::TokenId> prompt = prompts.make(0);
  std::int32_t number = 0;
  std::int64_t failed = 0;
  auto const open_once = [&] {
    auto const seq = prefill(cache, number, prompt);
    failed += seq && seq->cached() == 0 ? 0 : 1;
  };
  auto const write_next = [&] { prompts.write(++number, prompt); };
  for (std::int32_t i = 0; i < num_blocks / long_prompt_blocks; ++i) {
    open_once();
    cache.end_step();
    write_next();
  }

  Checks checks(state);
  kv::Stats const before = cache.stats();
  checks.require(before.idle == num_blocks, "the pool is full");
  Laps laps;
  time_prepared(state, laps, write_next, [&] {
    open_once();
    cache.end_step();
  });
  kv::Stats const after = cache.stats();
  auto const blocks = static_cast<std::uint64_t>(state.iterations()) * long_prompt_blocks;
  checks.require(failed == 0, "every prompt is new and fits");
  checks.require(after.idle == num_blocks, "the pool is full again");
  checks.require(after.evicted_blocks - before.evicted_blocks == blocks, "each block evicts one");
  checks.require(after.published_blocks - before.published_blocks == blocks, "and is published");
  return laps;
}
template <class System>
void prefix_cold(benchmark::State& state) {
  Laps laps = open_new<System>(state);
  count_tokens(state, laps, long_prompt_tokens);
}
template <class System>
void scale(benchmark::State& state) {
  Laps laps = open_new<System>(state);
  count_ns(state, "ns_per_block", laps, long_prompt_blocks);
}

// ---- fork ---------------------------------------------------------------------------------------

template <class System>
void fork_append(benchmark::State& state) {
  constexpr std::int32_t num_blocks = 16384;
  constexpr std::int32_t num_tokens = 32744;  // 2,047 blocks, the last half full
  constexpr std::int32_t row_blocks = kv::blocks_for(num_tokens, block_tokens);
  typename System::Cache cache(config_of(num_blocks));
  age(cache, num_blocks);
  std::vector<kv::TokenId> const prompt = Prompts(num_tokens).make(1);
  Checks checks(state);
  auto parent = prefill(cache, 1, prompt);
  checks.require(parent && is_scattered(parent->blocks()), "the parent's blocks are scattered");

  std::array<kv::TokenId, 1> const token{42};
  std::int64_t wrong = 0;
  Laps laps;
  auto const fork_once = [&] {
    auto child = parent->fork(kv::SequenceId{2});
    auto const range = child->append(token);
    auto const copies = cache.take_copies();
    return range && range->first == num_tokens && copies.size() == 1 && copies[0].num_tokens == 8 &&
           copies[0].src == parent->blocks()[row_blocks - 1] &&
           copies[0].dst == child->blocks()[row_blocks - 1];
  };
  constexpr std::int32_t num_forks = 16;
  time_all(state, laps, [&] {
    for (std::int32_t i = 0; i < num_forks; ++i) {
      wrong += fork_once() ? 0 : 1;
      cache.end_step();
    }
  });
  checks.require(wrong == 0, "the append copies the tail, and nothing else");
  checks.require(cache.stats().used == row_blocks, "the fork's block is back");
  checks.require(cache.references(parent->blocks()[0]) == 1, "the parent is alone again");
  count_ns(state, "ns_per_block", laps, std::int64_t{num_forks} * row_blocks);
}

// ---- decode -------------------------------------------------------------------------------------

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

// ---- dialogue -----------------------------------------------------------------------------------

template <class System>
void short_dialogue(benchmark::State& state) {
  constexpr std::int32_t num_blocks = 16384;
  constexpr std::int64_t num_requests = 1024;
  typename System::Cache cache(config_of(num_blocks));
  age(cache, num_blocks);
  std::array<kv::TokenId, 5> prompt{3, 1, 4, 1, 5};
  std::uint64_t id = 0;
  std::int64_t positions = 0;
  Laps laps;
  time_all(state, laps, [&] {
    for (std::int64_t i = 0; i < num_requests; ++i) {
      prompt[0] = static_cast<kv::TokenId>(i);
      auto seq = cache.open(kv::SequenceId{++id}, Tokens(prompt));
      auto const range = seq->append(Tokens(prompt).subspan(static_cast<std::size_t>(seq->size())));
      seq->commit(seq->size());
      positions += range ? range->count : 0;
    }
    cache.end_step();
  });
  Checks checks(state);
  checks.require(positions == state.iterations() * num_requests * 5, "each appends five tokens");
  checks.require(cache.stats().free == num_blocks, "all blocks are free again");
  count_ns(state, "ns_per_request", laps, num_requests);
}

// ---- all of them --------------------------------------------------------------------------------

template <class System>
void add_all(std::string const& prefix) {
  auto const add = [&](char const* name, void (*body)(benchmark::State&)) {
    return benchmark::RegisterBenchmark((prefix + name).c_str(), body)
        ->Unit(benchmark::kMicrosecond);
  };
  add("pool_allocate_release", pool_allocate_release<System>);
  add("prefix_warm", prefix_warm<System>);
  add("prefix_warm_rotating", prefix_warm_rotating<System>);
  add("prefix_cold", prefix_cold<System>)->Arg(16384)->Arg(131072);
  add("fork_append", fork_append<System>);
  add("decode_step", decode_step<System>)->Arg(0)->Arg(10000)->Arg(100000);
  add("short_dialogue", short_dialogue<System>);
  add("scale", scale<System>)->Arg(1048576);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add_all<Paged>("");
  add_all<Naive>("naive_");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (!Checks::any_broken()) return 0;
  std::fputs("bench_manage: a benchmark computed something wrong, see the errors above\n", stderr);
  return 1;
}

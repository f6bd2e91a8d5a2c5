// SPDX-License-Identifier: Apache-2.0
/// \file
/// How fast is the manager? One benchmark a question, each beside the same code over a naive cache
/// (`naive_` + its name). The program bench_manage_library is the same source, linked with the
/// archive's templates: its rows are `library_` + the name. docs/performance.md says how to run it
/// and what was seen.
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
#include "manage_decode.hpp"
#include "manage_limits.hpp"
#include "manage_prompts.hpp"
#include "manage_systems.hpp"

namespace {

using namespace bench;

// ---- pool ---------------------------------------------------------------------------------------

template <class System>
void pool_allocate_release(benchmark::State& state) {
  constexpr std::int32_t num_blocks = 8192;
  typename System::Pool pool(num_blocks);
  std::vector<kv::BlockId> blocks(num_blocks);
  Checks checks(state);
  Laps laps;
  time_all(state, laps, [&] {
    pool.allocate(blocks);
    checks.require(pool.num_available() == 0, "all blocks are handed out");
    pool.release(blocks);
    benchmark::ClobberMemory();
  });
  checks.require(pool.num_available() == num_blocks, "all blocks are back");
  std::vector<bool> seen(num_blocks);
  for (kv::BlockId const b : blocks) seen[static_cast<std::size_t>(b.value())] = true;
  checks.require(std::accumulate(seen.begin(), seen.end(), 0) == num_blocks, "each block once");
  count_ns(state, "ns_per_block", laps, num_blocks);
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
  add("warm_eight", warm_eight<System>);
  add("prefix_warm_rotating", prefix_warm_rotating<System>);
  add("warm_branched", warm_branched<System>);
  add("warm_1k", warm_1k<System>);
  add("prefix_million_warm", prefix_million_warm<System>);
  add("prefix_cold", prefix_cold<System>)->Arg(16384)->Arg(131072);
  add("cold_1k", cold_1k<System>);
  add("prefix_million_cold", prefix_million_cold<System>);
  add("fork_append", fork_append<System>);
  add("decode_step", decode_step<System>)->Arg(0)->Arg(10000)->Arg(100000);
  add("short_dialogue", short_dialogue<System>);
  add("scale", scale<System>)->Arg(1048576);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
#if defined(PAGEDKV_COMPILED)
  add_all<Paged>("library_");
#else
  add_all<Paged>("");
  add_all<Naive>("naive_");
  add_limits();
#endif
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (!Checks::any_broken()) return 0;
  std::fputs("bench_manage: a benchmark computed something wrong, see the errors above\n", stderr);
  return 1;
}

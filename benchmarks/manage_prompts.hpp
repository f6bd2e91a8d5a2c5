// SPDX-License-Identifier: Apache-2.0
/// \file
/// What opening a prompt costs: one that is cached, and one that is new.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "bench_support.hpp"
#include "manage_systems.hpp"

namespace bench {

using Tokens = std::span<kv::TokenId const>;
using PromptList = std::vector<std::vector<kv::TokenId>>;

// ---- the prompts --------------------------------------------------------------------------------

inline constexpr std::int32_t short_prompt_tokens = 1024;
inline constexpr std::int32_t million_tokens = 1 << 20;
inline constexpr std::int32_t branch_head_tokens = 2048;
inline constexpr std::int32_t branch_own_tokens = 512;

/// No two have a token in common at any place.
inline PromptList distinct_prompts(std::int32_t num_prompts, std::int32_t num_tokens) {
  Prompts const family(num_tokens);
  PromptList all;
  for (std::int32_t i = 0; i < num_prompts; ++i) all.push_back(family.make(i));
  return all;
}
inline PromptList shuffled(PromptList prompts) {
  std::shuffle(prompts.begin(), prompts.end(), std::mt19937(13));
  return prompts;
}
/// They begin alike, and no two have a token in common behind that.
inline PromptList branched_prompts(std::int32_t num_prompts) {
  std::vector<kv::TokenId> const head = Prompts(branch_head_tokens).make(0);
  PromptList all = distinct_prompts(num_prompts, branch_own_tokens);
  for (auto& prompt : all) prompt.insert(prompt.begin(), head.begin(), head.end());
  return all;
}

// ---- prompts that are cached --------------------------------------------------------------------

/// What a lap does.
struct WarmRow {
  std::int32_t num_blocks;
  std::int32_t requests = 1;       ///< of a lap
  std::int32_t shared_tokens = 0;  ///< that all prompts begin with
};

/// `request(cache, id, prompt)` for each of `prompts` in turn, all cached: says how many tokens it
/// found, which must be all but those of the last block. What it took must be idle afterwards.
template <class System, class Request>
Laps repeat_cached(benchmark::State& state, WarmRow const& row, PromptList const& prompts,
                   Request&& request) {
  auto const num_tokens = static_cast<std::int32_t>(prompts[0].size());
  typename System::Cache cache(config_of(row.num_blocks, 8, num_tokens));
  age(cache, row.num_blocks);
  Checks checks(state);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    auto const seq = prefill(cache, static_cast<std::int32_t>(i), prompts[i]);
    checks.require(seq && seq->cached() == (i == 0 ? 0 : row.shared_tokens), "the prompt is new");
    checks.require(seq && is_scattered(seq->blocks()), "its blocks are scattered");
  }
  cache.end_step();

  auto const count = static_cast<std::int32_t>(prompts.size());
  std::int32_t const own_blocks = (num_tokens - row.shared_tokens) / block_tokens;
  std::int32_t const idle_blocks = row.shared_tokens / block_tokens + count * own_blocks;
  checks.require(cache.stats().idle == idle_blocks, "all prompts are cached");
  std::int32_t const hit_tokens = num_tokens - block_tokens;  // never the last token
  std::size_t next = 0;
  std::int64_t missed = 0;
  Laps laps;
  time_all(state, laps, [&] {
    for (std::int32_t i = 0; i < row.requests; ++i) {
      missed += request(cache, kv::SequenceId{next}, prompts[next]) == hit_tokens ? 0 : 1;
      if (++next == prompts.size()) next = 0;
    }
  });
  checks.require(missed == 0, "all but the last block is found");
  kv::Stats const stats = cache.stats();
  checks.require(stats.idle == idle_blocks && stats.used == 0, "all blocks are idle again");
  return laps;
}

/// Exact match, acquire, release.
template <class System>
void open_cached(benchmark::State& state, WarmRow const& row, PromptList const& prompts) {
  auto const open = [](auto& cache, kv::SequenceId id, Tokens prompt) {
    auto const seq = cache.open(id, prompt);
    return seq ? seq->cached() : -1;
  };
  Laps laps = repeat_cached<System>(state, row, prompts, open);
  count_tokens(
      state, laps,
      std::int64_t{row.requests} * (static_cast<std::int64_t>(prompts[0].size()) - block_tokens));
}
template <class System>
void prefix_warm(benchmark::State& state) {
  open_cached<System>(state, {.num_blocks = 16384}, distinct_prompts(1, long_prompt_tokens));
}
template <class System>
void prefix_warm_rotating(benchmark::State& state) {
  open_cached<System>(state, {.num_blocks = 131072}, distinct_prompts(60, long_prompt_tokens));
}
template <class System>
void warm_eight(benchmark::State& state) {
  open_cached<System>(state, {.num_blocks = 16392}, distinct_prompts(8, long_prompt_tokens));
}
template <class System>
void warm_branched(benchmark::State& state) {
  open_cached<System>(state,
                      {.num_blocks = 65536, .requests = 32, .shared_tokens = branch_head_tokens},
                      shuffled(branched_prompts(1024)));
}
template <class System>
void prefix_million_warm(benchmark::State& state) {
  open_cached<System>(state, {.num_blocks = 131072}, distinct_prompts(2, million_tokens));
}

/// The last block is computed again: at its commit it meets the one that is cached, and is free
/// when the request ends.
template <class System>
void warm_1k(benchmark::State& state) {
  WarmRow const row{.num_blocks = 131072, .requests = 32};
  auto const request = [](auto& cache, kv::SequenceId id, Tokens prompt) {
    auto const seq = prefill(cache, static_cast<std::int32_t>(id.value()), prompt);
    return seq ? seq->cached() : -1;
  };
  Laps laps = repeat_cached<System>(state, row,
                                    shuffled(distinct_prompts(1900, short_prompt_tokens)), request);
  count_ns(state, "ns_per_request", laps, row.requests);
}

// ---- prompts that are new -----------------------------------------------------------------------

struct ColdRow {
  std::int32_t num_blocks;
  std::int32_t prompt_tokens = long_prompt_tokens;
  std::int32_t requests = 1;  ///< of a lap
};

/// In a pool full of idle blocks each new prompt evicts the oldest: look-up, allocate, publish,
/// release.
template <class System>
Laps open_new(benchmark::State& state, ColdRow const& row) {
  typename System::Cache cache(config_of(row.num_blocks, 8, row.prompt_tokens));
  age(cache, row.num_blocks);
  Prompts const family(row.prompt_tokens);
  std::int32_t number = 0;
  PromptList prompts(static_cast<std::size_t>(row.requests), family.make(0));
  auto const write_next = [&] {
    for (auto& prompt : prompts) {
      family.write(number, prompt);
      number = (number + 1) % (1 << 20);  // long after the pool has forgotten it
    }
  };
  std::int64_t failed = 0;
  auto const open_all = [&] {
    for (auto const& prompt : prompts) {
      auto const seq = prefill(cache, number, prompt);
      failed += seq && seq->cached() == 0 ? 0 : 1;
    }
    cache.end_step();
  };
  std::int32_t const prompt_blocks = row.prompt_tokens / block_tokens;
  for (std::int32_t i = 0; i < row.num_blocks / prompt_blocks / row.requests; ++i) {
    write_next();
    open_all();
  }

  Checks checks(state);
  kv::Stats const before = cache.stats();
  checks.require(before.idle == row.num_blocks, "the pool is full");
  Laps laps;
  time_prepared(state, laps, write_next, open_all);
  kv::Stats const after = cache.stats();
  auto const blocks = static_cast<std::uint64_t>(state.iterations()) *
                      static_cast<std::uint64_t>(row.requests * prompt_blocks);
  checks.require(failed == 0, "every prompt is new and fits");
  checks.require(after.idle == row.num_blocks, "the pool is full again");
  checks.require(after.evicted_blocks - before.evicted_blocks == blocks, "each block evicts one");
  checks.require(after.published_blocks - before.published_blocks == blocks, "and is published");
  return laps;
}
template <class System>
void prefix_cold(benchmark::State& state) {
  Laps laps = open_new<System>(state, {.num_blocks = static_cast<std::int32_t>(state.range(0))});
  count_tokens(state, laps, long_prompt_tokens);
}
template <class System>
void prefix_million_cold(benchmark::State& state) {
  Laps laps = open_new<System>(state, {.num_blocks = 131072, .prompt_tokens = million_tokens});
  count_tokens(state, laps, million_tokens);
}
template <class System>
void cold_1k(benchmark::State& state) {
  constexpr std::int32_t requests = 32;
  Laps laps = open_new<System>(
      state, {.num_blocks = 131072, .prompt_tokens = short_prompt_tokens, .requests = requests});
  count_ns(state, "ns_per_request", laps, requests);
}
template <class System>
void scale(benchmark::State& state) {
  Laps laps = open_new<System>(state, {.num_blocks = static_cast<std::int32_t>(state.range(0))});
  count_ns(state, "ns_per_block", laps, long_prompt_blocks);
}

}  // namespace bench

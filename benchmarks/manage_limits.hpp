// SPDX-License-Identifier: Apache-2.0
/// \file
/// What no cache can beat that compares or stores a prompt's tokens: `memcmp` and `memcpy` of the
/// same ids over the same working sets, stored in one piece for each prompt.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench_support.hpp"
#include "manage_prompts.hpp"

namespace bench {

/// A row's prompts and where their tokens are stored.
class WorkingSet {
 public:
  /// Each prompt, but for the tokens that all begin with, has a place of its own.
  explicit WorkingSet(PromptList prompts, std::int32_t shared_tokens = 0)
      : prompts_(std::move(prompts)),
        shared_(static_cast<std::size_t>(shared_tokens)),
        head_(prompts_[0].begin(), prompts_[0].begin() + shared_tokens) {
    for (auto const& prompt : prompts_)
      own_.emplace_back(prompt.begin() + shared_tokens, prompt.end());
  }
  [[nodiscard]] std::int64_t num_tokens() const {
    return static_cast<std::int64_t>(prompts_[0].size());
  }
  /// The next prompt against what is stored.
  bool compare_next() {
    std::size_t const i = step();
    return is_equal(prompts_[i].data(), head_) && is_equal(prompts_[i].data() + shared_, own_[i]);
  }
  /// The next prompt's tokens are stored.
  bool copy_next() {
    std::size_t const i = step();
    copy(prompts_[i].data(), head_);
    copy(prompts_[i].data() + shared_, own_[i]);
    return true;
  }

 private:
  using Stored = std::vector<kv::TokenId>;

  std::size_t step() {
    std::size_t const i = next_;
    if (++next_ == prompts_.size()) next_ = 0;
    return i;
  }
  static bool is_equal(kv::TokenId const* ids, Stored const& stored) {
    return stored.empty() ||
           std::memcmp(ids, stored.data(), stored.size() * sizeof(kv::TokenId)) == 0;
  }
  static void copy(kv::TokenId const* ids, Stored& stored) {
    if (!stored.empty()) std::memcpy(stored.data(), ids, stored.size() * sizeof(kv::TokenId));
  }

  PromptList prompts_;
  std::size_t shared_;
  Stored head_;
  PromptList own_;
  std::size_t next_ = 0;
};

/// `prompts` of a lap.
inline void limit(benchmark::State& state, WorkingSet set, std::int32_t prompts,
                  bool (WorkingSet::*next)()) {
  std::int64_t wrong = 0;
  Laps laps;
  time_all(state, laps, [&] {
    for (std::int32_t i = 0; i < prompts; ++i) wrong += (set.*next)() ? 0 : 1;
    benchmark::ClobberMemory();
  });
  Checks checks(state);
  checks.require(wrong == 0, "what is stored is equal");
  checks.require(set.compare_next(), "and stays so");
  count_tokens(state, laps, prompts * set.num_tokens());
}

inline void add_limits() {
  auto const add = [](std::string const& row, std::int32_t prompts, auto make) {
    auto const add_one = [&](std::string const& name, bool (WorkingSet::*next)()) {
      auto const body = [=](benchmark::State& state) { limit(state, make(), prompts, next); };
      benchmark::RegisterBenchmark((name + "/" + row).c_str(), body)->Unit(benchmark::kMicrosecond);
    };
    add_one("limit_memcmp", &WorkingSet::compare_next);
    add_one("limit_memcpy", &WorkingSet::copy_next);
  };
  auto const distinct = [](std::int32_t num_prompts, std::int32_t num_tokens) {
    return [=] { return WorkingSet(shuffled(distinct_prompts(num_prompts, num_tokens))); };
  };
  add("prefix_warm", 16, distinct(1, long_prompt_tokens));
  add("warm_eight", 16, distinct(8, long_prompt_tokens));
  add("prefix_warm_rotating", 16, distinct(60, long_prompt_tokens));
  add("warm_branched", 32,
      [] { return WorkingSet(shuffled(branched_prompts(1024)), branch_head_tokens); });
  add("warm_1k", 32, distinct(1900, short_prompt_tokens));
  add("prefix_million_warm", 1, distinct(2, million_tokens));
}

}  // namespace bench

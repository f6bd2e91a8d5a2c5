// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the benchmarks of the manager share: time, checks, prompts, and a pool in no order.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace bench {

namespace kv = pagedkv;

inline constexpr std::int32_t block_tokens = 16;
inline constexpr std::int32_t long_prompt_tokens = 32768;
inline constexpr std::int32_t long_prompt_blocks = long_prompt_tokens / block_tokens;

/// Wall time of each lap between start and stop. What counts is the median of a benchmark's laps: a
/// neighbour that takes the core or the cache for a moment spoils some laps and not the result.
/// Laps should take 10 us and more. The library's own clock isn't used: to leave out what is
/// prepared between iterations it makes system calls, which slow down what follows them.
class Laps {
 public:
  Laps() { all_.reserve(1 << 16); }
  void start() noexcept { started_ = Clock::now(); }
  void stop() { all_.push_back(Clock::now() - started_); }
  [[nodiscard]] double median_nanoseconds() {
    if (all_.empty()) return 0;
    auto const middle = all_.begin() + static_cast<std::ptrdiff_t>(all_.size() / 2);
    std::nth_element(all_.begin(), middle, all_.end());
    return std::chrono::duration<double, std::nano>(*middle).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::duration> all_;
  Clock::time_point started_{};
};

/// A benchmark that computed something else is no benchmark: it is reported as an error, and the
/// program's exit status says so.
class Checks {
 public:
  explicit Checks(benchmark::State& state) : state_(state) {}
  Checks(Checks const&) = delete;
  Checks& operator=(Checks const&) = delete;
  ~Checks() {
    if (broken_ == nullptr) return;
    any_broken() = true;
    state_.SkipWithError(broken_);
  }
  void require(bool ok, char const* rule) noexcept {
    if (!ok && broken_ == nullptr) broken_ = rule;
  }
  static bool& any_broken() noexcept {
    static bool broken = false;
    return broken;
  }

 private:
  benchmark::State& state_;
  char const* broken_ = nullptr;
};

/// `items` were done in each lap.
inline void count_ns(benchmark::State& state, char const* name, Laps& laps, std::int64_t items) {
  state.counters[name] = laps.median_nanoseconds() / static_cast<double>(items);
}
inline void count_tokens(benchmark::State& state, Laps& laps, std::int64_t tokens) {
  state.counters["tokens_per_second"] =
      static_cast<double>(tokens) / (laps.median_nanoseconds() * 1e-9);
}

/// An iteration is a lap of `body`, after `prepare`.
template <class Prepare, class Body>
void time_prepared(benchmark::State& state, Laps& laps, Prepare&& prepare, Body&& body) {
  for (auto _ : state) {
    prepare();
    laps.start();
    body();
    laps.stop();
  }
}
template <class Body>
void time_all(benchmark::State& state, Laps& laps, Body&& body) {
  time_prepared(
      state, laps, [] {}, body);
}

/// Prompt `number` of a family in which no two have a token in common at any place.
/// Requires: number < 2^20.
class Prompts {
 public:
  explicit Prompts(std::int32_t num_tokens) : base_(static_cast<std::size_t>(num_tokens)) {
    std::mt19937 random(7);
    for (kv::TokenId& t : base_) t = static_cast<kv::TokenId>(random() >> 12);
  }
  void write(std::int32_t number, std::span<kv::TokenId> out) const {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = base_[i] ^ number;
  }
  [[nodiscard]] std::vector<kv::TokenId> make(std::int32_t number) const {
    std::vector<kv::TokenId> prompt(base_.size());
    write(number, prompt);
    return prompt;
  }

 private:
  std::vector<kv::TokenId> base_;
};

/// A new prompt is computed: all its tokens get positions, then they are final.
template <class Cache>
auto prefill(Cache& cache, std::int32_t id, std::span<kv::TokenId const> prompt) {
  auto seq = cache.open(kv::SequenceId{static_cast<std::uint64_t>(id)}, prompt,
                        {.reserve = static_cast<std::int32_t>(prompt.size())});
  if (seq) seq->commit(static_cast<std::int32_t>(prompt.size()));
  return seq;
}

/// Leaves all blocks free, as in a cache that has been in use for a while: each has held a
/// published block of its own, and they were evicted in random order. So the free blocks, and
/// whatever memory a cache keeps for each published block, are in random order. Requires: all
/// blocks are free.
template <class Cache>
void age(Cache& cache, std::int32_t num_blocks) {
  std::vector<kv::BlockId> blocks;
  for (std::int32_t i = 0; i < num_blocks; ++i) {
    std::vector<kv::TokenId> tokens(block_tokens, -1 - i);  // no prompt has such ids
    blocks.push_back(prefill(cache, i, tokens)->blocks()[0]);
  }
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(11));
  cache.evict(blocks);
  cache.end_step();
}

/// Whether a row of blocks is scattered: hardly any block stands behind its neighbour.
template <class Blocks>
bool is_scattered(Blocks const& blocks) {
  std::size_t neighbours = 0;
  for (std::size_t j = 1; j < blocks.size(); ++j) {
    std::int32_t const distance = blocks[j].value() - blocks[j - 1].value();
    neighbours += distance >= -2 && distance <= 2 ? 1U : 0U;
  }
  return neighbours * 20 < blocks.size();
}

}  // namespace bench

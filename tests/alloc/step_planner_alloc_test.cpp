// SPDX-License-Identifier: Apache-2.0
// After construction a planner allocates nothing, whatever it plans; nor does rendering counters.
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <pagedkv/observe/prometheus.hpp>
#include <pagedkv/step/step_planner.hpp>

#include "catch.hpp"
#include "counting.hpp"

namespace kv = pagedkv;
using Int = std::int32_t;
using pagedkv::testing::AllocationCount;

TEST_CASE("a planner allocates nothing after its construction") {
  std::mt19937_64 random{11};
  auto const draw = [&](Int low, Int high) {
    return low + static_cast<Int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  constexpr Int seqs = 32;
  kv::StepPlanner chunked{{.max_num_batched_tokens = 256, .max_num_seqs = seqs}};
  kv::StepPlanner whole{{.max_num_batched_tokens = 256,
                         .max_num_seqs = seqs,
                         .chunked_prefill = false,
                         .max_overtaking = 4}};
  std::vector<kv::RunningRequest> running;
  std::vector<kv::WaitingRequest> waiting;
  running.reserve(seqs);
  waiting.reserve(2000);
  Int preempted = 0;
  Int admitted = 0;
  Int never_fit = 0;
  Int passed = 0;
  AllocationCount const count;
  for (int step = 0; step < 2000; ++step) {
    running.clear();
    waiting.clear();
    for (Int i = draw(0, seqs); i > 0; --i) {
      Int const computed = draw(0, 200);
      Int const blocks = kv::blocks_for(computed, 4);
      running.push_back({.tokens = computed + (draw(0, 3) == 0 ? draw(1, 900) : 1),
                         .computed = computed,
                         .size = computed,
                         .blocks = blocks,
                         .unshared_tokens = draw(0, 200),
                         .unshared_blocks = draw(0, blocks)});
    }
    for (Int i = draw(0, 2000); i > 0; --i) {
      Int const tokens = draw(1, draw(0, 2) == 0 ? 1000 : 60);
      waiting.push_back(
          {.tokens = tokens, .overtaken = draw(0, 4), .blocks_needed = kv::blocks_for(tokens, 4)});
    }
    kv::PoolNumbers const pool{.num_blocks = 240,
                               .block_tokens = 4,
                               .available_blocks = draw(0, 1) == 0 ? draw(0, 4) : draw(0, 200),
                               .incoming_blocks = draw(0, 3) == 0 ? draw(0, 3) : 0};
    auto const plan = (step % 2 == 0 ? chunked : whole).plan(pool, running, waiting);
    preempted += static_cast<Int>(plan.preempted.size());
    admitted += static_cast<Int>(plan.admitted.size());
    never_fit += static_cast<Int>(plan.never_fits.size());
    passed += static_cast<Int>(plan.passed.size());
  }
  auto const allocations = count();
  CHECK(allocations == 0);
  CHECK(preempted > 300);
  CHECK(admitted > 300);
  CHECK(never_fit > 30);
  CHECK(passed > 200);
}

TEST_CASE("rendering counters allocates nothing once the string is large enough") {
  kv::Stats stats;
  stats.num_blocks = 4096;
  stats.used = 17;
  stats.opens = UINT64_MAX;
  kv::Label const labels[] = {{"model", "with \"quotes\""}};
  std::string text;
  kv::write_prometheus(stats, {.block_tokens = 16}, labels, text);
  text.clear();
  std::size_t size = 0;
  AllocationCount const count;
  kv::write_prometheus(stats, {.block_tokens = 16}, labels, text);
  kv::write_prometheus(stats, {.block_tokens = 16}, labels,
                       [&](std::string_view piece) { size += piece.size(); });
  auto const allocations = count();
  CHECK(allocations == 0);
  CHECK(size == text.size());
  CHECK(size > 1000);
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The replay with planner, cache and batch on a simulated clock. Each run ends with the program's
/// own leak check, which throws.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "catch.hpp"
#include "replay.hpp"
#include "run_program.hpp"
#include "trace_files.hpp"
#include "trace_reader.hpp"
#include "workload.hpp"

namespace {

namespace kv = pagedkv;
using replay::ReplayOptions;
using replay::Report;
using replay::Request;
using replay::Trace;

/// With full contract checks each verb counts the whole pool: then less is replayed.
constexpr bool slow_checks = PAGEDKV_ASSERT_LEVEL >= 2;

/// Requests of unique tokens, arriving in this order.
Trace lengths(std::vector<Request> requests) {
  Trace trace;
  trace.path = "lengths";
  trace.format = replay::Format::azure;
  trace.requests = std::move(requests);
  return trace;
}

Request request(double seconds, std::int32_t prompt, std::int32_t output,
                std::int32_t cancel_after = -1) {
  Request r;
  r.arrival_ns = std::llround(seconds * 1e9);
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  r.cancel_after = cancel_after;
  return r;
}

Trace workload(std::int32_t requests, std::uint64_t seed) {
  kv::testing::TemporaryFolder const folder;
  auto const path = folder.file("workload.jsonl");
  {
    std::ofstream file(path);
    replay::write_workload({.requests = requests, .seed = seed, .cancelled = 0.1}, file);
  }
  return replay::read_trace(path);
}

ReplayOptions pool(std::int32_t blocks, std::int32_t block_tokens = 16) {
  ReplayOptions options;
  options.num_blocks = blocks;
  options.block_tokens = block_tokens;
  options.limits.max_num_seqs = 64;
  return options;
}

Report run(Trace const& trace, ReplayOptions const& options) {
  replay::Progress progress(0, false);
  return replay::replay_full(trace, options, progress);
}

/// A clock on which tokens / 1000 and steps / 10 are seconds.
ReplayOptions simple_clock(ReplayOptions options) {
  options.cost = {.prefill_tokens_per_second = 1000,
                  .decode_tokens_per_second = 10,
                  .context_tokens_per_second = 0,
                  .step_overhead_seconds = 0};
  return options;
}

bool near(double a, double b) { return std::fabs(a - b) < 1e-3 * (1 + std::fabs(b)); }

}  // namespace

TEST_CASE("the clock follows the cost model", "[full_replay]") {
  auto const options = simple_clock(pool(100));
  // 200 prompt tokens take 0.2 s and give the first token; two decodes 0.1 s each.
  auto const r = run(lengths({request(0, 200, 3), request(10, 50, 1)}), options);
  REQUIRE(r.ttft_ms);
  REQUIRE(r.itl_ms);
  CHECK(near(r.ttft_ms->max, 200));
  CHECK(near(r.ttft_ms->p50, 100));
  CHECK(near(r.itl_ms->p50, 100));
  CHECK(near(r.itl_ms->max, 100));
  CHECK(near(r.simulated_seconds, 10.1));
  CHECK(r.steps == 4);
  CHECK(r.generated_tokens == 4);
  CHECK(r.finished == 2);
}

TEST_CASE("reading the context takes time, and so does each step", "[full_replay]") {
  auto options = simple_clock(pool(100));
  options.cost.context_tokens_per_second = 1000;
  options.cost.step_overhead_seconds = 0.05;
  auto const r = run(lengths({request(0, 200, 2)}), options);
  CHECK(near(r.ttft_ms->max, 50 + 200 + 200));
  CHECK(near(r.itl_ms->max, 50 + 100 + 201));
}

TEST_CASE("time is stretched by the time scale", "[full_replay]") {
  auto options = simple_clock(pool(100));
  options.time_scale = 3;
  CHECK(near(run(lengths({request(0, 10, 1), request(10, 100, 1)}), options).simulated_seconds,
             30.1));
}

TEST_CASE("usage and fragmentation are weighted by time", "[full_replay]") {
  // 30 tokens in two blocks of 16 for 0.1 s, then 31 for 0.1 s: 2 and 1 slots are empty.
  auto const r = run(lengths({request(0, 30, 2)}), simple_clock(pool(10)));
  CHECK(near(r.peak_usage, 0.2));
  CHECK(near(r.mean_usage, 0.2));
  CHECK(near(r.internal_fragmentation, 1.5 / 32));
  CHECK(r.peak_sequences == 1);
  CHECK(r.contiguous_tokens == 32);
  CHECK(r.contiguous_peak_sequences == 5);
  CHECK(near(r.contiguous_waste, 1 - 30.5 / 32));
}

TEST_CASE("a request of more blocks than the pool is rejected, and holds nobody up",
          "[full_replay]") {
  auto const r =
      run(lengths({request(0, 150, 20), request(0, 20, 2), request(0, 150, 11)}), pool(10));
  CHECK(r.rejected == 1);  // 169 positions; the last token generated takes none
  CHECK(r.finished == 2);
  CHECK(r.prompt_blocks == 9 + 1 + 9);
  CHECK(r.accepted_prompt_blocks == 1 + 9);
}

TEST_CASE("clients that leave give their blocks back", "[full_replay]") {
  auto const r = run(lengths({request(0, 5000, 9, 0), request(0, 20, 9, 4), request(0, 20, 9, 9),
                              request(0, 20, 0), request(0, 20, 3)}),
                     pool(400));
  CHECK(r.cancelled == 3);
  CHECK(r.finished == 2);
  // The first left while its prompt was being computed.
  CHECK(r.generated_tokens == 0 + 4 + 9 + 0 + 3);
}

TEST_CASE("a pool too small for all outputs preempts, resumes and ends", "[full_replay]") {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request(0, 40, 150));
  auto options = pool(40);
  options.limits.watermark = 0;
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    options.reclaim = reclaim;
    auto const r = run(lengths(requests), options);
    CHECK(r.finished == 12);
    CHECK(r.generated_tokens == 12 * 150);
    CHECK(r.preemptions > 0);
    CHECK(r.resumed_query_tokens > 0);
    CHECK(r.prompt_tokens == 12 * 40);  // those that came back aren't counted again
    CHECK(r.hit_tokens == 0);
    CHECK(r.plan_misses == 0);
  }
}

TEST_CASE("every request of a workload ends, whatever the options, and nothing leaks",
          "[full_replay]") {
  Trace const trace = workload(slow_checks ? 40 : 400, 3);
  std::int64_t early = 0;
  for (Request const& r : trace.requests) early += r.cancel_after >= 0;
  REQUIRE(early > 0);
  for (std::int32_t const block_tokens : {16, 128}) {
    for (bool const other : {false, true}) {
      for (bool const chunked : {false, true}) {
        ReplayOptions options = pool((slow_checks ? 50'000 : 120'000) / block_tokens, block_tokens);
        options.limits.chunked_prefill = chunked;
        options.partial_hits = other;
        options.twins = other ? kv::Twins::adopt : kv::Twins::keep;
        options.reclaim = other ? kv::Reclaim::deferred : kv::Reclaim::stream_ordered;
        INFO("block_tokens " << block_tokens << ", chunked " << chunked << ", partial hits, "
                             << "adopted twins and deferred reclaim " << other);
        Report const r = run(trace, options);
        CHECK(r.requests == static_cast<std::int64_t>(trace.requests.size()));
        CHECK(r.finished + r.cancelled == r.requests);
        CHECK(r.cancelled == early);
        CHECK(r.plan_misses == 0);
        CHECK(r.published_blocks == r.evicted_blocks + r.resident_blocks);
        CHECK(r.hit_tokens > 0);
        CHECK(r.peak_usage <= 1);
        CHECK(r.mean_usage < r.peak_usage);
      }
    }
  }
}

TEST_CASE("a replay repeats itself, step for step", "[full_replay]") {
  Trace const trace = workload(slow_checks ? 30 : 150, 5);
  ReplayOptions const options = pool(4000);
  auto const once = [&] {
    auto json = nlohmann::json::parse(replay::to_json(run(trace, options)));
    for (char const* measured : {"step_ns_p50", "step_ns_p99", "step_ns_max", "wall_seconds"}) {
      json.erase(measured);
    }
    return json;
  };
  CHECK(once() == once());
}

TEST_CASE("chunked prefill keeps long prompts from stopping everybody else", "[full_replay]") {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(request(0, 50, 400));
  for (int i = 0; i < 8; ++i) requests.push_back(request(2 + 4 * i, 20'000, 2));
  auto options = simple_clock(pool(8000));
  options.limits.max_num_batched_tokens = 512;
  auto const on = run(lengths(requests), options);
  options.limits.chunked_prefill = false;
  auto const off = run(lengths(requests), options);
  CHECK(on.itl_ms->max < 600);  // 512 tokens take 0.512 s
  CHECK(off.itl_ms->max >= 20'000);
  CHECK(on.finished == 16);
  CHECK(off.finished == 16);
}

TEST_CASE("an hour of recorded chat fills the pool and wastes a thousandth",
          "[full_replay][recorded]") {
  auto const path = naive::recorded("mooncake/conversation_trace.jsonl");
  if (path.empty() || slow_checks) {
    WARN("skipped: " << (slow_checks ? "full contract checks take hours on a pool of this size"
                                     : "the mooncake conversation trace isn't on this machine"));
    return;
  }
  auto const trace = replay::read_trace(path, {.limit = 4000});
  auto options = pool(33'000);  // about what a 70B model leaves on four 80 GB devices
  options.limits.max_num_seqs = 256;
  auto const on = run(trace, options);
  CHECK(on.internal_fragmentation <= 0.001);
  REQUIRE(on.usable_utilization);
  CHECK(*on.usable_utilization > 0.96);
  CHECK(on.peak_sequences >= 4 * on.contiguous_peak_sequences);
  CHECK(on.contiguous_waste > 0.5);
  options.limits.chunked_prefill = false;
  auto const off = run(trace, options);
  CHECK(off.itl_ms->p99 > 3 * on.itl_ms->p99);
}

TEST_CASE("recorded dialogues with real tokens waste less than a hundredth",
          "[full_replay][recorded]") {
  auto const path = naive::recorded("sharegpt_tokens/sharegpt-llama-3.1-8b-300-sps10.jsonl");
  if (path.empty() || slow_checks) {
    WARN("skipped: " << (slow_checks ? "full contract checks take hours on a pool of this size"
                                     : "the token id trace isn't on this machine"));
    return;
  }
  auto options = pool(4000);
  options.limits.max_num_seqs = 256;
  auto const r = run(replay::read_trace(path), options);
  CHECK(r.internal_fragmentation <= 0.008);
  CHECK(*r.usable_utilization > 0.96);
  CHECK(r.finished == 300);
}

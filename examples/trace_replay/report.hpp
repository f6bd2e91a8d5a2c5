// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a replay saw, and its three faces: one JSON object, a table for the terminal, a page of
/// HTML that needs nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "timeline.hpp"

namespace replay {

/// Shares are 0 to 1. What a mode doesn't know (times without a clock) stays empty and is null in
/// the JSON.
struct Report {
  // What was run.
  std::string trace;   ///< file name without its folder
  std::string format;  ///< of the trace
  bool prefix_only = false;
  bool knows_sharing = true;  ///< false: the trace has no ids, every prompt is taken as unique
  std::int32_t block_tokens = 0;
  std::int32_t num_blocks = 0;
  bool partial_hits = false;
  bool chunked_prefill = true;
  std::string reclaim;
  std::string twins;
  /// Name and value of everything else that decides the outcome: cost model, limits, plan.
  std::vector<std::pair<std::string, std::string>> settings;

  // Requests.
  std::int64_t requests = 0;   ///< of the trace
  std::int64_t rejected = 0;   ///< would never fit: refused before anything was touched
  std::int64_t cancelled = 0;  ///< their client left early
  std::int64_t finished = 0;

  // Prefix reuse. Blocks are full ones. A preempted request that comes back isn't counted again.
  std::int64_t prompt_blocks = 0;           ///< of all requests, rejected ones too
  std::int64_t accepted_prompt_blocks = 0;  ///< of those not rejected
  std::int64_t hit_blocks = 0;
  std::int64_t prompt_tokens = 0;  ///< of requests that were admitted
  std::int64_t hit_tokens = 0;     ///< partial hits included
  std::int64_t resumed_query_tokens = 0;
  std::int64_t resumed_hit_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::int64_t evicted_blocks = 0;
  std::int64_t resident_blocks = 0;  ///< findable when all was over
  std::int64_t published_blocks = 0;
  std::int64_t twin_blocks = 0;
  std::int64_t moved_blocks = 0;
  std::int64_t preemptions = 0;
  std::int64_t copies = 0;
  std::int64_t plan_misses = 0;  ///< planned entries that the cache then refused
  std::vector<std::pair<std::string, std::int64_t>> hit_ends;  ///< why hits ended, in opens

  // The pool. Weighted by simulated time; by request in prefix-only mode.
  double peak_usage = 0;
  double mean_usage = 0;
  double internal_fragmentation = 0;  ///< slots of owned blocks that hold no position
  /// Slots of the pool that hold a running sequence's position, while a request waited for blocks.
  std::optional<double> usable_utilization;
  std::optional<double> pressure_share;  ///< of the time in which a request waited for blocks
  std::int64_t peak_sequences = 0;
  double mean_sequences = 0;
  std::int32_t contiguous_tokens = 0;  ///< reserved by each sequence in the comparison
  std::int64_t contiguous_peak_sequences = 0;
  double contiguous_waste = 0;  ///< of what they would reserve, for the sequences that did run

  // Simulated latency, milliseconds.
  struct Latency {
    double p50 = 0;
    double p99 = 0;
    double max = 0;
  };
  std::optional<Latency> ttft_ms;
  std::optional<Latency> itl_ms;
  double simulated_seconds = 0;
  double trace_seconds = 0;  ///< arrival of the last request

  // Host time of the manager's calls in a step, nanoseconds.
  std::int64_t steps = 0;
  std::int64_t step_ns_p50 = 0;
  std::int64_t step_ns_p99 = 0;
  std::int64_t step_ns_max = 0;
  double wall_seconds = 0;

  Timeline timeline;

  [[nodiscard]] double hit_ratio() const {
    return prompt_tokens > 0 ? static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens)
                             : 0.0;
  }
};

[[nodiscard]] std::string to_json(Report const& report);
[[nodiscard]] std::string to_table(Report const& report);
[[nodiscard]] std::string to_html(Report const& report);

}  // namespace replay

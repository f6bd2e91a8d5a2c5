// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "replay.hpp"

namespace replay {

namespace kv = pagedkv;

kv::KvCacheConfig cache_config(ReplayOptions const& options, std::int32_t max_sequences,
                               std::int32_t longest_sequence) {
  // What doesn't fit the pool is rejected before the cache sees it: its table needn't be wider.
  std::int64_t const pool_tokens = std::int64_t{options.num_blocks} * options.block_tokens;
  kv::KvCacheConfig config;
  config.block_tokens = options.block_tokens;
  config.num_blocks = options.num_blocks;
  config.max_sequences = max_sequences;
  config.max_sequence_tokens =
      static_cast<std::int32_t>(std::min<std::int64_t>(pool_tokens, longest_sequence));
  config.max_extra_key_bytes = 0;
  config.reclaim = options.reclaim;
  config.twins = options.twins;
  config.partial_hits = options.partial_hits;
  return config;
}

void check_no_leak(kv::KvCache& cache) {
  cache.reclaim(cache.end_step());
  if (auto const report = cache.verify(); !report) {
    throw LeakError(fmt::format("leak: the cache's books are broken: {}", report.broken));
  }
  kv::Stats const stats = cache.stats();
  if (stats.sequences != 0 || stats.pins != 0 || stats.free + stats.idle != stats.num_blocks) {
    throw LeakError(
        fmt::format("leak: all sequences are gone, yet of {} blocks {} are used, {} quarantined, "
                    "{} retained, and {} sequences and {} pins are alive",
                    stats.num_blocks, stats.used, stats.quarantined, stats.retained,
                    stats.sequences, stats.pins));
  }
}

void put_common(Trace const& trace, ReplayOptions const& options, kv::KvCache const& cache,
                Report& report) {
  report.trace = std::filesystem::path(trace.path).filename().string();
  report.format = to_string(trace.format);
  report.knows_sharing = trace.knows_sharing();
  report.block_tokens = options.block_tokens;
  report.num_blocks = options.num_blocks;
  report.partial_hits = options.partial_hits;
  report.chunked_prefill = options.limits.chunked_prefill;
  report.reclaim = options.reclaim == kv::Reclaim::deferred ? "deferred" : "stream_ordered";
  report.twins = options.twins == kv::Twins::adopt ? "adopt" : "keep";
  report.requests = static_cast<std::int64_t>(trace.requests.size());
  report.prompt_blocks = trace.prompt_blocks(options.block_tokens);
  report.trace_seconds = static_cast<double>(trace.requests.back().arrival_ns) * 1e-9;

  kv::Stats const stats = cache.stats();
  report.resumed_query_tokens = static_cast<std::int64_t>(stats.resumed_query_tokens);
  report.resumed_hit_tokens = static_cast<std::int64_t>(stats.resumed_hit_tokens);
  report.evicted_blocks = static_cast<std::int64_t>(stats.evicted_blocks);
  report.resident_blocks = stats.idle;
  report.published_blocks = static_cast<std::int64_t>(stats.published_blocks);
  report.twin_blocks = static_cast<std::int64_t>(stats.twin_blocks);
  report.moved_blocks = static_cast<std::int64_t>(stats.moved_blocks);
  report.preemptions = static_cast<std::int64_t>(stats.preemptions);
  report.copies = static_cast<std::int64_t>(stats.copies);
  for (std::size_t i = 0; i < kv::num_hit_ends; ++i) {
    auto const reason = static_cast<kv::HitEnd>(i);
    report.hit_ends.emplace_back(kv::to_string(reason),
                                 static_cast<std::int64_t>(stats.hit_ends[reason]));
  }
}

bool can_run(ReplayOptions const& options, std::int32_t positions, std::int32_t tokens) {
  return kv::blocks_for(positions, options.block_tokens) <= options.num_blocks &&
         (options.max_model_len == 0 || tokens <= options.max_model_len);
}

void put_contiguous(ReplayOptions const& options, std::int32_t longest, double mean_tokens,
                    Report& report) {
  report.contiguous_tokens = options.max_model_len > 0 ? options.max_model_len : longest;
  if (report.contiguous_tokens == 0) return;
  std::int64_t const pool_tokens = std::int64_t{options.num_blocks} * options.block_tokens;
  report.contiguous_peak_sequences = pool_tokens / report.contiguous_tokens;
  report.contiguous_waste = 1 - mean_tokens / report.contiguous_tokens;
}

Moment moment_of(kv::Stats const& stats) {
  Moment moment;
  moment.used = stats.used;
  moment.idle = stats.idle;
  moment.owned_slots = static_cast<double>(stats.owned_slots);
  moment.wasted_slots = static_cast<double>(stats.wasted_slots);
  moment.held_tokens = static_cast<double>(stats.owned_slots - stats.wasted_slots);
  moment.running = stats.sequences;
  return moment;
}

}  // namespace replay

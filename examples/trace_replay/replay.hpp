// SPDX-License-Identifier: Apache-2.0
/// \file
/// The two ways to replay a trace through the cache manager. Both leave a cache that holds no
/// sequence, verified; both throw LeakError when it does hold something.
#pragma once

#include <pagedkv/manage/kv_cache.hpp>
#include <stdexcept>

#include "progress.hpp"
#include "replay_options.hpp"
#include "report.hpp"
#include "trace.hpp"

namespace replay {

/// Something still held blocks after all sequences were gone, or the cache's books don't add up.
class LeakError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One request at a time in arrival order, for comparison with cache studies. Its tokens are the
/// prompt plus one unique one that stands for the first generated token; it is opened with all of
/// them reserved, committed up to the prompt's length and released, a step of its own. A request of
/// more blocks than the pool has is rejected before anything is touched.
[[nodiscard]] Report replay_prefix_only(Trace const& trace, ReplayOptions const& options,
                                        Progress& progress);

/// Continuous batching on a simulated clock: StepPlanner, KvCache and Batch used as an engine does,
/// with preemption and clients that leave.
[[nodiscard]] Report replay_full(Trace const& trace, ReplayOptions const& options,
                                 Progress& progress);

/// Ends the open step, reclaims all steps, and throws LeakError unless every block is free or idle
/// and `verify()` finds nothing broken.
void check_no_leak(pagedkv::KvCache& cache);

/// What both kinds fill in alike: what was run, and the manager's counters. `cache` is empty.
void put_common(Trace const& trace, ReplayOptions const& options, pagedkv::KvCache const& cache,
                Report& report);

[[nodiscard]] pagedkv::KvCacheConfig cache_config(ReplayOptions const& options,
                                                  std::int32_t max_sequences,
                                                  std::int32_t longest_sequence);

/// Whether a request that takes so many positions at its end, and has so many tokens in all, is
/// within the pool and the longest length.
[[nodiscard]] bool can_run(ReplayOptions const& options, std::int32_t positions,
                           std::int32_t tokens);

/// The comparison with sequences that reserve their longest length in one piece. `longest`: tokens
/// of the longest accepted request; `mean_tokens`: held by a running sequence on average.
void put_contiguous(ReplayOptions const& options, std::int32_t longest, double mean_tokens,
                    Report& report);

/// The state of the cache as the report counts it.
[[nodiscard]] Moment moment_of(pagedkv::Stats const& stats);

}  // namespace replay

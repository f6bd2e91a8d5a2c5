// SPDX-License-Identifier: Apache-2.0
/// \file
/// A cache and its sequences in the planner's numbers. Convenience: whoever has other numbers fills
/// the structs of step_plan.hpp directly.
#pragma once

#include <cstdint>

#include <pagedkv/config.hpp>
#include <pagedkv/step/step_plan.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// The cache now. O(1).
template <class Cache>
[[nodiscard]] PoolNumbers pool_numbers(Cache const& cache) {
  auto const& config = cache.config();
  return {.num_blocks = config.num_blocks,
          .block_tokens = config.block_tokens,
          .available_blocks = cache.available_blocks(),
          .incoming_blocks = cache.incoming_blocks(),
          .max_sequence_tokens = config.max_sequence_tokens,
          .deferred_reclaim = config.reclaim == Reclaim::deferred};
}

/// A running request, without its preemption cost (see `preemption_cost`). `tokens`: positions to
/// compute in all, `drafts` of them unverified. `computed` is what is committed: an engine with
/// steps in flight sets it to what those will have computed. O(1).
template <class Cache, class Sequence>
[[nodiscard]] RunningRequest running_request(Cache const& cache, Sequence const& sequence,
                                             std::int32_t tokens, std::int32_t drafts = 0,
                                             std::int32_t lookahead = 0) {
  RunningRequest request{.tokens = tokens,
                         .computed = sequence.committed(),
                         .drafts = drafts,
                         .lookahead = lookahead,
                         .size = sequence.size(),
                         .blocks = sequence.num_blocks()};
  bool const tail_has_room = request.size % cache.config().block_tokens != 0;
  if (tail_has_room && sequence.blocks_needed(1) > 0) {
    BlockId const tail = sequence.blocks().back();
    bool const one_owner = cache.references(tail) == 1;
    request.tail_copy = !one_owner                 ? TailCopy::always
                        : cache.is_in_flight(tail) ? TailCopy::until_reclaim
                                                   : TailCopy::unless_full;
  }
  return request;
}

/// What preempting a sequence costs and brings. O(blocks): ask when a plan needs it, through the
/// `details` of `StepPlanner::plan`.
template <class Sequence>
[[nodiscard]] PreemptionCost preemption_cost(Sequence const& sequence) {
  return {sequence.unshared_tokens(), sequence.unshared_blocks()};
}

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What goes into and comes out of a `StepPlanner`: plain numbers, in and out. The contract is
/// docs/design/step-planner.md.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// What one step may hold, and how requests share it. Checked by the planner's constructor.
struct PlannerLimits {
  /// Tokens computed in one step, over all requests; at least max_num_seqs, so that every running
  /// request can decode in every step.
  std::int32_t max_num_batched_tokens = 2048;
  /// Requests running at once.
  std::int32_t max_num_seqs = 128;
  /// The most prompt tokens one request computes in a step; 0: as many as the step has. Keeps a
  /// long prompt from filling whole steps. Doesn't count when chunked_prefill is off.
  std::int32_t max_prefill_tokens = 0;
  /// Off: a prompt is computed in one step or isn't admitted.
  bool chunked_prefill = true;
  /// Blocks that an admission leaves for the growth of others: the larger of a share of the pool
  /// (rounded down) and a number. Doesn't count for a request that runs alone.
  double watermark = 0.01;
  std::int32_t watermark_blocks = 0;
  /// Waiting requests looked at in one step.
  std::int32_t admission_window = 16;
  /// How many later requests may be admitted before a waiting one that doesn't fit yet. 0: the
  /// first that doesn't fit stops the queue.
  std::int32_t max_overtaking = 64;

  friend constexpr bool operator==(PlannerLimits const&, PlannerLimits const&) noexcept = default;
};

/// The cache in numbers, now.
struct PoolNumbers {
  std::int32_t num_blocks = 0;           ///< KvCacheConfig::num_blocks
  std::int32_t block_tokens = 16;        ///< KvCacheConfig::block_tokens
  std::int32_t available_blocks = 0;     ///< KvCache::available_blocks(): free + idle
  std::int32_t incoming_blocks = 0;      ///< KvCache::incoming_blocks(): quarantined + retained
  std::int32_t max_sequence_tokens = 0;  ///< KvCacheConfig::max_sequence_tokens; 0: not bounded
  bool deferred_reclaim = false;  ///< Reclaim::deferred: what is released may be incoming first
};

/// What the next write into a sequence's last block costs.
enum class TailCopy : std::uint8_t {
  no,             ///< nothing: the last block is full, or the sequence's own and unpublished
  unless_full,    ///< a copy, or nothing when no block is available (published, but one owner)
  always,         ///< a copy: others reference the block
  until_reclaim,  ///< a copy; nothing once a step in flight has been reclaimed
};

/// A running request. Positions `[0, computed)` have K and V or get them from a step in flight.
struct RunningRequest {
  std::int32_t tokens = 0;     ///< positions to compute in all: prompt, output so far, drafts
  std::int32_t computed = 0;   ///< those already computed; tokens - computed are left
  std::int32_t drafts = 0;     ///< how many of the last `tokens` are unverified drafts
  std::int32_t lookahead = 0;  ///< positions to reserve beyond tokens once all are computed
  std::int32_t size = 0;       ///< Sequence::size(): positions reserved, at least computed
  std::int32_t blocks = 0;     ///< Sequence::num_blocks(): blocks_for(size)
  TailCopy tail_copy = TailCopy::no;
  /// What preempting it would cost and bring; see PreemptionCost.
  std::int64_t unshared_tokens = 0;
  std::int32_t unshared_blocks = 0;
};

/// A waiting request.
struct WaitingRequest {
  std::int32_t tokens = 0;     ///< prompt, and output so far if it was preempted
  std::int32_t lookahead = 0;  ///< positions to reserve beyond tokens once all are computed
  std::int32_t overtaken = 0;  ///< the sum of `StepPlan::passed` about it so far
  /// What opening it with all tokens reserved would hit and take; see AdmissionNumbers.
  std::int32_t cached_tokens = 0;
  std::int32_t blocks_needed = 0;
};

/// What preempting a running request costs, and brings.
struct PreemptionCost {
  std::int64_t tokens = 0;  ///< to recompute: Sequence::unshared_tokens()
  std::int32_t blocks = 0;  ///< given back: Sequence::unshared_blocks()
};

/// What opening a waiting request with `OpenOptions::reserve` = all its tokens would do. Any type
/// with these members will do: KvCache::admission's is one.
struct AdmissionNumbers {
  std::int32_t cached_tokens = 0;  ///< tokens hit, less than all
  std::int32_t blocks_needed = 0;  ///< new blocks, and hit blocks that are idle now
};

/// How to go on.
enum class StepOutcome : std::uint8_t {
  run,      ///< something is scheduled: run the step
  wait,     ///< nothing fits until blocks come back: let a step in flight end, reclaim, plan again
  replan,   ///< nothing runs yet, but the plan frees blocks or drops requests: apply, plan again
  blocked,  ///< something that isn't in the plan's input holds the pool (pins, transfers)
  idle,     ///< nothing is left to compute
};

/// The enumerator's name, e.g. "replan".
[[nodiscard]] constexpr char const* to_string(StepOutcome outcome) noexcept {
  switch (outcome) {
    case StepOutcome::run: return "run";
    case StepOutcome::wait: return "wait";
    case StepOutcome::replan: return "replan";
    case StepOutcome::blocked: return "blocked";
    case StepOutcome::idle: return "idle";
  }
  return "unknown";
}

/// One request's share of a step.
struct PlannedRequest {
  std::int32_t index = -1;  ///< into the running or the waiting requests
  TokenRange query;         ///< positions to compute, at least one
  /// Running: positions to add, for Sequence::reserve (0: none). Admitted: positions in all, for
  /// OpenOptions::reserve.
  std::int32_t reserve = 0;
  std::int32_t lookahead = 0;  ///< how many of the reserved positions lie beyond the query
  std::int32_t blocks = 0;     ///< what that takes from the pool: new blocks, copy, revived hits

  friend constexpr bool operator==(PlannedRequest const&, PlannedRequest const&) noexcept = default;
};

/// A waiting request that others were admitted before.
struct Passed {
  std::int32_t index = -1;  ///< into the waiting requests
  std::int32_t by = 0;      ///< add this to WaitingRequest::overtaken

  friend constexpr bool operator==(Passed const&, Passed const&) noexcept = default;
};

/// What the next step does. The spans are valid until the planner's next plan.
struct StepPlan {
  StepOutcome outcome = StepOutcome::idle;
  std::int32_t num_tokens = 0;                       ///< query tokens of all requests
  std::int32_t num_decodes = 0;                      ///< the first so many of `running` are decodes
  std::span<PlannedRequest const> running;           ///< decodes, then prefills
  std::span<PlannedRequest const> admitted;          ///< in queue order
  std::span<std::int32_t const> preempted;           ///< running indices, ascending
  std::span<std::int32_t const> stalled;             ///< running indices that found no block
  std::span<std::int32_t const> never_fits;          ///< waiting indices, ascending
  std::span<std::int32_t const> running_never_fits;  ///< running indices
  std::span<Passed const> passed;                    ///< waiting requests, ascending
};

static_assert(std::is_trivially_copyable_v<RunningRequest> &&
              std::is_trivially_copyable_v<WaitingRequest> &&
              std::is_trivially_copyable_v<PlannedRequest>);

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// How many blocks fit, how many sequences that serves, and what to change when too few do.
///
///     usable    = floor(device_bytes * utilization)
///     available = usable - weights of the rank - activations - other use - static scales
///     blocks    = floor(available / bytes of a block on that rank), the least over all ranks
///
/// `try_capacity_plan` is a pure function: no device is asked, nothing is measured. All blocks of
/// the result are usable, so a sequence of max_model_len tokens fits exactly when
/// `blocks_for(max_model_len, block_tokens) <= num_blocks`, which is also what the cache decides.
///
///     auto const plan = kv::capacity_plan({.geometry = {80, 8, 128, 128},
///                                          .parallel = {.tensor = 4},
///                                          .device_bytes = 85'899'345'920,
///                                          .weight_bytes = 141'107'412'992});
#pragma once

#include <pagedkv/detail/capacity_search.hpp>
#include <pagedkv/detail/plan_message.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/model/capacity_terms.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Effects: none. Returns: a plan, or a problem with a message that names every term in bytes and
/// what would have worked. Complexity: O(layers) on success; on failure some thousand times that.
[[nodiscard]] inline PlanOutcome try_capacity_plan(CapacityInput const& input) {
  PlanOutcome outcome;
  outcome.message = detail::input_problem(input);
  if (!outcome.message.empty()) {
    outcome.problem = PlanProblem::invalid_input;
    return outcome;
  }
  outcome.plan = detail::size_cache(input);
  outcome.problem = detail::problem_of(outcome.plan);
  if (outcome) return outcome;
  outcome.hints = detail::find_hints(input, outcome.plan, outcome.problem);
  outcome.message = detail::plan_message(input, outcome);
  return outcome;
}

/// The same for a program that can't go on without: raises the message.
[[nodiscard]] inline CapacityPlan capacity_plan(CapacityInput const& input) {
  auto outcome = try_capacity_plan(input);
  if (!outcome) raise(outcome.message);
  return outcome.plan;
}

PAGEDKV_NAMESPACE_END

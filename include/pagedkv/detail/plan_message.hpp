// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a failed capacity plan tells: every term in bytes, then what alone would have worked.
/// Each name of a term in the second part stands nowhere in the first, so that it can be searched
/// for.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <pagedkv/model/capacity_terms.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

[[nodiscard]] inline std::string plan_headline(CapacityPlan const& plan, PlanProblem problem) {
  if (problem == PlanProblem::no_memory) {
    return "No available memory for the cache blocks: not one fits.";
  }
  return fmt::format(
      "One sequence of {} tokens does not fit: it needs {} blocks of {} tokens, and {} fit.",
      plan.max_model_len, plan.blocks_per_sequence, plan.block_tokens, plan.num_blocks);
}

[[nodiscard]] inline std::string weight_term(CapacityInput const& input) {
  if (input.weight_scope == WeightScope::per_rank) return "weights of this rank";
  return fmt::format("weights, this rank's share of {} over {} x {} ranks", input.weight_bytes,
                     input.parallel.tensor, input.parallel.pipeline);
}

[[nodiscard]] inline std::string plan_terms(CapacityInput const& input, CapacityPlan const& plan) {
  auto const& rank = plan.rank;
  auto text = fmt::format("On the fullest rank (layers {} to {}, KV heads: {}), in bytes:\n",
                          rank.layers.first, rank.layers.end() - 1, rank.kv_heads);
  auto const term = [out = std::back_inserter(text)](char sign, std::int64_t bytes,
                                                     std::string const& what) {
    fmt::format_to(out, "  {} {:>16}  {}\n", sign, bytes, what);
  };
  if (plan.sized_by == SizedBy::utilization) {
    term(' ', rank.usable_bytes,
         fmt::format("usable: {} of the device x {}", input.device_bytes, input.utilization));
    term('-', rank.weight_bytes, weight_term(input));
    term('-', rank.activation_bytes, "activation peak");
    term('-', rank.other_bytes, "other use");
    term('-', rank.static_scale_bytes, "static scales");
    term('=', rank.available_bytes, "for the blocks");
  } else {
    term('=', rank.available_bytes, "for the blocks, as given");
  }
  auto block = fmt::format("a block of {} tokens", plan.block_tokens);
  if (plan.blocks_per_sequence > 0) {
    block += fmt::format("; a sequence of {} tokens needs {}", plan.max_model_len,
                         plan.blocks_per_sequence);
  }
  term('/', rank.bytes_per_block, block);
  return text;
}

template <class Value>
[[nodiscard]] std::string hint(char const* name, std::optional<Value> const& value,
                               char const* more, std::string const& none) {
  return value ? fmt::format("\n  {}: {}{}", name, *value, more)
               : fmt::format("\n  {}: {}", name, none);
}

[[nodiscard]] inline std::string no_memory_hints(CapacityInput const& input,
                                                 PlanHints const& hints) {
  char const* const scope = input.weight_scope == WeightScope::per_rank ? " or less (per rank)"
                                                                        : " or less (whole model)";
  return hint("utilization", hints.utilization, " or more", "none up to 1 would") +
         hint("weight_bytes", hints.weight_bytes, scope, "none would, not even 0");
}

[[nodiscard]] inline std::string plan_hints(CapacityInput const& input,
                                            PlanOutcome const& outcome) {
  auto const& hints = outcome.hints;
  auto const sized = outcome.plan.sized_by;
  auto const tensor_parallel = [&] {
    return hint("tensor_parallel", hints.tensor_parallel, " or more",
                fmt::format("none up to {} would", max_proposed_tensor_parallel));
  };
  std::string text;
  if (outcome.problem == PlanProblem::sequence_too_long) {
    text += hint("max_model_len", hints.max_model_len, " or less", "none would");
  }
  switch (sized) {
    case SizedBy::num_blocks:
      return text + hint("num_blocks", hints.num_blocks, " or more", "none would") +
             "\n  utilization, kv_format: they change nothing while num_blocks is given";
    case SizedBy::cache_bytes:
      text += hint("cache_bytes", hints.cache_bytes, " or more", "none would") +
              "\n  utilization: it changes nothing while cache_bytes is given";
      break;
    case SizedBy::utilization: text += no_memory_hints(input, hints); break;
  }
  auto const format = hints.kv_format ? std::optional(to_string(*hints.kv_format)) : std::nullopt;
  return text + tensor_parallel() +
         hint("kv_format", format, "", "none would, not even int4/per_token_head");
}

[[nodiscard]] inline std::string plan_message(CapacityInput const& input,
                                              PlanOutcome const& outcome) {
  return plan_headline(outcome.plan, outcome.problem) + "\n" + plan_terms(input, outcome.plan) +
         "Each of these alone would have worked, all else as given:" + plan_hints(input, outcome);
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The arithmetic of `try_capacity_plan`, and the search for what would have worked.
///
/// Idea: `size_cache` is the only place that knows how terms turn into blocks. Every hint is found
/// by asking it again with one term changed, so a hint can't disagree with the plan it leads to.
/// The number of blocks grows with utilization and tensor_parallel and falls with weights, so each
/// term is bisected (or, where few values are valid, walked).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <pagedkv/detail/checked_bytes.hpp>
#include <pagedkv/model/capacity_terms.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

inline constexpr std::int32_t max_blocks = std::numeric_limits<BlockId::rep>::max();
inline constexpr std::int64_t utilization_steps = 1'000'000;

[[nodiscard]] inline SizedBy sized_by(CapacityInput const& input) noexcept {
  if (input.num_blocks) return SizedBy::num_blocks;
  return input.cache_bytes ? SizedBy::cache_bytes : SizedBy::utilization;
}

[[nodiscard]] inline std::int64_t rank_weight_bytes(CapacityInput const& input,
                                                    LayerRange layers) noexcept {
  if (input.weight_scope == WeightScope::per_rank) return input.weight_bytes;
  return mul_div_up(input.weight_bytes, layers.count,
                    std::int64_t{input.geometry.num_layers} * input.parallel.tensor);
}

/// The terms of one stage's ranks. With a given number of blocks they follow from it.
[[nodiscard]] inline RankPlan size_rank(CapacityInput const& input, std::int32_t stage) {
  auto const& geometry = input.geometry;
  RankPlan rank;
  rank.stage = stage;
  rank.layers = stage_layers(geometry.num_layers, input.parallel.pipeline, stage);
  rank.kv_heads = kv_heads_per_rank(geometry.num_kv_heads, input.parallel.tensor);
  rank.usable_bytes =
      static_cast<std::int64_t>(static_cast<double>(input.device_bytes) * input.utilization);
  rank.weight_bytes = rank_weight_bytes(input, rank.layers);
  rank.activation_bytes = input.activation_bytes;
  rank.other_bytes = input.other_bytes;
  rank.static_scale_bytes = geometry.static_scale_bytes(rank.layers, rank.kv_heads);
  rank.bytes_per_block = geometry.bytes_per_block(rank.layers, rank.kv_heads);
  rank.bytes_per_token = geometry.bytes_per_token(rank.layers, rank.kv_heads);
  switch (sized_by(input)) {
    case SizedBy::utilization:
      rank.available_bytes = rank.usable_bytes - rank.weight_bytes - rank.activation_bytes -
                             rank.other_bytes - rank.static_scale_bytes;
      break;
    case SizedBy::cache_bytes: rank.available_bytes = *input.cache_bytes; break;
    case SizedBy::num_blocks:
      rank.available_bytes = *input.num_blocks * rank.bytes_per_block;
      break;
  }
  return rank;
}

[[nodiscard]] inline std::int32_t blocks_on(RankPlan const& rank) noexcept {
  auto const blocks = std::max(rank.available_bytes, std::int64_t{0}) / rank.bytes_per_block;
  return static_cast<std::int32_t>(std::min(blocks, std::int64_t{max_blocks}));
}

inline void settle_rank(CapacityInput const& input, std::int32_t num_blocks, RankPlan& rank) {
  rank.cache_bytes = num_blocks * rank.bytes_per_block;
  rank.unused_bytes = std::max(rank.available_bytes - rank.cache_bytes, std::int64_t{0});
  auto const needed = rank.cache_bytes + rank.weight_bytes + rank.activation_bytes +
                      rank.other_bytes + rank.static_scale_bytes;
  if (input.device_bytes > 0 && sized_by(input) != SizedBy::utilization) {
    rank.beyond_device_bytes = std::max(needed - input.device_bytes, std::int64_t{0});
  }
}

[[nodiscard]] inline std::int32_t longest_sequence(std::int32_t num_blocks,
                                                   std::int32_t block_tokens) noexcept {
  auto const tokens = std::int64_t{num_blocks} * block_tokens;
  return static_cast<std::int32_t>(
      std::min(tokens, std::int64_t{std::numeric_limits<std::int32_t>::max()}));
}

inline void settle_lengths(CapacityInput const& input, CapacityPlan& plan) {
  plan.max_model_len = input.max_model_len;
  if (plan.max_model_len == auto_max_model_len) {
    plan.max_model_len = longest_sequence(plan.num_blocks, plan.block_tokens);
    if (input.model_max_len > 0) {
      plan.max_model_len = std::min(plan.max_model_len, input.model_max_len);
    }
  }
  plan.blocks_per_sequence = blocks_for(plan.max_model_len, plan.block_tokens);
  plan.total_tokens = std::int64_t{plan.num_blocks} * plan.block_tokens;
  if (plan.blocks_per_sequence > 0) {
    plan.sequences_at_max_len = plan.num_blocks / plan.blocks_per_sequence;
    plan.concurrency = static_cast<double>(plan.num_blocks) / plan.blocks_per_sequence;
  }
  plan.tail_tokens_at_max_len = static_cast<std::int32_t>(
      std::int64_t{plan.blocks_per_sequence} * plan.block_tokens - plan.max_model_len);
  plan.tail_tokens_mean = (plan.block_tokens - 1) / 2.0;
  plan.tail_bytes_mean = plan.tail_tokens_mean * plan.bytes_per_token.value();
}

/// Requires an input without `input_problem`, save that tensor_parallel may be any that the heads
/// allow; totals over all ranks then stop above `max_bytes`. The plan may have too few blocks.
[[nodiscard]] inline CapacityPlan size_cache(CapacityInput const& input) {
  auto const& geometry = input.geometry;
  CapacityPlan plan;
  plan.sized_by = sized_by(input);
  plan.block_tokens = geometry.block_tokens;
  plan.num_ranks = input.parallel.tensor * input.parallel.pipeline;
  plan.kv_head_copies = kv_head_copies(geometry.num_kv_heads, input.parallel.tensor);
  plan.bytes_per_block = geometry.bytes_per_block();
  plan.bytes_per_token = geometry.bytes_per_token();

  CheckedBytes all_ranks_block;
  for (std::int32_t stage = 0; stage < input.parallel.pipeline; ++stage) {
    auto const rank = size_rank(input, stage);
    all_ranks_block = all_ranks_block + CheckedBytes(rank.bytes_per_block) * input.parallel.tensor;
    if (stage == 0 || blocks_on(rank) < plan.num_blocks) {
      plan.num_blocks = blocks_on(rank);
      plan.rank = rank;
    }
  }
  settle_rank(input, plan.num_blocks, plan.rank);
  plan.cache_bytes = (CheckedBytes(plan.bytes_per_block) * plan.num_blocks).value();
  plan.cache_bytes_all_ranks = (all_ranks_block * plan.num_blocks).value();
  settle_lengths(input, plan);
  return plan;
}

[[nodiscard]] inline PlanProblem problem_of(CapacityPlan const& plan) noexcept {
  if (plan.num_blocks == 0) return PlanProblem::no_memory;
  if (plan.blocks_per_sequence > plan.num_blocks) return PlanProblem::sequence_too_long;
  return PlanProblem::none;
}

[[nodiscard]] inline bool fits(CapacityInput const& input) {
  return problem_of(size_cache(input)) == PlanProblem::none;
}

/// The least value of `low .. high` for which `works` holds, if it holds for `high`. Requires that
/// it holds for all values above one for which it does.
template <class Works>
[[nodiscard]] std::optional<std::int64_t> least_that(std::int64_t low, std::int64_t high,
                                                     Works const& works) {
  if (!works(high)) return std::nullopt;
  while (low < high) {
    auto const middle = low + (high - low) / 2;
    if (works(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

[[nodiscard]] inline std::optional<double> find_utilization(CapacityInput input) {
  auto const value = [](std::int64_t step) {
    return static_cast<double>(step) / static_cast<double>(utilization_steps);
  };
  auto const step = least_that(1, utilization_steps, [&](std::int64_t candidate) {
    input.utilization = value(candidate);
    return fits(input);
  });
  return step ? std::optional(value(*step)) : std::nullopt;
}

[[nodiscard]] inline std::optional<std::int64_t> find_weight_bytes(CapacityInput input) {
  auto const given = input.weight_bytes;
  auto const less = least_that(0, given, [&](std::int64_t candidate) {
    input.weight_bytes = given - candidate;
    return fits(input);
  });
  return less ? std::optional(given - *less) : std::nullopt;
}

[[nodiscard]] inline std::optional<std::int32_t> find_tensor_parallel(CapacityInput input) {
  auto const given = input.parallel.tensor;
  auto const works = [&](std::int32_t tensor) {
    input.parallel.tensor = tensor;
    return can_shard(input.geometry.num_kv_heads, tensor) && fits(input);
  };
  // More ranks never hold less, so the most of them tell whether the walk has an end.
  auto most = std::max(given, max_proposed_tensor_parallel);
  while (!can_shard(input.geometry.num_kv_heads, most)) --most;
  if (!works(most)) return std::nullopt;
  for (auto tensor = given + 1; tensor < most; ++tensor) {
    if (works(tensor)) return tensor;
  }
  return most;
}

[[nodiscard]] inline std::optional<KvFormat> find_kv_format(CapacityInput input) {
  auto const before = input.geometry.bytes_per_block();
  for (auto const format : formats_to_try(input.capability)) {
    input.geometry.format = format;
    if (input.geometry.bytes_per_block() < before && fits(input)) return format;
  }
  return std::nullopt;
}

/// What one rank must be given so that every rank has so many blocks.
[[nodiscard]] inline std::int64_t cache_bytes_for(CapacityInput const& input, std::int32_t blocks) {
  std::int64_t largest = 0;
  for (std::int32_t stage = 0; stage < input.parallel.pipeline; ++stage) {
    largest = std::max(largest, size_rank(input, stage).bytes_per_block);
  }
  return (CheckedBytes(blocks) * largest).value();
}

[[nodiscard]] inline PlanHints find_hints(CapacityInput const& input, CapacityPlan const& plan,
                                          PlanProblem problem) {
  PlanHints hints;
  auto const blocks = std::max(plan.blocks_per_sequence, 1);
  bool const too_long = problem == PlanProblem::sequence_too_long;
  if (too_long) hints.max_model_len = longest_sequence(plan.num_blocks, plan.block_tokens);
  if (plan.sized_by == SizedBy::num_blocks) {
    hints.num_blocks = blocks;
    return hints;
  }
  if (plan.sized_by == SizedBy::cache_bytes) {
    hints.cache_bytes = cache_bytes_for(input, blocks);
  } else {
    hints.utilization = find_utilization(input);
    hints.weight_bytes = find_weight_bytes(input);
  }
  hints.tensor_parallel = find_tensor_parallel(input);
  hints.kv_format = find_kv_format(input);
  return hints;
}

[[nodiscard]] inline std::string bytes_problem(char const* name, std::int64_t bytes) {
  if (bytes >= 0 && bytes <= max_bytes) return {};
  return std::string(name) + " is " + std::to_string(bytes) + "; it must be from 0 to 2^60";
}

[[nodiscard]] inline std::string count_problem(char const* name, std::int32_t count) {
  if (count >= 0) return {};
  return std::string(name) + " is " + std::to_string(count) + "; it must be at least 1, or 0 for " +
         (std::string(name) == "max_model_len" ? "the largest that fits" : "no bound");
}

[[nodiscard]] inline std::string sizing_problem(CapacityInput const& input) {
  if (!(input.utilization > 0 && input.utilization <= 1)) {
    return "utilization is " + std::to_string(input.utilization) +
           "; it must be above 0 and at most 1";
  }
  if (input.num_blocks && *input.num_blocks < 1) {
    return "num_blocks is " + std::to_string(*input.num_blocks) + "; it must be at least 1";
  }
  if (sized_by(input) == SizedBy::utilization && input.device_bytes == 0) {
    return "device_bytes is 0; give it, or cache_bytes, or num_blocks";
  }
  return {};
}

/// All the ranks' blocks together must stay countable.
[[nodiscard]] inline std::string total_problem(CapacityInput const& input) {
  auto const block = CheckedBytes(input.geometry.bytes_per_block()) *
                     kv_head_copies(input.geometry.num_kv_heads, input.parallel.tensor);
  auto total = block * std::int64_t{input.num_blocks.value_or(1)};
  if (sized_by(input) != SizedBy::num_blocks) {
    auto const rank = input.cache_bytes.value_or(input.device_bytes);
    total = CheckedBytes(rank) * std::int64_t{input.parallel.tensor} *
            std::int64_t{input.parallel.pipeline};
  }
  if (block.fits() && total.fits()) return {};
  return "the cache would have more than 2^60 bytes over all ranks";
}

/// The first thing in the input that can't be meant; empty if there is none.
[[nodiscard]] inline std::string input_problem(CapacityInput const& input) {
  if (auto problem = geometry_error(input.geometry); !problem.empty()) return problem;
  if (auto problem = parallel_error(input.geometry, input.parallel); !problem.empty()) {
    return problem;
  }
  for (auto const& [name, bytes] : {std::pair("device_bytes", input.device_bytes),
                                    std::pair("weight_bytes", input.weight_bytes),
                                    std::pair("activation_bytes", input.activation_bytes),
                                    std::pair("other_bytes", input.other_bytes),
                                    std::pair("cache_bytes", input.cache_bytes.value_or(0))}) {
    if (auto problem = bytes_problem(name, bytes); !problem.empty()) return problem;
  }
  if (auto problem = count_problem("max_model_len", input.max_model_len); !problem.empty()) {
    return problem;
  }
  if (auto problem = count_problem("model_max_len", input.model_max_len); !problem.empty()) {
    return problem;
  }
  if (auto problem = sizing_problem(input); !problem.empty()) return problem;
  return total_problem(input);
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

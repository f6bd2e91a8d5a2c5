// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a replay is told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <pagedkv/config.hpp>
#include <pagedkv/step/step_plan.hpp>

namespace replay {

/// How long a step takes on the simulated clock: a roofline of two slopes.
///
///     step = overhead + max(one pass over the weights, tokens / prefill rate)
///          + context tokens / context rate
///
/// tokens: all that the step computes, decodes and prompt parts. Context tokens: those that its
/// sequences attend to, which are read from the pool once. The quadratic part of a long prompt's
/// attention isn't modelled. The defaults are about a 70B model in 16 bit on four A100 80 GB at
/// half of peak arithmetic and 60 % of peak bandwidth.
struct CostModel {
  double prefill_tokens_per_second = 4400;  ///< 4 x 312 TFLOP/s x 0.5 / (2 x 70.6e9)
  double decode_tokens_per_second = 34;     ///< of one sequence: 4 x 2.0 TB/s x 0.6 / 141 GB
  double context_tokens_per_second = 15e6;  ///< 4 x 2.0 TB/s x 0.6 / 327,680 B; 0: costs nothing
  double step_overhead_seconds = 0.002;

  [[nodiscard]] double step_seconds(std::int64_t tokens, std::int64_t context_tokens) const {
    double const compute = static_cast<double>(tokens) / prefill_tokens_per_second;
    double const read = context_tokens_per_second > 0
                            ? static_cast<double>(context_tokens) / context_tokens_per_second
                            : 0.0;
    return step_overhead_seconds + std::max(1 / decode_tokens_per_second, compute) + read;
  }
};

struct ReplayOptions {
  std::int32_t block_tokens = 16;
  std::int32_t num_blocks = 0;
  bool partial_hits = false;
  pagedkv::Reclaim reclaim = pagedkv::Reclaim::stream_ordered;
  pagedkv::Twins twins = pagedkv::Twins::keep;
  /// Longest prompt with its output, in tokens; what is longer is rejected. Each sequence would
  /// reserve as much without paging. 0: the longest accepted request.
  std::int32_t max_model_len = 0;

  // Of the full replay.
  pagedkv::PlannerLimits limits;
  CostModel cost;
  double time_scale = 1;  ///< arrival times are multiplied by it
};

}  // namespace replay

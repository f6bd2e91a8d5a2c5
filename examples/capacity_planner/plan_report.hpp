// SPDX-License-Identifier: Apache-2.0
/// \file
/// A capacity plan for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <pagedkv/model/capacity_plan.hpp>

#include "support/plan_options.hpp"

namespace planner {

/// How much fits with one format; max_model_len plays no part.
struct FormatRow {
  pagedkv::LayerFormat format;
  bool chosen = false;                     ///< it is the one the options ask for
  pagedkv::BytesPerToken bytes_per_token;  ///< whole model
  std::int32_t num_blocks = 0;
  std::int64_t total_tokens = 0;
  std::int64_t rank_cache_bytes = 0;
  std::vector<double> concurrency;  ///< one a context length
};

struct Report {
  programs::PlanOptions options;
  pagedkv::CapacityInput input;
  pagedkv::PlanOutcome outcome;
  std::vector<std::int32_t> context_lengths;
  std::vector<FormatRow> rows;
};

/// Plans, and sizes every format. No lengths: some that suit the model.
[[nodiscard]] Report make_report(programs::PlanOptions const& options,
                                 pagedkv::CapacityInput const& input,
                                 std::vector<std::int32_t> context_lengths);

/// The plan, the table and the advice; without a plan only the last two. Ends with a newline.
[[nodiscard]] std::string to_text(Report const& report);

/// One object with every term. "problem" is "none" on success; bytes are integers.
[[nodiscard]] nlohmann::ordered_json to_json(Report const& report);

}  // namespace planner

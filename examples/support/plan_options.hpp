// SPDX-License-Identifier: Apache-2.0
/// \file
/// The command-line options that describe a deployment, the same in every program that sizes one.
///
///     programs::PlanOptions options;
///     programs::add_plan_options(app, options);   // CLI::App
///     CLI11_PARSE(app, argc, argv);
///     auto const outcome = pagedkv::try_capacity_plan(programs::capacity_input(options));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <pagedkv/model/capacity_plan.hpp>

#include "support/presets.hpp"

namespace programs {

/// As given; what is missing comes from the presets when `capacity_input` puts it together.
struct PlanOptions {
  std::string model;
  std::optional<std::int32_t> num_layers;
  std::optional<std::int32_t> num_kv_heads;
  std::optional<std::int32_t> head_dim;
  std::optional<std::int32_t> v_head_dim;
  std::optional<std::int64_t> num_params;

  std::string device;
  std::optional<std::int64_t> device_bytes;
  std::int32_t tensor_parallel = 1;
  std::int32_t pipeline_parallel = 1;
  double utilization = pagedkv::CapacityInput{}.utilization;

  std::string kv_format = "f16";
  std::string v_format;     ///< empty: as K
  std::string granularity;  ///< empty: as kv_format says
  std::vector<std::string> layer_formats;

  std::optional<std::int32_t> weight_bits;
  std::optional<std::int64_t> weight_bytes;
  std::optional<std::int64_t> rank_weight_bytes;
  std::optional<std::int64_t> activation_bytes;
  std::optional<std::int64_t> other_bytes;

  std::int32_t max_model_len = pagedkv::auto_max_model_len;
  std::optional<std::int32_t> block_tokens;
  std::optional<std::int32_t> num_blocks;
  std::optional<std::int64_t> cache_bytes;

  /// Whether a model is described, by name or by its numbers.
  [[nodiscard]] bool describes_model() const { return !model.empty() || num_layers.has_value(); }
};

/// Adds --model, --device, --tensor-parallel, --pipeline-parallel, --kv-format, --granularity,
/// --utilization, --weights-bytes, --max-model-len, --block-tokens, --blocks, --cache-bytes and the
/// rest, in groups. A value that can't be meant fails the parse and names the nearest valid one.
void add_plan_options(CLI::App& app, PlanOptions& options);

/// The preset of this name, or null.
[[nodiscard]] ModelPreset const* find_model(std::string_view name);
[[nodiscard]] DevicePreset const* find_device(std::string_view name);

/// What the options describe. `default_block_tokens` counts where --block-tokens isn't given.
/// Throws CLI::ValidationError when they contradict each other or describe no model.
[[nodiscard]] pagedkv::CapacityInput capacity_input(PlanOptions const& options,
                                                    std::int32_t default_block_tokens = 16);

/// "1536", "1.5 GiB", "80GB": bytes. Throws CLI::ValidationError.
[[nodiscard]] std::int64_t parse_bytes(std::string const& text);

/// "8030261248", "8.03e9", "8.03B": weights. Throws CLI::ValidationError.
[[nodiscard]] std::int64_t parse_count(std::string const& text);

}  // namespace programs

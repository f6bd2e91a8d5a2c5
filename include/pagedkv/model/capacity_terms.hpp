// SPDX-License-Identifier: Apache-2.0
/// \file
/// What goes into a capacity plan and what comes out. capacity_plan.hpp turns one into the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/model/recommend_format.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// What `weight_bytes` counts.
enum class WeightScope : std::uint8_t {
  whole_model,  ///< shared out by layers over the stages, then evenly over the tensor ranks
  per_rank,     ///< what one rank holds, whatever the parallelism
};

/// What decided the number of blocks.
enum class SizedBy : std::uint8_t { utilization, cache_bytes, num_blocks };

/// max_model_len = this: the largest that fits.
inline constexpr std::int32_t auto_max_model_len = 0;

/// All bytes are of one device (rank) unless said otherwise; every rank has the same device.
struct CapacityInput {
  Geometry geometry{};
  Parallel parallel{};

  std::int64_t device_bytes = 0;
  double utilization = 0.92;  ///< in (0, 1]: what this engine may use of the device
  std::int64_t weight_bytes = 0;
  WeightScope weight_scope = WeightScope::whole_model;
  std::int64_t activation_bytes = 0;  ///< peak of a step, measured at the largest batch
  std::int64_t other_bytes = 0;       ///< contexts, captured graphs, other processes

  /// Bytes of the blocks of a rank; then the terms above decide nothing.
  std::optional<std::int64_t> cache_bytes{};
  /// Overrides both; the checks use it too.
  std::optional<std::int32_t> num_blocks{};

  std::int32_t max_model_len = auto_max_model_len;  ///< tokens of one sequence, prompt and output
  std::int32_t model_max_len = 0;  ///< positions the model knows; bounds `auto`; 0: no bound

  /// Lets a failure name a format that the device converts well.
  std::optional<ComputeCapability> capability{};
};

/// The rank with the fewest blocks (of equal ones the first stage's). Bytes.
struct RankPlan {
  std::int32_t stage = 0;
  LayerRange layers;
  std::int32_t kv_heads = 0;

  std::int64_t usable_bytes = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t other_bytes = 0;
  std::int64_t static_scale_bytes = 0;
  std::int64_t available_bytes = 0;  ///< for the blocks; may be negative in a failed plan

  std::int64_t bytes_per_block = 0;
  BytesPerToken bytes_per_token;
  std::int64_t cache_bytes = 0;   ///< num_blocks * bytes_per_block
  std::int64_t unused_bytes = 0;  ///< available, and too few for a block on some rank
  /// What the cache and the other terms need beyond the device; only `cache_bytes` and `num_blocks`
  /// can ask for that, and only if device_bytes is given.
  std::int64_t beyond_device_bytes = 0;
};

struct CapacityPlan {
  SizedBy sized_by = SizedBy::utilization;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
  std::int32_t max_model_len = 0;        ///< as given, or what `auto` became
  std::int32_t blocks_per_sequence = 0;  ///< of max_model_len tokens

  std::int64_t total_tokens = 0;          ///< num_blocks * block_tokens
  std::int32_t sequences_at_max_len = 0;  ///< whole ones
  double concurrency = 0;                 ///< num_blocks / blocks_per_sequence

  RankPlan rank;
  std::int32_t num_ranks = 1;
  std::int32_t kv_head_copies = 1;  ///< tensor ranks that hold the same head

  std::int64_t bytes_per_block = 0;        ///< whole model, one copy of each head
  BytesPerToken bytes_per_token;           ///< whole model, one copy of each head
  std::int64_t cache_bytes = 0;            ///< whole model, one copy of each head
  std::int64_t cache_bytes_all_ranks = 0;  ///< with every copy: what the ranks hold in all

  std::int32_t tail_tokens_at_max_len = 0;  ///< slots behind a sequence of max_model_len
  double tail_tokens_mean = 0;              ///< (block_tokens - 1) / 2: any length as likely
  double tail_bytes_mean = 0;               ///< of it, whole model, one copy
};

enum class PlanProblem : std::uint8_t {
  none,
  invalid_input,      ///< a number that can't be meant; the message names it
  no_memory,          ///< not one block
  sequence_too_long,  ///< some blocks, but one sequence of max_model_len needs more
};

/// Changes each of which alone, all else as given, yields a plan. Empty: none does, or it isn't
/// looked for with this problem or this way of sizing. Each is the nearest that works: one step
/// back doesn't.
struct PlanHints {
  std::optional<double> utilization;            ///< in steps of 0.000001, up to 1
  std::optional<std::int64_t> weight_bytes;     ///< in the scope that was given
  std::optional<std::int32_t> tensor_parallel;  ///< of those the heads allow, up to 1024
  std::optional<std::int32_t> max_model_len;
  std::optional<KvFormat> kv_format;  ///< of all layers without override; from `formats_to_try`
  std::optional<std::int64_t> cache_bytes;
  std::optional<std::int32_t> num_blocks;
};

/// A plan, or why there is none. After `no_memory` and `sequence_too_long` the terms of `plan` are
/// filled in too.
struct [[nodiscard]] PlanOutcome {
  CapacityPlan plan;
  PlanProblem problem = PlanProblem::none;
  std::string message;  ///< several lines, no newline at the end; empty on success
  PlanHints hints;

  [[nodiscard]] explicit operator bool() const noexcept { return problem == PlanProblem::none; }
};

/// The largest tensor_parallel that a failure proposes.
inline constexpr std::int32_t max_proposed_tensor_parallel = 1024;

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "plan_report.hpp"

namespace planner {
namespace {

namespace kv = pagedkv;

char const* problem_name(kv::PlanProblem problem) {
  switch (problem) {
    case kv::PlanProblem::none: return "none";
    case kv::PlanProblem::invalid_input: return "invalid_input";
    case kv::PlanProblem::no_memory: return "no_memory";
    case kv::PlanProblem::sequence_too_long: return "sequence_too_long";
  }
  return "unknown";
}

char const* sized_by_name(kv::SizedBy sized_by) {
  switch (sized_by) {
    case kv::SizedBy::utilization: return "utilization";
    case kv::SizedBy::cache_bytes: return "cache_bytes";
    case kv::SizedBy::num_blocks: return "num_blocks";
  }
  return "unknown";
}

nlohmann::ordered_json hints_json(kv::PlanHints const& hints) {
  auto json = nlohmann::ordered_json::object();
  auto const put = [&json](char const* name, auto const& value) {
    json[name] = nullptr;
    if (value) json[name] = *value;
  };
  put("utilization", hints.utilization);
  put("weight_bytes", hints.weight_bytes);
  put("tensor_parallel", hints.tensor_parallel);
  put("max_model_len", hints.max_model_len);
  put("kv_format", hints.kv_format ? std::optional(kv::to_string(*hints.kv_format)) : std::nullopt);
  put("cache_bytes", hints.cache_bytes);
  put("num_blocks", hints.num_blocks);
  return json;
}

/// An integer where it is one.
nlohmann::ordered_json ratio_json(kv::BytesPerToken bytes) {
  if (bytes.tokens == 1) return bytes.bytes;
  return bytes.value();
}

nlohmann::ordered_json input_json(Report const& report) {
  auto const& input = report.input;
  auto const& geometry = input.geometry;
  nlohmann::ordered_json json;
  json["model"] = report.options.model;
  json["device"] = report.options.device;
  json["num_layers"] = geometry.num_layers;
  json["num_kv_heads"] = geometry.num_kv_heads;
  json["head_dim_k"] = geometry.head_dim_k;
  json["head_dim_v"] = geometry.head_dim_v;
  json["block_tokens"] = geometry.block_tokens;
  json["kv_format"] = kv::to_string(geometry.format.k);
  json["v_format"] = kv::to_string(geometry.format.v);
  json["layer_formats"] = report.options.layer_formats;
  json["tensor_parallel"] = input.parallel.tensor;
  json["pipeline_parallel"] = input.parallel.pipeline;
  json["device_bytes"] = input.device_bytes;
  json["utilization"] = input.utilization;
  json["weight_bytes"] = input.weight_bytes;
  json["weight_scope"] =
      input.weight_scope == kv::WeightScope::whole_model ? "whole_model" : "per_rank";
  json["activation_bytes"] = input.activation_bytes;
  json["other_bytes"] = input.other_bytes;
  json["model_max_len"] = input.model_max_len;
  return json;
}

nlohmann::ordered_json rank_json(kv::RankPlan const& rank) {
  nlohmann::ordered_json json;
  json["stage"] = rank.stage;
  json["first_layer"] = rank.layers.first;
  json["num_layers"] = rank.layers.count;
  json["num_kv_heads"] = rank.kv_heads;
  json["usable_bytes"] = rank.usable_bytes;
  json["weight_bytes"] = rank.weight_bytes;
  json["activation_bytes"] = rank.activation_bytes;
  json["other_bytes"] = rank.other_bytes;
  json["static_scale_bytes"] = rank.static_scale_bytes;
  json["available_bytes"] = rank.available_bytes;
  json["bytes_per_block"] = rank.bytes_per_block;
  json["bytes_per_token"] = ratio_json(rank.bytes_per_token);
  json["cache_bytes"] = rank.cache_bytes;
  json["unused_bytes"] = rank.unused_bytes;
  json["beyond_device_bytes"] = rank.beyond_device_bytes;
  return json;
}

void put_plan(nlohmann::ordered_json& json, kv::CapacityPlan const& plan) {
  json["sized_by"] = sized_by_name(plan.sized_by);
  json["num_blocks"] = plan.num_blocks;
  json["total_tokens"] = plan.total_tokens;
  json["max_model_len"] = plan.max_model_len;
  json["blocks_per_sequence"] = plan.blocks_per_sequence;
  json["sequences_at_max_len"] = plan.sequences_at_max_len;
  json["concurrency"] = plan.concurrency;
  json["num_ranks"] = plan.num_ranks;
  json["kv_head_copies"] = plan.kv_head_copies;
  json["bytes_per_token"] = ratio_json(plan.bytes_per_token);
  json["bytes_per_block"] = plan.bytes_per_block;
  json["cache_bytes"] = plan.cache_bytes;
  json["cache_bytes_all_ranks"] = plan.cache_bytes_all_ranks;
  json["tail_tokens_at_max_len"] = plan.tail_tokens_at_max_len;
  json["tail_tokens_mean"] = plan.tail_tokens_mean;
  json["tail_bytes_mean"] = plan.tail_bytes_mean;
  json["rank"] = rank_json(plan.rank);
}

nlohmann::ordered_json table_json(Report const& report) {
  auto table = nlohmann::ordered_json::array();
  for (auto const& row : report.rows) {
    nlohmann::ordered_json json;
    json["kv_format"] = kv::to_string(row.format.k);
    json["v_format"] = kv::to_string(row.format.v);
    json["bytes_per_token"] = ratio_json(row.bytes_per_token);
    json["num_blocks"] = row.num_blocks;
    json["total_tokens"] = row.total_tokens;
    json["rank_cache_bytes"] = row.rank_cache_bytes;
    json["concurrency"] = row.concurrency;
    table.push_back(std::move(json));
  }
  return table;
}

}  // namespace

nlohmann::ordered_json to_json(Report const& report) {
  auto const& outcome = report.outcome;
  auto json = input_json(report);
  json["problem"] = problem_name(outcome.problem);
  json["error"] = nullptr;
  if (!outcome) json["error"] = outcome.message;
  json["would_work"] = outcome ? nlohmann::ordered_json(nullptr) : hints_json(outcome.hints);
  if (outcome.problem != kv::PlanProblem::invalid_input) put_plan(json, outcome.plan);
  json["recommended_format"] = nullptr;
  if (report.input.capability) {
    auto const advice = kv::recommend_format(*report.input.capability);
    json["recommended_format"] = {{"kv_format", kv::to_string(advice.format)},
                                  {"reason", advice.reason}};
  }
  json["context_lengths"] = report.context_lengths;
  json["formats"] = table_json(report);
  return json;
}

}  // namespace planner

// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace replay {

namespace {

using Json = nlohmann::ordered_json;

Json or_null(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

void put_latency(Json& json, std::string const& name,
                 std::optional<Report::Latency> const& latency) {
  json[name + "_p50"] = latency ? Json(latency->p50) : Json(nullptr);
  json[name + "_p99"] = latency ? Json(latency->p99) : Json(nullptr);
  json[name + "_max"] = latency ? Json(latency->max) : Json(nullptr);
}

}  // namespace

std::string to_json(Report const& r) {
  Json json;
  json["trace"] = r.trace;
  json["format"] = r.format;
  json["mode"] = r.prefix_only ? "prefix-only" : "full";
  json["block_tokens"] = r.block_tokens;
  json["num_blocks"] = r.num_blocks;
  json["partial_hits"] = r.partial_hits;
  json["chunked_prefill"] = r.chunked_prefill;
  json["reclaim"] = r.reclaim;
  json["twins"] = r.twins;
  for (auto const& [name, value] : r.settings) json["settings"][name] = value;
  json["requests"] = r.requests;
  json["rejected"] = r.rejected;
  json["cancelled"] = r.cancelled;
  json["finished"] = r.finished;
  json["sharing_known"] = r.knows_sharing;
  json["prompt_blocks"] = r.prompt_blocks;
  json["accepted_prompt_blocks"] = r.accepted_prompt_blocks;
  json["hit_blocks"] = r.hit_blocks;
  json["prompt_tokens"] = r.prompt_tokens;
  json["hit_tokens"] = r.hit_tokens;
  json["resumed_query_tokens"] = r.resumed_query_tokens;
  json["resumed_hit_tokens"] = r.resumed_hit_tokens;
  json["generated_tokens"] = r.generated_tokens;
  json["evicted_blocks"] = r.evicted_blocks;
  json["resident_blocks"] = r.resident_blocks;
  json["published_blocks"] = r.published_blocks;
  json["twin_blocks"] = r.twin_blocks;
  json["moved_blocks"] = r.moved_blocks;
  json["preemptions"] = r.preemptions;
  json["copies"] = r.copies;
  json["plan_misses"] = r.plan_misses;
  for (auto const& [name, count] : r.hit_ends) json["hit_ends"][name] = count;
  json["peak_usage"] = r.peak_usage;
  json["mean_usage"] = r.mean_usage;
  json["internal_fragmentation"] = r.internal_fragmentation;
  json["usable_utilization"] = or_null(r.usable_utilization);
  json["pressure_share"] = or_null(r.pressure_share);
  json["peak_sequences"] = r.peak_sequences;
  json["mean_sequences"] = r.mean_sequences;
  json["contiguous_tokens"] = r.contiguous_tokens;
  json["contiguous_peak_sequences"] = r.contiguous_peak_sequences;
  json["contiguous_waste"] = r.contiguous_waste;
  put_latency(json, "ttft_ms", r.ttft_ms);
  put_latency(json, "itl_ms", r.itl_ms);
  json["simulated_seconds"] = r.simulated_seconds;
  json["trace_seconds"] = r.trace_seconds;
  json["steps"] = r.steps;
  json["step_ns_p50"] = r.step_ns_p50;
  json["step_ns_p99"] = r.step_ns_p99;
  json["step_ns_max"] = r.step_ns_max;
  json["wall_seconds"] = r.wall_seconds;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace replay

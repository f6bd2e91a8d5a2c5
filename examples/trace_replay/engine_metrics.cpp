// SPDX-License-Identifier: Apache-2.0
#include "engine_metrics.hpp"

#include <algorithm>

#include "percentile.hpp"

namespace replay {

void EngineMetrics::held(double begin, double end, Moment const& moment, bool pressure) {
  double const seconds = end - begin;
  timeline_.span(begin, end, moment);
  total_.add(moment, seconds);
  peak_used_ = std::max(peak_used_, moment.used);
  peak_running_ = std::max(peak_running_, moment.running);
  if (!pressure) return;
  pressure_seconds_ += seconds;
  // Shared blocks count once; what is empty in them lies in tails, which have one owner.
  pressure_filled_slots_ += seconds * (moment.used * options_.block_tokens - moment.wasted_slots);
}

void EngineMetrics::admitted(double at, std::int32_t prompt_tokens, std::int32_t cached_tokens) {
  timeline_.admitted(at, prompt_tokens, cached_tokens);
}

void EngineMetrics::first_token(double seconds) { ttft_.push_back(static_cast<float>(seconds)); }

void EngineMetrics::next_token(double seconds) { itl_.push_back(static_cast<float>(seconds)); }

void EngineMetrics::accepted(std::int32_t all_tokens) { longest_ = std::max(longest_, all_tokens); }

Report::Latency EngineMetrics::latency(std::vector<float>& seconds) {
  auto const ms = [&](double q) { return 1e3 * double{percentile(seconds, q)}; };
  return {ms(0.5), ms(0.99), ms(1.0)};
}

void EngineMetrics::put_into(double end, Report& report) {
  double const slots = static_cast<double>(options_.num_blocks) * options_.block_tokens;
  report.simulated_seconds = end;
  report.timeline = std::move(timeline_);
  report.peak_usage = peak_used_ / options_.num_blocks;
  report.peak_sequences = static_cast<std::int64_t>(peak_running_);
  if (end > 0) {
    report.mean_usage = total_.used / end / options_.num_blocks;
    report.mean_sequences = total_.running / end;
  }
  if (total_.owned_slots > 0) {
    report.internal_fragmentation = total_.wasted_slots / total_.owned_slots;
  }
  if (end > 0) report.pressure_share = pressure_seconds_ / end;
  if (pressure_seconds_ > 0) {
    report.usable_utilization = pressure_filled_slots_ / pressure_seconds_ / slots;
  }
  if (!ttft_.empty()) report.ttft_ms = latency(ttft_);
  if (!itl_.empty()) report.itl_ms = latency(itl_);
  double const tokens_per_sequence = total_.running > 0 ? total_.held_tokens / total_.running : 0.0;
  put_contiguous(options_, longest_, tokens_per_sequence, report);
}

}  // namespace replay

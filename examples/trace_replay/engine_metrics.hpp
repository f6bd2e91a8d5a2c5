// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <pagedkv/manage/stats.hpp>
#include <vector>

#include "replay.hpp"

namespace replay {

/// What a full replay adds up while its clock runs. Seconds are simulated.
class EngineMetrics {
 public:
  explicit EngineMetrics(ReplayOptions const& options) : options_(options) {}

  /// Things stood so from `begin` to `end`. Under pressure: a request waited for blocks.
  void held(double begin, double end, Moment const& moment, bool pressure);
  void admitted(double at, std::int32_t prompt_tokens, std::int32_t cached_tokens);
  void first_token(double seconds_since_arrival);
  void next_token(double seconds_since_last);
  void accepted(std::int32_t all_tokens);

  void put_into(double end, Report& report);

 private:
  static Report::Latency latency(std::vector<float>& seconds);

  ReplayOptions const& options_;
  Timeline timeline_;
  Moment total_;  // weighted by seconds
  double pressure_seconds_ = 0;
  double pressure_filled_slots_ = 0;  // weighted by seconds
  double peak_used_ = 0;
  double peak_running_ = 0;
  std::int32_t longest_ = 0;
  std::vector<float> ttft_;
  std::vector<float> itl_;
};

}  // namespace replay

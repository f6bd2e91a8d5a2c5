// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "percentile.hpp"
#include "report.hpp"

namespace replay {

/// Adds up the host time of the manager's calls in a step, and keeps each step's sum.
class StepWatch {
 public:
  void start() { begin_ = Clock::now(); }
  void stop() { step_ += Clock::now() - begin_; }
  void end_step() {
    steps_.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(step_).count());
    step_ = {};
  }

  /// Fills in the report's step numbers.
  void put_into(Report& report) {
    report.steps = static_cast<std::int64_t>(steps_.size());
    report.step_ns_p50 = percentile(steps_, 0.5);
    report.step_ns_p99 = percentile(steps_, 0.99);
    report.step_ns_max = percentile(steps_, 1.0);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_;
  Clock::duration step_{};
  std::vector<std::int64_t> steps_;
};

}  // namespace replay

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What was seen over time, in at most `max_bins` bins of equal width whatever the run's length:
/// when time runs out of the last bin, neighbours are joined and the width doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace replay {

/// How things stood during a step. Blocks, slots, sequences, tokens.
struct Moment {
  double used = 0;          ///< blocks
  double idle = 0;          ///< blocks
  double owned_slots = 0;   ///< of all block tables
  double wasted_slots = 0;  ///< owned slots that hold no position
  double running = 0;
  double waiting = 0;
  double held_tokens = 0;  ///< positions of all running sequences

  /// Adds `weight` times `other`.
  void add(Moment const& other, double weight);
};

struct Bin {
  double weight = 0;  ///< seconds, or requests; `sum` is weighted by it
  Moment sum;
  double peak_used = 0;
  double query_tokens = 0;  ///< of requests admitted in this bin
  double hit_tokens = 0;

  void join(Bin const& next);
};

class Timeline {
 public:
  static constexpr std::size_t max_bins = 512;

  explicit Timeline(double first_width_seconds = 0.05) : width_(first_width_seconds) {}

  /// `moment` held from `begin` to `end` (seconds). Requires: begin <= end, and no time before 0.
  void span(double begin, double end, Moment const& moment);
  /// `moment` stood at `at`; each call weighs 1. Use one of both, not both.
  void point(double at, Moment const& moment);
  void admitted(double at, double query_tokens, double hit_tokens);

  [[nodiscard]] double width() const noexcept { return width_; }
  [[nodiscard]] std::vector<Bin> const& bins() const noexcept { return bins_; }

 private:
  Bin& bin_at(double at);
  static void put(Bin& bin, double weight, Moment const& moment);

  double width_;
  std::vector<Bin> bins_;
};

}  // namespace replay

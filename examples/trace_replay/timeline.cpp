// SPDX-License-Identifier: Apache-2.0
#include "timeline.hpp"

#include <algorithm>
#include <cmath>

namespace replay {

void Moment::add(Moment const& other, double weight) {
  used += weight * other.used;
  idle += weight * other.idle;
  owned_slots += weight * other.owned_slots;
  wasted_slots += weight * other.wasted_slots;
  running += weight * other.running;
  waiting += weight * other.waiting;
  held_tokens += weight * other.held_tokens;
}

void Bin::join(Bin const& next) {
  weight += next.weight;
  sum.add(next.sum, 1);
  peak_used = std::max(peak_used, next.peak_used);
  query_tokens += next.query_tokens;
  hit_tokens += next.hit_tokens;
}

Bin& Timeline::bin_at(double at) {
  while (at >= width_ * static_cast<double>(max_bins)) {
    std::size_t const joined = (bins_.size() + 1) / 2;
    for (std::size_t i = 0; i < joined; ++i) {
      Bin bin = bins_[2 * i];
      if (2 * i + 1 < bins_.size()) bin.join(bins_[2 * i + 1]);
      bins_[i] = bin;
    }
    bins_.resize(joined);
    width_ *= 2;
  }
  auto const index = std::min(static_cast<std::size_t>(at / width_), max_bins - 1);
  if (index >= bins_.size()) bins_.resize(index + 1);
  return bins_[index];
}

void Timeline::put(Bin& bin, double weight, Moment const& moment) {
  bin.weight += weight;
  bin.sum.add(moment, weight);
  bin.peak_used = std::max(bin.peak_used, moment.used);
}

void Timeline::span(double begin, double end, Moment const& moment) {
  bin_at(end);  // widens the bins first, so that the loop below is short
  auto const last = static_cast<std::size_t>(end / width_);
  for (auto i = static_cast<std::size_t>(begin / width_); i <= last; ++i) {
    double const from = std::max(begin, static_cast<double>(i) * width_);
    double const to = std::min(end, static_cast<double>(i + 1) * width_);
    if (to > from) put(bin_at(from), to - from, moment);
  }
}

void Timeline::point(double at, Moment const& moment) { put(bin_at(at), 1, moment); }

void Timeline::admitted(double at, double query_tokens, double hit_tokens) {
  Bin& bin = bin_at(at);
  bin.query_tokens += query_tokens;
  bin.hit_tokens += hit_tokens;
}

}  // namespace replay

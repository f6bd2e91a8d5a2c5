// SPDX-License-Identifier: Apache-2.0
/// \file
/// Static scales from what a model really produces: feed K and V of a few thousand tokens, take the
/// `ScaleSet`.
///
///     CalibrationObserver observer(geometry, {.format = {Element::fp8_e4m3,
///     Granularity::per_head}}); for each step and layer: observer.observe_k(layer, k);
///     observer.observe_v(layer, v); ScaleSet const scales = observer.scales();
///
/// Three methods choose the largest magnitude that is still represented, the clip:
///  - `amax`: the largest seen. For fp8 the only one: its steps shrink with the numbers, so that
///    clipping gains nothing.
///  - `percentile`: a share of all numbers lies below it (int8).
///  - `mse`: it makes the mean squared error of rounding and clipping least (int8).
///
/// Infinities and NaN count for nothing. A head (or tensor) of which nothing but zeros, infinities
/// and NaN was seen has no scale: `scales()` raises, it never invents one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/error.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/quant/scale.hpp>
#include <pagedkv/quant/scale_set.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

enum class Calibration : std::uint8_t { amax, percentile, mse };

/// The enumerator's name.
[[nodiscard]] constexpr char const* to_string(Calibration method) noexcept {
  switch (method) {
    case Calibration::amax: return "amax";
    case Calibration::percentile: return "percentile";
    case Calibration::mse: return "mse";
  }
  return "unknown";
}

struct CalibrationOptions {
  KvFormat format{Element::fp8_e4m3, Granularity::per_tensor};
  Calibration method = Calibration::amax;
  double percentile = 99.99;  ///< of all magnitudes, for that method: above 0, at most 100
  std::string model{};        ///< written into the set
};

namespace detail {

/// Counts magnitudes in bins of 1/32 octave: small, exact in its total, and within 3 % everywhere.
class MagnitudeHistogram {
 public:
  /// `x`: finite.
  void add(float x) {
    float const magnitude = abs_of(x);
    amax_ = std::max(amax_, magnitude);
    ++total_;
    if (magnitude > 0.0F) ++bin(bits_of(magnitude) >> bits_below_bin);
  }

  [[nodiscard]] float amax() const noexcept { return amax_; }

  /// The upper end of the bin below which `percent` of all numbers lie, at most amax().
  [[nodiscard]] float percentile(double percent) const {
    double const wanted = static_cast<double>(total_) * percent / 100.0;
    std::uint64_t above = 0;
    for (std::size_t i = counts_.size(); i-- > 0;) {
      above += counts_[i];
      if (static_cast<double>(total_ - above) < wanted) return std::min(edge(i + 1), amax_);
    }
    return amax_;
  }

  /// Sum of the squared errors of codes 0 .. `codes` up to `clip`.
  [[nodiscard]] double squared_error(float clip, float codes) const {
    double const step = static_cast<double>(clip) / static_cast<double>(codes);
    double sum = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      double const x = (static_cast<double>(edge(i)) + static_cast<double>(edge(i + 1))) / 2;
      sum += static_cast<double>(counts_[i]) * error_of(x, static_cast<double>(clip), step);
    }
    return sum;
  }

 private:
  static constexpr int bits_below_bin = 18;  // of a float's 23 bits of mantissa

  [[nodiscard]] static double error_of(double x, double clip, double step) {
    if (x > clip) return (x - clip) * (x - clip);
    return x < step / 2 ? x * x : step * step / 12;  // rounding: uniform in -step/2 .. step/2
  }
  /// The lower end of counts_[i].
  [[nodiscard]] float edge(std::size_t i) const {
    auto const bits = (first_ + static_cast<std::uint32_t>(i)) << bits_below_bin;
    return bits < 0x7F80'0000U ? float_of(bits) : amax_;
  }
  std::uint64_t& bin(std::uint32_t index) {
    if (counts_.empty()) first_ = index;
    if (index < first_) {
      counts_.insert(counts_.begin(), first_ - index, 0);
      first_ = index;
    }
    if (index - first_ >= counts_.size()) counts_.resize(index - first_ + 1, 0);
    return counts_[index - first_];
  }

  std::vector<std::uint64_t> counts_;
  std::uint32_t first_ = 0;
  std::uint64_t total_ = 0;
  float amax_ = 0.0F;
};

}  // namespace detail

/// Not thread-safe. Memory: with `amax` a float for each layer, tensor and head; with the other
/// methods a histogram of a few KB.
class CalibrationObserver {
 public:
  /// Only layers, heads and head dims of `geometry` are read. Raises `Error` where the geometry,
  /// the format (static: per_tensor or per_head), the method (fp8: amax) or the percentile can't
  /// be.
  CalibrationObserver(Geometry const& geometry, CalibrationOptions options)
      : geometry_(geometry), options_(std::move(options)) {
    if (auto const problem = options_error(); !problem.empty()) {
      raise("CalibrationObserver: " + problem);
    }
    auto const layers = static_cast<std::size_t>(geometry_.num_layers);
    k_.resize(layers * groups());
    v_.resize(geometry_.head_dim_v > 0 ? layers * groups() : 0);
  }

  /// k: [num_tokens, num_kv_heads, head_dim_k], contiguous, any number of tokens. Raises if the
  /// length isn't a multiple of a token's, or there is no such layer. O(k.size()).
  void observe_k(std::int32_t layer, std::span<float const> k) {
    observe(k_, layer, k, geometry_.head_dim_k, "K");
    if (layer == 0) tokens_ += static_cast<std::int64_t>(k.size()) / row(geometry_.head_dim_k);
  }
  /// v: [num_tokens, num_kv_heads, head_dim_v], contiguous. Raises also if the model has no V.
  void observe_v(std::int32_t layer, std::span<float const> v) {
    observe(v_, layer, v, geometry_.head_dim_v, "V");
  }

  /// Raises `Error` naming layer, tensor and head of which too little was seen.
  [[nodiscard]] ScaleSet scales() const {
    ScaleSet set{options_.format, options_.model, made(), {}};
    auto const layers = static_cast<std::size_t>(geometry_.num_layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      set.layers.push_back({scales_of(k_, layer, "K"), scales_of(v_, layer, "V")});
    }
    return set;
  }

 private:
  [[nodiscard]] std::string options_error() const {
    if (auto problem = geometry_error(geometry_); !problem.empty()) return problem;
    auto const format = options_.format;
    if (auto problem = kv_format_error(format); !problem.empty()) return problem;
    if (!detail::is_static(format.granularity)) {
      return to_string(format) + " has no static scales; calibrate per_tensor or per_head";
    }
    if (format.element != Element::int8 && options_.method != Calibration::amax) {
      return std::string(to_string(options_.method)) + " is for int8; " +
             pagedkv::to_string(format.element) + " takes amax";
    }
    if (!(options_.percentile > 0.0 && options_.percentile <= 100.0)) {
      return "percentile is " + std::to_string(options_.percentile) +
             "; it must be above 0 and at most 100";
    }
    return {};
  }

  /// Scales of one tensor of a layer.
  [[nodiscard]] std::size_t groups() const {
    return options_.format.granularity == Granularity::per_head
               ? static_cast<std::size_t>(geometry_.num_kv_heads)
               : 1;
  }
  /// Numbers of a token.
  [[nodiscard]] std::int64_t row(std::int32_t dim) const {
    return std::int64_t{geometry_.num_kv_heads} * dim;
  }

  struct Seen {
    float amax = 0.0F;
    detail::MagnitudeHistogram histogram{};
  };

  void observe(std::vector<Seen>& seen, std::int32_t layer, std::span<float const> x,
               std::int32_t dim, char const* tensor) {
    check(layer, x.size(), dim, tensor);
    auto const heads = static_cast<std::size_t>(geometry_.num_kv_heads);
    auto const vector = static_cast<std::size_t>(dim);
    for (std::size_t first = 0; first < x.size(); first += vector) {
      auto const group = groups() == 1 ? 0 : first / vector % heads;
      auto& of = seen[static_cast<std::size_t>(layer) * groups() + group];
      for (float const number : x.subspan(first, vector)) add(of, number);
    }
  }
  void add(Seen& seen, float number) const {
    if (!detail::is_finite(number)) return;
    seen.amax = std::max(seen.amax, detail::abs_of(number));
    if (options_.method != Calibration::amax) seen.histogram.add(number);
  }
  void check(std::int32_t layer, std::size_t size, std::int32_t dim, char const* tensor) const {
    if (layer < 0 || layer >= geometry_.num_layers) {
      raise("CalibrationObserver: there is no layer " + std::to_string(layer) +
            "; the model has layers 0 to " + std::to_string(geometry_.num_layers - 1));
    }
    if (dim == 0) raise(std::string("CalibrationObserver: the model has no ") + tensor);
    if (static_cast<std::int64_t>(size) % row(dim) == 0) return;
    raise("CalibrationObserver: " + std::to_string(size) + " numbers of " + tensor +
          "; expected a multiple of " + std::to_string(row(dim)) + ", num_kv_heads * head_dim");
  }

  [[nodiscard]] std::vector<float> scales_of(std::vector<Seen> const& seen, std::size_t layer,
                                             char const* tensor) const {
    std::vector<float> scales;
    if (seen.empty()) return scales;
    for (std::size_t group = 0; group < groups(); ++group) {
      Scale const scale =
          dynamic_scale(options_.format.element, clip(seen[layer * groups() + group]));
      if (scale.value == 0.0F) {
        auto const head = groups() == 1 ? std::string() : ", head " + std::to_string(group);
        raise("CalibrationObserver: " + detail::layer_name(layer, tensor) + head +
              ": no number was observed that could give a scale (nothing, or zeros, infinities and "
              "NaN only)");
      }
      scales.push_back(scale.value);
    }
    return scales;
  }

  [[nodiscard]] float clip(Seen const& seen) const {
    switch (options_.method) {
      case Calibration::amax: return seen.amax;
      case Calibration::percentile: {
        float const value = seen.histogram.percentile(options_.percentile);
        return value > 0.0F ? value : seen.amax;
      }
      case Calibration::mse: return best_clip(seen);
    }
    return seen.amax;
  }
  /// The best of 100 clips from 1 % of the largest magnitude up to it.
  [[nodiscard]] float best_clip(Seen const& seen) const {
    float const codes = largest_code(options_.format.element);
    float best = seen.amax;
    double least = seen.histogram.squared_error(best, codes);
    for (int percent = 99; percent >= 1; --percent) {
      float const candidate = seen.amax * static_cast<float>(percent) / 100.0F;
      double const error = seen.histogram.squared_error(candidate, codes);
      if (error >= least) continue;
      least = error;
      best = candidate;
    }
    return best;
  }

  /// "amax of 4096 tokens", "percentile 99.99 of 4096 tokens"
  [[nodiscard]] std::string made() const {
    std::string text = to_string(options_.method);
    if (options_.method == Calibration::percentile) {
      auto number = std::to_string(options_.percentile);
      number.erase(number.find_last_not_of('0') + 1);
      if (number.back() == '.' || number.back() == ',') number.pop_back();
      text += " " + number;
    }
    return text + " of " + std::to_string(tokens_) + " tokens";
  }

  Geometry geometry_;
  CalibrationOptions options_;
  std::vector<Seen> k_;  // [layer, group]
  std::vector<Seen> v_;
  std::int64_t tokens_ = 0;
};

}  // namespace quant
PAGEDKV_NAMESPACE_END

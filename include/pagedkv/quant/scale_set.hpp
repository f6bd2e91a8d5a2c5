// SPDX-License-Identifier: Apache-2.0
/// \file
/// The static scales of a model: for each layer, for K and V apart, one (`per_tensor`) or one for
/// each KV head (`per_head`). Made by calibration.hpp, kept in files by scale_file.hpp.
///
/// All are `Scale`s: what stored numbers are multiplied by when they are read. A consumer that
/// multiplies when it stores takes `inverse(set.k(layer, head))`, or `inverses(...)` of many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/error.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/quant/scale.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

/// One layer's: 1 or num_kv_heads numbers each; empty where the layer has no such tensor, or stores
/// it without static scales.
struct LayerScales {
  std::vector<float> k;
  std::vector<float> v;

  friend bool operator==(LayerScales const&, LayerScales const&) = default;
};

struct ScaleSet {
  KvFormat format{Element::fp8_e4m3, Granularity::per_tensor};
  std::string model{};  ///< whose K and V; for people
  std::string made{};   ///< how, e.g. "amax of 4096 tokens"; for people
  std::vector<LayerScales> layers{};

  /// Requires: the layer has K scales. With `per_tensor` every head has the layer's.
  [[nodiscard]] Scale k(std::int32_t layer, std::int32_t head) const {
    return of(layers[static_cast<std::size_t>(layer)].k, head);
  }
  /// Requires: the layer has V scales.
  [[nodiscard]] Scale v(std::int32_t layer, std::int32_t head) const {
    return of(layers[static_cast<std::size_t>(layer)].v, head);
  }

  friend bool operator==(ScaleSet const&, ScaleSet const&) = default;

 private:
  [[nodiscard]] static Scale of(std::vector<float> const& scales, std::int32_t head) {
    auto const index = scales.size() == 1 ? std::size_t{0} : static_cast<std::size_t>(head);
    PAGEDKV_ASSERT(index < scales.size(), "ScaleSet: a layer or head without scales was asked for");
    return {scales[index]};
  }
};

/// For consumers that multiply before they store: rn(1 / scale) of each. O(n).
[[nodiscard]] inline std::vector<float> inverses(std::span<float const> scales) {
  std::vector<float> result;
  result.reserve(scales.size());
  for (float const scale : scales) result.push_back(inverse(Scale{scale}).value);
  return result;
}

/// Why this can't be a static scale; empty if it can: positive, finite, with a finite reciprocal.
[[nodiscard]] inline std::string scale_error(float scale) {
  auto const text = std::to_string(scale);
  if (!detail::is_finite(scale)) return "is " + text + "; a scale is finite";
  if (!(scale > 0.0F)) return "is " + text + "; a scale is larger than 0";
  if (inverse(Scale{scale}).value == 0.0F) return "is too small: its reciprocal isn't finite";
  return {};
}

namespace detail {

[[nodiscard]] inline bool is_static(Granularity granularity) noexcept {
  return granularity == Granularity::per_tensor || granularity == Granularity::per_head;
}

/// "layer 3, K"
[[nodiscard]] inline std::string layer_name(std::size_t layer, char const* tensor) {
  return "layer " + std::to_string(layer) + ", " + tensor;
}

/// What is wrong with numbers where `expected` of them should stand.
[[nodiscard]] inline std::string scales_problem(std::vector<float> const& scales,
                                                std::size_t expected) {
  if (scales.size() != expected) {
    return "has " + std::to_string(scales.size()) + " scales; expected " + std::to_string(expected);
  }
  for (std::size_t head = 0; head < scales.size(); ++head) {
    auto const problem = scale_error(scales[head]);
    if (problem.empty()) continue;
    return expected == 1 ? problem : "head " + std::to_string(head) + " " + problem;
  }
  return {};
}

/// One tensor of a layer that the model stores as `wanted`; `dim` 0: there is no such tensor.
[[nodiscard]] inline std::string tensor_problem(ScaleSet const& set, KvFormat wanted,
                                                std::int32_t dim, std::int32_t num_heads,
                                                std::vector<float> const& scales) {
  if (dim == 0) {
    return scales.empty() ? "" : "has scales, but the model has no such tensor; expected none";
  }
  if (!is_static(wanted.granularity)) return {};
  bool const serves = wanted.granularity == set.format.granularity ||
                      set.format.granularity == Granularity::per_tensor;
  if (wanted.element != set.format.element || !serves) {
    return "is stored as " + to_string(wanted) + ", but the scales are for " +
           to_string(set.format);
  }
  bool const per_tensor = set.format.granularity == Granularity::per_tensor;
  return scales_problem(scales, per_tensor ? 1 : static_cast<std::size_t>(num_heads));
}

}  // namespace detail

/// What keeps the set from serving a model, naming layer, tensor and what was expected; empty if
/// nothing does. Layers stored without static scales aren't looked at; a `per_tensor` set also
/// serves a `per_head` format. O(layers * heads).
[[nodiscard]] inline std::string scale_set_error(ScaleSet const& set, Geometry const& geometry) {
  if (!is_valid(set.format) || !detail::is_static(set.format.granularity)) {
    return "the scales are for " + to_string(set.format) +
           "; static ones are per_tensor or per_head, for fp8_e4m3, fp8_e5m2 or int8";
  }
  auto const num_layers = static_cast<std::size_t>(geometry.num_layers);
  if (set.layers.size() != num_layers) {
    return "there are scales for " + std::to_string(set.layers.size()) +
           " layers; expected the model's " + std::to_string(num_layers);
  }
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    auto const format = geometry.format_of(static_cast<std::int32_t>(layer));
    auto const& scales = set.layers[layer];
    auto const k =
        detail::tensor_problem(set, format.k, geometry.head_dim_k, geometry.num_kv_heads, scales.k);
    if (!k.empty()) return detail::layer_name(layer, "K") + " " + k;
    auto const v =
        detail::tensor_problem(set, format.v, geometry.head_dim_v, geometry.num_kv_heads, scales.v);
    if (!v.empty()) return detail::layer_name(layer, "V") + " " + v;
  }
  return {};
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

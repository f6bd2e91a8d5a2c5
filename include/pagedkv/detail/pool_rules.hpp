// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a consumer takes, as a table, and the checks of a pool against it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/interop/refusal.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// A consumer loads 16 bytes at a time.
inline constexpr std::int64_t consumer_alignment = 16;

struct PoolRules {
  char const* consumer;
  std::span<KvFormat const> formats;        ///< for K and for V; one element for both
  char const* why_formats;                  ///< completes "..., for"
  std::int32_t block_multiple;              ///< block_tokens is one of it
  std::span<std::int32_t const> head_dims;  ///< empty: any
  std::int32_t max_head_dim_k;              ///< head_dim is at most this,
  std::int32_t max_head_dim_v;
  std::int32_t head_bytes_multiple;  ///< and takes a multiple of this many bytes
  bool equal_head_dims;              ///< K's and V's
  bool equal_formats = false;        ///< K's and V's; else their elements are
  bool dense_head_scales = false;    ///< those of `per_head` are neighbours
};

using Refused = std::optional<interop::Refusal>;

/// The sentence of every refusal.
[[nodiscard]] inline interop::Refusal refuse(PoolRules const& rules, std::string term,
                                             std::string const& value, std::string const& taken,
                                             std::string nearest) {
  std::string message = std::string(rules.consumer) + ": " + term + " is " + value + "; " + taken;
  if (!nearest.empty()) message += "; the nearest is " + nearest;
  return {std::move(term), std::move(nearest), std::move(message)};
}

/// Of what is taken, the format most like `format`: the same element, else one as wide; then the
/// scale of the closest reach. The first of several.
[[nodiscard]] inline KvFormat nearest_format(PoolRules const& rules, KvFormat format) {
  auto const distance = [&](KvFormat taken) {
    return std::tuple(
        taken.element != format.element,
        std::abs(bits_per_element(taken.element) - bits_per_element(format.element)),
        std::abs(static_cast<int>(taken.granularity) - static_cast<int>(format.granularity)));
  };
  KvFormat best = rules.formats.front();
  for (KvFormat const taken : rules.formats) {
    if (distance(taken) < distance(best)) best = taken;
  }
  return best;
}

[[nodiscard]] inline Refused refused_format(PoolRules const& rules, std::string const& which,
                                            KvFormat format) {
  for (KvFormat const taken : rules.formats) {
    if (taken == format) return std::nullopt;
  }
  return refuse(rules, "format of " + which, to_string(format),
                "it takes " + join_names(rules.formats) + ", for " + rules.why_formats,
                to_string(nearest_format(rules, format)));
}

[[nodiscard]] inline Refused refused_block(PoolRules const& rules, std::int32_t block_tokens) {
  std::int32_t const step = rules.block_multiple;
  if (block_tokens % step == 0) return std::nullopt;
  std::int64_t const rounded = (std::int64_t{block_tokens} + step / 2) / step * step;
  return refuse(rules, "block_tokens", std::to_string(block_tokens),
                "it takes multiples of " + std::to_string(step),
                std::to_string(rounded == 0 ? step : rounded));
}

/// Vectors can be padded and not cut: the smallest that holds `dim`, else the largest. Requires:
/// ascending.
[[nodiscard]] inline std::int32_t head_dim_for(std::span<std::int32_t const> dims,
                                               std::int32_t dim) {
  for (std::int32_t const d : dims) {
    if (d >= dim) return d;
  }
  return dims.back();
}

[[nodiscard]] inline Refused refused_head_dim(PoolRules const& rules, std::string const& which,
                                              KvTensor const& t, std::int32_t max) {
  std::string const term = "head_dim of " + which;
  std::string const value = std::to_string(t.head_dim);
  if (!rules.head_dims.empty()) {
    std::string taken;
    for (std::int32_t const dim : rules.head_dims) {
      if (dim == t.head_dim) return std::nullopt;
      taken += (taken.empty() ? "it takes " : ", ") + std::to_string(dim);
    }
    return refuse(rules, term, value, taken,
                  std::to_string(head_dim_for(rules.head_dims, t.head_dim)));
  }
  std::int32_t const step = rules.head_bytes_multiple * 8 / bits_per_element(t.format.element);
  if (t.head_dim % step == 0 && t.head_dim <= max) return std::nullopt;
  std::int32_t const rounded = (t.head_dim + step - 1) / step * step;
  return refuse(rules, term, value,
                "it takes multiples of " + std::to_string(step) + " up to " + std::to_string(max),
                std::to_string(rounded < max ? rounded : max));
}

[[nodiscard]] inline Refused refused_pair(PoolRules const& rules, KvLayer const& layer) {
  if (layer.k.format.element != layer.v.format.element) {
    return refuse(rules, "format of V", to_string(layer.v.format),
                  "it takes the element of K, " + std::string(to_string(layer.k.format.element)),
                  to_string(layer.k.format));
  }
  if (rules.equal_formats && layer.k.format != layer.v.format) {
    return refuse(rules, "format of V", to_string(layer.v.format),
                  "it takes the format of K, " + to_string(layer.k.format),
                  to_string(layer.k.format));
  }
  if (rules.equal_head_dims && layer.k.head_dim != layer.v.head_dim) {
    return refuse(rules, "head_dim of V", std::to_string(layer.v.head_dim),
                  "it takes the head_dim of K", std::to_string(layer.k.head_dim));
  }
  return std::nullopt;
}

/// Vectors of 16 bytes must not straddle: address and strides.
[[nodiscard]] inline Refused refused_alignment(PoolRules const& rules, std::string const& which,
                                               KvTensor const& t) {
  auto const odd = [&](std::int64_t stride) {
    return stride * bits_per_element(t.format.element) / 8 % consumer_alignment != 0;
  };
  auto const refuse_bytes = [&](std::string const& term, std::int64_t bytes) {
    std::int64_t const up = (bytes + consumer_alignment - 1) / consumer_alignment;
    return refuse(rules, term, std::to_string(bytes) + " bytes", "it takes multiples of 16 bytes",
                  std::to_string(up * consumer_alignment) + " bytes");
  };
  std::array<std::pair<char const*, std::int64_t>, 3> const strides = {
      {{"block_stride", t.block_stride},
       {"token_stride", t.token_stride},
       {"head_stride", t.head_stride}}};
  for (auto const& [name, stride] : strides) {
    if (odd(stride)) {
      return refuse_bytes(std::string(name) + " of " + which,
                          stride * bits_per_element(t.format.element) / 8);
    }
  }
  if (reinterpret_cast<std::uintptr_t>(t.data) % consumer_alignment == 0) return std::nullopt;
  return refuse(rules, "data of " + which, "not aligned", "it takes addresses of 16 bytes", "");
}

/// A consumer that gets a pointer counts by itself from one head's scale to the next.
[[nodiscard]] inline Refused refused_scales(PoolRules const& rules, std::string const& which,
                                            KvView const& view, KvTensor const& t) {
  bool const has_several = t.format.granularity == Granularity::per_head && view.num_kv_heads > 1;
  if (!rules.dense_head_scales || !has_several || t.scale_head_stride == 1) return std::nullopt;
  return refuse(rules, "scale_head_stride of " + which, std::to_string(t.scale_head_stride),
                "it takes scales that are neighbours", "1");
}

/// Everything of the table, first found first told. Requires: the view is sound (`kv_view_error`)
/// and has the layer.
[[nodiscard]] inline Refused refused_pool(PoolRules const& rules, KvView const& view,
                                          std::int32_t layer_index) {
  PAGEDKV_ASSERT(layer_index >= 0 && static_cast<std::size_t>(layer_index) < view.layers.size(),
                 "interop: the view has no such layer");
  KvLayer const& layer = view.layers[static_cast<std::size_t>(layer_index)];
  if (layer.v.head_dim == 0) {
    return refuse(rules, "V", "absent (latent attention)", "it takes K and V", "");
  }
  std::array<std::pair<char const*, KvTensor const*>, 2> const both = {
      {{"K", &layer.k}, {"V", &layer.v}}};
  for (auto const& [name, t] : both) {
    if (auto refused = refused_format(rules, name, t->format)) return refused;
  }
  if (auto refused = refused_block(rules, view.block_tokens)) return refused;
  if (auto refused = refused_head_dim(rules, "K", layer.k, rules.max_head_dim_k)) return refused;
  if (auto refused = refused_head_dim(rules, "V", layer.v, rules.max_head_dim_v)) return refused;
  if (auto refused = refused_pair(rules, layer)) return refused;
  for (auto const& [name, t] : both) {
    if (auto refused = refused_alignment(rules, name, *t)) return refused;
    if (auto refused = refused_scales(rules, name, view, *t)) return refused;
  }
  return std::nullopt;
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

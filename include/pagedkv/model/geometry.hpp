// SPDX-License-Identifier: Apache-2.0
/// \file
/// How many bytes a model's K and V take: the one home of these formulas, for the planner and for
/// whoever allocates the cache.
///
///     per layer, for K and V apart:
///     block = heads * (block_tokens * (vector + scale beside it) + scale of the block's head)
///
/// The block is the primary quantity. What a token costs follows from it and is a ratio: with
/// `per_block_head` a block's scale is shared by its tokens.
///
/// Over several ranks, heads are dealt out by tensor parallelism and layers by pipeline
/// parallelism:
///  - `tensor` ranks, at most one for each KV head: each holds num_kv_heads / tensor heads. With
///  more
///    ranks than heads each holds one, so every head has tensor / num_kv_heads copies. A model with
///    latent attention (MLA) has one head, the latent, no V, and a copy on every rank.
///  - `pipeline` stages hold consecutive layers; if these don't divide evenly, the first
///    num_layers % pipeline stages hold one more.
///
/// Every function here is pure; all may be called from any thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <pagedkv/detail/checked_bytes.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// How one layer stores K and V.
struct LayerFormat {
  KvFormat k;
  KvFormat v;

  constexpr LayerFormat() noexcept = default;
  /// The same for both.
  constexpr LayerFormat(KvFormat both) noexcept : k(both), v(both) {}
  constexpr LayerFormat(KvFormat for_k, KvFormat for_v) noexcept : k(for_k), v(for_v) {}

  friend constexpr bool operator==(LayerFormat const&, LayerFormat const&) noexcept = default;
};

/// Layers `first .. first + count - 1`.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t count = 0;

  [[nodiscard]] constexpr std::int32_t end() const noexcept { return first + count; }
  friend constexpr bool operator==(LayerRange const&, LayerRange const&) noexcept = default;
};

/// Layers that store K and V differently from the rest, e.g. `{{0, 1}, bf16}`: the first.
struct FormatOverride {
  LayerRange layers;
  LayerFormat format;

  friend constexpr bool operator==(FormatOverride const&, FormatOverride const&) noexcept = default;
};

/// Ranks of one copy of the model: `tensor * pipeline`.
struct Parallel {
  std::int32_t tensor = 1;
  std::int32_t pipeline = 1;

  friend constexpr bool operator==(Parallel const&, Parallel const&) noexcept = default;
};

/// `bytes` for every `tokens` tokens, in lowest terms. `tokens` is 1 unless scales are shared by a
/// block's tokens.
struct BytesPerToken {
  std::int64_t bytes = 0;
  std::int64_t tokens = 1;

  [[nodiscard]] constexpr double value() const noexcept {
    return static_cast<double>(bytes) / static_cast<double>(tokens);
  }
  friend constexpr bool operator==(BytesPerToken const&, BytesPerToken const&) noexcept = default;
};

/// More layers than any model has; keeps a wrong number from becoming a long loop.
inline constexpr std::int32_t max_layers = 65536;

/// More ranks than any deployment has.
inline constexpr std::int32_t max_ranks = 1 << 20;

/// What is stored for a token. All layers have the same heads; those with another attention kind
/// (sliding window) are counted as if they kept every token.
struct Geometry {
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;  ///< of the model, not of a rank; 1 for a latent
  std::int32_t head_dim_k = 0;    ///< elements; for a latent: its rank plus the rotary part
  std::int32_t head_dim_v = 0;    ///< elements; 0 if there is no V (latent attention)
  std::int32_t block_tokens = 16;
  LayerFormat format{};                     ///< of every layer that no override names
  std::vector<FormatOverride> overrides{};  ///< must not overlap

  friend bool operator==(Geometry const&, Geometry const&) = default;

  /// How the layer stores K and V. O(overrides).
  [[nodiscard]] LayerFormat format_of(std::int32_t layer) const noexcept {
    for (auto const& other : overrides) {
      if (layer >= other.layers.first && layer < other.layers.end()) return other.format;
    }
    return format;
  }

  [[nodiscard]] LayerRange all_layers() const noexcept { return {0, num_layers}; }

  /// Bytes of one block with all its layers and heads, scales included, on one rank.
  /// Raises if it is more than an exbibyte (`geometry_error` tells first). O(layers).
  [[nodiscard]] std::int64_t bytes_per_block() const;

  /// Bytes of one block on a rank that holds these layers and so many KV heads of each.
  [[nodiscard]] std::int64_t bytes_per_block(LayerRange layers, std::int32_t heads) const;

  /// `bytes_per_block() / block_tokens`, exactly.
  [[nodiscard]] BytesPerToken bytes_per_token() const;

  /// The same for a rank.
  [[nodiscard]] BytesPerToken bytes_per_token(LayerRange layers, std::int32_t heads) const;

  /// Bytes of the blocks that so many tokens of one sequence need.
  [[nodiscard]] std::int64_t bytes_for(std::int32_t tokens) const;

  /// Bytes of static scales (per_tensor, per_head), which live outside the blocks.
  [[nodiscard]] std::int64_t static_scale_bytes() const;

  /// The same for a rank.
  [[nodiscard]] std::int64_t static_scale_bytes(LayerRange layers, std::int32_t heads) const;
};

/// Whether the KV heads can be dealt out: one number divides the other.
[[nodiscard]] constexpr bool can_shard(std::int32_t num_kv_heads,
                                       std::int32_t tensor_parallel) noexcept {
  return tensor_parallel >= 1 &&
         (num_kv_heads % tensor_parallel == 0 || tensor_parallel % num_kv_heads == 0);
}

/// KV heads that each rank holds. Requires `can_shard`.
[[nodiscard]] constexpr std::int32_t kv_heads_per_rank(std::int32_t num_kv_heads,
                                                       std::int32_t tensor_parallel) noexcept {
  return tensor_parallel >= num_kv_heads ? 1 : num_kv_heads / tensor_parallel;
}

/// Ranks that hold the same head. Requires `can_shard`.
[[nodiscard]] constexpr std::int32_t kv_head_copies(std::int32_t num_kv_heads,
                                                    std::int32_t tensor_parallel) noexcept {
  return tensor_parallel > num_kv_heads ? tensor_parallel / num_kv_heads : 1;
}

/// The layers of a pipeline stage. Requires 0 <= stage < pipeline_parallel <= num_layers.
[[nodiscard]] constexpr LayerRange stage_layers(std::int32_t num_layers,
                                                std::int32_t pipeline_parallel,
                                                std::int32_t stage) noexcept {
  auto const base = num_layers / pipeline_parallel;
  auto const longer = num_layers % pipeline_parallel;
  return {stage * base + (stage < longer ? stage : longer), base + (stage < longer ? 1 : 0)};
}

namespace detail {

/// Bytes of K, or of V, of one layer of one block.
[[nodiscard]] constexpr CheckedBytes tensor_block_bytes(KvFormat format, std::int32_t dim,
                                                        std::int32_t heads,
                                                        std::int32_t block_tokens) noexcept {
  if (dim == 0) return 0;
  auto const vector = bytes_per_vector(format.element, dim) + scale_bytes_per_vector(format);
  auto const head = CheckedBytes(block_tokens) * vector + scale_bytes_per_block_head(format);
  return CheckedBytes(heads) * head;
}

[[nodiscard]] inline CheckedBytes block_bytes(Geometry const& geometry, LayerRange layers,
                                              std::int32_t heads) noexcept {
  CheckedBytes sum;
  for (auto layer = layers.first; layer < layers.end(); ++layer) {
    auto const format = geometry.format_of(layer);
    sum = sum + tensor_block_bytes(format.k, geometry.head_dim_k, heads, geometry.block_tokens) +
          tensor_block_bytes(format.v, geometry.head_dim_v, heads, geometry.block_tokens);
  }
  return sum;
}

[[nodiscard]] inline std::string need_positive(char const* name, std::int32_t value) {
  return std::string(name) + " is " + std::to_string(value) + "; it must be at least 1";
}

[[nodiscard]] inline std::string format_problem(Geometry const& geometry, LayerFormat format) {
  auto problem = kv_format_error(format.k);
  if (problem.empty() && geometry.head_dim_v != 0) problem = kv_format_error(format.v);
  return problem;
}

/// What is wrong with one override, seen from those before it.
[[nodiscard]] inline std::string override_problem(Geometry const& geometry, std::size_t index) {
  auto const& [layers, format] = geometry.overrides[index];
  auto const name = "format override of layers " + std::to_string(layers.first) + " to " +
                    std::to_string(std::int64_t{layers.first} + layers.count - 1);
  if (layers.first < 0 || layers.count < 1 || layers.count > geometry.num_layers - layers.first) {
    return name + ": the model has layers 0 to " + std::to_string(geometry.num_layers - 1);
  }
  for (std::size_t other = 0; other < index; ++other) {
    auto const& before = geometry.overrides[other].layers;
    if (layers.first < before.end() && before.first < layers.end()) {
      return name + " overlaps the one of layers " + std::to_string(before.first) + " to " +
             std::to_string(before.end() - 1);
    }
  }
  auto const problem = format_problem(geometry, format);
  return problem.empty() ? problem : name + ": " + problem;
}

}  // namespace detail

/// What is wrong with it, naming the field and what would be right; empty if nothing is.
[[nodiscard]] inline std::string geometry_error(Geometry const& geometry) {
  if (geometry.num_layers < 1) return detail::need_positive("num_layers", geometry.num_layers);
  if (geometry.num_layers > max_layers) {
    return "num_layers is " + std::to_string(geometry.num_layers) + "; at most " +
           std::to_string(max_layers) + " are supported";
  }
  if (geometry.num_kv_heads < 1) {
    return detail::need_positive("num_kv_heads", geometry.num_kv_heads);
  }
  if (geometry.head_dim_k < 1) return detail::need_positive("head_dim_k", geometry.head_dim_k);
  if (geometry.head_dim_v < 0) {
    return "head_dim_v is " + std::to_string(geometry.head_dim_v) +
           "; it must be at least 1, or 0 where there is no V";
  }
  if (geometry.block_tokens < 1) {
    return detail::need_positive("block_tokens", geometry.block_tokens);
  }
  if (auto problem = detail::format_problem(geometry, geometry.format); !problem.empty()) {
    return "format: " + problem;
  }
  for (std::size_t index = 0; index < geometry.overrides.size(); ++index) {
    if (auto problem = detail::override_problem(geometry, index); !problem.empty()) return problem;
  }
  if (!detail::block_bytes(geometry, geometry.all_layers(), geometry.num_kv_heads).fits()) {
    return "one block of " + std::to_string(geometry.block_tokens) + " tokens, " +
           std::to_string(geometry.num_layers) + " layers and " +
           std::to_string(geometry.num_kv_heads) + " KV heads has more than 2^60 bytes";
  }
  return {};
}

/// What is wrong with dealing this geometry out so; empty if nothing is.
[[nodiscard]] inline std::string parallel_error(Geometry const& geometry, Parallel parallel) {
  if (parallel.tensor < 1) return detail::need_positive("tensor_parallel", parallel.tensor);
  if (parallel.pipeline < 1) return detail::need_positive("pipeline_parallel", parallel.pipeline);
  if (parallel.pipeline > geometry.num_layers) {
    return "pipeline_parallel is " + std::to_string(parallel.pipeline) + "; the model has " +
           std::to_string(geometry.num_layers) + " layers to deal out";
  }
  if (std::int64_t{parallel.tensor} * parallel.pipeline > max_ranks) {
    return "tensor_parallel times pipeline_parallel is more than " + std::to_string(max_ranks);
  }
  auto const heads = geometry.num_kv_heads;
  if (can_shard(heads, parallel.tensor)) return {};
  auto below = parallel.tensor;
  while (!can_shard(heads, below)) --below;
  auto above = std::int64_t{parallel.tensor};
  while (above % heads != 0 && (above > heads || heads % above != 0)) ++above;
  return "tensor_parallel is " + std::to_string(parallel.tensor) +
         " and neither divides nor is a " + "multiple of the " + std::to_string(heads) +
         " KV heads; the nearest that work are " + std::to_string(below) + " and " +
         std::to_string(above);
}

inline std::int64_t Geometry::bytes_per_block() const {
  return bytes_per_block(all_layers(), num_kv_heads);
}

inline std::int64_t Geometry::bytes_per_block(LayerRange layers, std::int32_t heads) const {
  auto const bytes = detail::block_bytes(*this, layers, heads);
  if (!bytes.fits()) raise("Geometry: a block of more than 2^60 bytes; see geometry_error");
  return bytes.value();
}

inline BytesPerToken Geometry::bytes_per_token() const {
  return bytes_per_token(all_layers(), num_kv_heads);
}

inline BytesPerToken Geometry::bytes_per_token(LayerRange layers, std::int32_t heads) const {
  auto const bytes = bytes_per_block(layers, heads);
  auto const divisor = std::gcd(bytes, std::int64_t{block_tokens});
  return {bytes / divisor, block_tokens / divisor};
}

inline std::int64_t Geometry::bytes_for(std::int32_t tokens) const {
  auto const bytes =
      detail::CheckedBytes(bytes_per_block()) * std::int64_t{blocks_for(tokens, block_tokens)};
  if (!bytes.fits()) raise("Geometry: the blocks of these tokens have more than 2^60 bytes");
  return bytes.value();
}

inline std::int64_t Geometry::static_scale_bytes() const {
  return static_scale_bytes(all_layers(), num_kv_heads);
}

inline std::int64_t Geometry::static_scale_bytes(LayerRange layers, std::int32_t heads) const {
  std::int64_t sum = 0;
  for (auto layer = layers.first; layer < layers.end(); ++layer) {
    auto const layer_format = format_of(layer);
    sum += pagedkv::static_scale_bytes(layer_format.k, heads);
    if (head_dim_v != 0) sum += pagedkv::static_scale_bytes(layer_format.v, heads);
  }
  return sum;
}

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where the tensors of a pool and their scales lie in one run of memory: sizes and offsets, no
/// memory. `KvStorage` and `cuda::KvStorage` are this and an allocation; an engine that allocates
/// by itself takes this alone:
///
///     KvPlacement const placement(geometry, num_blocks);
///     std::byte* const memory = ...;  // placement.allocated_bytes(), 64-byte aligned
///     auto const layers = placement.layers(memory);
///     KvView const view = placement.view(layers);
///
/// `KvLayout` only changes strides:
///
///     nhd: a block of a layer is [token, head, dim]      hnd: [head, token, dim]
///     layer_major:  for each layer: K blocks, K scales, V blocks, V scales
///     block_major:  for each block: scales of all layers, then K and V of all layers. One run of
///                   `block_bytes()` bytes, which transfers of whole blocks want
///
/// Scales lie in the order of the vectors they belong to. Static ones come after all blocks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/checked_bytes.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/quant/scale_set.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

enum class BlockOrder : std::uint8_t { nhd, hnd };
enum class PoolOrder : std::uint8_t { layer_major, block_major };

struct KvLayout {
  BlockOrder block = BlockOrder::nhd;
  PoolOrder pool = PoolOrder::layer_major;

  friend constexpr bool operator==(KvLayout const&, KvLayout const&) noexcept = default;
};

/// Calibrated scales of one layer: one number for `per_tensor`, one a KV head for `per_head`, none
/// for every other granularity. A `quant::ScaleSet` holds them as `layers`.
using StaticScales = quant::LayerScales;

namespace detail {

inline constexpr std::int64_t placement_line = 64;
/// What kernels read at once, ours and other people's.
inline constexpr std::int64_t vector_alignment = 16;

/// K, or V, of one layer: sizes, and where its parts begin, in bytes from the start of the memory.
struct TensorPlace {
  KvFormat format{};
  std::int32_t dim = 0;              ///< 0: there is no such tensor
  std::int64_t vector_elements = 0;  ///< distance between neighbouring vectors
  std::int64_t data_bytes = 0;       ///< of one block
  std::int64_t scale_floats = 0;     ///< of one block, dynamic
  std::int64_t static_floats = 0;    ///< of the layer
  std::int64_t data = 0;
  std::int64_t scales = 0;
  std::int64_t statics = 0;

  TensorPlace(KvFormat of, std::int32_t head_dim, Geometry const& g) noexcept
      : format(of), dim(head_dim) {
    if (dim == 0) return;
    std::int64_t const heads = g.num_kv_heads;
    std::int64_t const vector_bytes = bytes_per_vector(of.element, dim);
    std::int64_t const scale_bytes =
        g.block_tokens * scale_bytes_per_vector(of) + scale_bytes_per_block_head(of);
    vector_elements = vector_bytes * 8 / bits_per_element(of.element);
    data_bytes = heads * g.block_tokens * vector_bytes;
    scale_floats = heads * scale_bytes / bytes_per_scale;
    static_floats = static_scale_bytes(of, g.num_kv_heads) / bytes_per_scale;
  }
};

}  // namespace detail

/// A value: may be copied, and its functions called from any thread.
class KvPlacement {
 public:
  /// Nothing of nothing; whatever was moved from, too.
  KvPlacement() = default;
  /// Raises if the geometry is wrong, a head longer than `max_head_dim`, `num_blocks` below 1, or
  /// the pool more than 2^61 bytes. O(layers).
  KvPlacement(Geometry const& geometry, std::int32_t num_blocks, KvLayout layout = {});

  [[nodiscard]] KvLayout layout() const noexcept { return layout_; }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  /// What blocks and static scales take: num_blocks * geometry.bytes_per_block() +
  /// geometry.static_scale_bytes(), exactly.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// The same and what alignment adds. layer_major: each array begins at a multiple of 64, up to
  /// 63 bytes an array. block_major: each block does, and each of its tensors at a multiple of 16.
  [[nodiscard]] std::int64_t allocated_bytes() const noexcept { return allocated_bytes_; }
  /// Of these, the blocks with their scales: the first. Static scales follow.
  [[nodiscard]] std::int64_t bytes_of_blocks() const noexcept { return bytes_of_blocks_; }
  /// block_major: distance between blocks; layer_major: 0.
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return block_bytes_; }

  /// The tensors in `memory`, which is host or device memory and isn't touched: [num_layers].
  [[nodiscard]] std::vector<KvLayer> layers(std::byte* memory) const;
  /// Of what `layers` returned, as long as that lives.
  [[nodiscard]] KvView view(std::span<KvLayer const> layers) const noexcept {
    return {layers, num_blocks_, block_tokens_, num_kv_heads_};
  }

  /// What belongs at memory + bytes_of_blocks(), to its end. `given`: [num_layers]; may be empty if
  /// no layer has a static granularity. Raises, naming the layer, if a scale is missing,
  /// superfluous, not finite or not positive.
  [[nodiscard]] std::vector<float> static_scales(std::span<StaticScales const> given) const;

 private:
  static void require_storable(Geometry const& g, std::int32_t num_blocks);
  static void append_static(std::vector<float>& to, detail::TensorPlace const& tensor,
                            std::vector<float> const& given, std::size_t layer, char const* which);
  void place_layer_major() noexcept;
  void place_block_major() noexcept;
  void place_statics() noexcept;
  [[nodiscard]] KvTensor tensor_in(std::byte* memory, detail::TensorPlace const& place) const;

  std::vector<detail::TensorPlace> tensors_;  ///< K of layer 0, V of layer 0, K of layer 1, ...
  KvLayout layout_{};
  std::int32_t num_blocks_ = 0;
  std::int32_t block_tokens_ = 0;
  std::int32_t num_kv_heads_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t bytes_of_blocks_ = 0;
  std::int64_t block_bytes_ = 0;
};

// ---- how it works -------------------------------------------------------------------------------

inline KvPlacement::KvPlacement(Geometry const& geometry, std::int32_t num_blocks, KvLayout layout)
    : layout_(layout),
      num_blocks_(num_blocks),
      block_tokens_(geometry.block_tokens),
      num_kv_heads_(geometry.num_kv_heads) {
  require_storable(geometry, num_blocks);
  for (std::int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    auto const format = geometry.format_of(layer);
    tensors_.emplace_back(format.k, geometry.head_dim_k, geometry);
    tensors_.emplace_back(format.v, geometry.head_dim_v, geometry);
  }
  if (layout.pool == PoolOrder::layer_major) {
    place_layer_major();
  } else {
    place_block_major();
  }
  bytes_of_blocks_ = allocated_bytes_;
  place_statics();
  bytes_ = num_blocks * geometry.bytes_per_block() + geometry.static_scale_bytes();
}

inline void KvPlacement::require_storable(Geometry const& g, std::int32_t num_blocks) {
  if (auto const problem = geometry_error(g); !problem.empty()) raise("KV pool: " + problem);
  if (num_blocks < 1) {
    raise("KV pool: num_blocks is " + std::to_string(num_blocks) + "; it must be at least 1");
  }
  std::int32_t const dim = g.head_dim_k > g.head_dim_v ? g.head_dim_k : g.head_dim_v;
  if (dim > max_head_dim) {
    raise("KV pool: a head of " + std::to_string(dim) + " elements; at most " +
          std::to_string(max_head_dim) + " are supported");
  }
  // Alignment adds less than as much again.
  if (g.bytes_per_block() > (std::int64_t{1} << 61) / num_blocks) {
    raise("KV pool: " + std::to_string(num_blocks) + " blocks of " +
          std::to_string(g.bytes_per_block()) + " bytes are more than 2^61 bytes");
  }
}

inline void KvPlacement::place_layer_major() noexcept {
  using detail::placement_line;
  std::int64_t at = 0;
  for (detail::TensorPlace& t : tensors_) {
    t.data = at;
    t.scales = detail::round_up(at + num_blocks_ * t.data_bytes, placement_line);
    at =
        detail::round_up(t.scales + num_blocks_ * t.scale_floats * bytes_per_scale, placement_line);
  }
  allocated_bytes_ = at;
}

inline void KvPlacement::place_block_major() noexcept {
  std::int64_t at = 0;
  for (detail::TensorPlace& t : tensors_) {
    t.scales = at;
    at += t.scale_floats * bytes_per_scale;
  }
  for (detail::TensorPlace& t : tensors_) {
    t.data = detail::round_up(at, detail::vector_alignment);
    at = t.data + t.data_bytes;
  }
  block_bytes_ = detail::round_up(at, detail::placement_line);
  allocated_bytes_ = num_blocks_ * block_bytes_;
}

inline void KvPlacement::place_statics() noexcept {
  for (detail::TensorPlace& t : tensors_) {
    t.statics = allocated_bytes_;
    allocated_bytes_ += t.static_floats * bytes_per_scale;
  }
}

inline std::vector<KvLayer> KvPlacement::layers(std::byte* memory) const {
  std::vector<KvLayer> layers;
  layers.reserve(tensors_.size() / 2);
  for (std::size_t i = 0; i < tensors_.size(); i += 2) {
    layers.push_back({tensor_in(memory, tensors_[i]), tensor_in(memory, tensors_[i + 1])});
  }
  return layers;
}

inline KvTensor KvPlacement::tensor_in(std::byte* memory, detail::TensorPlace const& place) const {
  KvTensor t;
  KvFormat const format = place.format;
  t.format = format;
  t.head_dim = place.dim;
  if (place.dim == 0) return t;
  bool const nhd = layout_.block == BlockOrder::nhd;
  std::int64_t const heads = num_kv_heads_;
  t.data = memory + place.data;
  t.token_stride = nhd ? heads * place.vector_elements : place.vector_elements;
  t.head_stride = nhd ? place.vector_elements : block_tokens_ * place.vector_elements;
  std::int64_t const pitch = block_bytes_ != 0 ? block_bytes_ : place.data_bytes;
  t.block_stride = pitch * 8 / bits_per_element(format.element);
  if (format.granularity == Granularity::none) return t;
  if (place.static_floats > 0) {
    t.scales = reinterpret_cast<float*>(memory + place.statics);
    t.scale_head_stride = format.granularity == Granularity::per_head ? 1 : 0;
    return t;
  }
  t.scales = reinterpret_cast<float*>(memory + place.scales);
  t.scale_block_stride = block_bytes_ != 0 ? block_bytes_ / bytes_per_scale : place.scale_floats;
  std::int64_t const entry = bytes_per_scale_entry(format.element) / bytes_per_scale;
  bool const by_token = format.granularity == Granularity::per_token_head;
  t.scale_token_stride = !by_token ? 0 : nhd ? heads * entry : entry;
  t.scale_head_stride = by_token && !nhd ? block_tokens_ * entry : entry;
  return t;
}

inline std::vector<float> KvPlacement::static_scales(std::span<StaticScales const> given) const {
  std::size_t const num_layers = tensors_.size() / 2;
  if (!given.empty() && given.size() != num_layers) {
    raise("KV pool: static scales of " + std::to_string(given.size()) +
          " layers are given; the geometry has " + std::to_string(num_layers));
  }
  std::vector<float> all;
  StaticScales const none;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    StaticScales const& scales = given.empty() ? none : given[layer];
    append_static(all, tensors_[2 * layer], scales.k, layer, "K");
    append_static(all, tensors_[2 * layer + 1], scales.v, layer, "V");
  }
  return all;
}

inline void KvPlacement::append_static(std::vector<float>& to, detail::TensorPlace const& tensor,
                                       std::vector<float> const& given, std::size_t layer,
                                       char const* which) {
  auto const of_layer = [&] { return which + (" of layer " + std::to_string(layer)); };
  if (static_cast<std::int64_t>(given.size()) != tensor.static_floats) {
    raise("KV pool: " + of_layer() + " is " + to_string(tensor.format) + " and takes " +
          std::to_string(tensor.static_floats) + " static scales; " + std::to_string(given.size()) +
          " are given");
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!std::isfinite(given[i]) || given[i] <= 0.0F) {
      raise("KV pool: static scale " + std::to_string(i) + " of " + of_layer() + " is " +
            std::to_string(given[i]) + "; it must be finite and greater than 0");
    }
  }
  to.insert(to.end(), given.begin(), given.end());
}

PAGEDKV_NAMESPACE_END

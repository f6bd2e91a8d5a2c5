// SPDX-License-Identifier: Apache-2.0
/// \file
/// Memory for the blocks of a pool, all layers, with their scales: one allocation, and a view of
/// it. An engine that owns its tensors needs none of this; it fills in a `KvView`.
///
/// `KvLayout` only changes strides:
///
///     nhd: a block of a layer is [token, head, dim]      hnd: [head, token, dim]
///     layer_major:  for each layer: K blocks, K scales, V blocks, V scales
///     block_major:  for each block: scales of all layers, then K and V of all layers. One run of
///                   `block_bytes()` bytes, which transfers of whole blocks want
///
/// Scales lie in the order of the vectors they belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/lazy_array.hpp>
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

/// Owns the memory. Move-only; moving keeps addresses, so views stay valid.
class KvStorage {
 public:
  /// `static_scales`: [num_layers]; may be empty if no layer has a static granularity.
  ///
  /// All bytes are 0, which every format reads as 0; untouched pages cost nothing. With
  /// `PAGEDKV_ASSERT_LEVEL` 2 they are 0xFF, and read as NaN, until `zero_blocks` or a write:
  /// whoever reads what was never written finds out.
  ///
  /// Raises if the geometry is wrong, a static scale is missing, superfluous, not finite or not
  /// positive, or memory is short. O(layers) (level 2: O(bytes)).
  KvStorage(Geometry const& geometry, std::int32_t num_blocks, KvLayout layout = {},
            std::span<StaticScales const> static_scales = {});

  /// Valid as long as the storage (or what it was moved to) lives.
  [[nodiscard]] KvView view() const noexcept {
    return {layers_, num_blocks_, block_tokens_, num_kv_heads_};
  }
  [[nodiscard]] KvLayout layout() const noexcept { return layout_; }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }

  /// What blocks and static scales take: num_blocks * geometry.bytes_per_block() +
  /// geometry.static_scale_bytes(), exactly.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// The same and what alignment adds. layer_major: each array begins at a multiple of 64, up to
  /// 63 bytes an array. block_major: each block does, and each of its tensors at a multiple of 4.
  [[nodiscard]] std::int64_t allocated_bytes() const noexcept {
    return static_cast<std::int64_t>(memory_.size());
  }
  /// block_major: distance between blocks; layer_major: 0.
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return block_bytes_; }

  /// All of it, 64-byte aligned.
  [[nodiscard]] std::span<std::byte> memory() noexcept { return {memory_.data(), memory_.size()}; }

 private:
  detail::LazyArray<std::byte> memory_;
  std::vector<KvLayer> layers_;
  KvLayout layout_{};
  std::int32_t num_blocks_ = 0;
  std::int32_t block_tokens_ = 0;
  std::int32_t num_kv_heads_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t block_bytes_ = 0;
};

PAGEDKV_NAMESPACE_END

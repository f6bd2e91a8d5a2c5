// SPDX-License-Identifier: Apache-2.0
/// \file
/// Memory for the blocks of a pool, all layers, with their scales: one allocation, and a view of
/// it. `kv_placement.hpp` says where in it everything lies. An engine that owns its tensors needs
/// none of this; it fills in a `KvView`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <pagedkv/data/kv_placement.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

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
  [[nodiscard]] KvView view() const noexcept { return placement_.view(layers_); }
  [[nodiscard]] KvLayout layout() const noexcept { return placement_.layout(); }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return placement_.num_blocks(); }

  /// As in `KvPlacement`.
  [[nodiscard]] std::int64_t bytes() const noexcept { return placement_.bytes(); }
  [[nodiscard]] std::int64_t allocated_bytes() const noexcept {
    return placement_.allocated_bytes();
  }
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return placement_.block_bytes(); }

  /// All of it, 64-byte aligned.
  [[nodiscard]] std::span<std::byte> memory() noexcept { return {memory_.data(), memory_.size()}; }

 private:
  KvPlacement placement_;
  detail::LazyArray<std::byte> memory_;
  std::vector<KvLayer> layers_;
};

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Device memory for the blocks of a pool: `data/kv_storage.hpp` on a device, one allocation. Link
/// `pagedkv::cuda`; nothing here needs nvcc.
///
/// An engine whose tensors lie elsewhere fills in a `KvView` (kv_placement.hpp helps) and copies
/// its layers to the device by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <pagedkv/data/cuda/memory.hpp>
#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/data/kv_placement.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// Owns the memory. Move-only; moving keeps addresses, so views, `device_layers` and captured
/// graphs stay valid. Const calls may run together.
class KvStorage {
 public:
  /// `static_scales`: [num_layers], host; may be empty if no layer has a static granularity.
  ///
  /// All bytes are 0, which every format reads as 0. Where pagedkv was built with
  /// `PAGEDKV_ASSERT_LEVEL` 2 they are 0xFF, and read as NaN, until `zero_blocks` or a write.
  ///
  /// Fills the memory in order on `stream` and waits for it: set-up, not to be captured. Raises as
  /// the host's storage does, and with the runtime's words when a call of it fails.
  KvStorage(Geometry const& geometry, std::int32_t num_blocks, cudaStream_t stream,
            KvLayout layout = {}, std::span<StaticScales const> static_scales = {},
            Allocator& allocator = device_memory());

  /// A host object whose pointers point into device memory, as the operations take it. Valid as
  /// long as the storage (or what it was moved to) lives.
  [[nodiscard]] KvView view() const noexcept { return placement_.view(layers_); }
  /// view().layers in device memory, for `copy_blocks` and `zero_blocks`.
  [[nodiscard]] KvLayer const* device_layers() const noexcept { return device_layers_; }

  [[nodiscard]] KvLayout layout() const noexcept { return placement_.layout(); }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return placement_.num_blocks(); }
  /// As in `KvPlacement`.
  [[nodiscard]] std::int64_t bytes() const noexcept { return placement_.bytes(); }
  /// As in `KvPlacement`, and the copy of the layers, 256 bytes or less each.
  [[nodiscard]] std::int64_t allocated_bytes() const noexcept { return memory_.bytes(); }
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return placement_.block_bytes(); }

  /// All of it, device memory.
  [[nodiscard]] std::span<std::byte> memory() noexcept {
    return {memory_.data(), static_cast<std::size_t>(memory_.bytes())};
  }

 private:
  KvPlacement placement_;
  detail::OwnedMemory memory_;
  std::vector<KvLayer> layers_;
  KvLayer const* device_layers_ = nullptr;
};

static_assert(sizeof(KvLayer) <= 256);

}  // namespace cuda
PAGEDKV_NAMESPACE_END

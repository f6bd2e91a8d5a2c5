// SPDX-License-Identifier: Apache-2.0
/// \file
/// Rows into slots of a pool, right and with the bugs of writers.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace samples {

enum class ScatterBug {
  none,
  two_blocks_one_cell,  ///< two rows have one slot
  offset_of_32_bits,
  unchecked_slot,  ///< padding (-1) and slots past the pool are written
};

struct ScatterArgs {
  std::uint8_t const* rows;   ///< [num_rows, row_bytes]
  std::uint8_t* pool;         ///< [num_slots, row_bytes]
  std::int64_t const* slots;  ///< [num_rows]; outside of 0 .. num_slots - 1: skipped
  std::int64_t num_slots;
  int row_bytes;
};

/// A block a row.
template <ScatterBug bug>
PAGEDKV_KERNEL(64, 1)
scatter(ScatterArgs args) {
  std::int64_t slot = args.slots[blockIdx.x];
  if constexpr (bug == ScatterBug::two_blocks_one_cell) slot = args.slots[blockIdx.x & ~1U];
  if constexpr (bug != ScatterBug::unchecked_slot) {
    if (slot < 0 || slot >= args.num_slots) return;
  }
  std::uint8_t const* const from = args.rows + std::int64_t{blockIdx.x} * args.row_bytes;
  std::int64_t offset = slot * args.row_bytes;
  if constexpr (bug == ScatterBug::offset_of_32_bits) offset = static_cast<std::int32_t>(offset);
  for (int i = static_cast<int>(threadIdx.x); i < args.row_bytes;
       i += static_cast<int>(blockDim.x)) {
    args.pool[offset + i] = from[i];
  }
}

}  // namespace samples
}  // namespace cuda
PAGEDKV_NAMESPACE_END

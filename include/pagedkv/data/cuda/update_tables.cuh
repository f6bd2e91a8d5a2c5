// SPDX-License-Identifier: Apache-2.0
/// \file
/// update_tables on the device: what a step changes in a block table that stays there. A block of
/// threads owns some columns, so that moves, whose order counts, need no other block.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/device.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

struct TableArgs {
  BlockTable table;
  TableUpdates updates;
};
inline constexpr std::int32_t table_threads = 128;

template <class = void>
PAGEDKV_KERNEL(table_threads, 1)
update_table(TableArgs const a) {
  wait_for_previous_kernel();
  BlockTable const& t = a.table;
  auto const has_row = [&t](std::int32_t row) { return row >= 0 && row < t.num_rows; };
  std::int32_t const first = static_cast<std::int32_t>(blockIdx.x) * table_threads;
  std::int32_t const column = first + static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t i = 0; i < a.updates.num_moves && column < t.num_columns; ++i) {
    RowMove const move = a.updates.moves[i];
    if (!has_row(move.from) || !has_row(move.to)) continue;
    t.blocks[move.to * t.row_stride + column] = t.blocks[move.from * t.row_stride + column];
  }
  __syncthreads();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < a.updates.num_changes;
       i += table_threads) {
    RowChange const change = a.updates.changes[i];
    bool const is_mine = change.column >= first && change.column < first + table_threads;
    if (!is_mine || change.column >= t.num_columns || !has_row(change.row)) continue;
    t.blocks[change.row * t.row_stride + change.column] = change.block;
  }
}

/// See operations.hpp.
inline cudaError_t update_tables(BlockTable const& table, TableUpdates const& updates,
                                 cudaStream_t stream) {
  bool const works = table.num_rows >= 0 && table.num_columns >= 0 && updates.num_moves >= 0 &&
                     updates.num_changes >= 0 && table.row_stride >= table.num_columns &&
                     (updates.num_moves == 0 || updates.moves != nullptr) &&
                     (updates.num_changes == 0 || updates.changes != nullptr);
  if (!works) return cudaErrorInvalidValue;
  if (table.num_columns == 0 || table.num_rows == 0) return cudaSuccess;
  if (updates.num_moves == 0 && updates.num_changes == 0) return cudaSuccess;
  if (table.blocks == nullptr) return cudaErrorInvalidValue;
  auto const blocks =
      static_cast<unsigned>((table.num_columns + table_threads - 1) / table_threads);
  return launch(&update_table<>, blocks, table_threads, 0, stream, TableArgs{table, updates});
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

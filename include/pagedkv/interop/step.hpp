// SPDX-License-Identifier: Apache-2.0
/// \file
/// What consumers want of a step beside the arrays that `Batch::build` writes: a dense block table,
/// and the longest query and sequence.
///
/// Arguments are described by the `BatchStep` that `build` returned and the `BatchBuffers` it wrote
/// to, or a copy of those arrays in device memory at the spans given: where it isn't said that an
/// array is read here, only its address is taken. Sizes are the padded ones, so that what `pad_to`
/// asked for is what a captured graph sees. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <pagedkv/error.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {

/// The longest of a step, 0 if it is empty.
struct StepMaxima {
  std::int32_t query_len = 0;
  std::int32_t sequence_len = 0;
};

/// Reads `query_offsets` and `sequence_lengths`: host memory. Requires: `build` wrote them.
/// O(sequences).
[[nodiscard]] inline StepMaxima maxima_of(BatchStep const& step, BatchBuffers const& host) {
  auto const n = static_cast<std::size_t>(step.padded_sequences);
  PAGEDKV_ASSERT(host.query_offsets.size() > n && host.sequence_lengths.size() >= n,
                 "maxima_of: build must have written query_offsets and sequence_lengths");
  StepMaxima out;
  for (std::size_t i = 0; i < n; ++i) {
    out.query_len = std::max(out.query_len, host.query_offsets[i + 1] - host.query_offsets[i]);
    out.sequence_len = std::max(out.sequence_len, host.sequence_lengths[i]);
  }
  return out;
}

/// The rows of a step: [padded_sequences, num_columns], rows `row_stride` apart. Requires: the
/// table has them.
[[nodiscard]] inline Tensor table_tensor(BatchStep const& step, BlockTable const& table) {
  PAGEDKV_ASSERT(table.num_rows >= step.padded_sequences,
                 "table_tensor: the block table must have a row for each sequence, padding too");
  return {table.blocks,
          Dtype::i32,
          2,
          {step.padded_sequences, table.num_columns},
          {table.row_stride, 1}};
}

}  // namespace interop
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the CUDA operations are told beside a `KvView` and `KvRows`: plain pointers into device
/// memory, and numbers. Host code only; no CUDA header is needed to read this one.
///
/// In a captured graph the numbers stay and the arrays change: each array may be padded at its end
/// with entries that do nothing, as said at each.
#pragma once

#include <cstdint>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// Where a step's tokens go, as `Batch` lists it. Row i of K and V goes to slots[i]; a slot below 0
/// or beyond the pool is skipped.
struct WriteSlots {
  Slot const* slots = nullptr;  ///< [num_tokens]
  std::int64_t num_tokens = 0;
  /// [num_runs], the same tokens block by block; read for `per_block_head` only, where `slots`
  /// isn't. A run of 0 tokens is padding.
  BlockRun const* runs = nullptr;
  std::int32_t num_runs = 0;
  /// The kernel may be set up before the one ahead in the stream has ended, for which it then
  /// waits. Requires: compute capability 9.0.
  bool early_start = false;
};

/// Ranges of sequences to be read into rows, one after the other. Output row r belongs to the
/// sequence s with row_offsets[s] <= r < row_offsets[s + 1] and holds its position
/// first_positions[s] + r - row_offsets[s].
struct GatherRanges {
  /// The sequences' blocks: with `indptr`, sequence s has indices[indptr[s]] up to
  /// indices[indptr[s + 1]]; without, indices is a block table of `table_stride` columns a row.
  std::int32_t const* indices = nullptr;
  std::int32_t const* indptr = nullptr;  ///< [num_sequences + 1]
  std::int64_t table_stride = 0;
  std::int32_t const* first_positions = nullptr;  ///< [num_sequences]; null: all 0
  std::int64_t const* row_offsets = nullptr;      ///< [num_sequences + 1], ascending
  std::int32_t num_sequences = 0;
  /// Rows that may be written. Those beyond row_offsets[num_sequences] aren't touched.
  std::int64_t max_rows = 0;
};

/// The sequences of a step, for attention. A length of 0 is padding.
struct DecodeBatch {
  /// As in `GatherRanges`.
  std::int32_t const* indices = nullptr;
  std::int32_t const* indptr = nullptr;
  std::int64_t table_stride = 0;
  std::int32_t const* sequence_lengths = nullptr;  ///< [num_sequences], with this step's token
  std::int32_t num_sequences = 0;
};
/// One query a sequence: q and out [num_sequences, num_q_heads, head_dim] of f32, f16 or bf16,
/// token strides in elements, the rest contiguous.
struct DecodeQueries {
  void const* q = nullptr;
  void* out = nullptr;
  Element element = Element::f32;
  std::int32_t num_q_heads = 0;
  std::int64_t q_token_stride = 0;
  std::int64_t out_token_stride = 0;
};
struct DecodeOptions {
  float softmax_scale = 1.0F;
  std::int32_t window = 0;      ///< a query sees this many tokens, itself included; 0: all
  std::int32_t num_splits = 1;  ///< of every context
  float* workspace = nullptr;   ///< device memory, `decode_workspace_floats` of them
};
/// What `DecodeOptions::workspace` must hold.
[[nodiscard]] constexpr std::int64_t decode_workspace_floats(std::int32_t num_sequences,
                                                             std::int32_t num_q_heads,
                                                             std::int32_t head_dim,
                                                             std::int32_t num_splits) noexcept {
  return std::int64_t{num_sequences} * num_q_heads * num_splits * (2 + std::int64_t{head_dim});
}

/// The largest finite magnitude that each head of K and V has had, in device memory:
/// [num_layers, num_kv_heads] each, zeros before the first step.
struct AmaxTable {
  float* k = nullptr;
  float* v = nullptr;  ///< not read where head_dim_v is 0
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim_k = 0;
  std::int32_t head_dim_v = 0;
};
/// K and V of a step, of one layer: as `write_kv` takes them.
struct AmaxStep {
  KvRows k;
  KvRows v;
  std::int64_t num_tokens = 0;
  Slot const* slots =
      nullptr;  ///< [num_tokens]; a token with one below 0 is padding; null: none is
};

/// What a step changes in a `BlockTable`. A negative row is padding.
struct TableUpdates {
  RowMove const* moves = nullptr;  ///< [num_moves], in order, before the changes
  std::int32_t num_moves = 0;
  RowChange const* changes = nullptr;  ///< [num_changes], no cell twice
  std::int32_t num_changes = 0;
};

}  // namespace cuda
PAGEDKV_NAMESPACE_END

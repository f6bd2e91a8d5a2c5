// SPDX-License-Identifier: Apache-2.0
/// \file
/// The CPU data plane: what moves K and V. It decides nothing: slots, tables and copies come from
/// `Batch` and the cache.
///
/// A step: `zero_blocks(new_blocks)`, `copy_blocks(copies)`, then for each layer `write_kv` and
/// attention. Every operation has a scalar oracle of the same name in `cpu::scalar`; the functions
/// here give the same bits (writers, copies, gathers: exactly; attention: exactly, both follow one
/// order of summation) and run on the widest vectors of the machine, found at run time.
///
/// Nothing allocates except where said. One writer for a block; calls on different blocks, and
/// readers, may run together.
///
/// Checked builds (`PAGEDKV_ASSERT_LEVEL` >= 1) look at every slot and table entry first, and name
/// the token, the slot and the limit.
#pragma once

#include <cstdint>
#include <span>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

class Workers;

/// Quantizes and stores K and V of a layer. Row i of `k` and `v` goes to slots[i]; `padding_slot`
/// is skipped. `v.data` is ignored where the layer has no V.
///
/// `per_block_head`: neighbouring slots of one block make a run; a run that begins at offset 0
/// starts the block's scale anew, one that raises the maximum requantizes what lies before it in
/// the block. Requires: tokens of a block come in order, and all at offsets below a run's first are
/// written. Blocks are published or shared no longer (copy-on-write sees to that).
/// O(tokens * heads * head_dim).
void write_kv(KvView const& view, std::int32_t layer, KvRows const& k, KvRows const& v,
              std::span<Slot const> slots);

/// Runs the copy plan: all layers, K, V and the scales beside them. Only the first `num_tokens`
/// positions of a block. Requires: as `Batch` and `take_copies` make it, no destination is a
/// source.
void copy_blocks(KvView const& view, std::span<BlockCopy const> copies);

/// All bytes and dynamic scales of these blocks become 0, which every format reads as 0.
void zero_blocks(KvView const& view, std::span<BlockId const> blocks);

/// Reads positions `range` of a sequence whose row of the block table is `table`, dequantized, into
/// contiguous rows: `range.count` of them. Requires: `table` reaches range.end(), and its entries
/// are the pool's. Bounds-guarded in unchecked builds too: a position that `table` hasn't, or whose
/// entry the pool hasn't, leaves its rows untouched, as on CUDA devices.
void gather_kv(KvView const& view, std::int32_t layer, std::span<std::int32_t const> table,
               TokenRange range, MutableKvRows const& k, MutableKvRows const& v);

/// The sequences of a step as `Batch` lists them (CSR). n: sequences, with padding ones of length
/// 0.
struct AttentionBatch {
  std::span<std::int32_t const> indptr;            ///< [n + 1], into indices
  std::span<std::int32_t const> indices;           ///< blocks
  std::span<std::int32_t const> sequence_lengths;  ///< [n], tokens including this step's
  /// [n + 1], where each sequence's queries begin; its last query stands at its last token. Not
  /// read by `decode_attention`, where each sequence has one.
  std::span<std::int32_t const> query_offsets{};
};

/// f32: q [queries, num_q_heads, head_dim of K], out [queries, num_q_heads, head_dim of V], strides
/// in elements, both dims contiguous. Query head h reads KV head h / (num_q_heads / num_kv_heads).
struct Queries {
  float const* q = nullptr;
  float* out = nullptr;
  std::int32_t num_q_heads = 0;
  std::int64_t q_token_stride = 0;
  std::int64_t out_token_stride = 0;
};

struct AttentionOptions {
  float softmax_scale = 1.0F;  ///< usually 1 / sqrt(head_dim)
  std::int32_t window = 0;     ///< a query sees this many tokens, itself included; 0: all
  Workers* workers = nullptr;  ///< null: this thread alone
};

/// One query a sequence, at its last token. Sequences of length 0 leave `out` untouched. Long
/// contexts are split over the workers; the result doesn't depend on how many there are.
/// O(sum of lengths * heads * head_dim).
void decode_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                      Queries const& queries, AttentionOptions const& options);

/// Any number of queries a sequence (`query_offsets`), causal: query i of a sequence with c queries
/// and length n stands at position n - c + i and sees positions up to its own.
void prefill_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                       Queries const& queries, AttentionOptions const& options);

/// The oracle: one element after the other, no vectors, no threads.
namespace scalar {
void write_kv(KvView const& view, std::int32_t layer, KvRows const& k, KvRows const& v,
              std::span<Slot const> slots);
void copy_blocks(KvView const& view, std::span<BlockCopy const> copies);
void zero_blocks(KvView const& view, std::span<BlockId const> blocks);
void gather_kv(KvView const& view, std::int32_t layer, std::span<std::int32_t const> table,
               TokenRange range, MutableKvRows const& k, MutableKvRows const& v);
void decode_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                      Queries const& queries, AttentionOptions const& options);
void prefill_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                       Queries const& queries, AttentionOptions const& options);
}  // namespace scalar

}  // namespace cpu
PAGEDKV_NAMESPACE_END

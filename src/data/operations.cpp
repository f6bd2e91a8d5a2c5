// SPDX-License-Identifier: Apache-2.0
/// \file
/// The operations: the oracle's for now.
#include <pagedkv/data/cpu/operations.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

void write_kv(KvView const& view, std::int32_t layer, KvRows const& k, KvRows const& v,
              std::span<Slot const> slots) {
  scalar::write_kv(view, layer, k, v, slots);
}
void copy_blocks(KvView const& view, std::span<BlockCopy const> copies) {
  scalar::copy_blocks(view, copies);
}
void zero_blocks(KvView const& view, std::span<BlockId const> blocks) {
  scalar::zero_blocks(view, blocks);
}
void gather_kv(KvView const& view, std::int32_t layer, std::span<std::int32_t const> table,
               TokenRange range, MutableKvRows const& k, MutableKvRows const& v) {
  scalar::gather_kv(view, layer, table, range, k, v);
}
void decode_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                      Queries const& queries, AttentionOptions const& options) {
  scalar::decode_attention(view, layer, batch, queries, options);
}
void prefill_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                       Queries const& queries, AttentionOptions const& options) {
  scalar::prefill_attention(view, layer, batch, queries, options);
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

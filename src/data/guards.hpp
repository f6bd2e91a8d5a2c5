// SPDX-License-Identifier: Apache-2.0
/// \file
/// What checked builds look at before an operation touches memory. Messages are made only when
/// something is wrong.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/error.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {
namespace detail {

using pagedkv::detail::contract_broken;

inline KvLayer const& layer_of(KvView const& view, std::int32_t layer, char const* operation) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  auto const count = static_cast<std::int64_t>(view.layers.size());
  if (layer < 0 || layer >= count) {
    contract_broken((std::string(operation) + ": layer " + std::to_string(layer) +
                     "; the view has " + std::to_string(count))
                        .c_str());
  }
#else
  (void)operation;
#endif
  return view.layers[static_cast<std::size_t>(layer)];
}

inline void check_rows(KvTensor const& tensor, Element element, void const* data,
                       char const* which) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  if (tensor.head_dim == 0) return;
  if (tensor.head_dim > max_head_dim) {
    contract_broken((std::string(which) + ": head_dim is " + std::to_string(tensor.head_dim) +
                     "; at most " + std::to_string(max_head_dim) + " are supported")
                        .c_str());
  }
  if (bits_per_element(element) < 16) {
    contract_broken(
        (std::string(which) + ": rows of " + to_string(element) + "; they must be f32, f16 or bf16")
            .c_str());
  }
  if (data == nullptr) contract_broken((std::string(which) + ": rows without data").c_str());
#else
  (void)tensor, (void)element, (void)data, (void)which;
#endif
}

/// Every slot is padding or one of the pool's.
inline void check_slots(KvView const& view, std::span<Slot const> slots) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  Slot const limit = view.num_slots();
  Slot highest = -1;
  for (Slot const slot : slots) highest = std::max(highest, slot);
  if (highest < limit) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < limit) continue;
    contract_broken(("write_kv: slot " + std::to_string(slots[i]) + " of token " +
                     std::to_string(i) + "; the pool has slots 0 to " + std::to_string(limit - 1))
                        .c_str());
  }
#else
  (void)view, (void)slots;
#endif
}

inline void check_block(KvView const& view, std::int64_t block, char const* operation,
                        std::size_t entry) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  if (block >= 0 && block < view.num_blocks) return;
  contract_broken((std::string(operation) + ": block " + std::to_string(block) + " of entry " +
                   std::to_string(entry) + "; the pool has blocks 0 to " +
                   std::to_string(view.num_blocks - 1))
                      .c_str());
#else
  (void)view, (void)block, (void)operation, (void)entry;
#endif
}

/// The table has a block for each position below `end`, and those from `first` on are the pool's.
inline void check_table(KvView const& view, std::span<std::int32_t const> table, std::int64_t first,
                        std::int64_t end, char const* operation, std::int64_t sequence) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  std::int64_t const needed = (end + view.block_tokens - 1) / view.block_tokens;
  if (static_cast<std::int64_t>(table.size()) < needed) {
    contract_broken((std::string(operation) + ": the block table of sequence " +
                     std::to_string(sequence) + " has " + std::to_string(table.size()) +
                     " blocks; " + std::to_string(end) + " tokens need " + std::to_string(needed))
                        .c_str());
  }
  for (std::int64_t column = first / view.block_tokens; column < needed; ++column) {
    std::int32_t const block = table[static_cast<std::size_t>(column)];
    if (block >= 0 && block < view.num_blocks) continue;
    contract_broken((std::string(operation) + ": block " + std::to_string(block) + " at column " +
                     std::to_string(column) + " of sequence " + std::to_string(sequence) +
                     "; the pool has blocks 0 to " + std::to_string(view.num_blocks - 1))
                        .c_str());
  }
#else
  (void)view, (void)table, (void)first, (void)end, (void)operation, (void)sequence;
#endif
}

inline void check_copies(KvView const& view, std::span<BlockCopy const> copies) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  for (std::size_t i = 0; i < copies.size(); ++i) {
    check_block(view, copies[i].src.value(), "copy_blocks", i);
    check_block(view, copies[i].dst.value(), "copy_blocks", i);
    if (copies[i].num_tokens >= 0 && copies[i].num_tokens <= view.block_tokens) continue;
    contract_broken(("copy_blocks: " + std::to_string(copies[i].num_tokens) + " tokens of entry " +
                     std::to_string(i) + "; a block has " + std::to_string(view.block_tokens))
                        .c_str());
  }
#else
  (void)view, (void)copies;
#endif
}

inline void check_gather(KvView const& view, std::span<std::int32_t const> table,
                         TokenRange range) {
  PAGEDKV_ASSERT(range.first >= 0 && range.count >= 0,
                 "gather_kv: first and count of the range must not be negative");
  if (range.count > 0) {
    check_table(view, table, range.first, std::int64_t{range.first} + range.count, "gather_kv", 0);
  }
}

/// The block that a sequence's row of the table has for a position, or -1: the position is before
/// or behind the row, or the entry isn't one of the pool's. At every level: rows come from
/// elsewhere.
inline std::int64_t block_at(KvView const& view, std::span<std::int32_t const> table,
                             std::int64_t position) noexcept {
  std::int64_t const column = position / view.block_tokens;
  if (position < 0 || column >= static_cast<std::int64_t>(table.size())) return -1;
  std::int32_t const block = table[static_cast<std::size_t>(column)];
  return block < view.num_blocks ? block : -1;
}

inline std::span<std::int32_t const> table_of(AttentionBatch const& batch, std::size_t sequence) {
  auto const first = static_cast<std::size_t>(batch.indptr[sequence]);
  auto const end = static_cast<std::size_t>(batch.indptr[sequence + 1]);
  return batch.indices.subspan(first, end - first);
}

inline void check_indptr(AttentionBatch const& batch, std::size_t sequence) {
  std::int64_t const first = batch.indptr[sequence];
  std::int64_t const end = batch.indptr[sequence + 1];
  if (first >= 0 && first <= end && end <= static_cast<std::int64_t>(batch.indices.size())) return;
  contract_broken(("attention: indptr of sequence " + std::to_string(sequence) + " says blocks " +
                   std::to_string(first) + " to " + std::to_string(end) + " of " +
                   std::to_string(batch.indices.size()) + " indices")
                      .c_str());
}

/// The first position that the query at `position` sees.
constexpr std::int64_t window_begin(std::int64_t position, std::int32_t window) noexcept {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

/// Queries of a sequence: those of decoding are one a sequence.
struct QueryRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
inline QueryRange queries_of(AttentionBatch const& batch, std::size_t sequence, bool decode) {
  if (decode) {
    return {static_cast<std::int64_t>(sequence), batch.sequence_lengths[sequence] > 0 ? 1 : 0};
  }
  std::int64_t const first = batch.query_offsets[sequence];
  return {first, batch.query_offsets[sequence + 1] - first};
}

inline void check_attention(KvView const& view, KvLayer const& layer, AttentionBatch const& batch,
                            Queries const& queries, AttentionOptions const& options, bool decode) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  std::size_t const n = batch.sequence_lengths.size();
  PAGEDKV_ASSERT(batch.indptr.size() == n + 1 || (n == 0 && batch.indptr.empty()),
                 "attention: indptr must have one entry more than sequence_lengths");
  PAGEDKV_ASSERT(
      decode || batch.query_offsets.size() == n + 1 || (n == 0 && batch.query_offsets.empty()),
      "prefill_attention: query_offsets must have one entry more than sequences");
  PAGEDKV_ASSERT(queries.num_q_heads > 0 && queries.num_q_heads % view.num_kv_heads == 0,
                 "attention: num_q_heads must be a multiple of num_kv_heads");
  PAGEDKV_ASSERT(layer.v.head_dim > 0, "attention: the layer has no V");
  PAGEDKV_ASSERT(layer.k.head_dim <= max_head_dim && layer.v.head_dim <= max_head_dim,
                 "attention: head_dim must be at most max_head_dim");
  for (std::size_t i = 0; i < n; ++i) {
    std::int32_t const length = batch.sequence_lengths[i];
    PAGEDKV_ASSERT(length >= 0, "attention: a sequence length is negative");
    auto const range = queries_of(batch, i, decode);
    PAGEDKV_ASSERT(range.count >= 0 && range.count <= length,
                   "attention: a sequence can't have more queries than tokens");
    if (range.count == 0) continue;
    check_indptr(batch, i);
    std::int64_t const begin = window_begin(length - range.count, options.window);
    std::span<std::int32_t const> const table = table_of(batch, i);
    check_table(view, table, begin, length, "attention", static_cast<std::int64_t>(i));
  }
#else
  (void)view, (void)layer, (void)batch, (void)queries, (void)options, (void)decode;
#endif
}

}  // namespace detail
}  // namespace cpu
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What vLLM's flash layout takes (V1, FLASH_ATTN backend and `reshape_and_cache_flash`), from a
/// pool and a step.
///
///     set-up, each layer:  auto const cache = interop::vllm::flash_cache(view, layer);
///     each step:           auto const meta = interop::vllm::flash_metadata(step, buffers, table,
///                                                                          maxima);
///
///     reshape_and_cache_flash(key, value, cache->key_cache, cache->value_cache, meta.slot_mapping,
///                             cache->kv_cache_dtype, cache->k_scale, cache->v_scale)
///     flash_attn_varlen_func(q, cache->key_cache, cache->value_cache,
///         cu_seqlens_q=meta.query_start_loc, max_seqlen_q=meta.max_query_len,
///         seqused_k=meta.seq_lens, max_seqlen_k=meta.max_seq_len, block_table=meta.block_table,
///         k_descale=cache->k_scale.expand(n, num_kv_heads), ...)
///
/// Conventions that meet ours: a slot is block * block_size + offset in int64, and below 0 skipped;
/// scales are f32 in device memory, x / scale when stored, times scale when read. Its writer
/// divides where ours multiplies by the reciprocal, so that a stored byte may differ by one step;
/// both read the same.
///
/// vLLM keeps block 0 for padding of its own; here it is a block like others, and behind a row's
/// end nothing is read.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/pool_rules.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/interop/refusal.hpp>
#include <pagedkv/interop/step.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {
namespace vllm {

/// One layer's cache. Strides are the pool's, so that HND is the same shape with other strides.
struct FlashCache {
  /// [2, num_blocks, block_size, num_kv_heads, head_size]; fp8 as bytes (uint8), as vLLM allocates
  /// it. Releases with blocks in front take transposed(kv_cache, 0, 1).
  Tensor kv_cache;
  Tensor key_cache;  ///< kv_cache[0], [num_blocks, block_size, num_kv_heads, head_size], typed
  Tensor value_cache;
  char const* kv_cache_dtype = "auto";  ///< or "fp8_e4m3"
  /// f32, in the pool's memory: [1], or [num_kv_heads] where the heads have their own. None for
  /// 16-bit formats, for which vLLM passes a 1 that nobody reads.
  Tensor k_scale;
  Tensor v_scale;
};

/// n: padded sequences, t: padded tokens.
struct FlashMetadata {
  Tensor slot_mapping;     ///< [t], int64; padding: -1
  Tensor block_table;      ///< [n, columns], int32
  Tensor seq_lens;         ///< [n], int32, tokens with this step's
  Tensor query_start_loc;  ///< [n + 1], int32
  std::int32_t num_actual_tokens = 0;
  std::int32_t max_query_len = 0;
  std::int32_t max_seq_len = 0;
};

namespace detail {
using pagedkv::detail::PoolRules;

inline constexpr std::array<KvFormat, 4> formats = {{{Element::f16, Granularity::none},
                                                     {Element::bf16, Granularity::none},
                                                     {Element::fp8_e4m3, Granularity::per_tensor},
                                                     {Element::fp8_e4m3, Granularity::per_head}}};
inline constexpr PoolRules flash_rules{
    .consumer = "vLLM flash",
    .formats = formats,
    .why_formats = "its fp8 is e4m3, scaled by one number or one for each KV head",
    .block_multiple = 16,
    .head_dims = {},
    .max_head_dim_k = 256,
    .max_head_dim_v = 256,
    .head_bytes_multiple = 16,
    .equal_head_dims = true,
    .equal_formats = true,  // its writer wants as many scales for V as for K
    .dense_head_scales = true};
}  // namespace detail

/// One layer's cache. Set-up: may allocate. Refuses what vLLM can't take. Requires: the view is
/// sound (`kv_view_error`) and has the layer.
[[nodiscard]] inline Answer<FlashCache> flash_cache(KvView const& view, std::int32_t layer) {
  auto const& rules = detail::flash_rules;
  if (auto refused = pagedkv::detail::refused_pool(rules, view, layer)) return *refused;
  KvLayer const& l = view.layers[static_cast<std::size_t>(layer)];
  FlashCache out{.kv_cache = {},
                 .key_cache = pool_tensor(view, l.k),
                 .value_cache = pool_tensor(view, l.v),
                 .k_scale = scale_tensor(view, l.k),
                 .v_scale = scale_tensor(view, l.v)};
  auto const both = stacked(out.key_cache, out.value_cache);
  if (!both) {
    return pagedkv::detail::refuse(rules, "V", "not like K",
                                   "it takes K and V as one tensor: the same strides, V behind K",
                                   "");
  }
  out.kv_cache = *both;
  if (out.kv_cache.dtype == Dtype::e4m3fn) {
    out.kv_cache.dtype = Dtype::u8;
    out.kv_cache_dtype = "fp8_e4m3";
  }
  return out;
}

/// The step's arrays, wherever they lie; `maxima`: of the step (`maxima_of`). Nothing is read.
/// Requires: `build` wrote slot_mapping, query_offsets and sequence_lengths; the table has the
/// step's rows. O(1).
[[nodiscard]] inline FlashMetadata flash_metadata(BatchStep const& step, BatchBuffers const& arrays,
                                                  BlockTable const& table,
                                                  StepMaxima const& maxima) {
  std::int64_t const n = step.padded_sequences;
  return {array_tensor(arrays.slot_mapping, step.padded_tokens),
          table_tensor(step, table),
          array_tensor(arrays.sequence_lengths, n),
          array_tensor(arrays.query_offsets, n + 1),
          step.num_tokens,
          maxima.query_len,
          maxima.sequence_len};
}

}  // namespace vllm
}  // namespace interop
PAGEDKV_NAMESPACE_END

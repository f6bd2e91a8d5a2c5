// SPDX-License-Identifier: Apache-2.0
/// \file
/// What FlashAttention takes, from a pool and a step: version 2 (flash_attn 2.5 to 2.8) and version
/// 3 (flash_attn_interface of `hopper/`).
///
///     set-up, each layer:  auto const cache = interop::flash_attention::fa3_cache(view, layer);
///     each step:           auto const args = interop::flash_attention::fa3_step(step, buffers,
///                                                                   table, maxima);
///
///     FA3:  flash_attn_with_kvcache(q, cache->k, cache->v, page_table=args.page_table,
///               cache_seqlens=args.cache_seqlens, cu_seqlens_q=args.cu_seqlens_q,
///               max_seqlen_q=args.max_seqlen_q, causal=True,
///               k_descale=descale_of_batch(cache->k_descale, n), v_descale=...)
///     FA2, one query a sequence:  flash_attn_with_kvcache(q, cache->k, cache->v,
///               cache_seqlens=args.cache_seqlens, block_table=args.block_table, causal=True)
///     FA2, any number:  flash_attn_varlen_func(q, cache->k, cache->v, args.cu_seqlens_q,
///               args.cu_seqlens_k, args.max_seqlen_q, args.max_seqlen_k,
///               block_table=args.block_table, causal=True)
///
/// Conventions that meet ours: the table is int32, row b has sequence b's blocks in order, and
/// entries behind the sequence's length aren't read. Causal queries stand at the end of their
/// sequence (since 2.1). A descale is multiplied by when a number is read.
///
/// Neither takes a step without sequences: don't call.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/pool_rules.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/interop/refusal.hpp>
#include <pagedkv/interop/step.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {
namespace flash_attention {

/// One layer's cache: [num_blocks, page_size, num_kv_heads, head_dim]. HND pools too: both versions
/// read strides.
struct Fa2Cache {
  Tensor k;
  Tensor v;
};
struct Fa3Cache {
  Tensor k;
  Tensor v;
  /// [1, num_kv_heads], f32, in the pool's memory; a head stride of 0 where one number serves all.
  /// None for 16-bit formats. What the call takes is `descale_of_batch`.
  Tensor k_descale;
  Tensor v_descale;
};

/// n: padded sequences; all int32.
struct Fa2Decode {
  Tensor block_table;    ///< [n, columns]
  Tensor cache_seqlens;  ///< [n], tokens with this step's
};
struct Fa2Varlen {
  Tensor block_table;   ///< [n, columns]
  Tensor cu_seqlens_q;  ///< [n + 1]
  Tensor cu_seqlens_k;  ///< [n + 1]
  std::int32_t max_seqlen_q = 0;
  std::int32_t max_seqlen_k = 0;
};
struct Fa3Step {
  Tensor page_table;     ///< [n, columns]
  Tensor cache_seqlens;  ///< [n]; `seqused_k` of the C++ call
  Tensor cu_seqlens_q;   ///< [n + 1]
  std::int32_t max_seqlen_q = 0;
};

namespace detail {
using pagedkv::detail::PoolRules;
using pagedkv::detail::Refused;

inline constexpr std::array<KvFormat, 4> formats = {{{Element::f16, Granularity::none},
                                                     {Element::bf16, Granularity::none},
                                                     {Element::fp8_e4m3, Granularity::per_tensor},
                                                     {Element::fp8_e4m3, Granularity::per_head}}};

inline constexpr PoolRules fa2_rules{.consumer = "FlashAttention 2",
                                     .formats = std::span(formats).first<2>(),
                                     .why_formats = "it has no fp8",
                                     .block_multiple = 256,
                                     .head_dims = {},
                                     .max_head_dim_k = 256,
                                     .max_head_dim_v = 256,
                                     .head_bytes_multiple = 16,  // else it copies the whole cache
                                     .equal_head_dims = true};
inline constexpr PoolRules fa3_rules{
    .consumer = "FlashAttention 3",
    .formats = formats,
    .why_formats = "its fp8 is e4m3, scaled by a number for each sequence and KV head",
    .block_multiple = 1,
    .head_dims = {},
    .max_head_dim_k = 256,
    .max_head_dim_v = 512,
    .head_bytes_multiple = 16,
    .equal_head_dims = false};

/// V is as long as K, or of one of the two families of kernels with another V.
[[nodiscard]] inline Refused refused_dims(KvLayer const& layer) {
  std::int32_t const k = layer.k.head_dim;
  std::int32_t const v = layer.v.head_dim;
  bool const is_fp8 = layer.v.format.element == Element::fp8_e4m3;
  bool const wide_k = k > 128 && k <= 192 && v > 96 && v <= 128;
  bool const wide_v = k <= 64 && v <= (is_fp8 ? 256 : 512);
  if (v == k || wide_k || wide_v) return std::nullopt;
  return pagedkv::detail::refuse(fa3_rules, "head_dim of V", std::to_string(v),
                                 "it takes that of K, up to 128 beside a K of 136 to 192, and up "
                                 "to 512 (fp8: 256) beside a K of up to 64",
                                 std::to_string(k));
}

[[nodiscard]] inline Tensor descale(KvView const& view, KvTensor const& t) noexcept {
  if (t.format.granularity == Granularity::none) return {};
  // A stride of 0 is how one number serves every head, as `expand` makes it.
  bool const is_shared = t.format.granularity == Granularity::per_tensor;
  return {
      t.scales, Dtype::f32, 2, {1, view.num_kv_heads}, {0, is_shared ? 0 : t.scale_head_stride}};
}
}  // namespace detail

/// One layer's cache for version 2. Set-up: may allocate. Refuses what it can't take. Requires: the
/// view is sound (`kv_view_error`) and has the layer.
[[nodiscard]] inline Answer<Fa2Cache> fa2_cache(KvView const& view, std::int32_t layer) {
  if (auto refused = pagedkv::detail::refused_pool(detail::fa2_rules, view, layer)) return *refused;
  KvLayer const& l = view.layers[static_cast<std::size_t>(layer)];
  return Fa2Cache{pool_tensor(view, l.k), pool_tensor(view, l.v)};
}

/// The same for version 3. With fp8, q is e4m3 too.
[[nodiscard]] inline Answer<Fa3Cache> fa3_cache(KvView const& view, std::int32_t layer) {
  if (auto refused = pagedkv::detail::refused_pool(detail::fa3_rules, view, layer)) return *refused;
  KvLayer const& l = view.layers[static_cast<std::size_t>(layer)];
  if (auto refused = detail::refused_dims(l)) return *refused;
  return Fa3Cache{pool_tensor(view, l.k), pool_tensor(view, l.v), detail::descale(view, l.k),
                  detail::descale(view, l.v)};
}

/// `k_descale` or `v_descale` for a step of n padded sequences: [n, num_kv_heads], every row the
/// same memory. None stays none.
[[nodiscard]] constexpr Tensor descale_of_batch(Tensor descale, std::int64_t n) noexcept {
  if (descale.exists()) descale.shape[0] = n;
  return descale;
}

/// `cu_seqlens_k` of version 2: where each sequence's tokens would begin if they were one after the
/// other. Reads `sequence_lengths` (host memory), writes n + 1 numbers to `out`. Errors: batch_full
/// when `out` is shorter, or the lengths' sum is no int32. O(sequences), allocates nothing.
[[nodiscard]] inline Result<void> cumulate_lengths(BatchStep const& step, BatchBuffers const& host,
                                                   std::span<std::int32_t> out) {
  auto const n = static_cast<std::size_t>(step.padded_sequences);
  PAGEDKV_ASSERT(host.sequence_lengths.size() >= n,
                 "cumulate_lengths: build must have written sequence_lengths");
  if (out.size() <= n) return Unexpected{Errc::batch_full};
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::int32_t>(sum);
    sum += host.sequence_lengths[i];
    if (sum > std::numeric_limits<std::int32_t>::max()) return Unexpected{Errc::batch_full};
  }
  out[n] = static_cast<std::int32_t>(sum);
  return {};
}

/// For steps in which every sequence has one query. Nothing is read. Requires: `build` wrote
/// sequence_lengths; the table has the step's rows. O(1).
[[nodiscard]] inline Fa2Decode fa2_decode(BatchStep const& step, BatchBuffers const& arrays,
                                          BlockTable const& table) {
  return {table_tensor(step, table), array_tensor(arrays.sequence_lengths, step.padded_sequences)};
}

/// For any step. `cu_seqlens_k`: what `cumulate_lengths` wrote, wherever it lies; `maxima`: of the
/// step (`maxima_of`). Nothing is read. Requires: `build` wrote query_offsets; the table has the
/// step's rows. O(1).
[[nodiscard]] inline Fa2Varlen fa2_varlen(BatchStep const& step, BatchBuffers const& arrays,
                                          BlockTable const& table,
                                          std::span<std::int32_t> cu_seqlens_k,
                                          StepMaxima const& maxima) {
  std::int64_t const n = step.padded_sequences;
  return {table_tensor(step, table), array_tensor(arrays.query_offsets, n + 1),
          array_tensor(cu_seqlens_k, n + 1), maxima.query_len, maxima.sequence_len};
}

/// For any step. Nothing is read. Requires: `build` wrote query_offsets and sequence_lengths; the
/// table has the step's rows. O(1).
[[nodiscard]] inline Fa3Step fa3_step(BatchStep const& step, BatchBuffers const& arrays,
                                      BlockTable const& table, StepMaxima const& maxima) {
  std::int64_t const n = step.padded_sequences;
  return {table_tensor(step, table), array_tensor(arrays.sequence_lengths, n),
          array_tensor(arrays.query_offsets, n + 1), maxima.query_len};
}

}  // namespace flash_attention
}  // namespace interop
PAGEDKV_NAMESPACE_END

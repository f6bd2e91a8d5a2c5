// SPDX-License-Identifier: Apache-2.0
/// \file
/// What FlashInfer's paged wrappers take, from a pool and a step: `BatchPrefillWithPagedKVCache-
/// Wrapper` and `BatchDecodeWithPagedKVCacheWrapper` of 0.6, and the `paged_kv_t` beneath them.
///
///     set-up, each layer:  auto const cache = interop::flashinfer::paged_kv(view, layer, backend,
///                                                                           static_scales);
///     each step:           auto const table = interop::flashinfer::page_table(step, buffers);
///
///     plan(table.qo_indptr, table.kv_indptr, table.kv_indices, table.kv_last_page_len, ...,
///          cache->num_kv_heads, cache->head_dim, cache->page_size, causal=True)
///     run(q, (cache->k, cache->v) or cache->kv, k_scale=cache->k_scale, v_scale=cache->v_scale)
///
/// Conventions that meet ours: sequence b has the pages kv_indices[kv_indptr[b]] up to
/// kv_indices[kv_indptr[b + 1]], all full but the last, which holds kv_last_page_len[b] tokens, 1
/// to page_size, and 0 where the sequence has no page (padding). All are int32. Queries stand at
/// the end of their sequence. A scale is multiplied by when a number is read: `k_scale` goes into
/// the softmax scale, `v_scale` into the output.
///
/// The decode wrapper wants exactly one query a sequence; the prefill wrapper takes any number,
/// none included. Both take numbers (`plan`'s arrays) from host or device memory.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/detail/pool_rules.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/interop/refusal.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {
namespace flashinfer {

/// The wrapper's `backend`. `fa3` is Hopper's; with fp8 it wants q as e4m3 too.
enum class Backend : std::uint8_t { fa2, fa3 };

/// One layer's cache. NHD: [num_blocks, page_size, num_kv_heads, head_dim]; HND: the middle two
/// exchanged. Strides are the pool's; in C++ they are the constructor's `k_strides`, `v_strides`.
struct PagedKv {
  Tensor k;
  Tensor v;
  /// Both as one tensor [num_blocks, 2, ...]; none if K and V don't lie alike. Releases whose
  /// `paged_kv_t` has one set of strides take only pools that have it.
  Tensor kv;
  char const* kv_layout = "NHD";  ///< the order of memory: "HND" where a head's tokens are together
  std::int32_t page_size = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  float k_scale = 1.0F;  ///< a number of the host: run's `k_scale`, `v_scale`
  float v_scale = 1.0F;
  /// [num_kv_heads], f32, where the heads have their own: run(q, cache, q_scale, k_scales,
  /// v_scales). None otherwise.
  Tensor k_scales;
  Tensor v_scales;
};

/// `plan`'s arrays. n: padded sequences.
struct PageTable {
  Tensor qo_indptr;         ///< [n + 1], into the rows of q
  Tensor kv_indptr;         ///< [n + 1], into kv_indices
  Tensor kv_indices;        ///< [num_indices]
  Tensor kv_last_page_len;  ///< [n]
};

namespace detail {
using pagedkv::detail::PoolRules;
using pagedkv::detail::Refused;

inline constexpr std::array<std::int32_t, 3> head_dims = {64, 128, 256};
inline constexpr std::array<KvFormat, 4> fa2_formats = {
    {{Element::f16, Granularity::none},
     {Element::bf16, Granularity::none},
     {Element::fp8_e4m3, Granularity::per_tensor},
     {Element::fp8_e5m2, Granularity::per_tensor}}};
inline constexpr std::array<KvFormat, 4> fa3_formats = {
    {{Element::f16, Granularity::none},
     {Element::bf16, Granularity::none},
     {Element::fp8_e4m3, Granularity::per_tensor},
     {Element::fp8_e4m3, Granularity::per_head}}};

[[nodiscard]] constexpr PoolRules rules_of(Backend backend) noexcept {
  PoolRules rules{.consumer = "FlashInfer fa2",
                  .formats = fa2_formats,
                  .why_formats = "its scales are one number for K and one for V",
                  .block_multiple = 1,
                  .head_dims = head_dims,
                  .max_head_dim_k = head_dims.back(),
                  .max_head_dim_v = head_dims.back(),
                  .head_bytes_multiple = 1,
                  .equal_head_dims = true};
  if (backend == Backend::fa3) {
    rules.consumer = "FlashInfer fa3";
    rules.formats = fa3_formats;
    rules.dense_head_scales = true;
    rules.why_formats = "its fp8 is e4m3, scaled by one number or one for each KV head";
  }
  return rules;
}

/// `paged_kv_t` keeps strides as uint32.
[[nodiscard]] inline Refused refused_stride(PoolRules const& rules, std::string const& which,
                                            KvTensor const& t) {
  constexpr std::int64_t largest = std::numeric_limits<std::uint32_t>::max();
  for (std::int64_t const stride : {t.block_stride, t.token_stride, t.head_stride}) {
    if (stride >= 0 && stride <= largest) continue;
    return pagedkv::detail::refuse(rules, "a stride of " + which, std::to_string(stride),
                                   "it takes 0 to " + std::to_string(largest),
                                   std::to_string(stride < 0 ? 0 : largest));
  }
  return std::nullopt;
}

/// The kernels get one number from the host, and the pool's own may be on a device.
[[nodiscard]] inline Refused refused_scales(PoolRules const& rules, std::string const& which,
                                            KvTensor const& t, std::vector<float> const& scales) {
  if (t.format.granularity != Granularity::per_tensor || scales.size() == 1) return std::nullopt;
  return pagedkv::detail::refuse(rules, "static_scales of " + which,
                                 std::to_string(scales.size()) + " numbers",
                                 "it takes the layer's scale as a number of the host", "1 number");
}

[[nodiscard]] inline Refused refused(KvView const& view, std::int32_t layer, Backend backend,
                                     StaticScales const& scales) {
  PoolRules const rules = rules_of(backend);
  if (auto refused = pagedkv::detail::refused_pool(rules, view, layer)) return refused;
  KvLayer const& l = view.layers[static_cast<std::size_t>(layer)];
  if (auto refused = refused_stride(rules, "K", l.k)) return refused;
  if (auto refused = refused_stride(rules, "V", l.v)) return refused;
  if (auto refused = refused_scales(rules, "K", l.k, scales.k)) return refused;
  return refused_scales(rules, "V", l.v, scales.v);
}
}  // namespace detail

/// One layer's cache for a backend. `static_scales`: the layer's, in host memory, as `KvStorage`
/// got them; read for `per_tensor` only. Set-up: may allocate. Refuses what the backend can't take.
/// Requires: the view is sound (`kv_view_error`) and has the layer.
[[nodiscard]] inline Answer<PagedKv> paged_kv(KvView const& view, std::int32_t layer,
                                              Backend backend,
                                              StaticScales const& static_scales = {}) {
  if (auto refused = detail::refused(view, layer, backend, static_scales)) return *refused;
  KvLayer const& l = view.layers[static_cast<std::size_t>(layer)];
  bool const is_hnd = l.k.token_stride < l.k.head_stride;
  auto const ordered = [is_hnd](Tensor const& t) { return is_hnd ? transposed(t, 1, 2) : t; };
  PagedKv out{.k = ordered(pool_tensor(view, l.k)),
              .v = ordered(pool_tensor(view, l.v)),
              .kv = {},
              .kv_layout = is_hnd ? "HND" : "NHD",
              .page_size = view.block_tokens,
              .num_kv_heads = view.num_kv_heads,
              .head_dim = l.k.head_dim,
              .k_scales = {},
              .v_scales = {}};
  if (auto const both = stacked(out.k, out.v)) out.kv = transposed(*both, 0, 1);
  auto const take_scale = [&](KvTensor const& t, std::vector<float> const& numbers, float& scale,
                              Tensor& scales) {
    if (t.format.granularity == Granularity::per_tensor) scale = numbers.front();
    if (t.format.granularity == Granularity::per_head) scales = scale_tensor(view, t);
  };
  take_scale(l.k, static_scales.k, out.k_scale, out.k_scales);
  take_scale(l.v, static_scales.v, out.v_scale, out.v_scales);
  return out;
}

/// The step's arrays, wherever they lie. Nothing is read or copied. Requires: `build` wrote
/// query_offsets, indptr, indices and last_block_len. O(1).
[[nodiscard]] inline PageTable page_table(BatchStep const& step, BatchBuffers const& arrays) {
  std::int64_t const n = step.padded_sequences;
  return {array_tensor(arrays.query_offsets, n + 1), array_tensor(arrays.indptr, n + 1),
          array_tensor(arrays.indices, step.num_indices), array_tensor(arrays.last_block_len, n)};
}

}  // namespace flashinfer
}  // namespace interop
PAGEDKV_NAMESPACE_END

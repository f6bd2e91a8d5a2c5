// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where K and V of every layer lie: pointers and strides, nothing owned. An engine that owns its
/// tensors fills one in; `KvStorage` makes one of its own memory.
///
/// K and V of a layer are separate tensors; each is [block, token of the block, head, dim] by
/// strides, `dim` contiguous, so NHD, HND, layer-major and block-major are only numbers:
///
///     element i of (block b, offset t, head h):  b * block_stride + t * token_stride
///                                                + h * head_stride + i
///     its scale:  b * scale_block_stride + t * scale_token_stride + h * scale_head_stride
///
/// The second formula holds for every granularity: a stride is 0 where a scale is shared. Strides
/// are 64-bit and count elements (for `int4`, 4-bit elements: all of them even) and floats.
/// `int8_asym` and `int4` have two floats in each scale's place: the scale, then the zero.
///
/// Trivially copyable but for the span of layers, which is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include <pagedkv/error.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Longer vectors than any model has: operations keep some on the stack.
inline constexpr std::int32_t max_head_dim = 1024;

/// K, or V, of one layer.
struct KvTensor {
  std::byte* data = nullptr;
  /// Null for 16 and 32 bit formats. Static ones (per_tensor, per_head) are read only, and writers
  /// never change them; the others are written together with the bytes.
  float* scales = nullptr;
  KvFormat format{};
  std::int32_t head_dim = 0;  ///< elements; 0: there is no such tensor (V of latent attention)
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t scale_block_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int64_t scale_head_stride = 0;

  /// First byte of a vector. Exact for `int4`, whose strides are even.
  [[nodiscard]] std::byte* vector(std::int64_t block, std::int64_t offset,
                                  std::int64_t head) const noexcept {
    std::int64_t const element = block * block_stride + offset * token_stride + head * head_stride;
    return data + element * bits_per_element(format.element) / 8;
  }
  /// The vector's scale (and zero). Requires: the format has scales.
  [[nodiscard]] float* scale(std::int64_t block, std::int64_t offset,
                             std::int64_t head) const noexcept {
    return scales + block * scale_block_stride + offset * scale_token_stride +
           head * scale_head_stride;
  }
};

/// One layer.
struct KvLayer {
  KvTensor k;
  KvTensor v;
};

/// All layers of one pool of blocks.
struct KvView {
  std::span<KvLayer const> layers;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
  std::int32_t num_kv_heads = 0;

  [[nodiscard]] std::int64_t num_slots() const noexcept {
    return std::int64_t{num_blocks} * block_tokens;
  }
};
static_assert(std::is_trivially_copyable_v<KvLayer>);

/// What is wrong with a view, naming the layer and the field; empty if nothing is. O(layers). For
/// whoever fills one in: operations check slots and tables only.
[[nodiscard]] std::string kv_view_error(KvView const& view);

/// K or V of a step's tokens: [num_tokens, num_kv_heads, head_dim], `head_dim` contiguous.
/// `element` is f32, f16 or bf16; strides count elements and may be anything.
struct KvRows {
  void const* data = nullptr;
  Element element = Element::f32;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};
/// The same to be written, by `gather_kv`.
struct MutableKvRows {
  void* data = nullptr;
  Element element = Element::f32;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

PAGEDKV_NAMESPACE_END

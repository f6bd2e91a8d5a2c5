// SPDX-License-Identifier: Apache-2.0
/// \file
/// What kernels are told of the tensors they read and write: pointers and strides in bytes, 64 bit,
/// and what divides an index. Plain structs, passed by value.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/chunk.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/kv_view.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

/// Division by a number known at launch: a multiplication. Exact for 0 <= n, n * divisor < 2^64:
/// with m = ceil(2^64 / d) the error of n * m is n * (m * d - 2^64) / d < n / 2^64 * 2^64 / d.
struct Divider {
  std::uint64_t magic = 0;  ///< 0: the divisor is 1
  std::int64_t divisor = 1;

  Divider() = default;
  explicit Divider(std::int64_t d)
      : magic(d == 1 ? 0 : ~std::uint64_t{0} / static_cast<std::uint64_t>(d) + 1), divisor(d) {}

  struct Parts {
    std::int64_t quotient;
    std::int64_t remainder;
  };
  [[nodiscard]] PAGEDKV_HD Parts divide(std::int64_t n) const {
    __extension__ using Wide = unsigned __int128;
    auto const product = static_cast<Wide>(static_cast<std::uint64_t>(n)) * magic;
    auto const quotient = magic == 0 ? n : static_cast<std::int64_t>(product >> 64);
    return {quotient, n - quotient * divisor};
  }
};

/// Rows of a step: vector of (token, head).
struct RowsArgs {
  std::byte* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  [[nodiscard]] PAGEDKV_HD std::byte* vector(std::int64_t token, std::int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

/// K or V of a layer in the pool. Strides of bytes, those of scales in floats.
struct PoolArgs {
  std::byte* data = nullptr;
  float* scales = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t scale_block_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int64_t scale_head_stride = 0;

  [[nodiscard]] PAGEDKV_HD std::byte* vector(std::int64_t block, std::int64_t offset,
                                             std::int64_t head) const {
    return data + block * block_stride + offset * token_stride + head * head_stride;
  }
  [[nodiscard]] PAGEDKV_HD float* scale(std::int64_t block, std::int64_t offset,
                                        std::int64_t head) const {
    return scales + block * scale_block_stride + offset * scale_token_stride +
           head * scale_head_stride;
  }
};

/// One side of an operation; dim 0: there is no such tensor.
struct SideArgs {
  RowsArgs rows;
  PoolArgs pool;
  std::int32_t dim = 0;
};

[[nodiscard]] inline std::int64_t bytes_of(std::int64_t elements, Element element) {
  return elements * bits_per_element(element) / 8;
}
template <class Rows>
[[nodiscard]] RowsArgs rows_args(Rows const& rows) {
  // A reader's rows are never written: the kernels that read take const.
  return {static_cast<std::byte*>(const_cast<void*>(static_cast<void const*>(rows.data))),
          bytes_of(rows.token_stride, rows.element), bytes_of(rows.head_stride, rows.element)};
}
[[nodiscard]] inline PoolArgs pool_args(KvTensor const& t) {
  Element const e = t.format.element;
  return {t.data,
          t.scales,
          bytes_of(t.block_stride, e),
          bytes_of(t.token_stride, e),
          bytes_of(t.head_stride, e),
          t.scale_block_stride,
          t.scale_token_stride,
          t.scale_head_stride};
}

/// Whether every vector begins at a multiple of `bytes`.
[[nodiscard]] inline bool is_aligned(RowsArgs const& r, std::int64_t bytes) {
  auto const address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(r.data));
  return (address | r.token_stride | r.head_stride) % bytes == 0;
}
[[nodiscard]] inline bool is_aligned(PoolArgs const& p, std::int64_t bytes) {
  auto const address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p.data));
  return (address | p.block_stride | p.token_stride | p.head_stride) % bytes == 0;
}
/// Whether the side can go through accesses of 16 bytes (of a chunk's size, where it is shorter).
[[nodiscard]] inline bool is_vectorizable(SideArgs const& side, Element stored) {
  std::int64_t const chunk = chunk_elements * bits_per_element(stored) / 8;
  return side.dim % chunk_elements == 0 && is_aligned(side.rows, 16) &&
         is_aligned(side.pool, chunk < 16 ? chunk : 16);
}

// ---- what launchers share -----------------------------------------------------------------------

/// The most blocks that a grid has in y and in z.
inline constexpr std::int32_t max_grid_yz = 65535;

/// Blocks of `threads` for so many threads; 0 if there are too many for a launch.
inline unsigned blocks_of(std::int64_t num_threads, std::int64_t threads) {
  std::int64_t const blocks = (num_threads + threads - 1) / threads;
  return blocks <= INT32_MAX ? static_cast<unsigned>(blocks) : 0U;
}

inline bool is_row_element(Element element) {
  return element == Element::f32 || element == Element::f16 || element == Element::bf16;
}
inline std::int64_t natural_alignment(Element element) {
  return element == Element::f32 ? 4 : element == Element::f16 || element == Element::bf16 ? 2 : 1;
}

inline bool is_aligned(void const* address, std::int64_t bytes) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address)) % bytes == 0;
}
/// Whether kernels can follow what a view says of a tensor that there is.
inline bool tensor_works(KvTensor const& t) {
  return t.head_dim > 0 && t.head_dim <= max_head_dim && is_valid(t.format) && t.data != nullptr &&
         (t.scales != nullptr) == (t.format.granularity != Granularity::none) &&
         is_aligned(t.scales, alignof(float));
}
template <class Rows>
bool side_works(KvTensor const& t, Rows const& rows) {
  if (t.head_dim == 0) return true;
  return tensor_works(t) && is_row_element(rows.element) && rows.data != nullptr &&
         is_aligned(rows_args(rows), natural_alignment(rows.element)) &&
         is_aligned(pool_args(t), natural_alignment(t.format.element));
}
template <class Rows>
SideArgs side_args(KvTensor const& t, Rows const& rows) {
  if (t.head_dim == 0) return {};
  return {rows_args(rows), pool_args(t), t.head_dim};
}
inline bool view_works(KvView const& view, std::int32_t layer) {
  return layer >= 0 && static_cast<std::size_t>(layer) < view.layers.size() &&
         view.num_blocks >= 1 && view.block_tokens >= 1 && view.num_kv_heads >= 1 &&
         view.num_kv_heads <= max_grid_yz;
}
/// Whether products of it, heads and chunks are numbers; whether a launch has room for them is
/// `blocks_of`'s question.
inline bool count_works(std::int64_t num_tokens) {
  return num_tokens >= 0 && num_tokens <= INT32_MAX;
}

// ---- access -------------------------------------------------------------------------------------

/// Reads a chunk that begins at a multiple of 16 bytes and isn't written by this launch.
template <Element element>
PAGEDKV_DEVICE void load_chunk(std::byte const* from, Chunk<element>& chunk) {
  if constexpr (Chunk<element>::num_words >= 4) {
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < Chunk<element>::num_words / 4; ++i) {
      uint4 const part = load_once(reinterpret_cast<uint4 const*>(from) + i);
      chunk.words[4 * i] = part.x;
      chunk.words[4 * i + 1] = part.y;
      chunk.words[4 * i + 2] = part.z;
      chunk.words[4 * i + 3] = part.w;
    }
  } else {
    uint2 const part = *reinterpret_cast<uint2 const*>(from);
    chunk.words[0] = part.x;
    chunk.words[1] = part.y;
  }
}

template <Element element>
PAGEDKV_DEVICE void store_chunk(Chunk<element> const& chunk, std::byte* to) {
  if constexpr (Chunk<element>::num_words >= 4) {
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < Chunk<element>::num_words / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] = make_uint4(chunk.words[4 * i], chunk.words[4 * i + 1],
                                                   chunk.words[4 * i + 2], chunk.words[4 * i + 3]);
    }
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(chunk.words[0], chunk.words[1]);
  }
}

/// One number of a row, exactly as `quant/` decodes it. `element` is known at run time.
PAGEDKV_DEVICE float load_number(Element element, std::byte const* vector, std::int32_t i) {
  if (element == Element::f32) return reinterpret_cast<float const*>(vector)[i];
  std::uint16_t const half = reinterpret_cast<std::uint16_t const*>(vector)[i];
  return element == Element::f16 ? quant::decode_f16(half) : quant::decode_bf16(half);
}
PAGEDKV_DEVICE void store_number(Element element, std::byte* vector, std::int32_t i, float x) {
  if (element == Element::f32) {
    reinterpret_cast<float*>(vector)[i] = x;
  } else {
    reinterpret_cast<std::uint16_t*>(vector)[i] =
        element == Element::f16 ? quant::encode_f16(x) : quant::encode_bf16(x);
  }
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

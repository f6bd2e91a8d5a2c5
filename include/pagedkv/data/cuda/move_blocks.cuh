// SPDX-License-Identifier: Apache-2.0
/// \file
/// copy_blocks and zero_blocks on the device: all layers, K, V and the scales beside them in one
/// launch, whatever their formats and strides.
///
/// A block of threads moves a piece of one tensor of one entry. Within a pool's block, a copy's
/// source and destination have the same offsets, so a thread finds an offset once.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/tensors.cuh>
#include <pagedkv/data/kv_view.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

/// `BlockCopy` as plain numbers.
struct CopyEntry {
  std::int32_t src;
  std::int32_t dst;
  std::int32_t num_tokens;
};
static_assert(sizeof(CopyEntry) == sizeof(BlockCopy) && sizeof(BlockId) == sizeof(std::int32_t));

struct MoveArgs {
  KvLayer const* layers = nullptr;  ///< in device memory
  std::int32_t num_layers = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t pieces = 1;               ///< of a tensor's block
  CopyEntry const* copies = nullptr;     ///< of a copy
  std::int32_t const* blocks = nullptr;  ///< of a zeroing
};

inline constexpr std::int32_t move_threads = 256;
inline constexpr std::int32_t moves_at_once = 4;

/// The vectors of one block of one tensor, neighbours first.
struct VectorWalk {
  std::uint32_t num_inner;
  std::uint32_t num_outer;
  std::int64_t inner_stride;  ///< bytes
  std::int64_t outer_stride;
};

PAGEDKV_DEVICE std::int64_t stride_bytes(KvTensor const& t, std::int64_t elements) {
  return t.format.element == Element::f32                                        ? elements * 4
         : t.format.element == Element::f16 || t.format.element == Element::bf16 ? elements * 2
         : t.format.element == Element::int4                                     ? elements / 2
                                                                                 : elements;
}

template <class Word>
PAGEDKV_DEVICE Word load_word(Word const* from) {
  if constexpr (sizeof(Word) >= 4) return load_once(from);
  return *from;
}

/// Words `first`, `first + step`, ... of the walk, a few in flight.
template <bool is_copy, class Word>
PAGEDKV_DEVICE void move_words(std::byte const* from, std::byte* to, VectorWalk const& walk,
                               std::uint32_t words_per_vector, std::uint32_t first,
                               std::uint32_t step) {
  std::uint32_t const total = words_per_vector * walk.num_inner * walk.num_outer;
  for (std::uint32_t begin = first; begin < total; begin += step) {
    std::int64_t offsets[moves_at_once];
    Word words[moves_at_once] = {};
    PAGEDKV_UNROLL_ALL
    for (std::uint32_t u = 0; u < moves_at_once; ++u) {
      std::uint32_t const i = begin + u * move_threads;
      std::uint32_t const vector = i / words_per_vector;
      std::uint32_t const word = i - vector * words_per_vector;
      std::uint32_t const outer = vector / walk.num_inner;
      std::uint32_t const inner = vector - outer * walk.num_inner;
      offsets[u] = inner * walk.inner_stride + outer * walk.outer_stride +
                   static_cast<std::int64_t>(word * sizeof(Word));
      if constexpr (is_copy) {
        if (i < total) words[u] = load_word(reinterpret_cast<Word const*>(from + offsets[u]));
      }
    }
    PAGEDKV_UNROLL_ALL
    for (std::uint32_t u = 0; u < moves_at_once; ++u) {
      if (begin + u * move_threads >= total) continue;
      *reinterpret_cast<Word*>(to + offsets[u]) = words[u];
    }
  }
}

template <bool is_copy>
PAGEDKV_DEVICE void move_scales(KvTensor const& t, std::int64_t src, std::int64_t dst,
                                std::int32_t num_heads, std::int32_t num_tokens) {
  bool const is_shared = t.format.granularity == Granularity::per_block_head;
  if (!is_shared && t.format.granularity != Granularity::per_token_head) return;
  std::int32_t const tokens = is_shared && num_tokens > 1 ? 1 : num_tokens;
  std::int64_t const floats = quant::has_zero(t.format.element) ? 2 : 1;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < num_heads * tokens; i += move_threads) {
    std::int64_t const in_block =
        i % num_heads * t.scale_head_stride + i / num_heads * t.scale_token_stride;
    for (std::int64_t f = 0; f < floats; ++f) {
      float const* const from = t.scales + src * t.scale_block_stride + in_block + f;
      t.scales[dst * t.scale_block_stride + in_block + f] = is_copy ? *from : 0.0F;
    }
  }
}

template <bool is_copy>
PAGEDKV_DEVICE void move_tensor(KvTensor const& t, MoveArgs const& a, CopyEntry const& entry,
                                std::int32_t piece) {
  std::int64_t const block_bytes = stride_bytes(t, t.block_stride);
  std::int64_t const token_bytes = stride_bytes(t, t.token_stride);
  std::int64_t const head_bytes = stride_bytes(t, t.head_stride);
  // An odd int4 vector ends in half a byte.
  auto const vector_bytes = static_cast<std::uint32_t>(
      stride_bytes(t, t.head_dim + (t.format.element == Element::int4 ? t.head_dim % 2 : 0)));
  auto const tokens = static_cast<std::uint32_t>(entry.num_tokens);
  auto const heads = static_cast<std::uint32_t>(a.num_heads);
  VectorWalk const walk = token_bytes < head_bytes
                              ? VectorWalk{tokens, heads, token_bytes, head_bytes}
                              : VectorWalk{heads, tokens, head_bytes, token_bytes};
  std::byte const* const from = t.data + entry.src * block_bytes;
  std::byte* const to = t.data + entry.dst * block_bytes;
  std::uint64_t const all = reinterpret_cast<std::uintptr_t>(t.data) |
                            static_cast<std::uint64_t>(block_bytes | token_bytes | head_bytes) |
                            vector_bytes;
  std::uint32_t const first =
      static_cast<std::uint32_t>(piece) * move_threads * moves_at_once + threadIdx.x;
  std::uint32_t const step = static_cast<std::uint32_t>(a.pieces) * move_threads * moves_at_once;
  if (all % 16 == 0) {
    move_words<is_copy, uint4>(from, to, walk, vector_bytes / 16, first, step);
  } else if (all % 4 == 0) {
    move_words<is_copy, unsigned>(from, to, walk, vector_bytes / 4, first, step);
  } else {
    move_words<is_copy, std::uint8_t>(from, to, walk, vector_bytes, first, step);
  }
  if (piece == 0) move_scales<is_copy>(t, entry.src, entry.dst, a.num_heads, entry.num_tokens);
}

/// Block x: piece, K or V, layer, entry, the first varying fastest.
template <bool is_copy>
PAGEDKV_KERNEL(move_threads, 4)
move_blocks(MoveArgs const a) {
  wait_for_previous_kernel();
  auto index = static_cast<std::int32_t>(blockIdx.x);
  std::int32_t const piece = index % a.pieces;
  index /= a.pieces;
  bool const is_k = index % 2 == 0;
  index /= 2;
  KvLayer const& layer = a.layers[index % a.num_layers];
  index /= a.num_layers;
  CopyEntry entry{};
  if constexpr (is_copy) {
    entry = a.copies[index];
  } else {
    entry = {a.blocks[index], a.blocks[index], a.block_tokens};
  }
  bool const works = entry.src >= 0 && entry.src < a.num_blocks && entry.dst >= 0 &&
                     entry.dst < a.num_blocks && entry.num_tokens > 0 &&
                     entry.num_tokens <= a.block_tokens;
  KvTensor const& t = is_k ? layer.k : layer.v;
  if (works && t.head_dim > 0) move_tensor<is_copy>(t, a, entry, piece);
}

/// Pieces, so that a thread moves few words of the largest tensor, or all of them where there are
/// very many blocks of threads anyway.
inline std::int32_t pieces_of(KvView const& view) {
  std::int64_t bytes = 1;
  for (KvLayer const& layer : view.layers) {
    for (KvTensor const* t : {&layer.k, &layer.v}) {
      std::int64_t const vector = bytes_per_vector(t->format.element, t->head_dim);
      std::int64_t const block = vector * view.num_kv_heads * view.block_tokens;
      bytes = block > bytes ? block : bytes;
    }
  }
  constexpr std::int64_t piece = std::int64_t{move_threads} * moves_at_once * 16;
  std::int64_t const pieces = (bytes + piece - 1) / piece;
  return static_cast<std::int32_t>(pieces < 64 ? pieces : 64);
}

/// Whether kernels can follow the view, and count a block's bytes in 32 bits.
inline bool view_moves(KvView const& view) {
  for (KvLayer const& layer : view.layers) {
    for (KvTensor const* t : {&layer.k, &layer.v}) {
      if (t == &layer.v && t->head_dim == 0) continue;
      if (!tensor_works(*t)) return false;
      std::int64_t const bytes =
          bytes_per_vector(t->format.element, t->head_dim) * view.num_kv_heads * view.block_tokens;
      if (bytes > INT32_MAX / 2) return false;
    }
  }
  return true;
}

template <bool is_copy>
cudaError_t launch_move(KvView const& view, MoveArgs args, std::int32_t num_entries,
                        cudaStream_t stream) {
  if (num_entries == 0) return cudaSuccess;
  bool const works = num_entries > 0 && args.layers != nullptr && !view.layers.empty() &&
                     view.num_blocks >= 1 && view.block_tokens >= 1 && view.num_kv_heads >= 1 &&
                     view_moves(view);
  if (!works) return cudaErrorInvalidValue;
  args.num_layers = static_cast<std::int32_t>(view.layers.size());
  args.num_blocks = view.num_blocks;
  args.block_tokens = view.block_tokens;
  args.num_heads = view.num_kv_heads;
  args.pieces = pieces_of(view);
  std::int64_t const blocks = std::int64_t{num_entries} * args.num_layers * 2 * args.pieces;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch(&move_blocks<is_copy>, static_cast<unsigned>(blocks), move_threads, 0, stream,
                args);
}

/// See operations.hpp.
inline cudaError_t copy_blocks(KvView const& view, KvLayer const* device_layers,
                               BlockCopy const* copies, std::int32_t num_copies,
                               cudaStream_t stream) {
  if (num_copies != 0 && copies == nullptr) return cudaErrorInvalidValue;
  MoveArgs args;
  args.layers = device_layers;
  args.copies = reinterpret_cast<CopyEntry const*>(copies);
  return launch_move<true>(view, args, num_copies, stream);
}
/// See operations.hpp.
inline cudaError_t zero_blocks(KvView const& view, KvLayer const* device_layers,
                               BlockId const* blocks, std::int32_t num_blocks,
                               cudaStream_t stream) {
  if (num_blocks != 0 && blocks == nullptr) return cudaErrorInvalidValue;
  MoveArgs args;
  args.layers = device_layers;
  args.blocks = reinterpret_cast<std::int32_t const*>(blocks);
  return launch_move<false>(view, args, num_blocks, stream);
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

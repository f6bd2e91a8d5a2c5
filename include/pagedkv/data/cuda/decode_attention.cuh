// SPDX-License-Identifier: Apache-2.0
/// \file
/// decode_attention on the device: one query a sequence, paged, grouped queries, sliding window,
/// every format and granularity. The reader that scales of tokens and blocks need; correct first.
///
/// A context is split; a block of four warps takes a split for a few query heads of one KV head, a
/// warp every fourth token, each lane head_dim / 32 elements. Warps are merged in shared memory,
/// splits by a second kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/chunk.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/tensors.cuh>
#include <pagedkv/data/kv_view.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

inline constexpr std::int32_t decode_warps = 4;
inline constexpr std::int32_t heads_at_once = 4;
/// Below every score, and its differences stay finite.
inline constexpr float no_score = -1e38F;

struct DecodeArgs {
  PoolArgs k;
  PoolArgs v;
  DecodeBatch batch;
  DecodeQueries queries;
  float scale_log2 = 1.0F;  ///< softmax_scale * log2(e)
  std::int32_t window = 0;
  std::int32_t num_splits = 1;
  std::int32_t num_blocks = 0;
  std::int32_t group = 1;       ///< query heads of a KV head
  std::int32_t head_parts = 1;  ///< blocks of threads that a group takes
  float* workspace = nullptr;   ///< [sequence, query head, split, 2 + dim]
  std::int32_t dim = 0;
  Divider block_tokens;
};

/// A lane's elements of a stored vector.
template <Element stored, std::int32_t count>
struct LanePart {
  static constexpr std::int32_t bits = count * bits_of_element<stored>;
  std::uint32_t words[bits < 32 ? 1 : bits / 32];

  PAGEDKV_DEVICE void load(std::byte const* vector, std::int32_t lane) {
    std::byte const* const from = vector + lane * (bits / 8);
    if constexpr (bits == 256) {
      uint4 const low = reinterpret_cast<uint4 const*>(from)[0];
      uint4 const high = reinterpret_cast<uint4 const*>(from)[1];
      words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
      words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
    } else if constexpr (bits == 128) {
      uint4 const part = *reinterpret_cast<uint4 const*>(from);
      words[0] = part.x, words[1] = part.y, words[2] = part.z, words[3] = part.w;
    } else if constexpr (bits == 64) {
      uint2 const part = *reinterpret_cast<uint2 const*>(from);
      words[0] = part.x, words[1] = part.y;
    } else if constexpr (bits == 32) {
      words[0] = *reinterpret_cast<std::uint32_t const*>(from);
    } else if constexpr (bits == 16) {
      words[0] = *reinterpret_cast<std::uint16_t const*>(from);
    } else {
      static_assert(bits == 8);
      words[0] = static_cast<std::uint32_t>(*from);
    }
  }
  PAGEDKV_DEVICE void decode(AffineScale scale, float (&x)[count]) const {
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < count; i += 2) {
      float2 const pair = pair_of_words<stored>(words, i, scale);
      x[i] = pair.x;
      x[i + 1] = pair.y;
    }
  }
};

template <Element stored, std::int32_t count>
PAGEDKV_DEVICE void read_lane(PoolArgs const& pool, std::int64_t block, std::int64_t offset,
                              std::int64_t head, std::int32_t lane, float (&x)[count]) {
  LanePart<stored, count> part;
  part.load(pool.vector(block, offset, head), lane);
  AffineScale scale{1.0F, 0.0F};
  if constexpr (!quant::is_unscaled(stored)) {
    float const* const entry = pool.scale(block, offset, head);
    scale = {entry[0], quant::has_zero(stored) ? entry[1] : 0.0F};
  }
  part.decode(scale, x);
}

/// What is known of a head's positions so far; `acc` are a lane's elements.
template <std::int32_t count>
struct Softmax {
  float max = no_score;
  float sum = 0.0F;
  float acc[count] = {};

  PAGEDKV_DEVICE void add(float score, float const (&v)[count]) {
    float const largest = score > max ? score : max;
    float const keep = exp2_approx(max - largest);
    float const weight = exp2_approx(score - largest);
    max = largest;
    sum = sum * keep + weight;
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < count; ++i) acc[i] = acc[i] * keep + weight * v[i];
  }
};

/// Block of `column` in the row of sequence s; -1 where the row or the pool hasn't one.
PAGEDKV_DEVICE std::int64_t block_of(DecodeArgs const& a, std::int32_t s, std::int64_t column) {
  DecodeBatch const& b = a.batch;
  std::int64_t const first = b.indptr == nullptr ? s * b.table_stride : b.indptr[s];
  std::int64_t const columns =
      b.indptr == nullptr ? b.table_stride : b.indptr[s + 1] - std::int64_t{b.indptr[s]};
  if (column >= columns) return -1;
  std::int32_t const block = b.indices[first + column];
  return block < a.num_blocks ? block : -1;
}

/// Block (x, y, z): split, KV head and part of its group, sequence.
template <Element stored, std::int32_t dim>
PAGEDKV_KERNEL(32 * decode_warps, 4)
attend_split(DecodeArgs const a) {
  wait_for_previous_kernel();
  constexpr std::int32_t count = dim / 32;
  PAGEDKV_SHARED(maxima, float[decode_warps][heads_at_once]);
  PAGEDKV_SHARED(sums, float[decode_warps][heads_at_once]);
  PAGEDKV_SHARED(accs, float[decode_warps][heads_at_once][dim]);
  auto const s = static_cast<std::int32_t>(blockIdx.z);
  auto const kv_head = static_cast<std::int32_t>(blockIdx.y) / a.head_parts;
  std::int32_t const in_group =
      static_cast<std::int32_t>(blockIdx.y) % a.head_parts * heads_at_once;
  std::int32_t const first_head = kv_head * a.group + in_group;
  std::int32_t const left = a.group - in_group;
  std::int32_t const heads = left < heads_at_once ? left : heads_at_once;
  std::int32_t const length = a.batch.sequence_lengths[s];
  if (length <= 0) return;  // the whole block
  auto const warp = static_cast<std::int32_t>(threadIdx.x / 32);
  auto const lane = static_cast<std::int32_t>(threadIdx.x % 32);

  float q[heads_at_once][count] = {};
  PAGEDKV_UNROLL_ALL
  for (std::int32_t h = 0; h < heads_at_once; ++h) {
    if (h >= heads) continue;
    std::int64_t const bytes = a.queries.element == Element::f32 ? 4 : 2;
    std::int64_t const at = s * a.queries.q_token_stride + (first_head + h) * std::int64_t{dim};
    auto const* const from = static_cast<std::byte const*>(a.queries.q) + at * bytes;
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < count; ++i) {
      q[h][i] = load_number(a.queries.element, from, lane * count + i) * a.scale_log2;
    }
  }

  std::int32_t const oldest = a.window > 0 && length > a.window ? length - a.window : 0;
  std::int32_t const share = 1 + (length - oldest - 1) / a.num_splits;
  std::int64_t const begin = oldest + std::int64_t{blockIdx.x} * share;
  std::int64_t const end = begin + share < length ? begin + share : length;
  Softmax<count> found[heads_at_once];
  for (std::int64_t t = begin + warp; t < end; t += decode_warps) {
    auto const [column, offset] = a.block_tokens.divide(t);
    std::int64_t const block = block_of(a, s, column);
    if (block < 0) continue;  // the whole warp
    float k[count];
    float v[count];
    read_lane<stored>(a.k, block, offset, kv_head, lane, k);
    read_lane<stored>(a.v, block, offset, kv_head, lane, v);
    float scores[heads_at_once] = {};
    PAGEDKV_UNROLL_ALL
    for (std::int32_t h = 0; h < heads_at_once; ++h) {
      PAGEDKV_UNROLL_ALL
      for (std::int32_t i = 0; i < count; ++i) scores[h] += q[h][i] * k[i];
    }
    PAGEDKV_UNROLL_ALL
    for (std::int32_t distance = 16; distance > 0; distance /= 2) {
      PAGEDKV_UNROLL_ALL
      for (std::int32_t h = 0; h < heads_at_once; ++h) {
        scores[h] += __shfl_xor_sync(all_lanes, scores[h], distance);
      }
    }
    PAGEDKV_UNROLL_ALL
    for (std::int32_t h = 0; h < heads_at_once; ++h) found[h].add(scores[h], v);
  }

  PAGEDKV_UNROLL_ALL
  for (std::int32_t h = 0; h < heads_at_once; ++h) {
    if (lane == 0) maxima[warp][h] = found[h].max;
    if (lane == 0) sums[warp][h] = found[h].sum;
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < count; ++i) accs[warp][h][lane * count + i] = found[h].acc[i];
  }
  __syncthreads();
  for (std::int32_t h = 0; h < heads; ++h) {
    float max = no_score;
    for (std::int32_t w = 0; w < decode_warps; ++w) max = fmaxf(max, maxima[w][h]);
    std::int64_t const row =
        (s * std::int64_t{a.queries.num_q_heads} + first_head + h) * a.num_splits + blockIdx.x;
    float* const to = a.workspace + row * (2 + dim);
    float sum = 0.0F;
    for (std::int32_t w = 0; w < decode_warps; ++w) {
      sum += sums[w][h] * exp2_approx(maxima[w][h] - max);
    }
    for (auto d = static_cast<std::int32_t>(threadIdx.x); d < dim; d += 32 * decode_warps) {
      float acc = 0.0F;
      for (std::int32_t w = 0; w < decode_warps; ++w) {
        acc += accs[w][h][d] * exp2_approx(maxima[w][h] - max);
      }
      to[2 + d] = acc;
    }
    if (threadIdx.x == 0) to[0] = max;
    if (threadIdx.x == 0) to[1] = sum;
  }
}

/// Block (x, y): query head, sequence.
template <class = void>
PAGEDKV_KERNEL(128, 4)
merge_splits(DecodeArgs const a) {
  wait_for_previous_kernel();
  auto const s = static_cast<std::int64_t>(blockIdx.y);
  if (a.batch.sequence_lengths[s] <= 0) return;
  std::int64_t const head = s * a.queries.num_q_heads + blockIdx.x;
  float const* const parts = a.workspace + head * a.num_splits * (2 + a.dim);
  float max = no_score;
  for (std::int64_t p = 0; p < a.num_splits; ++p) max = fmaxf(max, parts[p * (2 + a.dim)]);
  std::int64_t const bytes = a.queries.element == Element::f32 ? 4 : 2;
  std::int64_t const at =
      s * a.queries.out_token_stride + static_cast<std::int64_t>(blockIdx.x) * a.dim;
  auto* const out = static_cast<std::byte*>(a.queries.out) + at * bytes;
  for (auto d = static_cast<std::int32_t>(threadIdx.x); d < a.dim; d += 128) {
    float sum = 0.0F;
    float acc = 0.0F;
    for (std::int64_t p = 0; p < a.num_splits; ++p) {
      float const* const part = parts + p * (2 + a.dim);
      float const weight = exp2_approx(part[0] - max);
      sum += part[1] * weight;
      acc += part[2 + d] * weight;
    }
    store_number(a.queries.element, out, d, sum > 0.0F ? div_rn(acc, sum) : 0.0F);
  }
}

// ---- launchers ----------------------------------------------------------------------------------

template <Element stored, std::int32_t dim>
cudaError_t launch_decode(DecodeArgs const& a, std::int32_t num_kv_heads, cudaStream_t stream) {
  dim3 const grid(static_cast<unsigned>(a.num_splits),
                  static_cast<unsigned>(num_kv_heads * a.head_parts),
                  static_cast<unsigned>(a.batch.num_sequences));
  cudaError_t const error =
      launch(&attend_split<stored, dim>, grid, 32 * decode_warps, 0, stream, a);
  if (error != cudaSuccess) return error;
  dim3 const heads(static_cast<unsigned>(a.queries.num_q_heads),
                   static_cast<unsigned>(a.batch.num_sequences));
  return launch(&merge_splits<>, heads, 128, 0, stream, a);
}

template <Element stored>
cudaError_t decode_stored(DecodeArgs const& a, std::int32_t num_kv_heads, cudaStream_t stream) {
  switch (a.dim) {
    case 64: return launch_decode<stored, 64>(a, num_kv_heads, stream);
    case 128: return launch_decode<stored, 128>(a, num_kv_heads, stream);
    case 256: return launch_decode<stored, 256>(a, num_kv_heads, stream);
    default: return cudaErrorInvalidValue;
  }
}

inline bool decode_works(KvView const& view, KvLayer const& layer, DecodeBatch const& batch,
                         DecodeQueries const& queries, DecodeOptions const& options) {
  bool const same = tensor_works(layer.k) && tensor_works(layer.v) &&
                    layer.k.format.element == layer.v.format.element &&
                    layer.k.head_dim == layer.v.head_dim;
  bool const counts = batch.num_sequences > 0 && batch.num_sequences <= max_grid_yz &&
                      queries.num_q_heads > 0 && queries.num_q_heads % view.num_kv_heads == 0 &&
                      queries.num_q_heads <= max_grid_yz && options.num_splits > 0 &&
                      options.window >= 0;
  return same && counts && batch.indices != nullptr && batch.sequence_lengths != nullptr &&
         queries.q != nullptr && queries.out != nullptr && options.workspace != nullptr &&
         is_row_element(queries.element) &&
         is_aligned(queries.q, natural_alignment(queries.element)) &&
         is_aligned(queries.out, natural_alignment(queries.element)) &&
         is_aligned(options.workspace, alignof(float)) && is_aligned(pool_args(layer.k), 16) &&
         is_aligned(pool_args(layer.v), 16);
}

/// See operations.hpp.
inline cudaError_t decode_attention(KvView const& view, std::int32_t layer_index,
                                    DecodeBatch const& batch, DecodeQueries const& queries,
                                    DecodeOptions const& options, cudaStream_t stream) {
  if (!view_works(view, layer_index)) return cudaErrorInvalidValue;
  if (batch.num_sequences == 0) return cudaSuccess;
  KvLayer const& layer = view.layers[static_cast<std::size_t>(layer_index)];
  if (!decode_works(view, layer, batch, queries, options)) return cudaErrorInvalidValue;
  DecodeArgs a;
  a.k = pool_args(layer.k);
  a.v = pool_args(layer.v);
  a.batch = batch;
  a.queries = queries;
  a.scale_log2 = options.softmax_scale * 1.44269504F;
  a.window = options.window;
  a.num_splits = options.num_splits;
  a.num_blocks = view.num_blocks;
  a.group = queries.num_q_heads / view.num_kv_heads;
  a.head_parts = (a.group + heads_at_once - 1) / heads_at_once;
  a.workspace = options.workspace;
  a.dim = layer.k.head_dim;
  a.block_tokens = Divider(view.block_tokens);
  std::int32_t const heads = view.num_kv_heads;
  switch (layer.k.format.element) {
    case Element::f32: return decode_stored<Element::f32>(a, heads, stream);
    case Element::f16: return decode_stored<Element::f16>(a, heads, stream);
    case Element::bf16: return decode_stored<Element::bf16>(a, heads, stream);
    case Element::fp8_e4m3: return decode_stored<Element::fp8_e4m3>(a, heads, stream);
    case Element::fp8_e5m2: return decode_stored<Element::fp8_e5m2>(a, heads, stream);
    case Element::int8: return decode_stored<Element::int8>(a, heads, stream);
    case Element::int8_asym: return decode_stored<Element::int8_asym>(a, heads, stream);
    case Element::int4: return decode_stored<Element::int4>(a, heads, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

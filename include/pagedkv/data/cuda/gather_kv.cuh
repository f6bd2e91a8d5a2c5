// SPDX-License-Identifier: Apache-2.0
/// \file
/// gather_kv on the device: reads ranges of sequences through their rows of the block table,
/// dequantized. A thread reads 16 elements of K and the same 16 of V; what isn't aligned goes
/// number by number.
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

struct GatherArgs {
  SideArgs k;
  SideArgs v;
  GatherRanges ranges;
  std::int32_t num_blocks = 0;
  Divider heads;
  Divider block_tokens;
  Divider chunks;  ///< chunks of a vector; the longer of K's and V's
};

struct GatherPlace {
  std::int64_t row = 0;
  std::int64_t head = 0;
  std::int64_t block = 0;
  std::int64_t offset = 0;
  bool exists = false;
};

/// The last sequence that begins at `row` or before. Requires: the first one does.
PAGEDKV_DEVICE std::int32_t sequence_of(GatherRanges const& r, std::int64_t row) {
  std::int32_t low = 0;
  std::int32_t high = r.num_sequences - 1;
  while (low < high) {
    std::int32_t const middle = low + (high - low + 1) / 2;
    if (r.row_offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Where vector `index` of the output is read from. Every index into a table is checked.
PAGEDKV_DEVICE GatherPlace place_of(GatherArgs const& a, std::int64_t index) {
  auto const [row, head] = a.heads.divide(index);
  GatherRanges const& r = a.ranges;
  if (row >= r.max_rows) return {};
  std::int32_t const s = sequence_of(r, row);
  std::int64_t const begin = r.row_offsets[s];
  if (row < begin || row >= r.row_offsets[s + 1]) return {};
  std::int64_t const position =
      row - begin + (r.first_positions == nullptr ? 0 : r.first_positions[s]);
  if (position < 0) return {};
  auto const [column, offset] = a.block_tokens.divide(position);
  std::int64_t const first = r.indptr == nullptr ? s * r.table_stride : r.indptr[s];
  std::int64_t const columns =
      r.indptr == nullptr ? r.table_stride : r.indptr[s + 1] - std::int64_t{r.indptr[s]};
  if (column >= columns) return {};
  std::int32_t const block = r.indices[first + column];
  if (block < 0 || block >= a.num_blocks) return {};
  return {row, head, block, offset, true};
}

PAGEDKV_DEVICE AffineScale stored_scale(Element stored, PoolArgs const& pool,
                                        GatherPlace const& at) {
  if (quant::is_unscaled(stored)) return {1.0F, 0.0F};
  float const* const entry = pool.scale(at.block, at.offset, at.head);
  return {entry[0], quant::has_zero(stored) ? entry[1] : 0.0F};
}

template <Element stored, Element out>
PAGEDKV_DEVICE void gather_side(SideArgs const& side, GatherPlace const& at, std::int32_t chunk,
                                Chunk<stored> const& codes, AffineScale scale) {
  Chunk<out> x;
  decode_chunk(codes, scale, x);
  store_chunk(x, side.rows.vector(at.row, at.head) + chunk * (Chunk<out>::num_words * 4));
}

template <Element stored, Element out>
PAGEDKV_KERNEL(256, 4)
gather_vectors(GatherArgs const a) {
  wait_for_previous_kernel();
  std::int64_t const index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  auto const [vector, part] = a.chunks.divide(index);
  GatherPlace const at = place_of(a, vector);
  if (!at.exists) return;
  auto const chunk = static_cast<std::int32_t>(part);
  bool const has_k = chunk * chunk_elements < a.k.dim;
  bool const has_v = chunk * chunk_elements < a.v.dim;
  constexpr std::int32_t bytes = Chunk<stored>::num_words * 4;
  AffineScale k_scale{};
  AffineScale v_scale{};
  Chunk<stored> k{};
  Chunk<stored> v{};
  if (has_k) k_scale = stored_scale(stored, a.k.pool, at);
  if (has_v) v_scale = stored_scale(stored, a.v.pool, at);
  if (has_k) load_chunk(a.k.pool.vector(at.block, at.offset, at.head) + chunk * bytes, k);
  if (has_v) load_chunk(a.v.pool.vector(at.block, at.offset, at.head) + chunk * bytes, v);
  allow_next_kernel();
  if (has_k) gather_side<stored, out>(a.k, at, chunk, k, k_scale);
  if (has_v) gather_side<stored, out>(a.v, at, chunk, v, v_scale);
}

/// One stored number of any element, as `quant/` reads it.
PAGEDKV_DEVICE float any_number(Element stored, std::byte const* vector, std::int32_t i,
                                AffineScale scale) {
  if (quant::is_unscaled(stored)) return load_number(stored, vector, i);
  if (stored == Element::int4) {
    auto const* const bytes = reinterpret_cast<std::uint8_t const*>(vector);
    return quant::decode_number<Element::int4>(quant::unpack_int4(bytes, i), scale);
  }
  auto const code = static_cast<std::uint8_t>(vector[i]);
  switch (stored) {
    case Element::fp8_e4m3: return quant::decode_number<Element::fp8_e4m3>(code, scale);
    case Element::fp8_e5m2: return quant::decode_number<Element::fp8_e5m2>(code, scale);
    case Element::int8_asym: return quant::decode_number<Element::int8_asym>(code, scale);
    default: return quant::decode_number<Element::int8>(static_cast<std::int8_t>(code), scale);
  }
}

struct AnyGatherArgs {
  GatherArgs gather;  ///< its `k` is the one tensor
  Element stored = Element::f16;
  Element out = Element::f32;
};

/// A warp reads a vector, number by number.
template <class = void>
PAGEDKV_KERNEL(128, 4)
gather_any(AnyGatherArgs const a) {
  wait_for_previous_kernel();
  std::int64_t const index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  GatherPlace const at = place_of(a.gather, index / 32);
  if (!at.exists) return;
  SideArgs const& side = a.gather.k;
  AffineScale const scale = stored_scale(a.stored, side.pool, at);
  std::byte const* const from = side.pool.vector(at.block, at.offset, at.head);
  std::byte* const to = side.rows.vector(at.row, at.head);
  for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < side.dim; i += 32) {
    store_number(a.out, to, i, any_number(a.stored, from, i, scale));
  }
}

// ---- launchers ----------------------------------------------------------------------------------

/// K and V, or one of them, of one format and one output.
struct GatherCall {
  GatherArgs args;
  Element stored = Element::f16;
  Element out = Element::f32;
  cudaStream_t stream = nullptr;

  [[nodiscard]] std::int64_t num_vectors() const {
    return args.ranges.max_rows * args.heads.divisor;
  }
  [[nodiscard]] bool is_vectorizable() const {
    return (args.k.dim == 0 || detail::is_vectorizable(args.k, stored)) &&
           (args.v.dim == 0 || detail::is_vectorizable(args.v, stored));
  }
};

inline cudaError_t gather_any_side(GatherCall const& call, SideArgs const& side) {
  if (side.dim == 0) return cudaSuccess;
  AnyGatherArgs args;
  args.gather = call.args;
  args.gather.k = side;
  args.stored = call.stored;
  args.out = call.out;
  unsigned const blocks = blocks_of(call.num_vectors() * 32, 128);
  if (blocks == 0) return cudaErrorInvalidValue;
  return launch(&gather_any<>, blocks, 128, 0, call.stream, args);
}

template <Element stored, Element out>
cudaError_t launch_gather(GatherCall const& call) {
  unsigned const blocks = blocks_of(call.num_vectors() * call.args.chunks.divisor, 256);
  if (blocks == 0) return cudaErrorInvalidValue;
  return launch(&gather_vectors<stored, out>, blocks, 256, 0, call.stream, call.args);
}

/// All formats into rows of one element.
template <Element out>
cudaError_t gather_to(GatherCall const& call) {
  if (!call.is_vectorizable()) {
    cudaError_t const error = gather_any_side(call, call.args.k);
    return error == cudaSuccess ? gather_any_side(call, call.args.v) : error;
  }
  switch (call.stored) {
    case Element::f32: return launch_gather<Element::f32, out>(call);
    case Element::f16: return launch_gather<Element::f16, out>(call);
    case Element::bf16: return launch_gather<Element::bf16, out>(call);
    case Element::fp8_e4m3: return launch_gather<Element::fp8_e4m3, out>(call);
    case Element::fp8_e5m2: return launch_gather<Element::fp8_e5m2, out>(call);
    case Element::int8: return launch_gather<Element::int8, out>(call);
    case Element::int8_asym: return launch_gather<Element::int8_asym, out>(call);
    case Element::int4: return launch_gather<Element::int4, out>(call);
    default: return cudaErrorInvalidValue;
  }
}

inline cudaError_t gather_call(GatherCall const& call) {
  switch (call.out) {
    case Element::f32: return gather_to<Element::f32>(call);
    case Element::f16: return gather_to<Element::f16>(call);
    case Element::bf16: return gather_to<Element::bf16>(call);
    default: return cudaErrorInvalidValue;
  }
}

inline bool ranges_work(GatherRanges const& r) {
  return r.indices != nullptr && r.row_offsets != nullptr && r.num_sequences > 0 &&
         count_works(r.max_rows) && r.table_stride >= 0;
}

/// See operations.hpp. One launch where K and V agree in element and output, else one each.
inline cudaError_t gather_kv(KvView const& view, std::int32_t layer_index,
                             GatherRanges const& ranges, MutableKvRows const& k,
                             MutableKvRows const& v, cudaStream_t stream) {
  if (!view_works(view, layer_index)) return cudaErrorInvalidValue;
  if (ranges.max_rows == 0 || ranges.num_sequences == 0) return cudaSuccess;
  KvLayer const& layer = view.layers[static_cast<std::size_t>(layer_index)];
  if (!ranges_work(ranges) || !side_works(layer.k, k) || !side_works(layer.v, v)) {
    return cudaErrorInvalidValue;
  }
  GatherCall call;
  call.args.k = side_args(layer.k, k);
  call.args.v = side_args(layer.v, v);
  call.args.ranges = ranges;
  call.args.num_blocks = view.num_blocks;
  call.args.heads = Divider(view.num_kv_heads);
  call.args.block_tokens = Divider(view.block_tokens);
  std::int32_t const dim = call.args.k.dim > call.args.v.dim ? call.args.k.dim : call.args.v.dim;
  call.args.chunks = Divider(dim < chunk_elements ? 1 : dim / chunk_elements);
  call.stored = layer.k.format.element;
  call.out = k.element;
  call.stream = stream;
  bool const agree = layer.k.format.element == layer.v.format.element && k.element == v.element;
  if (layer.v.head_dim == 0 || agree) return gather_call(call);
  GatherCall second = call;
  call.args.v = {};
  second.args.k = {};
  second.stored = layer.v.format.element;
  second.out = v.element;
  cudaError_t const error = gather_call(call);
  return error == cudaSuccess ? gather_call(second) : error;
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

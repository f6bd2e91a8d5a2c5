// SPDX-License-Identifier: Apache-2.0
/// \file
/// calibrate_amax on the device: a reduction whose segments are the heads of K and V and whose
/// items are chunks of vectors, then a small kernel that raises the running table.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/chunk.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/segmented_max.cuh>
#include <pagedkv/data/cuda/tensors.cuh>
#include <pagedkv/data/kv_view.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

/// K or V of a step, chunk by chunk.
struct AmaxSide {
  RowsArgs rows;
  Element element = Element::f32;
  std::int32_t dim = 0;
  bool is_vectorizable = false;
  Divider chunks;  ///< of a vector

  /// Chunks of a head; 0 where there is no such tensor.
  [[nodiscard]] PAGEDKV_HD std::int64_t of_head(std::int64_t num_tokens) const {
    return dim == 0 ? 0 : num_tokens * chunks.divisor;
  }
};

template <Element in>
PAGEDKV_DEVICE void add_stored_chunk(std::byte const* from, Amax& found) {
  Chunk<in> x;
  load_chunk(from, x);
  add_chunk(x, found);
}
/// The largest finite magnitude of a chunk, as bits.
PAGEDKV_DEVICE std::uint32_t amax_of_chunk(AmaxSide const& side, std::byte const* vector,
                                           std::int32_t chunk) {
  Amax found;
  std::int32_t const first = chunk * chunk_elements;
  if (!side.is_vectorizable) {
    std::int32_t const end = first + chunk_elements < side.dim ? first + chunk_elements : side.dim;
    for (std::int32_t i = first; i < end; ++i) found.add(load_number(side.element, vector, i));
  } else if (side.element == Element::f32) {
    add_stored_chunk<Element::f32>(vector + first * 4, found);
  } else if (side.element == Element::f16) {
    add_stored_chunk<Element::f16>(vector + first * 2, found);
  } else {
    add_stored_chunk<Element::bf16>(vector + first * 2, found);
  }
  return found.bits;
}

/// What `segmented_max` reduces: head by head, those of K before those of V.
struct AmaxItems {
  AmaxSide k;
  AmaxSide v;
  Slot const* slots = nullptr;
  Divider tokens;
  std::int64_t num_heads = 0;

  [[nodiscard]] PAGEDKV_HD std::int64_t begin(std::int64_t segment) const {
    std::int64_t const k_heads = segment < num_heads ? segment : num_heads;
    return k_heads * k.of_head(tokens.divisor) + (segment - k_heads) * v.of_head(tokens.divisor);
  }
  [[nodiscard]] PAGEDKV_DEVICE std::uint32_t item(std::int64_t index) const {
    std::int64_t const of_k = begin(num_heads);
    AmaxSide const& side = index < of_k ? k : v;
    auto const [vector, chunk] = side.chunks.divide(index < of_k ? index : index - of_k);
    auto const [head, token] = tokens.divide(vector);
    if (slots != nullptr && slots[token] < 0) return 0;
    return amax_of_chunk(side, side.rows.vector(token, head), static_cast<std::int32_t>(chunk));
  }
};

struct RaiseArgs {
  std::uint32_t const* found = nullptr;  ///< [heads of K, heads of V]
  float* k = nullptr;
  float* v = nullptr;
  std::int32_t num_heads = 0;
  std::int32_t num_found = 0;
};

template <class = void>
PAGEDKV_KERNEL(128, 4)
raise_amax(RaiseArgs const a) {
  wait_for_previous_kernel();
  auto const i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= a.num_found) return;
  float* const entry = i < a.num_heads ? a.k + i : a.v + (i - a.num_heads);
  float const found = float_of(a.found[i]);
  if (found > *entry) *entry = found;
}

// ---- launchers ----------------------------------------------------------------------------------

inline bool amax_table_works(AmaxTable const& t) {
  return t.k != nullptr && t.num_layers >= 1 && t.num_kv_heads >= 1 && t.head_dim_k >= 1 &&
         t.head_dim_k <= max_head_dim && t.head_dim_v >= 0 && t.head_dim_v <= max_head_dim &&
         (t.head_dim_v == 0 || t.v != nullptr);
}
inline bool amax_rows_work(KvRows const& rows) {
  return is_row_element(rows.element) && rows.data != nullptr &&
         is_aligned(rows_args(rows), natural_alignment(rows.element));
}
inline AmaxSide amax_side(KvRows const& rows, std::int32_t dim) {
  AmaxSide side;
  side.rows = rows_args(rows);
  side.element = rows.element;
  side.dim = dim;
  side.is_vectorizable = dim % chunk_elements == 0 && is_aligned(side.rows, 16);
  side.chunks = Divider((dim + chunk_elements - 1) / chunk_elements);
  return side;
}

/// Where the reduction's results lie in the workspace, ahead of what it needs itself.
inline std::size_t found_bytes(AmaxTable const& table) {
  std::size_t const words = 2 * static_cast<std::size_t>(table.num_kv_heads);
  return (words * sizeof(std::uint32_t) + 255) / 256 * 256;
}

/// See operations.hpp.
inline cudaError_t calibrate_amax_workspace(AmaxTable const& table, std::size_t& bytes) {
  if (!amax_table_works(table)) return cudaErrorInvalidValue;
  std::size_t reduction = 0;
  cudaError_t const error = segmented_max(nullptr, reduction, AmaxItems{}, nullptr,
                                          2 * std::int64_t{table.num_kv_heads}, nullptr);
  bytes = found_bytes(table) + reduction;
  return error;
}

/// See operations.hpp.
inline cudaError_t calibrate_amax(AmaxTable const& table, std::int32_t layer, AmaxStep const& step,
                                  void* workspace, std::size_t bytes, cudaStream_t stream) {
  bool const has_v = table.head_dim_v > 0;
  bool const works = amax_table_works(table) && layer >= 0 && layer < table.num_layers &&
                     count_works(step.num_tokens);
  if (!works) return cudaErrorInvalidValue;
  if (step.num_tokens == 0) return cudaSuccess;
  std::size_t const results = found_bytes(table);
  if (!amax_rows_work(step.k) || (has_v && !amax_rows_work(step.v)) || workspace == nullptr ||
      reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0 || bytes <= results) {
    return cudaErrorInvalidValue;
  }
  AmaxItems items;
  items.k = amax_side(step.k, table.head_dim_k);
  if (has_v) items.v = amax_side(step.v, table.head_dim_v);
  items.slots = step.slots;
  items.tokens = Divider(step.num_tokens);
  items.num_heads = table.num_kv_heads;

  RaiseArgs args;
  auto* const found = static_cast<std::uint32_t*>(workspace);
  std::int64_t const first = std::int64_t{layer} * table.num_kv_heads;
  args.found = found;
  args.k = table.k + first;
  args.v = has_v ? table.v + first : nullptr;
  args.num_heads = table.num_kv_heads;
  args.num_found = has_v ? 2 * table.num_kv_heads : table.num_kv_heads;
  std::size_t left = bytes - results;
  cudaError_t const error = segmented_max(static_cast<std::byte*>(workspace) + results, left, items,
                                          found, args.num_found, stream);
  if (error != cudaSuccess) return error;
  return launch(&raise_amax<>, blocks_of(args.num_found, 128), 128, 0, stream, args);
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

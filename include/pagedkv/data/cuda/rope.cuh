// SPDX-License-Identifier: Apache-2.0
/// \file
/// Vectors of K, rotated while they are loaded: bit for bit what `rotate_vector` makes of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/chunk.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/tensors.cuh>
#include <pagedkv/data/rope.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

using pagedkv::detail::RopeRow;
using pagedkv::detail::rotated;
using pagedkv::detail::with_one_nan;

/// The row of a token of the step; none where nothing is rotated.
PAGEDKV_DEVICE RopeRow rope_row_of(Rope const& rope, std::int64_t token) {
  if (rope.positions == nullptr) return {};
  return pagedkv::detail::rope_row(rope, rope.positions[token]);
}

/// Element i of a vector of K.
PAGEDKV_DEVICE float turned_number(Rope const& rope, RopeRow row, Element element,
                                   std::byte const* vector, std::int32_t i) {
  float const x = load_number(element, vector, i);
  if (rope.positions == nullptr) return x;
  if (row.cos == nullptr || i >= rope.rotary_dim) return with_one_nan(x);
  std::int32_t const half = rope.rotary_dim / 2;
  bool const is_split = rope.pairing == RopePairing::half_split;
  bool const is_first = is_split ? i < half : i % 2 == 0;
  std::int32_t const distance = is_split ? half : 1;
  std::int32_t const first = is_first ? i : i - distance;
  std::int32_t const column = is_split ? first : first / 2;
  float const other = load_number(element, vector, is_first ? i + distance : first);
  float const sin = is_first ? -row.sin[column] : row.sin[column];
  return with_one_nan(rotated(x, other, row.cos[column], sin));
}

/// Whether kernels can follow it.
[[nodiscard]] inline bool rope_works(Rope const& rope, std::int32_t head_dim) {
  return rope.cos != nullptr && rope.sin != nullptr && rope.positions != nullptr &&
         rope.max_position >= 0 && rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0 &&
         rope.rotary_dim <= head_dim && rope.pairing <= RopePairing::interleaved;
}

/// Numbers that tables and pairs of both kinds keep together.
inline constexpr std::int32_t turn_elements = 8;

/// Whether `load_turned` reads it: 16-byte accesses to rows and tables.
[[nodiscard]] inline bool is_vectorizable(Rope const& rope) {
  auto const addresses =
      reinterpret_cast<std::uintptr_t>(rope.cos) | reinterpret_cast<std::uintptr_t>(rope.sin);
  return rope.rotary_dim % (2 * turn_elements) == 0 && addresses % 16 == 0 &&
         rope.row_stride % 4 == 0;
}

/// Elements first .. first + 7 of a vector. Read by two threads where they are half of a pair each.
template <Element in>
PAGEDKV_DEVICE void load_eight(std::byte const* vector, std::int32_t first,
                               float (&x)[turn_elements]) {
  constexpr std::int32_t bytes = bits_of_element<in> / 8;
  auto const* const from = reinterpret_cast<uint4 const*>(vector + first * bytes);
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < bytes / 2; ++i) {
    uint4 const part = __ldg(from + i);
    std::uint32_t const words[4] = {part.x, part.y, part.z, part.w};
    PAGEDKV_UNROLL_ALL
    for (std::int32_t w = 0; w < 4; ++w) {
      if constexpr (in == Element::f32) {
        x[4 * i + w] = float_of(words[w]);
      } else {
        float2 const pair = pair_of_words<in>(&words[w], 0, {});
        x[2 * w] = pair.x;
        x[2 * w + 1] = pair.y;
      }
    }
  }
}
template <std::int32_t count>
PAGEDKV_DEVICE void load_table(float const* from, float (&x)[count]) {
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < count; i += 4) {
    float4 const part = __ldg(reinterpret_cast<float4 const*>(from + i));
    x[i] = part.x;
    x[i + 1] = part.y;
    x[i + 2] = part.z;
    x[i + 3] = part.w;
  }
}

/// Pairs of neighbours, by columns first / 2 .. first / 2 + 3.
PAGEDKV_DEVICE void turn_neighbours(RopeRow row, std::int32_t first, float (&x)[turn_elements]) {
  float cos[turn_elements / 2];
  float sin[turn_elements / 2];
  load_table(row.cos + first / 2, cos);
  load_table(row.sin + first / 2, sin);
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < turn_elements / 2; ++i) {
    float const a = x[2 * i];
    x[2 * i] = rotated(a, x[2 * i + 1], cos[i], -sin[i]);
    x[2 * i + 1] = rotated(x[2 * i + 1], a, cos[i], sin[i]);
  }
}
/// One half of eight pairs, whose other half lies rotary_dim / 2 away.
template <Element in>
PAGEDKV_DEVICE void turn_half(Rope const& rope, RopeRow row, std::byte const* vector,
                              std::int32_t first, float (&x)[turn_elements]) {
  std::int32_t const half = rope.rotary_dim / 2;
  bool const is_first = first < half;
  std::int32_t const column = is_first ? first : first - half;
  float other[turn_elements];
  float cos[turn_elements];
  float sin[turn_elements];
  load_eight<in>(vector, is_first ? first + half : column, other);
  load_table(row.cos + column, cos);
  load_table(row.sin + column, sin);
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < turn_elements; ++i) {
    x[i] = rotated(x[i], other[i], cos[i], is_first ? -sin[i] : sin[i]);
  }
}

/// A chunk of a vector of K. Requires: the rope and the rows are vectorizable. Which NaN one is
/// matters only where it is stored.
template <Element in, Element out>
PAGEDKV_DEVICE void load_turned(Rope const& rope, RopeRow row, std::byte const* vector,
                                std::int32_t chunk, Chunk<Element::f32>& turned) {
  PAGEDKV_UNROLL_ALL
  for (std::int32_t part = 0; part < chunk_elements; part += turn_elements) {
    std::int32_t const first = chunk * chunk_elements + part;
    float x[turn_elements];
    load_eight<in>(vector, first, x);
    if (row.cos != nullptr && first < rope.rotary_dim) {
      if (rope.pairing == RopePairing::half_split) {
        turn_half<in>(rope, row, vector, first, x);
      } else {
        turn_neighbours(row, first, x);
      }
    }
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < turn_elements; ++i) {
      turned.words[part + i] = bits_of(quant::is_unscaled(out) ? with_one_nan(x[i]) : x[i]);
    }
  }
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

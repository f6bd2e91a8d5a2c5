// SPDX-License-Identifier: Apache-2.0
/// \file
/// Rotary position embedding of K, for writers that rotate while they store: what is told
/// (`Rope`), and what it means, one vector at a time (`rotate_vector`), bit for bit.
///
/// A rotated vector is f32 and goes to its quantizer as such. It is not rounded to the input's
/// element in between, as an engine does that rotates first and writes then: one rounding less.
///
///     oracle of cuda::write_kv_rope: each vector of K to f32, rotate_vector, cpu::scalar::write_kv
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Which two numbers are rotated together by column j of the tables.
enum class RopePairing : std::uint8_t {
  half_split,   ///< j and j + rotary_dim / 2 (Llama, NeoX; "is_neox")
  interleaved,  ///< 2 j and 2 j + 1 (GPT-J)
};

/// Rows of cosines and sines, [max_position, rotary_dim / 2] of f32 each, and the row of each
/// token. Pointers into the memory of who reads them; nothing is owned.
struct Rope {
  float const* cos = nullptr;
  float const* sin = nullptr;
  std::int64_t row_stride = 0;  ///< floats between neighbouring positions, in both
  std::int32_t max_position = 0;
  /// The first so many numbers of a vector are rotated, the rest stays: even, at most its head_dim.
  std::int32_t rotary_dim = 0;
  RopePairing pairing = RopePairing::half_split;
  /// [num_tokens]. K of a token whose position isn't one of the tables' stays as it is.
  std::int32_t const* positions = nullptr;
};

/// The tables as vLLM and FlashInfer have them (`cos_sin_cache`, in f32): [max_position,
/// rotary_dim], cosines in a row's first half and sines in its second.
[[nodiscard]] constexpr Rope rope_of_cache(float const* cos_sin_cache, std::int32_t max_position,
                                           std::int32_t rotary_dim, RopePairing pairing,
                                           std::int32_t const* positions) noexcept {
  return {
      cos_sin_cache, cos_sin_cache + rotary_dim / 2, rotary_dim, max_position, rotary_dim, pairing,
      positions};
}

namespace detail {

/// A position's row of both tables; null where they have none.
struct RopeRow {
  float const* cos = nullptr;
  float const* sin = nullptr;
};
[[nodiscard]] PAGEDKV_HD constexpr RopeRow rope_row(Rope const& rope,
                                                    std::int32_t position) noexcept {
  if (position < 0 || position >= rope.max_position) return {};
  std::int64_t const first = position * rope.row_stride;
  return {rope.cos + first, rope.sin + first};
}

/// x * cos + other * sin, both products rounded before the sum. Of a pair (a, b) the first is
/// rotated(a, b, cos, -sin), the second rotated(b, a, cos, sin).
[[nodiscard]] PAGEDKV_HD constexpr float rotated(float x, float other, float cos,
                                                 float sin) noexcept {
  return quant::detail::product(x, cos) + quant::detail::product(other, sin);
}

/// Which NaN comes out of a sum is the machine's business; here all are one.
[[nodiscard]] PAGEDKV_HD constexpr float with_one_nan(float x) noexcept {
  return quant::detail::is_nan(x) ? quant::detail::float_of(0x7FFF'FFFFU) : x;
}

}  // namespace detail

/// Rotates x: [dim], in place. a and b being the pair of column j:
///
///     a' = rn(rn(a * cos[j]) - rn(b * sin[j]))      b' = rn(rn(b * cos[j]) + rn(a * sin[j]))
///
/// in f32, never fused. A NaN, also of what isn't rotated, becomes 0x7FFFFFFF. `rope.positions`
/// isn't read. Requires: rope.rotary_dim <= dim. O(dim).
PAGEDKV_HD constexpr void rotate_vector(Rope const& rope, std::int32_t position, float* x,
                                        std::int32_t dim) noexcept {
  detail::RopeRow const row = detail::rope_row(rope, position);
  std::int32_t const half = row.cos == nullptr ? 0 : rope.rotary_dim / 2;
  bool const is_split = rope.pairing == RopePairing::half_split;
  for (std::int32_t j = 0; j < half; ++j) {
    float& first = x[is_split ? j : 2 * j];
    float& second = x[is_split ? j + half : 2 * j + 1];
    float const a = first;
    first = detail::rotated(a, second, row.cos[j], -row.sin[j]);
    second = detail::rotated(second, a, row.cos[j], row.sin[j]);
  }
  for (std::int32_t i = 0; i < dim; ++i) x[i] = detail::with_one_nan(x[i]);
}

PAGEDKV_NAMESPACE_END

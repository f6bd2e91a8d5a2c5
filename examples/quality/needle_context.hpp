// SPDX-License-Identifier: Apache-2.0
/// \file
/// A made-up layer whose heads look something up: what a long context does to a cache's format,
/// without a model.
///
/// The i-th number of a token's key is
///
///     size(head) * gain(token) * channel(i) * (about normal)
///
/// four channels are 12 times as large as the others and keep their sign; gains are log-normal
/// (sigma 0.4; needles and decoys: 1); head 1 is four times the size of head 0. Along the query
/// each key is then given its score (softmax's input) exactly:
///
///     needle        24
///     32 decoys     16      of the needle's size, anywhere in the context
///     all others     4 * (about normal), at most 13.9
///
/// so that in exact arithmetic the needle is 4.3 to 4.7 nats above all the others together (98.7 %
/// of the attention and more). Values are size * gain * (about normal). Each depth has a needle of
/// its own.
///
/// Everything comes from a seed by integer arithmetic, sqrt and exp.
#pragma once

#include <cstdint>
#include <vector>

namespace quality {

inline constexpr std::int32_t needle_heads = 2;
inline constexpr std::int32_t needle_head_dim = 128;
inline constexpr std::int32_t num_decoys = 32;
inline constexpr float needle_score = 24.0F;
inline constexpr float decoy_score = 16.0F;
/// Where decoys can be: contexts are at least this long.
inline constexpr std::int32_t min_needle_length = 64;

/// What is looked up. Arrays are [needle_heads, needle_head_dim].
struct Needle {
  double depth = 0;  ///< 0: first token, 1: last
  std::int32_t position = 0;
  std::vector<float> k;
  std::vector<float> v;
};

/// Tokens without a needle, needles to put among them, one at a time, and who asks for them.
struct NeedleContext {
  std::int32_t length = 0;
  std::vector<float> k;         ///< [length, needle_heads, needle_head_dim]
  std::vector<float> v;         ///< [length, needle_heads, needle_head_dim]
  std::vector<float> query;     ///< [needle_heads, needle_head_dim]
  std::vector<Needle> needles;  ///< at depths 0, 0.1, ..., 1

  /// What scores are multiplied by: 1 / sqrt(needle_head_dim).
  [[nodiscard]] static float softmax_scale();
};

/// The same heads and the same query for every seed; the tokens and the needles are the seed's.
/// Requires: length >= min_needle_length. O(length).
[[nodiscard]] NeedleContext make_needle_context(std::int32_t length, std::uint64_t seed);

/// Of a context.
inline constexpr std::int32_t num_needles = 11;

}  // namespace quality

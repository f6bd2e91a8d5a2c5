// SPDX-License-Identifier: Apache-2.0
#include "needle_context.hpp"

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace quality {

namespace {

constexpr std::size_t dim = needle_head_dim;
constexpr std::size_t row = needle_heads * dim;
constexpr float gain_sigma = 0.4F;
constexpr float outlier = 12.0F;
constexpr float score_sigma = 4.0F;  // of tokens that are neither needle nor decoy
constexpr std::uint64_t heads_seed = 0x6E65'6564'6C65ULL;

/// A stream of numbers, the same on every platform.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBULL;
    return z ^ (z >> 31);
  }
  /// About normal, of variance 1: four uniforms out of one draw; at most 3.46.
  float normal() {
    std::uint64_t const bits = next();
    std::uint64_t const sum =
        (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
    constexpr float unit = 1.0F / 65536;
    constexpr float deviations = 1.7320508F;  // a uniform's variance is 1/12
    return (static_cast<float>(sum) * unit - 2.0F + 2 * unit) * deviations;
  }

 private:
  std::uint64_t state_;
};

float head_size(std::size_t head) { return head == 0 ? 1.0F : 4.0F; }

bool is_outlier(std::size_t channel) { return channel % 32 == 5; }

/// What doesn't depend on tokens: unit vectors along the queries, [needle_heads, dim].
std::vector<float> query_directions() {
  Numbers numbers(heads_seed);
  std::vector<float> directions(row);
  for (std::size_t h = 0; h < needle_heads; ++h) {
    float* const direction = &directions[h * dim];
    float squares = 0.0F;
    for (std::size_t i = 0; i < dim; ++i) {
      // Queries look past the outlier channels, or these would decide every score.
      direction[i] = numbers.normal() * (is_outlier(i) ? 0.25F : 1.0F);
      squares += direction[i] * direction[i];
    }
    for (std::size_t i = 0; i < dim; ++i) direction[i] /= std::sqrt(squares);
  }
  return directions;
}

/// Writes the keys and values of one token.
class TokenMaker {
 public:
  explicit TokenMaker(std::uint64_t seed) : numbers_(seed), directions_(query_directions()) {}

  void make(float gain, float score, float* k, float* v) {
    for (std::size_t h = 0; h < needle_heads; ++h) {
      make_key(head_size(h) * gain, k + h * dim);
      give_score(head_size(h) * score / score_sigma, &directions_[h * dim], k + h * dim);
      for (std::size_t i = 0; i < dim; ++i) {
        v[h * dim + i] = head_size(h) * gain * numbers_.normal();
      }
    }
  }
  float normal() { return numbers_.normal(); }
  std::uint64_t next() { return numbers_.next(); }
  float gain() { return std::exp(gain_sigma * numbers_.normal()); }
  std::vector<float> const& directions() const { return directions_; }

 private:
  void make_key(float size, float* k) {
    for (std::size_t i = 0; i < dim; ++i) {
      float const n = numbers_.normal();
      float const sign = i % 64 < 32 ? 1.0F : -1.0F;
      k[i] = size * (is_outlier(i) ? outlier * sign * (1.0F + n / 4) : n);
    }
  }
  /// Makes the key's part along the direction `wanted`.
  static void give_score(float wanted, float const* direction, float* k) {
    float along = 0.0F;
    for (std::size_t i = 0; i < dim; ++i) along += k[i] * direction[i];
    for (std::size_t i = 0; i < dim; ++i) k[i] += (wanted - along) * direction[i];
  }

  Numbers numbers_;
  std::vector<float> directions_;
};

}  // namespace

float NeedleContext::softmax_scale() {
  return 1.0F / std::sqrt(static_cast<float>(needle_head_dim));
}

NeedleContext make_needle_context(std::int32_t length, std::uint64_t seed) {
  if (length < min_needle_length) {
    throw std::invalid_argument("a needle needs a context of at least " +
                                std::to_string(min_needle_length) + " tokens, not " +
                                std::to_string(length));
  }
  auto const num_tokens = static_cast<std::size_t>(length);
  NeedleContext context;
  context.length = length;
  context.k.resize(num_tokens * row);
  context.v.resize(num_tokens * row);

  TokenMaker tokens(seed);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    float const gain = tokens.gain();
    float const score = score_sigma * tokens.normal();
    tokens.make(gain, score, &context.k[t * row], &context.v[t * row]);
  }
  for (std::int32_t i = 0; i < num_decoys; ++i) {
    std::size_t const t = tokens.next() % num_tokens;
    tokens.make(1.0F, decoy_score, &context.k[t * row], &context.v[t * row]);
  }
  for (std::int32_t i = 0; i < num_needles; ++i) {
    Needle needle{i / (num_needles - 1.0), i * (length - 1) / (num_needles - 1),
                  std::vector<float>(row), std::vector<float>(row)};
    tokens.make(1.0F, needle_score, needle.k.data(), needle.v.data());
    context.needles.push_back(std::move(needle));
  }

  context.query.resize(row);
  for (std::size_t i = 0; i < row; ++i) {
    context.query[i] = tokens.directions()[i] * score_sigma /
                       (NeedleContext::softmax_scale() * head_size(i / dim));
  }
  return context;
}

}  // namespace quality

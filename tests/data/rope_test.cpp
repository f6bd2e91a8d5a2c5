// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include <pagedkv/data/rope.hpp>

#include "catch.hpp"
#include "data_support.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr std::int32_t dim = 12;
constexpr std::int32_t rotary = 8;
constexpr std::int32_t half = rotary / 2;

/// [2, rotary]: position 1 turns column j by 0.3 + j.
std::vector<float> cache() {
  std::vector<float> floats(2 * rotary);
  for (int j = 0; j < half; ++j) {
    floats[static_cast<std::size_t>(rotary + j)] = std::cos(0.3F + static_cast<float>(j));
    floats[static_cast<std::size_t>(rotary + half + j)] = std::sin(0.3F + static_cast<float>(j));
  }
  return floats;
}
std::vector<float> numbers() {
  std::vector<float> x;
  for (int i = 0; i < dim; ++i) x.push_back(static_cast<float>(i + 1) / 3.0F);
  return x;
}

}  // namespace

TEST_CASE("pairs are turned by their column's angle, the rest of the vector stays") {
  auto const floats = cache();
  for (RopePairing const pairing : {RopePairing::half_split, RopePairing::interleaved}) {
    Rope const rope = rope_of_cache(floats.data(), 2, rotary, pairing, nullptr);
    auto const before = numbers();
    auto x = before;
    rotate_vector(rope, 1, x.data(), dim);
    for (int j = 0; j < half; ++j) {
      bool const is_split = pairing == RopePairing::half_split;
      auto const a = static_cast<std::size_t>(is_split ? j : 2 * j);
      auto const b = static_cast<std::size_t>(is_split ? j + half : 2 * j + 1);
      double const angle = 0.3 + j;
      double const want_a = before[a] * std::cos(angle) - before[b] * std::sin(angle);
      double const want_b = before[b] * std::cos(angle) + before[a] * std::sin(angle);
      CHECK(std::fabs(x[a] - want_a) < 1e-6);
      CHECK(std::fabs(x[b] - want_b) < 1e-6);
    }
    for (std::size_t i = rotary; i < dim; ++i) CHECK(x[i] == before[i]);
  }
}

TEST_CASE("products are rounded before the sum: golden bits that a fused one hasn't") {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: rounded, the last term is lost.
  float const odd = 1.0F + 0x1p-12F;
  float const table[] = {odd, 1.0F};
  Rope const rope = rope_of_cache(table, 1, 2, RopePairing::half_split, nullptr);
  float x[] = {odd, 1.0F + 0x1p-11F};
  rotate_vector(rope, 0, x, 2);
  CHECK(x[0] == 0.0F);
  CHECK(std::fma(odd, odd, -(1.0F + 0x1p-11F)) == 0x1p-24F);
}

TEST_CASE("a position that the tables haven't leaves a vector as it is") {
  auto const floats = cache();
  Rope const rope = rope_of_cache(floats.data(), 2, rotary, RopePairing::half_split, nullptr);
  for (std::int32_t const position : {-1, 2, INT32_MAX, INT32_MIN}) {
    auto x = numbers();
    rotate_vector(rope, position, x.data(), dim);
    CHECK(x == numbers());
  }
}

TEST_CASE("every NaN is the same one, whoever made it") {
  auto const floats = cache();
  Rope const rope = rope_of_cache(floats.data(), 2, rotary, RopePairing::interleaved, nullptr);
  float const infinity = std::numeric_limits<float>::infinity();
  auto x = numbers();
  x[0] = infinity;  // column 0: cos 0.96, sin 0.30, so both products are infinite
  x[1] = infinity;  // and their difference is none
  x[2] = quant::detail::float_of(0xFFC0'1234U);
  x[dim - 1] = quant::detail::float_of(0x7F80'0001U);
  rotate_vector(rope, 1, x.data(), dim);
  for (std::size_t const i : {std::size_t{0}, std::size_t{2}, std::size_t{3}, dim - 1UL}) {
    CHECK(quant::detail::bits_of(x[i]) == 0x7FFF'FFFFU);
  }
  CHECK(x[1] == infinity);
}

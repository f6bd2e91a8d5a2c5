// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/vector_codec.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"
#include "support/definition.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using quant::AffineScale;
using quant::Scale;
using namespace pagedkv::testing;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float max_float = std::numeric_limits<float>::max();
constexpr Element scaled_elements[] = {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8,
                                       Element::int8_asym, Element::int4};
constexpr std::byte untouched{0xA5};

using Bytes = std::vector<std::uint8_t>;

/// The stored bytes; fails if a byte behind them was touched.
Bytes encoded(Element element, AffineScale scale, std::vector<float> const& x) {
  auto const dim = static_cast<std::int32_t>(x.size());
  auto const size = static_cast<std::size_t>(pagedkv::bytes_per_vector(element, dim));
  std::vector<std::byte> bytes(size + 4, untouched);
  quant::encode_vector(element, scale, x.data(), dim, bytes.data());
  for (std::size_t i = size; i < bytes.size(); ++i) REQUIRE(bytes[i] == untouched);
  Bytes result;
  for (std::size_t i = 0; i < size; ++i) result.push_back(static_cast<std::uint8_t>(bytes[i]));
  return result;
}

std::vector<float> decoded(Element element, AffineScale scale, Bytes const& bytes,
                           std::size_t dim) {
  std::vector<float> x(dim + 1, -1.5F);
  quant::decode_vector(element, scale, reinterpret_cast<std::byte const*>(bytes.data()),
                       static_cast<std::int32_t>(dim), x.data());
  REQUIRE(x.back() == -1.5F);
  x.pop_back();
  return x;
}

AffineScale dynamic_scale_of(Element element, std::vector<float> const& x) {
  return quant::vector_scale(element, x.data(), static_cast<std::int32_t>(x.size()));
}

void requantize(Element element, Scale before, Scale after, Bytes& bytes) {
  quant::requantize_vector(element, before, after, static_cast<std::int32_t>(bytes.size()),
                           reinterpret_cast<std::byte*>(bytes.data()));
}

/// Stored under its own dynamic scale and read back.
std::vector<float> round_trip(Element element, std::vector<float> const& x) {
  auto const scale = dynamic_scale_of(element, x);
  return decoded(element, scale, encoded(element, scale, x), x.size());
}

std::vector<float> normal_vector(std::mt19937& random, std::size_t dim, float gain) {
  std::normal_distribution<float> normal;
  std::vector<float> x(dim);
  for (float& number : x) number = gain * normal(random);
  return x;
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
         });
}

TEST_CASE("vectors are stored and read as the definition says, step by step") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    for (std::size_t const dim : {1U, 2U, 7U, 8U, 80U, 129U}) {
      auto const gain = std::exp2(static_cast<float>(round % 40 - 20));
      auto const x = normal_vector(random, dim, gain);
      for (auto const element : scaled_elements) {
        auto const expected = scale_by_definition(element, x);
        auto const scale = dynamic_scale_of(element, x);
        REQUIRE(scale.scale == expected.scale);
        REQUIRE(scale.zero == expected.zero);
        auto const bytes = encoded(element, scale, x);
        REQUIRE(bytes == bytes_by_definition(element, expected, x));
        std::vector<float> read;
        for (float const number : x) {
          auto const code = code_by_definition(element, expected, number);
          read.push_back(number_by_definition(element, expected, code));
        }
        REQUIRE(same_bits(decoded(element, scale, bytes, dim), read));
      }
    }
  }
}

TEST_CASE("static scales follow the same definition and clip") {
  std::mt19937 random(12);
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8}) {
    for (float const scale : {0.013F, 0.25F, 1.0F, 3.7F}) {
      auto x = normal_vector(random, 100, 50.0F);
      x[3] = 1e9F;
      x[4] = -1e9F;
      AffineScale const fixed{scale, 0.0F};
      CHECK(encoded(element, fixed, x) == bytes_by_definition(element, fixed, x));
      auto const read = decoded(element, fixed, encoded(element, fixed, x), x.size());
      CHECK(read[3] == largest_code_by_definition(element) * scale);
      CHECK(read[4] == -largest_code_by_definition(element) * scale);
    }
  }
}

TEST_CASE("16 and 32 bit elements ignore scales and keep infinities and NaN") {
  std::vector<float> const x{1.0F, -2.5F, infinity, -infinity, nan, 1e-45F, -0.0F};
  for (auto const element : {Element::f32, Element::f16, Element::bf16}) {
    auto const read = decoded(element, {7.0F, 3.0F}, encoded(element, {0.0F, 0.0F}, x), x.size());
    CHECK(read[0] == 1.0F);
    CHECK(read[1] == -2.5F);
    CHECK(read[2] == infinity);
    CHECK(read[3] == -infinity);
    CHECK(std::isnan(read[4]));
    CHECK(read[5] == (element == Element::f32 ? 1e-45F : 0.0F));
    CHECK(std::signbit(read[6]));
  }
}

TEST_CASE("a NaN or an infinity changes its own code and nothing else") {
  std::mt19937 random(13);
  for (auto const element : scaled_elements) {
    for (std::size_t const dim : {2U, 33U, 128U}) {
      auto const clean = normal_vector(random, dim, 3.0F);
      for (float const wild : {nan, -nan, infinity, -infinity}) {
        for (std::size_t at = 0; at < dim; at += 5) {
          auto x = clean;
          auto without = clean;
          x[at] = wild;
          without[at] = clean[(at + 1) % dim];  // changes neither maximum nor range of the others
          auto const scale = dynamic_scale_of(element, x);
          auto const expected = dynamic_scale_of(element, without);
          REQUIRE(scale.scale == expected.scale);
          REQUIRE(scale.zero == expected.zero);
          auto const read = decoded(element, scale, encoded(element, scale, x), dim);
          auto const other = decoded(element, scale, encoded(element, scale, without), dim);
          for (std::size_t i = 0; i < dim; ++i) {
            if (i != at) REQUIRE(read[i] == other[i]);
          }
        }
      }
    }
  }
}

TEST_CASE("what can't be represented: the table of the contract") {
  std::vector<float> const x{2.0F, -3.0F, nan, infinity, -infinity, 1.0F};
  auto const fp8 = round_trip(Element::fp8_e4m3, x);
  CHECK(std::isnan(fp8[2]));
  CHECK(fp8[3] == fp8[1] * -1.0F);  // the largest code of either sign
  CHECK(fp8[4] == fp8[1]);
  auto const int8 = round_trip(Element::int8, x);
  CHECK(int8[2] == 0.0F);
  CHECK(int8[3] == -int8[1]);
  CHECK(int8[4] == int8[1]);
  for (auto const element : {Element::int8_asym, Element::int4}) {
    auto const read = round_trip(element, x);
    CHECK(read[2] == -3.0F);  // code 0 reads as the zero, which is the lowest number
    CHECK(read[3] == read[0]);
    CHECK(read[4] == -3.0F);
  }
}

TEST_CASE("vectors of zeros have scale 0 and read as zeros") {
  for (auto const element : scaled_elements) {
    for (float const zero : {0.0F, -0.0F}) {
      std::vector<float> const x(9, zero);
      auto const scale = dynamic_scale_of(element, x);
      CHECK(scale.scale == 0.0F);
      CHECK(std::bit_cast<std::uint32_t>(scale.zero) == 0U);
      for (float const number : round_trip(element, x)) CHECK(number == 0.0F);
    }
  }
}

TEST_CASE("zeroed bytes under a zeroed scale read as zeros") {
  for (auto const element : pagedkv::all_elements) {
    Bytes const bytes(static_cast<std::size_t>(pagedkv::bytes_per_vector(element, 7)), 0);
    for (float const number : decoded(element, {0.0F, 0.0F}, bytes, 7)) CHECK(number == 0.0F);
  }
}

TEST_CASE("vectors without any finite number have scale 0") {
  std::vector<float> const x{infinity, -infinity, nan, infinity};
  for (auto const element : scaled_elements) {
    auto const scale = dynamic_scale_of(element, x);
    CHECK(scale.scale == 0.0F);
    CHECK(scale.zero == 0.0F);
    auto const bytes = encoded(element, scale, x);
    bool const fp8 = element == Element::fp8_e4m3 || element == Element::fp8_e5m2;
    // An infinity times an inverse of 0 is NaN: fp8 says so, integers have no code for it.
    for (auto const byte : bytes) CHECK(byte == (fp8 ? 0x7F : 0));
  }
}

TEST_CASE("scales too small to have a reciprocal count as 0") {
  for (auto const element : scaled_elements) {
    std::vector<float> const x{1e-44F, -1e-44F, 0.0F};
    auto const scale = dynamic_scale_of(element, x);
    CHECK(scale.scale == 0.0F);
    for (auto const number : round_trip(element, x)) CHECK(std::fabs(number) <= 1e-44F);
    // A static one of that size, too: nothing becomes infinite or NaN.
    auto const read = decoded(element, {1e-40F, 0.0F}, encoded(element, {1e-40F, 0.0F}, x), 3);
    for (auto const number : read) CHECK(number == 0.0F);
  }
}

TEST_CASE("the largest floats are stored without an infinity or NaN") {
  std::vector<float> const x{max_float, -max_float, max_float / 2, 1.0F};
  for (auto const element : scaled_elements) {
    for (auto const number : round_trip(element, x)) CHECK_FALSE(std::isnan(number));
  }
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8}) {
    CHECK(round_trip(element, x)[0] > 0.99F * max_float);
  }
}

TEST_CASE("int4 vectors of odd length end in a high half of 0") {
  for (std::size_t dim = 1; dim <= 9; ++dim) {
    std::vector<float> x(dim);
    for (std::size_t i = 0; i < dim; ++i) x[i] = static_cast<float>(i % 16);
    auto const bytes = encoded(Element::int4, {1.0F, 0.0F}, x);
    REQUIRE(bytes.size() == (dim + 1) / 2);
    if (dim % 2 == 1) CHECK(bytes.back() >> 4 == 0);
    CHECK(decoded(Element::int4, {1.0F, 0.0F}, bytes, dim) == x);
  }
}

TEST_CASE("amax and range leave out what isn't finite") {
  std::vector<float> const x{nan, -3.0F, infinity, 2.0F, -infinity};
  CHECK(quant::amax(x.data(), 5) == 3.0F);
  CHECK(quant::finite_range(x.data(), 5).low == -3.0F);
  CHECK(quant::finite_range(x.data(), 5).high == 2.0F);
  CHECK(quant::amax(x.data(), 1) == 0.0F);
  CHECK(quant::finite_range(x.data(), 1).high == 0.0F);
  CHECK(quant::amax(nullptr, 0) == 0.0F);
  std::vector<float> const positive{5.0F, 4.0F};
  CHECK(quant::finite_range(positive.data(), 2).low == 4.0F);  // not 0: it lies outside
}

TEST_CASE("doubling the scale loses bits of the subnormal edge only") {
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2}) {
    Bytes bytes;
    for (unsigned code = 0; code < 256; ++code) bytes.push_back(static_cast<std::uint8_t>(code));
    auto const before = decoded(element, {1.0F, 0.0F}, bytes, 256);
    requantize(element, Scale{1.0F}, Scale{2.0F}, bytes);
    auto const after = decoded(element, {2.0F, 0.0F}, bytes, 256);
    int lossy = 0;
    for (std::size_t i = 0; i < 256; ++i)
      lossy += std::isfinite(before[i]) && after[i] != before[i];
    CHECK(lossy == (element == Element::fp8_e4m3 ? 16 : 8));
  }
}

TEST_CASE("requantizing keeps NaN, zeros and what a scale of 0 read") {
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2}) {
    Bytes bytes{0x7F, 0x00, 0x80};
    requantize(element, Scale{0.5F}, Scale{64.0F}, bytes);
    CHECK(bytes == Bytes{0x7F, 0x00, 0x80});
    requantize(element, Scale{0.0F}, Scale{1.0F}, bytes);
    CHECK(bytes == Bytes{0x7F, 0x00, 0x80});
  }
}

TEST_CASE("requantizing to the scale it has changes nothing") {
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2}) {
    Bytes bytes;
    for (unsigned code = 0; code < 0x7C; ++code) bytes.push_back(static_cast<std::uint8_t>(code));
    auto const before = bytes;
    requantize(element, Scale{0x1p-7F}, Scale{0x1p-7F}, bytes);
    CHECK(bytes == before);
  }
}

}  // namespace

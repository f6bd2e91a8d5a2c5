// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/half.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "catch.hpp"
#include "support/nearest_code.hpp"

namespace quant = pagedkv::quant;
using namespace pagedkv::testing;

namespace {

static_assert(quant::encode_f16(65519.0F) == 0x7BFF && quant::encode_f16(65520.0F) == 0x7C00);
static_assert(quant::encode_f16(1.0F) == 0x3C00 && quant::decode_f16(0x0001) == 0x1p-24F);
static_assert(quant::encode_bf16(-2.0F) == 0xC000 && quant::decode_bf16(0x0001) == 0x1p-133F);

bool is_nan16(std::uint32_t code, std::uint32_t infinity) { return (code & 0x7FFFU) > infinity; }

/// Every code: value by the format's definition, and back to the same code; NaN to its quiet twin.
template <class Decode, class Encode>
std::uint32_t wrong_round_trips(FloatFormat const& format, std::uint32_t quiet_bit,
                                Decode const& decode, Encode const& encode) {
  std::uint32_t const infinity = format.largest + 1;
  std::uint32_t wrong = 0;
  for (std::uint32_t code = 0; code < 1U << 16; ++code) {
    float const value = decode(static_cast<std::uint16_t>(code));
    std::uint32_t const back = encode(value);
    std::uint32_t const magnitude = code & 0x7FFFU;
    if (is_nan16(code, infinity)) {
      wrong += !std::isnan(value) || back != (code | quiet_bit);
      continue;
    }
    auto const expected = magnitude == infinity ? std::numeric_limits<double>::infinity()
                                                : value_of(format, magnitude);
    bool const negative = (code & 0x8000U) != 0;
    wrong += static_cast<double>(std::fabs(value)) != expected || std::signbit(value) != negative ||
             back != code;
  }
  return wrong;
}

template <class Encode>
std::uint32_t wrong_codes(FloatFormat const& format, Encode const& encode) {
  NearestCode const nearest(format);
  std::uint32_t wrong = 0;
  auto const check = [&](float x) {
    std::uint32_t const code = encode(x);
    if (std::isnan(x)) {
      wrong += !is_nan16(code, format.largest + 1) || (code >> 15 != 0) != std::signbit(x);
    } else {
      wrong += code != nearest(x);
    }
  };
  for (float const x : boundary_inputs(format)) check(x);
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 2011) {
    check(float_of(static_cast<std::uint32_t>(bits)));
  }
  return wrong;
}

TEST_CASE("every binary16 has the value its definition gives and comes back as itself") {
  CHECK(wrong_round_trips(f16_format, 0x0200, quant::decode_f16, quant::encode_f16) == 0);
}

TEST_CASE("every bfloat16 has the value its definition gives and comes back as itself") {
  CHECK(wrong_round_trips(bf16_format, 0x0040, quant::decode_bf16, quant::encode_bf16) == 0);
}

TEST_CASE("floats give the nearest binary16, infinite beyond the largest") {
  CHECK(wrong_codes(f16_format, quant::encode_f16) == 0);
}

TEST_CASE("floats give the nearest bfloat16, infinite beyond the largest") {
  CHECK(wrong_codes(bf16_format, quant::encode_bf16) == 0);
}

}  // namespace

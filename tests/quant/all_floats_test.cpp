// SPDX-License-Identifier: Apache-2.0
// Every narrow float format against the nearest code by search. All 2^32 inputs with
// PAGEDKV_EXHAUSTIVE=1 (minutes), otherwise an odd stride.
#include <cmath>
#include <cstdint>

#include <pagedkv/quant/fp8.hpp>
#include <pagedkv/quant/half.hpp>
#include <pagedkv/quant/int4.hpp>
#include <pagedkv/quant/int8.hpp>

#include "catch.hpp"
#include "support/nearest_code.hpp"
#include "support/threads.hpp"

namespace quant = pagedkv::quant;
using namespace pagedkv::testing;

namespace {

constexpr std::uint64_t stride = 997;

/// Floats that aren't NaN and don't give the nearest code.
template <class Encode>
std::uint64_t wrong_codes(FloatFormat const& format, Encode const& encode) {
  NearestCode const nearest(format);
  return sum_of_signs(stride, [&](std::uint64_t first, std::uint64_t last, std::uint64_t step) {
    std::uint64_t wrong = 0;
    std::size_t hint = 0;
    for (auto bits = first; bits < last; bits += step) {
      float const x = float_of(static_cast<std::uint32_t>(bits));
      if (!std::isnan(x)) wrong += encode(x) != nearest(x, hint);
    }
    return wrong;
  });
}

TEST_CASE("all floats: E4M3 is the nearest code") {
  CHECK(wrong_codes(e4m3_format, quant::encode_e4m3) == 0);
}
TEST_CASE("all floats: E5M2 is the nearest code") {
  CHECK(wrong_codes(e5m2_format, quant::encode_e5m2) == 0);
}
TEST_CASE("all floats: binary16 is the nearest code") {
  CHECK(wrong_codes(f16_format, quant::encode_f16) == 0);
}
TEST_CASE("all floats: bfloat16 is the nearest code") {
  CHECK(wrong_codes(bf16_format, quant::encode_bf16) == 0);
}

TEST_CASE("all floats: integers are the nearest in range") {
  auto const nearest = [](float x, double low, double high) {
    double const bounded = std::isnan(x) ? 0.0 : std::fmin(std::fmax(x, low), high);
    return static_cast<int>(std::nearbyint(bounded));
  };
  auto const wrong = count_over_floats(stride, [&](std::uint32_t bits) -> std::uint64_t {
    float const x = float_of(bits);
    return (quant::encode_int8(x) != nearest(x, -127, 127)) +
           (quant::encode_uint8(x) != nearest(x, 0, 255)) +
           (quant::encode_int4(x) != nearest(x, 0, 15));
  });
  CHECK(wrong == 0);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/scale.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "catch.hpp"
#include "support/definition.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using quant::Scale;
using namespace pagedkv::testing;

namespace {

constexpr float max_float = std::numeric_limits<float>::max();
constexpr Element fp8_elements[] = {Element::fp8_e4m3, Element::fp8_e5m2};

TEST_CASE("an inverse is the rounded reciprocal, and 0 where that isn't finite") {
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    float const scale = std::fabs(float_of(static_cast<std::uint32_t>(random())));
    if (!std::isfinite(scale)) continue;
    CHECK(quant::inverse(Scale{scale}).value == inverse_by_definition(scale));
  }
  CHECK(quant::inverse(Scale{0.0F}).value == 0.0F);
  CHECK(quant::inverse(Scale{1e-40F}).value == 0.0F);
  CHECK(quant::inverse(Scale{std::numeric_limits<float>::denorm_min()}).value == 0.0F);
  CHECK(quant::inverse(Scale{3e-39F}).value > 0.0F);
  CHECK(quant::inverse(Scale{max_float}).value == 1.0F / max_float);
}

TEST_CASE("a dynamic scale multiplies by the rounded reciprocal of the largest code") {
  // 1 / 448 isn't a float: dividing gives other bits for some of these.
  std::mt19937 random(8);
  std::uniform_real_distribution<float> amaxes(0.001F, 1000.0F);
  int differ_from_division = 0;
  for (int i = 0; i < 1000; ++i) {
    float const amax = amaxes(random);
    for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8}) {
      float const largest = largest_code_by_definition(element);
      float const expected = rounded_product(amax, rounded_quotient(1.0F, largest));
      CHECK(quant::dynamic_scale(element, amax).value == expected);
      differ_from_division += expected != amax / largest;
    }
  }
  CHECK(differ_from_division > 0);
}

TEST_CASE("dynamic scales of nothing, of next to nothing and of the largest") {
  for (auto const element : {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8}) {
    CHECK(quant::dynamic_scale(element, 0.0F).value == 0.0F);
    CHECK(quant::dynamic_scale(element, 1e-42F).value == 0.0F);  // its reciprocal is infinite
    CHECK(std::isfinite(quant::dynamic_scale(element, max_float).value));
    CHECK(quant::inverse(quant::dynamic_scale(element, max_float)).value > 0.0F);
  }
  for (auto const element : {Element::int8_asym, Element::int4}) {
    auto const constant = quant::dynamic_affine_scale(element, 2.5F, 2.5F);
    CHECK(constant.scale == 0.0F);
    CHECK(constant.zero == 2.5F);
    auto const widest = quant::dynamic_affine_scale(element, -max_float, max_float);
    CHECK(std::isfinite(widest.scale));
    CHECK(widest.zero == -max_float);
  }
}

TEST_CASE("a power-of-two scale is the smallest that doesn't saturate") {
  std::mt19937 random(9);
  for (int i = 0; i < 100000; ++i) {
    float const amax = std::fabs(float_of(static_cast<std::uint32_t>(random())));
    if (!std::isfinite(amax) || amax == 0.0F) continue;
    for (auto const element : fp8_elements) {
      float const scale = quant::power_of_two_scale(element, amax).value;
      double const largest = largest_code_by_definition(element);
      int exponent = 0;
      CHECK(std::frexp(scale, &exponent) == 0.5F);
      CHECK(double{amax} <= largest * double{scale});
      CHECK((scale == 0x1p-126F || double{amax} > largest * double{scale} / 2));
    }
  }
  CHECK(quant::power_of_two_scale(Element::fp8_e4m3, 0.0F).value == 0.0F);
  CHECK(quant::power_of_two_scale(Element::fp8_e4m3, 448.0F).value == 1.0F);
  CHECK(quant::power_of_two_scale(Element::fp8_e4m3, 448.0001F).value == 2.0F);
  CHECK(quant::power_of_two_scale(Element::fp8_e5m2, 57344.0F).value == 1.0F);
  CHECK(std::isfinite(quant::power_of_two_scale(Element::fp8_e4m3, max_float).value));
}

}  // namespace

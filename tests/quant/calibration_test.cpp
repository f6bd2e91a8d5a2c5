// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/calibration.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <pagedkv/quant/vector_codec.hpp>

#include "catch.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::testing::contains_text;
using quant::Calibration;
using quant::CalibrationObserver;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr KvFormat fp8_heads{Element::fp8_e4m3, Granularity::per_head};
constexpr KvFormat fp8_tensor{Element::fp8_e4m3, Granularity::per_tensor};
constexpr KvFormat int8_tensor{Element::int8, Granularity::per_tensor};

Geometry model(std::int32_t layers, std::int32_t heads, std::int32_t dim_k, std::int32_t dim_v) {
  Geometry geometry;
  geometry.num_layers = layers;
  geometry.num_kv_heads = heads;
  geometry.head_dim_k = dim_k;
  geometry.head_dim_v = dim_v;
  return geometry;
}

float scale_of(float amax, Element element = Element::fp8_e4m3) {
  return quant::dynamic_scale(element, amax).value;
}

TEST_CASE("amax finds the largest magnitude of each head, K and V apart, over all calls") {
  CalibrationObserver observer(model(2, 2, 2, 1), {.format = fp8_heads, .model = "m"});
  //                         head 0      head 1
  observer.observe_k(0, std::vector<float>{1, -3, 2, 0.5F, /* next token */ 2, 2, -7, 1});
  observer.observe_k(0, std::vector<float>{-4, 0, 1, 1});
  observer.observe_v(0, std::vector<float>{0.25F, 10});
  observer.observe_k(1, std::vector<float>{1, 1, 1, 1});
  observer.observe_v(1, std::vector<float>{-2, 3});
  auto const set = observer.scales();
  CHECK(set.format == fp8_heads);
  CHECK(set.model == "m");
  CHECK(set.made == "amax of 3 tokens");
  REQUIRE(set.layers.size() == 2);
  CHECK(set.layers[0].k == std::vector<float>{scale_of(4), scale_of(7)});
  CHECK(set.layers[0].v == std::vector<float>{scale_of(0.25F), scale_of(10)});
  CHECK(set.layers[1].v == std::vector<float>{scale_of(2), scale_of(3)});
}

TEST_CASE("a scale of a tensor reaches all heads") {
  CalibrationObserver observer(model(1, 2, 1, 1), {.format = fp8_tensor});
  observer.observe_k(0, std::vector<float>{1, -5});
  observer.observe_v(0, std::vector<float>{2, 1});
  CHECK(observer.scales().layers[0].k == std::vector<float>{scale_of(5)});
  CHECK(observer.scales().layers[0].v == std::vector<float>{scale_of(2)});
}

TEST_CASE("infinities and NaN never count") {
  for (auto const method : {Calibration::amax, Calibration::percentile, Calibration::mse}) {
    CalibrationObserver observer(model(1, 1, 4, 0),
                                 {.format = int8_tensor, .method = method, .percentile = 100});
    observer.observe_k(0, std::vector<float>{nan, infinity, -infinity, 1});
    auto const set = observer.scales();
    CHECK(set.layers[0].k[0] <= scale_of(1, Element::int8));
    CHECK(set.layers[0].k[0] > 0.5F * scale_of(1, Element::int8));
    CHECK(set.layers[0].v.empty());
  }
}

TEST_CASE("a head of which nothing was seen is an error that names it") {
  CalibrationObserver observer(model(2, 2, 1, 1), {.format = fp8_heads});
  observer.observe_k(0, std::vector<float>{1, 1});
  observer.observe_v(0, std::vector<float>{1, 0});
  CHECK_THROWS_WITH(observer.scales(), contains_text("layer 0, V, head 1"));
  observer.observe_v(0, std::vector<float>{nan, infinity});
  CHECK_THROWS_WITH(observer.scales(), contains_text("layer 0, V, head 1"));
  observer.observe_v(0, std::vector<float>{1, 1});
  CHECK_THROWS_WITH(observer.scales(), contains_text("layer 1, K, head 0"));
}

TEST_CASE("what can't be calibrated is refused with what can") {
  auto const geometry = model(1, 2, 4, 0);
  auto const refuse = [&](quant::CalibrationOptions const& options, char const* text) {
    CHECK_THROWS_WITH(CalibrationObserver(geometry, options), contains_text(text));
  };
  refuse({.format = {Element::fp8_e4m3, Granularity::per_token_head}}, "per_tensor or per_head");
  refuse({.format = {Element::int4, Granularity::per_tensor}}, "per_token_head");
  refuse({.format = fp8_tensor, .method = Calibration::mse}, "takes amax");
  refuse({.format = int8_tensor, .method = Calibration::percentile, .percentile = 101}, "100");
  CHECK_THROWS_WITH(CalibrationObserver(model(0, 1, 1, 1), {}), contains_text("num_layers"));
  CalibrationObserver observer(geometry, {.format = fp8_tensor});
  CHECK_THROWS_WITH(observer.observe_k(1, {}), contains_text("layers 0 to 0"));
  CHECK_THROWS_WITH(observer.observe_k(0, std::vector<float>(12)), contains_text("multiple of 8"));
  CHECK_THROWS_WITH(observer.observe_v(0, {}), contains_text("no V"));
}

TEST_CASE("a percentile leaves out the outliers above it") {
  CalibrationObserver observer(
      model(1, 1, 1000, 0),
      {.format = int8_tensor, .method = Calibration::percentile, .percentile = 99.0});
  std::vector<float> k;
  for (int i = 1; i <= 1000; ++i) k.push_back(i <= 995 ? static_cast<float>(i) : 1e6F);
  observer.observe_k(0, k);
  auto const set = observer.scales();
  CHECK(set.made == "percentile 99 of 1 tokens");
  float const clip = set.layers[0].k[0] * 127.0F;
  CHECK(clip >= 990.0F);
  CHECK(clip <= 990.0F * 1.04F);
}

/// Mean squared error of storing x under a static int8 scale.
double error_under(float scale, std::vector<float> const& x) {
  std::vector<std::byte> bytes(x.size());
  std::vector<float> read(x.size());
  auto const dim = static_cast<std::int32_t>(x.size());
  quant::encode_vector(Element::int8, {scale, 0.0F}, x.data(), dim, bytes.data());
  quant::decode_vector(Element::int8, {scale, 0.0F}, bytes.data(), dim, read.data());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += std::pow(static_cast<double>(read[i] - x[i]), 2);
  }
  return sum;
}

TEST_CASE("mse search comes near the best clip that storing for real finds") {
  std::mt19937 random(31);
  std::student_t_distribution<float> heavy(4.0F);
  std::vector<float> x(20000);
  for (float& number : x) number = heavy(random);
  CalibrationObserver observer(model(1, 1, 20000, 0),
                               {.format = int8_tensor, .method = Calibration::mse});
  observer.observe_k(0, x);
  float const found = observer.scales().layers[0].k[0];
  float const largest = scale_of(quant::amax(x.data(), 20000), Element::int8);
  double best = error_under(largest, x);
  for (int i = 1; i < 200; ++i) {
    best = std::min(best, error_under(largest * static_cast<float>(i) / 200.0F, x));
  }
  CHECK(error_under(found, x) <= 1.02 * best);
  CHECK(error_under(found, x) < 0.95 * error_under(largest, x));
}

}  // namespace

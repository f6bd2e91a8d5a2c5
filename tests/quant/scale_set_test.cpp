// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/scale_set.hpp>

#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::LayerFormat;
using pagedkv::testing::contains_text;
using quant::ScaleSet;

namespace {

constexpr KvFormat tensor_format{Element::fp8_e4m3, Granularity::per_tensor};
constexpr KvFormat head_format{Element::fp8_e4m3, Granularity::per_head};

Geometry model(KvFormat format) {
  Geometry geometry;
  geometry.num_layers = 2;
  geometry.num_kv_heads = 3;
  geometry.head_dim_k = 8;
  geometry.head_dim_v = 8;
  geometry.format = LayerFormat(format);
  return geometry;
}
ScaleSet per_head_set() {
  return {head_format, "", "", {{{1, 2, 3}, {4, 5, 6}}, {{7, 8, 9}, {10, 11, 12}}}};
}
ScaleSet per_tensor_set() { return {tensor_format, "", "", {{{1}, {2}}, {{3}, {4}}}}; }

TEST_CASE("K and V of a head have scales of their own") {
  auto const set = per_head_set();
  CHECK(set.k(1, 2).value == 9.0F);
  CHECK(set.v(0, 1).value == 5.0F);
  CHECK(quant::inverse(set.v(0, 0)).value == 0.25F);
  CHECK(quant::inverses(std::vector<float>{4.0F, 0.5F}) == std::vector<float>{0.25F, 2.0F});
}

TEST_CASE("a scale of a tensor is every head's") {
  auto const set = per_tensor_set();
  CHECK(set.k(1, 0).value == 3.0F);
  CHECK(set.k(1, 2).value == 3.0F);
}

TEST_CASE("a set that fits its model has no error") {
  CHECK(scale_set_error(per_head_set(), model(head_format)).empty());
  CHECK(scale_set_error(per_tensor_set(), model(tensor_format)).empty());
  CHECK(scale_set_error(per_tensor_set(), model(head_format)).empty());
}

TEST_CASE("a set that doesn't fit says where and what was expected") {
  auto set = per_head_set();
  set.layers[1].v[2] = 0.0F;
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("layer 1, V head 2 is 0"));
  set.layers[1].v[2] = -1.0F;
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("larger than 0"));
  set.layers[1].v[2] = std::numeric_limits<float>::infinity();
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("finite"));
  set.layers[1].v[2] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("finite"));
  set.layers[1].v[2] = 1e-40F;
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("reciprocal"));
  set.layers[1].v.pop_back();
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("2 scales; expected 3"));
  set.layers.pop_back();
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("expected the model's 2"));
  CHECK_THAT(scale_set_error(per_head_set(), model(tensor_format)),
             contains_text("layer 0, K is stored as fp8_e4m3/per_tensor"));
  KvFormat const int8{Element::int8, Granularity::per_head};
  CHECK_THAT(scale_set_error(per_head_set(), model(int8)), contains_text("int8/per_head"));
  set = per_head_set();
  set.format.granularity = Granularity::per_token_head;
  CHECK_THAT(scale_set_error(set, model(head_format)), contains_text("static ones are"));
}

TEST_CASE("layers without static scales need none, a model without V has none") {
  auto geometry = model(head_format);
  geometry.overrides = {{{0, 1}, LayerFormat(KvFormat{Element::bf16, Granularity::none})}};
  auto set = per_head_set();
  set.layers[0] = {};
  CHECK(scale_set_error(set, geometry).empty());
  geometry.head_dim_v = 0;
  CHECK_THAT(scale_set_error(set, geometry), contains_text("layer 1, V has scales"));
  set.layers[1].v.clear();
  CHECK(scale_set_error(set, geometry).empty());
}

}  // namespace

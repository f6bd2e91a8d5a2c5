// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/model/kv_format.hpp>

#include <string>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::Element;
using kv::Granularity;
using kv::KvFormat;
using kv::testing::contains_text;

namespace {

static_assert(kv::parse_kv_format("f16") == KvFormat{Element::f16, Granularity::none});
static_assert(kv::parse_kv_format("fp8_e4m3") ==
              KvFormat{Element::fp8_e4m3, Granularity::per_tensor});
static_assert(kv::parse_kv_format("int4") == KvFormat{Element::int4, Granularity::per_token_head});
static_assert(!kv::parse_kv_format("int4/per_tensor"));
static_assert(KvFormat{} == KvFormat{Element::f16, Granularity::none});

TEST_CASE("names of elements and granularities are read back as what they name") {
  for (auto const element : kv::all_elements) {
    CHECK(kv::parse_element(kv::to_string(element)) == element);
  }
  for (auto const granularity : kv::all_granularities) {
    CHECK(kv::parse_granularity(kv::to_string(granularity)) == granularity);
  }
  CHECK_FALSE(kv::parse_element("FP8_E4M3"));
  CHECK_FALSE(kv::parse_element("unknown"));
  CHECK_FALSE(kv::parse_element(""));
  CHECK_FALSE(kv::parse_granularity("per_page"));
}

TEST_CASE("exactly the documented combinations are valid") {
  std::string valid;
  for (auto const element : kv::all_elements) {
    for (auto const granularity : kv::all_granularities) {
      KvFormat const format{element, granularity};
      if (kv::is_valid(format))
        valid += std::string(kv::to_string(element)) + " " + kv::to_string(granularity) + "\n";
    }
  }
  CHECK(valid ==
        "f32 none\n"
        "f16 none\n"
        "bf16 none\n"
        "fp8_e4m3 per_tensor\n"
        "fp8_e4m3 per_head\n"
        "fp8_e4m3 per_token_head\n"
        "fp8_e4m3 per_block_head\n"
        "fp8_e5m2 per_tensor\n"
        "fp8_e5m2 per_head\n"
        "fp8_e5m2 per_token_head\n"
        "fp8_e5m2 per_block_head\n"
        "int8 per_tensor\n"
        "int8 per_head\n"
        "int8 per_token_head\n"
        "int8_asym per_token_head\n"
        "int4 per_token_head\n");
}

TEST_CASE("a valid format survives the way through text, and the rest is refused with a reason") {
  for (auto const element : kv::all_elements) {
    for (auto const granularity : kv::all_granularities) {
      KvFormat const format{element, granularity};
      auto const text = std::string(kv::to_string(element)) + "/" + kv::to_string(granularity);
      if (kv::is_valid(format)) {
        CHECK(kv::parse_kv_format(kv::to_string(format)) == format);
        CHECK(kv::parse_kv_format(text) == format);
        CHECK(kv::kv_format_error(format).empty());
        CHECK(kv::kv_format_error(text).empty());
      } else {
        CHECK_FALSE(kv::parse_kv_format(text));
        CHECK_THAT(kv::kv_format_error(text), contains_text(kv::to_string(element)));
        CHECK(kv::kv_format_error(text) == kv::kv_format_error(format));
      }
    }
  }
}

TEST_CASE("16 and 32 bit formats are written without a granularity") {
  CHECK(kv::to_string(KvFormat{Element::bf16, Granularity::none}) == "bf16");
  CHECK(kv::to_string(KvFormat{Element::int8, Granularity::per_head}) == "int8/per_head");
}

TEST_CASE("an element alone means the coarsest granularity it takes") {
  for (auto const element : kv::all_elements) {
    auto const format = kv::default_format(element);
    CHECK(kv::is_valid(format));
    CHECK(kv::parse_kv_format(kv::to_string(element)) == format);
    CHECK(format.granularity == kv::granularities_of(element).front());
  }
}

TEST_CASE("a refusal says what would be taken") {
  CHECK(kv::kv_format_error("int4/per_tensor") ==
        "int4 can't be scaled per_tensor; it takes: per_token_head");
  CHECK(kv::kv_format_error("int8/per_block_head") ==
        "int8 can't be scaled per_block_head; it takes: per_tensor, per_head, per_token_head");
  CHECK(kv::kv_format_error("fp8_e4m4") ==
        "unknown KV element 'fp8_e4m4'; it is one of: f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, "
        "int8_asym, int4");
  CHECK(kv::kv_format_error("int4/per_row") ==
        "unknown granularity 'per_row'; int4 takes: per_token_head");
  CHECK_THAT(kv::kv_format_error("f16/"), contains_text("unknown granularity ''"));
}

TEST_CASE("a vector's bytes are rounded up once, at its end") {
  CHECK(kv::bytes_per_vector(Element::f32, 128) == 512);
  CHECK(kv::bytes_per_vector(Element::f16, 128) == 256);
  CHECK(kv::bytes_per_vector(Element::bf16, 80) == 160);
  CHECK(kv::bytes_per_vector(Element::fp8_e4m3, 128) == 128);
  CHECK(kv::bytes_per_vector(Element::fp8_e5m2, 7) == 7);
  CHECK(kv::bytes_per_vector(Element::int8, 128) == 128);
  CHECK(kv::bytes_per_vector(Element::int8_asym, 128) == 128);
  CHECK(kv::bytes_per_vector(Element::int4, 128) == 64);
  CHECK(kv::bytes_per_vector(Element::int4, 127) == 64);
  CHECK(kv::bytes_per_vector(Element::int4, 1) == 1);
  CHECK(kv::bytes_per_vector(Element::f32, 2147483647) == 8589934588);
}

TEST_CASE("a scale is four bytes and a zero four more, where the granularity puts them") {
  auto const format = [](char const* text) { return *kv::parse_kv_format(text); };
  CHECK(kv::scale_bytes_per_vector(format("f16")) == 0);
  CHECK(kv::scale_bytes_per_vector(format("fp8_e4m3/per_tensor")) == 0);
  CHECK(kv::scale_bytes_per_vector(format("fp8_e4m3/per_token_head")) == 4);
  CHECK(kv::scale_bytes_per_vector(format("int8/per_token_head")) == 4);
  CHECK(kv::scale_bytes_per_vector(format("int8_asym")) == 8);
  CHECK(kv::scale_bytes_per_vector(format("int4")) == 8);
  CHECK(kv::scale_bytes_per_vector(format("fp8_e4m3/per_block_head")) == 0);
  CHECK(kv::scale_bytes_per_block_head(format("fp8_e4m3/per_block_head")) == 4);
  CHECK(kv::scale_bytes_per_block_head(format("fp8_e4m3/per_token_head")) == 0);
  CHECK(kv::static_scale_bytes(format("f16"), 8) == 0);
  CHECK(kv::static_scale_bytes(format("fp8_e4m3/per_tensor"), 8) == 4);
  CHECK(kv::static_scale_bytes(format("int8/per_head"), 8) == 32);
  CHECK(kv::static_scale_bytes(format("int8/per_token_head"), 8) == 0);
}

}  // namespace

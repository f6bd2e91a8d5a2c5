// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/model/recommend_format.hpp>

#include <string>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::Element;
using kv::testing::contains_text;

namespace {

static_assert(kv::ComputeCapability{8, 9} < kv::ComputeCapability{9, 0});
static_assert(kv::ComputeCapability{8, 9} > kv::ComputeCapability{8, 6});
static_assert(kv::recommend_format({8, 9}).format.element == Element::fp8_e4m3);

TEST_CASE("fp8 is recommended from 8.9 on, int8 below, f16 below 8.0") {
  auto const element = [](int major, int minor) {
    return kv::recommend_format({major, minor}).format.element;
  };
  CHECK(element(12, 0) == Element::fp8_e4m3);
  CHECK(element(10, 0) == Element::fp8_e4m3);
  CHECK(element(9, 0) == Element::fp8_e4m3);
  CHECK(element(8, 9) == Element::fp8_e4m3);
  CHECK(element(8, 7) == Element::int8);
  CHECK(element(8, 6) == Element::int8);
  CHECK(element(8, 0) == Element::int8);
  CHECK(element(7, 5) == Element::f16);
  CHECK(element(7, 0) == Element::f16);
  CHECK(element(0, 0) == Element::f16);
}

TEST_CASE("every recommendation is a valid format and gives its reason") {
  for (int major = 0; major < 14; ++major) {
    for (int minor = 0; minor < 10; ++minor) {
      auto const advice = kv::recommend_format({major, minor});
      CHECK(kv::is_valid(advice.format));
      CHECK_THAT(std::string(advice.reason), contains_text("compute capability"));
    }
  }
}

TEST_CASE("formats to try are valid, shrink at every head size in use, and suit the device") {
  for (kv::ComputeCapability const capability : {kv::ComputeCapability{8, 0}, {8, 9}, {9, 0}}) {
    auto const formats = kv::formats_to_try(capability);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      CHECK(kv::is_valid(formats[i]));
      for (int const dim : {64, 80, 96, 128, 192, 256, 576}) {
        auto const bytes = [dim](kv::KvFormat format) {
          return kv::bytes_per_vector(format.element, dim) + kv::scale_bytes_per_vector(format);
        };
        if (i > 0) CHECK(bytes(formats[i]) < bytes(formats[i - 1]));
      }
    }
    CHECK(formats[1].element == kv::recommend_format(capability).format.element);
  }
  CHECK(kv::formats_to_try(std::nullopt) == kv::formats_to_try(kv::ComputeCapability{9, 0}));
}

}  // namespace

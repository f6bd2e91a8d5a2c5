// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/fp8.hpp>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <pagedkv/quant/half.hpp>

#include "catch.hpp"
#include "support/nearest_code.hpp"

namespace quant = pagedkv::quant;
using namespace pagedkv::testing;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Run {
  std::uint32_t first = 0;
  std::uint8_t code = 0;
};
using Golden = std::map<std::string, std::vector<Run>>;

/// What the vendor's header gives (golden/make_fp8_golden.cpp): runs that cover every input.
Golden read_golden() {
  std::ifstream file(PAGEDKV_SOURCE_DIR "/tests/quant/golden/fp8.txt");
  Golden golden;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string name;
    unsigned first = 0, code = 0;
    words >> name >> std::hex >> first >> code;
    golden[name].push_back({first, static_cast<std::uint8_t>(code)});
  }
  return golden;
}

/// Inputs `bits` (first, first + stride, ...) below `end` that don't give the golden code, and the
/// ends of every run.
template <class Encode>
std::uint64_t differs(std::vector<Run> const& runs, std::uint64_t end, std::uint64_t stride,
                      Encode const& encode) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::uint64_t const last = (i + 1 < runs.size() ? runs[i + 1].first : end) - 1;
    auto const check = [&](std::uint64_t bits) {
      wrong += encode(static_cast<std::uint32_t>(bits)) != runs[i].code;
    };
    for (std::uint64_t bits = runs[i].first; bits <= last; bits += stride) check(bits);
    check(last);
  }
  return wrong;
}

template <class Encode>
std::uint32_t differs_from_nearest(FloatFormat const& format, Encode const& encode) {
  NearestCode const nearest(format);
  std::uint32_t wrong = 0;
  auto const check = [&](float x) { wrong += encode(x) != (std::isnan(x) ? 0x7FU : nearest(x)); };
  for (float const x : boundary_inputs(format)) check(x);
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 1021) {
    check(float_of(static_cast<std::uint32_t>(bits)));
  }
  return wrong;
}

template <class Encode, class Decode>
std::uint32_t wrong_codes(FloatFormat const& format, Encode const& encode, Decode const& decode) {
  std::uint32_t wrong = 0;
  for (std::uint32_t code = 0; code < 256; ++code) {
    auto const magnitude = code & 0x7FU;
    if (magnitude > format.largest) continue;
    float const value = decode(static_cast<std::uint8_t>(code));
    wrong += static_cast<double>(std::fabs(value)) != value_of(format, magnitude);
    wrong += std::signbit(value) != (code >= 0x80U);
    wrong += encode(value) != code;
  }
  return wrong;
}

TEST_CASE("every finite fp8 code has the value its definition gives and comes back as itself") {
  CHECK(wrong_codes(e4m3_format, quant::encode_e4m3, quant::decode_e4m3) == 0);
  CHECK(wrong_codes(e5m2_format, quant::encode_e5m2, quant::decode_e5m2) == 0);
}

TEST_CASE("fp8 codes behind the largest read as NaN and infinity") {
  CHECK(std::isnan(quant::decode_e4m3(0x7F)));
  CHECK(std::isnan(quant::decode_e4m3(0xFF)));
  CHECK(quant::decode_e5m2(0x7C) == infinity);
  CHECK(quant::decode_e5m2(0xFC) == -infinity);
  for (int const code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}) {
    CHECK(std::isnan(quant::decode_e5m2(static_cast<std::uint8_t>(code))));
  }
}

TEST_CASE("fp8 saturates, keeps signs and turns every NaN into 0x7F") {
  for (float const large : {448.0F, 464.0F, std::nextafter(464.0F, infinity), 1e30F, infinity}) {
    CHECK(quant::encode_e4m3(large) == 0x7E);
    CHECK(quant::encode_e4m3(-large) == 0xFE);
  }
  for (float const large : {57344.0F, 61440.0F, 1e30F, infinity}) {
    CHECK(quant::encode_e5m2(large) == 0x7B);
    CHECK(quant::encode_e5m2(-large) == 0xFB);
  }
  CHECK(quant::encode_e4m3(-0.0F) == 0x80);
  CHECK(quant::encode_e4m3(0x1p-10F) == 0x00);  // halfway to the smallest: to even
  CHECK(quant::encode_e4m3(std::nextafter(0x1p-10F, 1.0F)) == 0x01);
  for (std::uint32_t const nan : {0x7F80'0001U, 0x7FC0'0000U, 0xFF80'0001U, 0xFFFF'FFFFU}) {
    CHECK(quant::encode_e4m3(float_of(nan)) == 0x7F);
    CHECK(quant::encode_e5m2(float_of(nan)) == 0x7F);
  }
}

TEST_CASE("floats give the nearest fp8, ties to even") {
  CHECK(differs_from_nearest(e4m3_format, quant::encode_e4m3) == 0);
  CHECK(differs_from_nearest(e5m2_format, quant::encode_e5m2) == 0);
}

TEST_CASE("fp8 equals the recorded answers of the vendor's header") {
  auto const golden = read_golden();
  REQUIRE(golden.size() == 6);
  constexpr std::uint64_t halfs = 1U << 16, floats = std::uint64_t{1} << 32, stride = 1531;
  auto const of_f16 = [](std::uint32_t bits) {
    return quant::decode_f16(static_cast<std::uint16_t>(bits));
  };
  auto const of_bf16 = [](std::uint32_t bits) {
    return quant::decode_bf16(static_cast<std::uint16_t>(bits));
  };
  CHECK(differs(golden.at("f16_e4m3"), halfs, 1,
                [&](auto bits) { return quant::encode_e4m3(of_f16(bits)); }) == 0);
  CHECK(differs(golden.at("f16_e5m2"), halfs, 1,
                [&](auto bits) { return quant::encode_e5m2(of_f16(bits)); }) == 0);
  CHECK(differs(golden.at("bf16_e4m3"), halfs, 1,
                [&](auto bits) { return quant::encode_e4m3(of_bf16(bits)); }) == 0);
  CHECK(differs(golden.at("bf16_e5m2"), halfs, 1,
                [&](auto bits) { return quant::encode_e5m2(of_bf16(bits)); }) == 0);
  CHECK(differs(golden.at("f32_e4m3"), floats, stride,
                [](auto bits) { return quant::encode_e4m3(float_of(bits)); }) == 0);
  CHECK(differs(golden.at("f32_e5m2"), floats, stride,
                [](auto bits) { return quant::encode_e5m2(float_of(bits)); }) == 0);
}

}  // namespace

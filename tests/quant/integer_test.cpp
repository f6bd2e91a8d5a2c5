// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/int4.hpp>
#include <pagedkv/quant/int8.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "catch.hpp"

namespace quant = pagedkv::quant;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

static_assert(quant::encode_int8(0.5F) == 0 && quant::encode_int8(1.5F) == 2);
static_assert(quant::encode_int8(-2.5F) == -2 && quant::encode_uint8(254.5F) == 254);

TEST_CASE("integers round to nearest, ties to even") {
  for (int quarter = -4 * 140; quarter <= 4 * 300; ++quarter) {
    float const p = static_cast<float>(quarter) / 4.0F;
    int const nearest = static_cast<int>(std::nearbyint(p));
    INFO(p);
    CHECK(quant::encode_int8(p) == std::min(std::max(nearest, -127), 127));
    CHECK(quant::encode_uint8(p) == std::min(std::max(nearest, 0), 255));
    CHECK(quant::encode_int4(p) == std::min(std::max(nearest, 0), 15));
  }
}

TEST_CASE("integers saturate, infinities too; NaN is 0") {
  for (float const large : {127.5F, 128.0F, 1e9F, std::numeric_limits<float>::max(), infinity}) {
    CHECK(quant::encode_int8(large) == 127);
    CHECK(quant::encode_int8(-large) == -127);  // -128 is never stored
    CHECK(quant::encode_uint8(-large) == 0);
    CHECK(quant::encode_int4(large) == 15);
    CHECK(quant::encode_int4(-large) == 0);
  }
  CHECK(quant::encode_uint8(256.0F) == 255);
  CHECK(quant::encode_uint8(infinity) == 255);
  CHECK(quant::encode_int8(nan) == 0);
  CHECK(quant::encode_uint8(nan) == 0);
  CHECK(quant::encode_int4(nan) == 0);
  CHECK(quant::encode_int8(-0.0F) == 0);
}

TEST_CASE("integer codes read as themselves") {
  for (int code = -127; code <= 127; ++code) {
    CHECK(quant::decode_int8(static_cast<std::int8_t>(code)) == static_cast<float>(code));
  }
  for (int code = 0; code <= 255; ++code) {
    CHECK(quant::decode_uint8(static_cast<std::uint8_t>(code)) == static_cast<float>(code));
  }
}

TEST_CASE("two 4-bit codes share a byte, the first in its low half") {
  for (unsigned low = 0; low < 16; ++low) {
    for (unsigned high = 0; high < 16; ++high) {
      auto const byte =
          quant::pack_int4(static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high));
      CHECK(byte == low + 16 * high);
      std::array<std::uint8_t, 2> const bytes{0xA5, byte};
      CHECK(quant::unpack_int4(bytes.data(), 0) == 0x5);
      CHECK(quant::unpack_int4(bytes.data(), 1) == 0xA);
      CHECK(quant::unpack_int4(bytes.data(), 2) == low);
      CHECK(quant::unpack_int4(bytes.data(), 3) == high);
    }
  }
}

}  // namespace

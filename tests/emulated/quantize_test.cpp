// SPDX-License-Identifier: Apache-2.0
#include "samples/quantize.cuh"

#include <cstring>
#include <random>
#include <vector>

#include <pagedkv/quant/vector_codec.hpp>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
namespace quant = pagedkv::quant;
using pagedkv::Element;
using samples::RowFormat;

namespace {

/// Against the definition in quant/scale.hpp, one element after the other.
template <RowFormat format>
emulated::Result quantize_rows(int seed) {
  constexpr int num_rows = 5;
  auto const element = format == RowFormat::e4m3 ? Element::fp8_e4m3 : Element::fp8_e5m2;
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::uint16_t> in;
  for (int i = 0; i < num_rows * 128; ++i) {
    auto const bits = static_cast<std::uint16_t>(random());
    bool const finite = (bits & 0x7C00U) != 0x7C00U;
    in.push_back(i < 128 ? std::uint16_t{0} : finite ? bits : std::uint16_t{0x3C00});
  }
  std::vector<std::uint8_t> want_codes;
  std::vector<float> want_scales;
  for (int r = 0; r < num_rows; ++r) {
    std::uint16_t const* const row = &in[static_cast<std::size_t>(r) * 128];
    float amax = 0.0F;
    for (int i = 0; i < 128; ++i) amax = std::fmax(amax, std::fabs(quant::decode_f16(row[i])));
    auto const scale = quant::dynamic_scale(element, amax);
    auto const inverse = quant::inverse(scale);
    want_scales.push_back(scale.value);
    for (int i = 0; i < 128; ++i) {
      float const p = quant::decode_f16(row[i]) * inverse.value;
      want_codes.push_back(format == RowFormat::e4m3 ? quant::encode_e4m3(p)
                                                     : quant::encode_e5m2(p));
    }
  }
  emulated::DeviceBuffer<std::uint16_t> const halves(in, "in");
  emulated::DeviceBuffer<std::uint8_t> codes(want_codes.size(), "codes");
  emulated::DeviceBuffer<float> scales(num_rows, "scales");
  auto const error = launch(samples::quantize<format>, 3, 64, 0, nullptr,
                            reinterpret_cast<uint2 const*>(halves.data()),
                            reinterpret_cast<std::uint32_t*>(codes.data()), scales.data(), num_rows,
                            1.0F / quant::largest_code(element));
  return emulated::judge(error, codes.copy() == want_codes && scales.copy() == want_scales);
}

}  // namespace

TEST_CASE("Rows are quantized to the oracle's bits under every schedule", "[emulated]") {
  auto const e4m3 = emulated::try_all_schedules(quantize_rows<RowFormat::e4m3>);
  INFO(e4m3.text());
  CHECK(e4m3.clean());
  auto const e5m2 = emulated::try_all_schedules(quantize_rows<RowFormat::e5m2>);
  INFO(e5m2.text());
  CHECK(e5m2.clean());
}

// SPDX-License-Identifier: Apache-2.0
// Compiled with fused multiply-add and -ffp-contract=fast: stored bytes and what they read as must
// be the definition's all the same. Its own program, because one with two versions of an inline
// function runs either of them. Exits with 77 where the machine has no fused instructions.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include <pagedkv/quant/vector_codec.hpp>

#include "support/definition.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using namespace pagedkv::testing;

/// Numbers that are stored, or read, with other bits than the definition's.
static int wrong_numbers(Element element, std::vector<float> const& x) {
  auto const dim = static_cast<std::int32_t>(x.size());
  auto const scale = quant::vector_scale(element, x.data(), dim);
  auto const expected = bytes_by_definition(element, scale_by_definition(element, x), x);
  std::vector<std::byte> bytes(expected.size());
  std::vector<float> read(x.size());
  quant::encode_vector(element, scale, x.data(), dim, bytes.data());
  quant::decode_vector(element, scale, bytes.data(), dim, read.data());
  int wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    wrong += static_cast<std::uint8_t>(bytes[i]) != expected[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto const code = code_by_definition(element, scale, x[i]);
    auto const number = number_by_definition(element, scale, code);
    wrong += std::bit_cast<std::uint32_t>(read[i]) != std::bit_cast<std::uint32_t>(number);
  }
  return wrong;
}

int main() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) return 77;
#endif
  std::mt19937 random(21);
  std::normal_distribution<float> normal(0.3F, 2.0F);
  int wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> x(static_cast<std::size_t>(1 + round % 130));
    for (float& number : x) number = normal(random);
    for (auto const element :
         {Element::fp8_e4m3, Element::fp8_e5m2, Element::int8, Element::int8_asym, Element::int4}) {
      wrong += wrong_numbers(element, x);
    }
  }
  std::printf("%d numbers differ from the definition\n", wrong);
  return wrong == 0 ? 0 : 1;
}

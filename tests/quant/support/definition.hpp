// SPDX-License-Identifier: Apache-2.0
/// \file
/// scale.hpp's definition once more, written from its text: every step through a volatile float, so
/// that no compiler can fuse two, and codes by search. Shares nothing with the codecs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/scale.hpp>

#include "nearest_code.hpp"

namespace pagedkv::testing {

inline float rounded_product(float a, float b) {
  float const volatile p = a * b;
  return p;
}
inline float rounded_sum(float a, float b) {
  float const volatile s = a + b;
  return s;
}
inline float rounded_quotient(float a, float b) {
  float const volatile q = a / b;
  return q;
}

inline float inverse_by_definition(float scale) {
  if (scale == 0.0F) return 0.0F;
  float const q = rounded_quotient(1.0F, scale);
  return std::isfinite(q) ? q : 0.0F;
}

inline float largest_code_by_definition(Element element) {
  switch (element) {
    case Element::fp8_e4m3: return 448;
    case Element::fp8_e5m2: return 57344;
    case Element::int8: return 127;
    case Element::int8_asym: return 255;
    case Element::int4: return 15;
    default: return 1;
  }
}

inline bool has_zero_by_definition(Element element) {
  return element == Element::int8_asym || element == Element::int4;
}

/// The dynamic scale of one vector.
inline quant::AffineScale scale_by_definition(Element element, std::span<float const> x) {
  float largest = 0, low = 0, high = 0;
  bool any = false;
  for (float const number : x) {
    if (!std::isfinite(number)) continue;
    largest = std::max(largest, std::fabs(number));
    low = any ? std::min(low, number) : number;
    high = any ? std::max(high, number) : number;
    any = true;
  }
  bool const affine = has_zero_by_definition(element);
  float range = affine ? rounded_sum(high, -low) : largest;
  if (!std::isfinite(range)) range = std::numeric_limits<float>::max();
  float const scale =
      rounded_product(range, rounded_quotient(1.0F, largest_code_by_definition(element)));
  float const usable = inverse_by_definition(scale) == 0.0F ? 0.0F : scale;
  return {usable, affine ? low + 0.0F : 0.0F};
}

inline std::int64_t integer_code(float p, double low, double high) {
  if (std::isnan(p)) return 0;
  return static_cast<std::int64_t>(std::nearbyint(std::clamp(static_cast<double>(p), low, high)));
}

/// One number's code, unpacked, as an unsigned number of the element's width.
inline std::uint32_t code_by_definition(Element element, quant::AffineScale scale, float x) {
  static NearestCode const e4m3(e4m3_format), e5m2(e5m2_format), f16(f16_format), bf16(bf16_format);
  bool const unscaled = element == Element::f16 || element == Element::bf16;
  float const inv = inverse_by_definition(scale.scale);
  float const p = unscaled ? x
                  : has_zero_by_definition(element)
                      ? rounded_product(rounded_sum(x, -scale.zero), inv)
                      : rounded_product(x, inv);
  switch (element) {
    case Element::f32: return std::bit_cast<std::uint32_t>(x);
    case Element::f16: return f16(p);
    case Element::bf16: return bf16(p);
    case Element::fp8_e4m3: return std::isnan(p) ? 0x7FU : e4m3(p);
    case Element::fp8_e5m2: return std::isnan(p) ? 0x7FU : e5m2(p);
    case Element::int8: return static_cast<std::uint8_t>(integer_code(p, -127, 127));
    case Element::int8_asym: return static_cast<std::uint32_t>(integer_code(p, 0, 255));
    case Element::int4: return static_cast<std::uint32_t>(integer_code(p, 0, 15));
  }
  return 0;
}

/// What a code reads as. Requires: not a NaN, and not 16 or 32 bit.
inline float number_by_definition(Element element, quant::AffineScale scale, std::uint32_t code) {
  auto const of_float = [code](FloatFormat const& format) {
    auto const magnitude = static_cast<float>(value_of(format, code & 0x7FU));
    return (code & 0x80U) != 0 ? -magnitude : magnitude;
  };
  float const number = element == Element::fp8_e4m3   ? of_float(e4m3_format)
                       : element == Element::fp8_e5m2 ? of_float(e5m2_format)
                       : element == Element::int8
                           ? static_cast<float>(static_cast<std::int8_t>(code))
                           : static_cast<float>(code);
  float const product = rounded_product(number, scale.scale);
  return has_zero_by_definition(element) ? rounded_sum(product, scale.zero) : product;
}

/// The bytes of a vector, lowest half first for int4, little endian for the wider ones.
inline std::vector<std::uint8_t> bytes_by_definition(Element element, quant::AffineScale scale,
                                                     std::span<float const> x) {
  std::vector<std::uint8_t> bytes;
  auto const width = bits_per_element(element);
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto const code = code_by_definition(element, scale, x[i]);
    if (width == 4 && i % 2 == 1) {
      bytes.back() = static_cast<std::uint8_t>(bytes.back() | (code << 4));
      continue;
    }
    for (int bit = 0; bit < width; bit += 8) {
      bytes.push_back(static_cast<std::uint8_t>(code >> bit));
    }
  }
  return bytes;
}

}  // namespace pagedkv::testing

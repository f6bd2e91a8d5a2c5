// SPDX-License-Identifier: Apache-2.0
/// \file
/// Correct rounding by search: the values of all codes, as the format's definition gives them, and
/// the code nearest to a number in double arithmetic. Shares nothing with the codecs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pagedkv::testing {

/// A small binary float with sign, exponent and mantissa in this order.
struct FloatFormat {
  int mantissa_bits = 0;
  int bias = 0;
  std::uint32_t largest = 0;   ///< the code of the largest finite number
  bool saturates = false;      ///< what is larger gives `largest`; otherwise the code behind it
  std::uint32_t sign_bit = 0;  ///< as a mask
};
inline constexpr FloatFormat e4m3_format{3, 7, 0x7E, true, 0x80};
inline constexpr FloatFormat e5m2_format{2, 15, 0x7B, true, 0x80};
inline constexpr FloatFormat f16_format{10, 15, 0x7BFF, false, 0x8000};
inline constexpr FloatFormat bf16_format{7, 127, 0x7F7F, false, 0x8000};

/// The value of a finite code without its sign. Exact.
inline double value_of(FloatFormat const& format, std::uint32_t code) {
  auto const one = std::uint32_t{1} << format.mantissa_bits;
  auto const exponent = static_cast<int>(code >> format.mantissa_bits);
  auto const fraction = static_cast<double>(code % one);
  int const shift = format.bias + format.mantissa_bits;
  if (exponent == 0) return std::ldexp(fraction, 1 - shift);
  return std::ldexp(fraction + one, exponent - shift);
}

class NearestCode {
 public:
  explicit NearestCode(FloatFormat const& format) : format_(format) {
    // Halfway between a code and the next. Behind the largest as if there were one more.
    for (std::uint32_t code = 0; code <= format.largest; ++code) {
      auto const low = value_of(format, code);
      auto const step = code < format.largest ? value_of(format, code + 1) - low
                                              : low - value_of(format, code - 1);
      halfway_.push_back(low + step / 2);
    }
  }

  /// For x that isn't NaN: to nearest, ties to even codes.
  [[nodiscard]] std::uint32_t operator()(float x) const {
    double const magnitude = std::fabs(static_cast<double>(x));
    auto const it = std::lower_bound(halfway_.begin(), halfway_.end(), magnitude);
    return finish(x, magnitude, static_cast<std::size_t>(it - halfway_.begin()));
  }

  /// The same in O(1) when magnitudes ascend from call to call. `hint` begins at 0.
  [[nodiscard]] std::uint32_t operator()(float x, std::size_t& hint) const {
    double const magnitude = std::fabs(static_cast<double>(x));
    while (hint < halfway_.size() && halfway_[hint] < magnitude) ++hint;
    return finish(x, magnitude, hint);
  }

 private:
  /// `code`: the first whose halfway point isn't below.
  [[nodiscard]] std::uint32_t finish(float x, double magnitude, std::size_t code) const {
    if (code < halfway_.size() && halfway_[code] == magnitude && code % 2 == 1) ++code;
    auto const last = format_.saturates ? format_.largest : format_.largest + 1;
    auto const bounded = std::min(static_cast<std::uint32_t>(code), last);
    return bounded | (std::signbit(x) ? format_.sign_bit : 0U);
  }

  FloatFormat format_;
  std::vector<double> halfway_;
};

inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Where rounding, saturation and special values can go wrong: every halfway point and every value
/// of the format with the three floats on either side, both signs; the same around powers of two;
/// infinities and NaN with several payloads.
inline std::vector<float> boundary_inputs(FloatFormat const& format) {
  std::vector<float> inputs;
  auto const around = [&inputs](double value) {
    auto const bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    for (int offset = -3; offset <= 3; ++offset) {
      auto const near = bits + static_cast<std::uint32_t>(offset);
      if ((near & 0x7FFF'FFFFU) != near) continue;  // below zero
      inputs.push_back(float_of(near));
      inputs.push_back(float_of(near | 0x8000'0000U));
    }
  };
  for (std::uint32_t code = 0; code < format.largest; ++code) {
    auto const low = value_of(format, code);
    around(low);
    around((low + value_of(format, code + 1)) / 2);
  }
  around(value_of(format, format.largest));
  around(value_of(format, format.largest) * 1.5 - value_of(format, format.largest - 1) * 0.5);
  for (int exponent = -149; exponent < 128; ++exponent) around(std::ldexp(1.0, exponent));
  for (std::uint32_t const nan : {0x7F80'0001U, 0x7FBF'FFFFU, 0x7FC0'0000U, 0x7FFF'FFFFU}) {
    inputs.push_back(float_of(nan));
    inputs.push_back(float_of(nan | 0x8000'0000U));
  }
  for (float const special :
       {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    inputs.push_back(special);
    inputs.push_back(-special);
  }
  return inputs;
}

}  // namespace pagedkv::testing

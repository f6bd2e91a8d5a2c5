// SPDX-License-Identifier: Apache-2.0
// How much each way of scaling loses on blocks that are filled token by token: 4,000 blocks of 16
// vectors of 128 numbers, four channels 12 times as large as the rest, and a log-normal gain for
// each token. `quant_tests "scaling schemes*" -s` prints the table of docs/quantization.md.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/quant/vector_codec.hpp>

#include "catch.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using quant::Scale;

namespace {

constexpr int num_blocks = 4000;
constexpr int block_tokens = 16;
constexpr int dim = 128;
using Vector = std::span<float const, dim>;

std::vector<float> make_blocks() {
  std::mt19937 random(2024);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  x.reserve(std::size_t{num_blocks} * block_tokens * dim);
  for (int token = 0; token < num_blocks * block_tokens; ++token) {
    float const gain = std::exp(0.35F * normal(random));
    for (int channel = 0; channel < dim; ++channel) {
      bool const outlier = channel % 32 == 5;
      x.push_back((outlier ? 12.0F : 1.0F) * gain * normal(random));
    }
  }
  return x;
}

/// One block's bytes, 8 bits a number, and its scale.
struct Block {
  Element element;
  Scale scale{};
  std::vector<std::byte> bytes{};

  void append(Vector x) {
    bytes.resize(bytes.size() + dim);
    quant::encode_vector(element, {scale.value, 0.0F}, x.data(), dim, &bytes[bytes.size() - dim]);
  }
  [[nodiscard]] std::vector<float> read() const {
    std::vector<float> x(bytes.size());
    quant::decode_vector(element, {scale.value, 0.0F}, bytes.data(),
                         static_cast<std::int32_t>(x.size()), x.data());
    return x;
  }
  /// What was stored, under another scale.
  void requantize(Scale after) {
    auto const size = static_cast<std::int32_t>(bytes.size());
    if (element != Element::int8) {
      quant::requantize_vector(element, scale, after, size, bytes.data());
    } else {
      auto const x = read();
      quant::encode_vector(element, {after.value, 0.0F}, x.data(), size, bytes.data());
    }
    scale = after;
  }
};

float amax(std::span<float const> x) {
  return quant::amax(x.data(), static_cast<std::int64_t>(x.size()));
}

/// A scheme stores a block of vectors, in order, and reads it back.
using Tokens = std::span<float const>;
Vector token_of(Tokens x, int token) {
  return Vector(x.subspan(static_cast<std::size_t>(token) * dim, dim));
}

struct StaticScale {
  float scale;
  std::vector<float> operator()(Element element, Tokens x) const {
    Block block{element, Scale{scale}};
    for (int token = 0; token < block_tokens; ++token) block.append(token_of(x, token));
    return block.read();
  }
};
struct EachToken {
  std::vector<float> operator()(Element element, Tokens x) const {
    std::vector<float> result;
    for (int token = 0; token < block_tokens; ++token) {
      auto const vector = token_of(x, token);
      Block block{element, quant::dynamic_scale(element, amax(vector))};
      block.append(vector);
      auto const read = block.read();
      result.insert(result.end(), read.begin(), read.end());
    }
    return result;
  }
};
/// As if all tokens of the block were there at once.
struct WholeBlock {
  std::vector<float> operator()(Element element, Tokens x) const {
    return StaticScale{quant::dynamic_scale(element, amax(x)).value}(element, x);
  }
};
struct FirstTokenTwice {
  std::vector<float> operator()(Element element, Tokens x) const {
    float const first = 2.0F * amax(token_of(x, 0));
    return StaticScale{quant::dynamic_scale(element, first).value}(element, x);
  }
};
enum class Grow { as_is, power_of_two };
struct RunningMaximum {
  Grow grow;
  bool requantize;
  int* growths = nullptr;

  std::vector<float> operator()(Element element, Tokens x) const {
    Block block{element};
    float largest = 0.0F;
    for (int token = 0; token < block_tokens; ++token) {
      largest = std::max(largest, amax(token_of(x, token)));
      Scale const scale = grow == Grow::as_is ? quant::dynamic_scale(element, largest)
                                              : quant::power_of_two_scale(element, largest);
      if (growths != nullptr && token > 0) *growths += scale.value > block.scale.value;
      if (requantize) block.requantize(scale);
      block.scale = scale;
      block.append(token_of(x, token));
    }
    return block.read();
  }
};

/// Percent: root of the squared errors' sum over that of the squares.
template <class Scheme>
double error_of(std::vector<float> const& x, Element element, Scheme const& scheme) {
  constexpr std::size_t block_size = std::size_t{block_tokens} * dim;
  double errors = 0, squares = 0;
  for (std::size_t first = 0; first < x.size(); first += block_size) {
    auto const block = Tokens(x).subspan(first, block_size);
    auto const read = scheme(element, block);
    for (std::size_t i = 0; i < block_size; ++i) {
      errors += std::pow(static_cast<double>(read[i]) - static_cast<double>(block[i]), 2);
      squares += std::pow(static_cast<double>(block[i]), 2);
    }
  }
  return 100.0 * std::sqrt(errors / squares);
}

/// Growing scales among the appends that aren't a block's first, percent.
double growth_of(std::vector<float> const& x, Grow grow) {
  int growths = 0;
  error_of(x, Element::fp8_e4m3, RunningMaximum{grow, true, &growths});
  return 100.0 * growths / (num_blocks * block_tokens);
}

TEST_CASE("scaling schemes lose what the design says, in its order") {
  auto const x = make_blocks();
  std::string table;
  auto const fp8 = [&](char const* name, auto const& scheme) {
    double const percent = error_of(x, Element::fp8_e4m3, scheme);
    table += std::string(name) + ", fp8_e4m3: " + std::to_string(percent) + " %\n";
    return percent;
  };
  auto const int8 = [&](char const* name, auto const& scheme) {
    double const percent = error_of(x, Element::int8, scheme);
    table += std::string(name) + ", int8: " + std::to_string(percent) + " %\n";
    return percent;
  };
  double const fixed = fp8("static, 1.0", StaticScale{1.0F});
  double const calibrated = fp8(
      "static, calibrated", StaticScale{quant::dynamic_scale(Element::fp8_e4m3, amax(x)).value});
  double const token = fp8("each token", EachToken{});
  double const whole = fp8("whole block", WholeBlock{});
  double const running = fp8("running, requantized", RunningMaximum{Grow::as_is, true});
  double const powers =
      fp8("running, requantized, powers of two", RunningMaximum{Grow::power_of_two, true});
  double const forbidden = fp8("running, not requantized", RunningMaximum{Grow::as_is, false});
  double const first = fp8("twice the first token's", FirstTokenTwice{});
  double const token8 = int8("each token", EachToken{});
  double const whole8 = int8("whole block", WholeBlock{});
  double const running8 = int8("running, requantized", RunningMaximum{Grow::as_is, true});
  double const forbidden8 = int8("running, not requantized", RunningMaximum{Grow::as_is, false});
  double const grew = growth_of(x, Grow::as_is), grew_powers = growth_of(x, Grow::power_of_two);
  table += "the scale grew: " + std::to_string(grew) + " % of appends, " +
           std::to_string(grew_powers) + " % with powers of two\n";
  SUCCEED(table);

  CHECK(token < whole);
  CHECK(whole < fixed);
  CHECK(powers <= 1.05 * fixed);
  CHECK(powers <= 1.05 * calibrated);
  CHECK(powers < running);
  CHECK(running < first);
  CHECK(first < forbidden);
  CHECK(forbidden > 20.0);
  CHECK(token8 < whole8);
  CHECK(whole8 < running8);
  CHECK(running8 < forbidden8);
  CHECK(forbidden8 > 20.0);
  CHECK(grew_powers < grew);
  // (H16 - 1) / 16: new maxima among independent tokens.
  CHECK(std::fabs(grew - 14.9) < 0.5);
}

}  // namespace

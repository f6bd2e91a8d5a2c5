// SPDX-License-Identifier: Apache-2.0
/// \file
/// Random numbers that are the same on every platform (those of <random>'s distributions aren't).
#pragma once

#include <cstdint>

namespace engine {

/// splitmix64. A seed, and everything drawn from it, is one stream.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// 0 <= x < 1, 53 bits.
  [[nodiscard]] double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// 0 <= x < n, n >= 1.
  [[nodiscard]] std::uint64_t below(std::uint64_t n) noexcept { return next() % n; }
  /// About normal, of variance 1: twelve uniforms less six. Additions only, so exact everywhere.
  [[nodiscard]] float normal() noexcept {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum);
  }

 private:
  std::uint64_t state_;
};

}  // namespace engine

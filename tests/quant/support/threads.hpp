// SPDX-License-Identifier: Apache-2.0
/// \file
/// Walks over all floats: every one when PAGEDKV_EXHAUSTIVE=1, else one in so many.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace pagedkv::testing {

inline bool exhaustive() {
  char const* const value = std::getenv("PAGEDKV_EXHAUSTIVE");
  return value != nullptr && std::string_view(value) == "1";
}

/// Sum of walk(first, last, stride), one call for the positive and one for the negative floats, as
/// bits, on two threads. `stride`: odd; 1 when exhaustive.
template <class Walk>
std::uint64_t sum_of_signs(std::uint64_t stride, Walk const& walk) {
  std::uint64_t const step = exhaustive() ? 1 : stride;
  std::uint64_t negative = 0;
  std::thread other([&] { negative = walk(std::uint64_t{1} << 31, std::uint64_t{1} << 32, step); });
  std::uint64_t const positive = walk(std::uint64_t{0}, std::uint64_t{1} << 31, step);
  other.join();
  return positive + negative;
}

/// Sum of count(bits) over the floats.
template <class Count>
std::uint64_t count_over_floats(std::uint64_t stride, Count const& count) {
  return sum_of_signs(stride, [&](std::uint64_t first, std::uint64_t last, std::uint64_t step) {
    std::uint64_t sum = 0;
    for (auto bits = first; bits < last; bits += step) {
      sum += count(static_cast<std::uint32_t>(bits));
    }
    return sum;
  });
}

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
#include "shuffled.hpp"

#include <cstddef>
#include <numeric>
#include <utility>

namespace quality {

std::vector<std::int32_t> shuffled(std::int32_t n) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t state = 1;
  for (std::size_t i = order.size(); i > 1; --i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  return order;
}

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace replay {

/// The value at or below which a share `q` of `values` lies (nearest rank); `T{}` when there are
/// none. Reorders them.
template <class T>
[[nodiscard]] T percentile(std::vector<T>& values, double q) {
  if (values.empty()) return T{};
  auto const rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  auto const at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace replay

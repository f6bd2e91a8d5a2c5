// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <random>

#include <pagedkv/data/cuda/tensors.cuh>

#include "catch.hpp"

using namespace pagedkv;

TEST_CASE("a quotient by multiplication is exact") {
  std::mt19937_64 random(5);
  for (std::int64_t const d : {1, 2, 3, 7, 16, 48, 127, 128, 1000, 65535, 65536}) {
    cuda::detail::Divider const divider(d);
    for (int i = 0; i < 20000; ++i) {
      auto const bits = static_cast<int>(random() % 47);
      auto n = static_cast<std::int64_t>(random() & ((std::uint64_t{1} << bits) - 1));
      if (i % 3 == 0) n = n / d * d;
      if (i % 3 == 1) n = std::max<std::int64_t>(n / d * d - 1, 0);
      auto const parts = divider.divide(n);
      if (parts.quotient != n / d || parts.remainder != n % d) {
        FAIL(n << " / " << d);
      }
    }
  }
}

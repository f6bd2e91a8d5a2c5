// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace quality {

/// 0 .. n - 1 in a random order that is the same everywhere: no block table should be in order.
[[nodiscard]] std::vector<std::int32_t> shuffled(std::int32_t n);

}  // namespace quality

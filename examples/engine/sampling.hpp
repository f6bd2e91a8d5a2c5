// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which token comes next.
#pragma once

#include <cstdint>
#include <span>

#include "random.hpp"

namespace engine {

/// Temperature 0: the likeliest token, of equal ones the first. Otherwise one by its probability:
/// softmax(logits / temperature), one number drawn. O(vocabulary).
[[nodiscard]] std::int32_t choose_token(std::span<float const> logits, float temperature,
                                        Random& random);

}  // namespace engine

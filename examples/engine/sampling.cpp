// SPDX-License-Identifier: Apache-2.0
#include "sampling.hpp"

#include <algorithm>
#include <cmath>

namespace engine {

std::int32_t choose_token(std::span<float const> logits, float temperature, Random& random) {
  auto const likeliest = std::max_element(logits.begin(), logits.end());
  auto const best = static_cast<std::int32_t>(likeliest - logits.begin());
  if (temperature <= 0.0F) return best;
  auto const weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - *likeliest) / temperature);
  };
  double sum = 0.0;
  for (float const logit : logits) sum += weight(logit);
  double left = random.uniform() * sum;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= weight(logits[i]);
    if (left < 0.0) return static_cast<std::int32_t>(i);
  }
  return best;
}

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
#include "sampling.hpp"

#include <array>
#include <cmath>

#include "catch.hpp"

TEST_CASE("tokens come as often as the softmax of logits over temperature says") {
  std::array<float, 4> const logits = {0.0F, std::log(2.0F), std::log(4.0F), -100.0F};
  for (float const temperature : {0.5F, 1.0F, 2.0F}) {
    INFO("temperature " << temperature);
    std::array<double, 3> expected{};
    double sum = 0;
    for (std::size_t i = 0; i < 3; ++i) sum += expected[i] = std::pow(2.0, double(i) / temperature);
    engine::Random random(5);
    std::array<int, 4> count{};
    constexpr int draws = 60'000;
    for (int i = 0; i < draws; ++i) {
      ++count[static_cast<std::size_t>(engine::choose_token(logits, temperature, random))];
    }
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(std::abs(count[i] / double(draws) - expected[i] / sum) < 0.01);
    }
    CHECK(count[3] == 0);
  }
}

TEST_CASE("at temperature 0 the first of the likeliest is taken, without a draw") {
  std::array<float, 4> const logits = {1.0F, 3.0F, 3.0F, 2.0F};
  engine::Random random(5);
  CHECK(engine::choose_token(logits, 0.0F, random) == 1);
  CHECK(random.next() == engine::Random(5).next());
}

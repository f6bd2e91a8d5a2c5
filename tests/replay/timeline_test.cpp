// SPDX-License-Identifier: Apache-2.0
#include "timeline.hpp"

#include <cmath>

#include "catch.hpp"
#include "percentile.hpp"

TEST_CASE("bins double until the run fits, and lose no time", "[timeline]") {
  replay::Timeline timeline(1.0);
  replay::Moment moment;
  double now = 0;
  for (int i = 0; i < 5000; ++i) {
    moment.used = i % 7;
    timeline.span(now, now + 0.7, moment);
    timeline.admitted(now, 10, 4);
    now += 0.7;
  }
  CHECK(timeline.bins().size() <= replay::Timeline::max_bins);
  CHECK(timeline.width() == 8.0);
  double weight = 0;
  double used = 0;
  double hits = 0;
  for (auto const& bin : timeline.bins()) {
    CHECK(bin.weight <= timeline.width() * 1.000001);
    weight += bin.weight;
    used += bin.sum.used;
    hits += bin.hit_tokens;
  }
  CHECK(std::fabs(weight - 3500) < 1e-6);
  CHECK(std::fabs(used - 0.7 * 14'995) < 1e-6);  // the sum of i % 7
  CHECK(std::fabs(hits - 20'000) < 1e-6);
}

TEST_CASE("a percentile is a value that was seen", "[timeline]") {
  std::vector<int> values{5, 1, 4, 2, 3};
  CHECK(replay::percentile(values, 0.5) == 3);
  CHECK(replay::percentile(values, 0.99) == 5);
  CHECK(replay::percentile(values, 0.2) == 1);
  CHECK(replay::percentile(values, 0.0) == 1);
  std::vector<int> none;
  CHECK(replay::percentile(none, 0.5) == 0);
}

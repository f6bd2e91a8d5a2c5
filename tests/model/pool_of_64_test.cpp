// SPDX-License-Identifier: Apache-2.0
#include "model_checks.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

TEST_CASE("random programs on a pool of 64 blocks agree with the naive model") {
  std::vector<Shape> const shapes{{1, 64}, {2, 64}, {16, 64}, {64, 64}, {3, 64}};
  auto const report = check_programs<kv::DefaultPolicy>("pool of 64", shapes, 40, 4000, 1);
  check_variety(report);
  if (report.steps > 500'000) CHECK(report.happened.partial_hit_tokens > 1000);
}

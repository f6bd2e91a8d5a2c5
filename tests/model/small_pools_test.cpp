// SPDX-License-Identifier: Apache-2.0
#include "model_checks.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

TEST_CASE("random programs on pools of 1, 2 and 7 blocks agree with the naive model") {
  std::vector<Shape> shapes;
  for (int const block_tokens : {1, 2, 16, 64}) {
    for (int const num_blocks : {1, 2, 7, 7, 7}) shapes.push_back({block_tokens, num_blocks});
  }
  auto const report = check_programs<kv::DefaultPolicy>("pools of 1, 2 and 7", shapes, 45, 2000, 1);
  check_variety(report);
  if (report.steps > 500'000) {
    CHECK(report.happened.unpublished_blocks > 100);
    CHECK(report.happened.hit_ends[kv::HitEnd::capacity] > 20);
  }
}

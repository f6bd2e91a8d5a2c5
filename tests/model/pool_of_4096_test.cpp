// SPDX-License-Identifier: Apache-2.0
#include "model_checks.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

TEST_CASE("random programs on a pool of 4096 blocks agree with the naive model") {
  std::vector<Shape> const shapes{{1, 4096}, {2, 4096}, {16, 4096}, {64, 4096}};
  auto const report = check_programs<kv::DefaultPolicy>("pool of 4096", shapes, 5, 16000, 64);
  if (report.steps > 500'000) {
    CHECK(report.happened.evicted_blocks > 1000);
    CHECK(report.happened.twin_blocks > 1000);
  }
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the model tests share.
#pragma once

#include <string>
#include <vector>

#include "catch.hpp"
#include "run_programs.hpp"

namespace pagedkv::testing {

/// Fails with the shrunk program of the first seed that differs from the model.
template <class Policy>
RunReport check_programs(char const* name, std::vector<Shape> const& shapes, int percent,
                         std::int64_t steps_of_program, int full_check_every) {
  auto const report = run_programs<Policy>(shapes, RunLimits::from_environment(percent),
                                           steps_of_program, full_check_every);
  print_run(name, report.steps, report.first_seed, report.last_seed, !report.failure.empty());
  if (!report.failure.empty()) FAIL(report.failure);
  return report;
}

/// A run that never met a verb's interesting case proves nothing about it.
inline void check_variety(RunReport const& report) {
  if (report.steps < 500'000) return;
  Stats const& s = report.happened;
  auto const often = static_cast<std::uint64_t>(report.steps / 20'000);
  CHECK(s.opens > often);
  CHECK(s.resumed_opens > often);
  CHECK(s.hit_blocks > often);
  CHECK(s.external_tokens > often);
  CHECK(s.published_blocks > often);
  CHECK(s.twin_blocks > often);
  CHECK(s.adopted_blocks > often);
  CHECK(s.moved_blocks > often);
  CHECK(s.unpublished_blocks > often);
  CHECK(s.evicted_blocks > often);
  CHECK(s.copies > often);
  CHECK(s.dropped_copies > often);
  CHECK(s.forks > often);
  CHECK(s.preemptions > often);
  CHECK(s.resets > often);
  CHECK(s.hit_ends[HitEnd::last_token] > often);
  CHECK(s.hit_ends[HitEnd::no_block] > often);
  CHECK(s.hit_ends[HitEnd::not_read] > often);
}

}  // namespace pagedkv::testing

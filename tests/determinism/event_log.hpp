// SPDX-License-Identifier: Apache-2.0
/// \file
/// A long random program and everything that can be seen of it, as text: every verb with its
/// answer, every block id, every copy, every event with its hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../model/run_programs.hpp"

namespace pagedkv::testing {

/// Hands the lines of each program to `take(lines)`; the same on every platform (contract 15).
template <class Take>
void write_event_log(Take&& take) {
  std::vector<Shape> const shapes{{1, 7}, {2, 7}, {2, 64}, {3, 64}, {16, 7}, {16, 64}, {64, 64}};
  for (std::uint64_t seed = 1; seed <= 42; ++seed) {
    std::vector<std::string> lines{"program " + std::to_string(seed)};
    auto const outcome = run_program<DefaultPolicy>(
        shapes[seed % shapes.size()], Choices::from_seed(1000 + seed), 1500, 64, &lines);
    if (!outcome.mismatch.empty()) lines.push_back("mismatch: " + outcome.mismatch);
    take(lines);
  }
}

}  // namespace pagedkv::testing

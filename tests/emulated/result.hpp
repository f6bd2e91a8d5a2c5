// SPDX-License-Identifier: Apache-2.0
/// \file
/// What became of the runs of a kernel's case.
#pragma once

#include <string>
#include <vector>

namespace pagedkv::testing {

/// Of one run.
enum class RunResult { right, wrong, faulted };

struct Findings {
  int runs = 0;
  int wrong = 0;    ///< ended, with a wrong result
  int faulted = 0;  ///< the executor, or the device, stopped it
  int races = 0;    ///< TSan's reports
  std::vector<std::string> faults;
  std::string race_place;

  void count(RunResult result) {
    ++runs;
    wrong += result == RunResult::wrong ? 1 : 0;
    faulted += result == RunResult::faulted ? 1 : 0;
  }
  [[nodiscard]] bool clean() const { return wrong == 0 && faulted == 0 && races == 0; }
  /// For a test's output.
  [[nodiscard]] std::string text() const {
    std::string t = std::to_string(runs) + " runs: " + std::to_string(wrong) + " wrong, " +
                    std::to_string(faulted) + " faulted, " + std::to_string(races) + " races";
    if (!faults.empty()) t += "\n" + faults.front();
    if (!race_place.empty()) t += "\n" + race_place;
    return t;
  }
};

}  // namespace pagedkv::testing

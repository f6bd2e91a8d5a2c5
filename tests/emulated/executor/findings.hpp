// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs a case of a kernel under every schedule and many seeds, and says what was found.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/data/cuda/runtime_types.hpp>

#include "../result.hpp"
#include "executor.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

using testing::Findings;
using Result = testing::RunResult;

/// Seeds for each schedule; TSan takes 50 us a thread, and sees a race whichever order is run.
inline constexpr int num_seeds = PAGEDKV_UNDER_TSAN ? 2 : 20;

/// Launches and compares: `run(seed)` gives a Result.
template <class Run>
[[nodiscard]] Findings try_schedule(Schedule schedule, Run run) {
  Findings findings;
  static_cast<void>(take_faults());
  static_cast<void>(take_races());
  static_cast<void>(take_race_place());
  for (int seed = 1; seed <= num_seeds; ++seed) {
    options() = {schedule, static_cast<std::uint64_t>(seed)};
    findings.count(run(seed));
  }
  findings.faults = take_faults();
  findings.races = take_races();
  findings.race_place = take_race_place();
  return findings;
}

/// The same under all four.
template <class Run>
[[nodiscard]] Findings try_all_schedules(Run run) {
  Findings all;
  for (auto const schedule :
       {Schedule::random, Schedule::warp_skew, Schedule::ascending, Schedule::descending}) {
    Findings const some = try_schedule(schedule, run);
    all.runs += some.runs;
    all.wrong += some.wrong;
    all.faulted += some.faulted;
    all.races += some.races;
    all.faults.insert(all.faults.end(), some.faults.begin(), some.faults.end());
    if (all.race_place.empty()) all.race_place = some.race_place;
  }
  return all;
}

/// Whether a launch went well and its result is right.
[[nodiscard]] inline Result judge(cudaError_t launched, bool right) {
  if (launched != cudaSuccess) return Result::faulted;
  return right ? Result::right : Result::wrong;
}

/// What a child process printed on standard error while it ran `code`, if that ended it; empty if
/// it came to the end. For what ASan reports.
template <class Code>
[[nodiscard]] std::string death_of(Code code) {
  int ends[2] = {};
  if (pipe(ends) != 0) return "no pipe";
  pid_t const child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    close(ends[0]);
    code();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  bool const ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ended_well ? std::string{} : text.empty() ? "died silently" : text;
}

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

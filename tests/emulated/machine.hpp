// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a kernel's test runs on. Here it is the executor, under four schedules; the same test in
/// a program that links `pagedkv::cuda` runs on a device, once for each seed. A test that includes
/// no kernel header, nothing of the executor and none of its samples is compiled for both.
///
///  - DeviceBuffer<T>: memory of the machine that the host can read when `finish()` has returned;
///  - finish(): waits for all that was launched;
///  - has_early_start(): whether `WriteSlots::early_start` may be asked for;
///  - judge(launched, right): what a run came to. `right` is found after finish();
///  - try_orders(run): `run(seed)` gives a RunResult.
#pragma once

#if defined(PAGEDKV_TESTS_ON_DEVICE)

#include "../gpu/on_device.hpp"

#else

#include <cstdint>

#include "executor/findings.hpp"

namespace pagedkv::testing {

namespace emulated = cuda::emulated;
using emulated::DeviceBuffer;
using emulated::judge;

/// Launches on the null stream have ended when they return.
inline void finish() {}
[[nodiscard]] inline bool has_early_start() { return true; }

/// 5 orders of each schedule: 20.
template <class Run>
[[nodiscard]] Findings try_orders(Run run) {
  Findings all;
  for (auto const schedule : {emulated::Schedule::random, emulated::Schedule::warp_skew,
                              emulated::Schedule::ascending, emulated::Schedule::descending}) {
    for (int seed = 1; seed <= (PAGEDKV_UNDER_TSAN ? 1 : 5); ++seed) {
      emulated::options() = {schedule, static_cast<std::uint64_t>(seed)};
      all.count(run(seed));
    }
  }
  all.faults = emulated::take_faults();
  all.races = emulated::take_races();
  all.race_place = emulated::take_race_place();
  return all;
}

}  // namespace pagedkv::testing

#endif

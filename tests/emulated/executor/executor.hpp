// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs kernels written on device.cuh: one fiber for each CUDA thread, one block after the other,
/// one launch at a time. What a test sets and asks; kernels see device.cuh only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <pagedkv/version.hpp>

#include "device_buffer.hpp"
#include "sanitizers.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

/// Which of the threads that could run does. They change places at barriers and collectives only.
enum class Schedule : std::uint8_t {
  ascending,   ///< the lowest first, blocks too
  descending,  ///< the highest first, blocks too
  random,
  warp_skew,  ///< one warp as far as it gets, then another
};

struct Options {
  Schedule schedule = Schedule::random;
  std::uint64_t seed = 1;
};
/// What the next launches run with. Not for several host threads.
[[nodiscard]] Options& options() noexcept;

/// What was found since the last call: each a sentence with the file and line of the call, and the
/// thread. A launch ends at its first fault.
[[nodiscard]] std::vector<std::string> take_faults();

/// Races that TSan has reported since the last call; 0 in other builds.
[[nodiscard]] int take_races() noexcept;

/// Where the first of these races was, "function file:line"; empty when TSan can't tell.
[[nodiscard]] std::string take_race_place();

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// How far random programs go. The environment says it, for every test of tests/model:
///
///     PAGEDKV_MODEL_STEPS    steps of all these tests together
///     PAGEDKV_MODEL_SEED     the first seed of each test, 1 by default
///     PAGEDKV_MODEL_SECONDS  a test ends after so many seconds even if steps are left
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace pagedkv::testing {

/// What CI takes: seconds, and enough for every verb's interesting cases.
inline constexpr std::int64_t default_steps_of_all = 11'000'000;

/// When a run of programs ends, and where it begins.
struct RunLimits {
  std::int64_t steps = default_steps_of_all;
  std::uint64_t first_seed = 1;
  double seconds = std::numeric_limits<double>::infinity();

  /// The share of one test.
  static RunLimits from_environment(int percent) {
    RunLimits limits;
    if (char const* const text = std::getenv("PAGEDKV_MODEL_STEPS"))
      limits.steps = std::atoll(text);
    limits.steps = std::max<std::int64_t>(1000, limits.steps / 100 * percent);
    if (char const* const text = std::getenv("PAGEDKV_MODEL_SEED")) {
      limits.first_seed = std::strtoull(text, nullptr, 10);
    }
    if (char const* const text = std::getenv("PAGEDKV_MODEL_SECONDS")) {
      limits.seconds = std::atof(text);
    }
    return limits;
  }
};

/// The time since it was made.
class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// One line on a run, which scripts/nightly reads to know the next seed.
inline void print_run(char const* name, std::int64_t steps, std::uint64_t first_seed,
                      std::uint64_t last_seed, bool failed) {
  std::printf("%s: %lld steps, seeds %llu to %llu%s\n", name, static_cast<long long>(steps),
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(last_seed), failed ? ", the last one failed" : "");
  std::fflush(stdout);
}

}  // namespace pagedkv::testing

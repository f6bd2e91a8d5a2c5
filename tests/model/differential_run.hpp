// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs many programs of the differential test and, when one fails, shrinks it and says what it
/// did.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "differential.hpp"
#include "run_limits.hpp"

namespace pagedkv::testing::differential {

/// A broken contract becomes a mismatch, so that the program that breaks it can be shrunk.
class MisuseIsMismatch {
 public:
  MisuseIsMismatch() : before_(set_error_handler(&MisuseIsMismatch::report)) {}
  ~MisuseIsMismatch() { set_error_handler(before_); }
  MisuseIsMismatch(MisuseIsMismatch const&) = delete;
  MisuseIsMismatch& operator=(MisuseIsMismatch const&) = delete;

 private:
  static void report(char const* rule) { throw Mismatch(join("checked error: ", rule)); }
  ErrorHandler before_;
};

struct Outcome {
  std::string mismatch;     ///< empty: none
  bool at_the_end = false;  ///< it showed when everything was given back
  Happened happened;
};

/// A program that failed is left alone: what it destroys may be broken.
template <class Library, class Oracle>
Outcome run_program(Options const& options, Choices choices, std::int64_t steps,
                    bool replayed = false, std::vector<std::string>* log = nullptr) {
  MisuseIsMismatch const guard;
  auto* const program = new Program<Library, Oracle>(options, std::move(choices));
  program->log = log;
  Outcome out;
  try {
    program->run(replayed ? steps : program->length(steps));
  } catch (Mismatch const& m) {
    out.mismatch = m.what();
  }
  out.at_the_end = program->is_finishing();
  out.happened = program->happened();
  if (out.mismatch.empty()) delete program;
  return out;
}

/// The fewest steps that still fail, found by leaving out halves, quarters, ... within some
/// seconds. The first group of a recording has the program's own parameters; the `kept` last ones
/// stay.
template <class Fails>
Recording shrink(Recording recording, std::size_t kept, Fails&& fails) {
  auto const begin = std::chrono::steady_clock::now();
  for (std::size_t piece = recording.size() / 2; piece > 0;) {
    bool shrunk = false;
    for (std::size_t at = 1; at + kept < recording.size();) {
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(20)) return recording;
      Recording shorter = recording;
      auto const from = shorter.begin() + std::ptrdiff_t(at);
      shorter.erase(from, from + std::ptrdiff_t(std::min(piece, shorter.size() - kept - at)));
      if (fails(shorter)) {
        recording = std::move(shorter);
        shrunk = true;
      } else {
        at += piece;
      }
    }
    if (!shrunk || piece > 1) piece /= 2;
  }
  return recording;
}

/// The report of a failing seed: its program, shrunk.
template <class Library, class Oracle>
std::string explain(Options const& options, std::uint64_t seed, std::int64_t steps,
                    Outcome const& first) {
  Recording recording;
  Choices choices = Choices::from_seed(seed);
  choices.record_into(&recording);
  (void)run_program<Library, Oracle>(options, choices, steps);
  std::size_t const kept = first.at_the_end ? 1 : 0;
  auto const run = [&](Recording const& r, std::vector<std::string>* log) {
    return run_program<Library, Oracle>(options, Choices::from_recording(r),
                                        std::int64_t(r.size() - 1 - kept), true, log);
  };
  recording = shrink(std::move(recording), kept,
                     [&](Recording const& r) { return !run(r, nullptr).mismatch.empty(); });
  std::vector<std::string> log;
  auto const last = run(recording, &log);
  std::string report = join("seed ", seed, ", step ", first.happened.steps, ": ", first.mismatch,
                            "\nshrunk to ", last.happened.steps, " steps: ", last.mismatch, "\n");
  for (auto const& line : log) report += join(line, "\n");
  return report;
}

struct Report {
  std::string failure;  ///< empty: none
  std::uint64_t last_seed = 0;
  Happened happened;
};

/// The programs of the seeds from `limits.first_seed` on until a limit is met or one fails.
template <class Library, class Oracle>
Report run_programs(Options const& options, RunLimits const& limits) {
  Clock const clock;
  Report report;
  report.last_seed = limits.first_seed;
  while (report.happened.steps < limits.steps && clock.seconds() < limits.seconds) {
    std::uint64_t const seed = report.last_seed++;
    std::int64_t const length = seed % 4 == 0 ? 2000 : 500;  // short and long lives
    auto const outcome = run_program<Library, Oracle>(options, Choices::from_seed(seed), length);
    report.happened.add(outcome.happened);
    if (!outcome.mismatch.empty()) {
      report.failure = explain<Library, Oracle>(options, seed, length, outcome);
      return report;
    }
  }
  return report;
}

inline void print(char const* name, Report const& report) {
  Happened const& h = report.happened;
  std::printf(
      "%s: %lld steps up to seed %llu: %lld refused, %lld drained blocks, %lld builds, %lld "
      "verbs with events, %lld private tokens, %lld commits cut short\n",
      name, static_cast<long long>(h.steps), static_cast<unsigned long long>(report.last_seed),
      static_cast<long long>(h.refused), static_cast<long long>(h.drained),
      static_cast<long long>(h.builds), static_cast<long long>(h.events),
      static_cast<long long>(h.private_tokens), static_cast<long long>(h.stopped_short));
  for (std::size_t i = 10; i < num_counters; ++i) {
    std::printf("  %s %lld\n", counter_names[i], static_cast<long long>(h.counted[i]));
  }
}

/// A run that never met a verb's interesting case proves nothing about it.
inline void check_variety(Options const& options, Report const& report) {
  Happened const& h = report.happened;
  if (h.steps < 500'000) return;
  std::int64_t const often = h.steps / 20'000;
  for (char const* const name :
       {"opens", "resumed_opens", "partial_hit_tokens", "external_tokens", "hit_blocks",
        "published_blocks", "evicted_blocks", "copies", "dropped_copies", "forks", "preemptions",
        "no_block", "last_token", "salt_or_adapter", "not_read"}) {
    CAPTURE(name);
    CHECK(h.of(name) > often);
  }
  CHECK(h.of("unpublished_blocks") > often / 10);
  CHECK(h.of("capacity") > often / 50);
  CHECK(h.of("resets") > often / 4);
  CHECK(h.refused > often);
  CHECK(h.drained > often);
  CHECK(h.builds > often);
  if (options.allow_twins) {
    CHECK(h.of("twin_blocks") > often);
    CHECK(h.of("adopted_blocks") > often);
  } else {
    CHECK(h.of("twin_blocks") == 0);
  }
}

template <class Library, class Oracle>
void check_programs(char const* name, Options const& options, std::uint64_t first_seed,
                    int percent) {
  RunLimits limits = RunLimits::from_environment(percent);
  limits.first_seed += first_seed - 1;  // each test has seeds of its own
  auto const report = run_programs<Library, Oracle>(options, limits);
  print(name, report);
  print_run(name, report.happened.steps, limits.first_seed, report.last_seed - 1,
            !report.failure.empty());
  if (!report.failure.empty()) FAIL(report.failure);
  check_variety(options, report);
}

}  // namespace pagedkv::testing::differential

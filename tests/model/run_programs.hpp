// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs random programs and, when one fails, shrinks it and says what it did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program.hpp"
#include "run_limits.hpp"

namespace pagedkv::testing {

/// A broken contract becomes a mismatch, so that the program that breaks it can be shrunk.
class ThrowOnMisuse {
 public:
  ThrowOnMisuse() : before_(set_error_handler(&ThrowOnMisuse::report)) {}
  ~ThrowOnMisuse() { set_error_handler(before_); }
  ThrowOnMisuse(ThrowOnMisuse const&) = delete;
  ThrowOnMisuse& operator=(ThrowOnMisuse const&) = delete;

 private:
  static void report(char const* rule) { throw Mismatch(join("checked error: ", rule)); }
  ErrorHandler before_;
};

/// What one program did.
struct ProgramOutcome {
  std::int64_t steps = 0;
  std::string mismatch;  ///< empty: none
  Stats happened;
};

inline void add(Stats& sum, Stats const& s) {
  sum.opens += s.opens;
  sum.resumed_opens += s.resumed_opens;
  sum.hit_blocks += s.hit_blocks;
  sum.partial_hit_tokens += s.partial_hit_tokens;
  sum.external_tokens += s.external_tokens;
  sum.published_blocks += s.published_blocks;
  sum.twin_blocks += s.twin_blocks;
  sum.adopted_blocks += s.adopted_blocks;
  sum.moved_blocks += s.moved_blocks;
  sum.evicted_blocks += s.evicted_blocks;
  sum.unpublished_blocks += s.unpublished_blocks;
  sum.copies += s.copies;
  sum.dropped_copies += s.dropped_copies;
  sum.forks += s.forks;
  sum.preemptions += s.preemptions;
  sum.resets += s.resets;
  for (std::size_t i = 0; i < num_hit_ends; ++i) {
    sum.hit_ends.counts[i] += s.hit_ends.counts[i];
  }
}

/// A program that failed is left alone: what it destroys may be broken.
template <class Policy>
ProgramOutcome run_program(Shape const& shape, Choices choices, std::int64_t steps,
                           int full_check_every, std::vector<std::string>* log = nullptr) {
  ThrowOnMisuse const guard;
  auto* const program = new Program<Policy>(shape, std::move(choices));
  program->log = log;
  program->full_check_every = full_check_every;
  ProgramOutcome out;
  try {
    program->run(steps);
  } catch (Mismatch const& m) {
    out.mismatch = m.what();
  }
  out.steps = program->num_steps();
  out.happened = program->happened();
  if (out.mismatch.empty()) delete program;
  return out;
}

/// The fewest steps that still fail, found by leaving out halves, quarters, ... within some
/// seconds.
template <class Policy>
Recording shrink(Shape const& shape, Recording recording, int full_check_every) {
  Clock const clock;
  auto const fails = [&](Recording const& r) {
    return !run_program<Policy>(shape, Choices::from_recording(r), std::int64_t(r.size()),
                                full_check_every)
                .mismatch.empty();
  };
  for (std::size_t piece = recording.size() / 2; piece > 0;) {
    bool shrunk = false;
    // The first group holds the program's own parameters.
    for (std::size_t at = 1; at < recording.size();) {
      if (clock.seconds() > 20) return recording;
      Recording shorter = recording;
      auto const from = shorter.begin() + std::ptrdiff_t(at);
      shorter.erase(from, from + std::ptrdiff_t(std::min(piece, shorter.size() - at)));
      if (fails(shorter)) {
        recording = std::move(shorter);
        shrunk = true;
      } else {
        at += piece;
      }
    }
    if (!shrunk || piece > 1) piece = piece == 1 ? 0 : piece / 2;
  }
  return recording;
}

/// The report of a failing seed: its program, shrunk.
template <class Policy>
std::string explain(Shape const& shape, std::uint64_t seed, ProgramOutcome const& first,
                    int full_check_every) {
  Recording recording;
  Choices choices = Choices::from_seed(seed);
  choices.record_into(&recording);
  (void)run_program<Policy>(shape, choices, first.steps, full_check_every);
  recording = shrink<Policy>(shape, std::move(recording), full_check_every);
  std::vector<std::string> log;
  auto const last = run_program<Policy>(shape, Choices::from_recording(recording),
                                        std::int64_t(recording.size()), full_check_every, &log);
  std::string report = join("seed ", seed, ", block_tokens ", shape.block_tokens, ", num_blocks ",
                            shape.num_blocks, ", step ", first.steps, ": ", first.mismatch,
                            "\nshrunk to ", recording.size() - 1, " steps: ", last.mismatch, "\n");
  for (auto const& line : log) report += join(line, "\n");
  return report;
}

/// What a run of many programs has seen.
struct RunReport {
  std::string failure;  ///< empty: none
  std::int64_t steps = 0;
  std::uint64_t first_seed = 1;
  std::uint64_t last_seed = 0;
  Stats happened;
};

/// Runs the programs of the first seed, the next, ... over the shapes in turn, until a limit is
/// reached or one fails.
template <class Policy>
RunReport run_programs(std::vector<Shape> const& shapes, RunLimits const& limits,
                       std::int64_t steps_of_program, int full_check_every) {
  Clock const clock;
  RunReport report;
  report.first_seed = limits.first_seed;
  report.last_seed = limits.first_seed - 1;
  while (report.steps < limits.steps && clock.seconds() < limits.seconds) {
    std::uint64_t const seed = ++report.last_seed;
    Shape const& shape = shapes[seed % shapes.size()];
    // Short and long lives.
    std::int64_t const length = seed % 4 == 0 ? steps_of_program : steps_of_program / 4 + 1;
    auto const outcome =
        run_program<Policy>(shape, Choices::from_seed(seed), length, full_check_every);
    report.steps += outcome.steps;
    if (!outcome.mismatch.empty()) {
      report.failure = explain<Policy>(shape, seed, outcome, full_check_every);
      return report;
    }
    add(report.happened, outcome.happened);
  }
  return report;
}

#if defined(PAGEDKV_TEST_PROGRAMS_COMPILED)
// In programs/default_policy.cpp: half a minute of compiling that three test programs share.
extern template ProgramOutcome run_program<DefaultPolicy>(Shape const&, Choices, std::int64_t, int,
                                                          std::vector<std::string>*);
extern template RunReport run_programs<DefaultPolicy>(std::vector<Shape> const&, RunLimits const&,
                                                      std::int64_t, int);
#endif

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>

#include "replay.hpp"
#include "stopwatch.hpp"

namespace replay {

namespace kv = pagedkv;

namespace {

class PrefixReplay {
 public:
  PrefixReplay(Trace const& trace, ReplayOptions const& options)
      : trace_(trace),
        options_(options),
        cache_(cache_config(options, 1, trace.longest_prompt() + 1)) {
    double const seconds = static_cast<double>(trace.requests.back().arrival_ns) * 1e-9;
    report_.timeline = Timeline(std::max(seconds, 1.0) / Timeline::max_bins * 1.001);
  }

  Report run(Progress& progress) {
    auto const begin = std::chrono::steady_clock::now();
    std::int64_t done = 0;
    for (Request const& request : trace_.requests) {
      serve(request, done++);
      progress.update(done);
    }
    check_no_leak(cache_);
    finish();
    report_.wall_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  void serve(Request const& request, std::int64_t number) {
    trace_.write_prompt(request, unique_, tokens_);
    tokens_.push_back(unique_.next());
    auto const num_tokens = static_cast<std::int32_t>(tokens_.size());
    if (!can_run(options_, num_tokens, num_tokens)) {
      ++report_.rejected;
      return;
    }
    watch_.start();
    auto const key = cache_.hash(tokens_);
    auto sequence = cache_.open(kv::SequenceId{static_cast<std::uint64_t>(number)}, key,
                                {.reserve = num_tokens});
    if (!sequence) {
      throw std::runtime_error(fmt::format("request {} fits the empty pool, yet open said {}",
                                           number, kv::to_string(sequence.error())));
    }
    (void)cache_.take_copies();
    watch_.stop();

    note(request, sequence->cached());

    watch_.start();
    sequence->commit(request.prompt_tokens);
    std::move(*sequence).finish(kv::Reuse::likely);
    kv::Tick const tick = cache_.end_step();
    if (options_.reclaim == kv::Reclaim::deferred) cache_.reclaim(tick);
    watch_.stop();
    watch_.end_step();
  }

  void note(Request const& request, std::int32_t cached) {
    ++report_.finished;
    report_.accepted_prompt_blocks += request.prompt_tokens / options_.block_tokens;
    report_.hit_blocks += cached / options_.block_tokens;
    report_.prompt_tokens += request.prompt_tokens;
    report_.hit_tokens += cached;
    longest_ = std::max(longest_, request.prompt_tokens + request.output_tokens);

    Moment const moment = moment_of(cache_.stats());
    double const at = static_cast<double>(request.arrival_ns) * 1e-9;
    report_.timeline.point(at, moment);
    report_.timeline.admitted(at, request.prompt_tokens, cached);
    total_.add(moment, 1);
    report_.peak_usage = std::max(report_.peak_usage, moment.used / options_.num_blocks);
  }

  void finish() {
    put_common(trace_, options_, cache_, report_);
    watch_.put_into(report_);
    report_.prefix_only = true;
    auto const accepted = static_cast<double>(report_.finished);
    if (report_.finished == 0) return;
    report_.mean_usage = total_.used / accepted / options_.num_blocks;
    report_.internal_fragmentation = total_.wasted_slots / total_.owned_slots;
    report_.peak_sequences = 1;
    report_.mean_sequences = 1;
    put_contiguous(options_, longest_, total_.held_tokens / accepted, report_);
  }

  Trace const& trace_;
  ReplayOptions const& options_;
  kv::KvCache cache_;
  UniqueTokens unique_;
  std::vector<kv::TokenId> tokens_;
  StepWatch watch_;
  Moment total_;
  std::int32_t longest_ = 0;
  Report report_;
};

}  // namespace

Report replay_prefix_only(Trace const& trace, ReplayOptions const& options, Progress& progress) {
  return PrefixReplay(trace, options).run(progress);
}

}  // namespace replay

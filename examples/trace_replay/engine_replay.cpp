// SPDX-License-Identifier: Apache-2.0
/// \file
/// An engine without a model: everything that an engine asks of the library in a step, in the order
/// in which it asks, while a clock is moved on by a cost model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <pagedkv/step/batch.hpp>
#include <pagedkv/step/planner_numbers.hpp>
#include <pagedkv/step/step_planner.hpp>

#include "engine_metrics.hpp"
#include "stopwatch.hpp"

namespace replay {

namespace kv = pagedkv;

namespace {

/// A request from its arrival to its end.
struct Live {
  Request const* request = nullptr;
  std::int64_t number = 0;  ///< in arrival order

  std::vector<kv::TokenId> tokens;   ///< prompt and output so far; empty until it is near its turn
  std::optional<kv::PromptKey> key;  ///< of `tokens`
  std::optional<kv::Sequence> sequence;
  std::int32_t generated = 0;
  std::int32_t overtaken = 0;
  bool preempted = false;  ///< has run before
  double last_token_at = 0;

  [[nodiscard]] std::int32_t num_tokens() const {
    return tokens.empty() ? request->prompt_tokens : static_cast<std::int32_t>(tokens.size());
  }
};

/// The arrays that a step's kernels would read: slots, lengths, and the changes that keep a dense
/// block table on the device up to date. Allocated once.
class StepArrays {
 public:
  StepArrays(std::int32_t rows, std::int32_t tokens, std::int32_t width, std::int32_t blocks)
      : slots_(static_cast<std::size_t>(tokens)),
        offsets_(static_cast<std::size_t>(rows) + 1),
        lengths_(static_cast<std::size_t>(rows)),
        row_moves_(static_cast<std::size_t>(rows)),
        new_blocks_(static_cast<std::size_t>(blocks)),
        copies_(static_cast<std::size_t>(rows)),
        most_changes_(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width)),
        row_changes_(std::make_unique_for_overwrite<kv::RowChange[]>(most_changes_)) {}

  [[nodiscard]] kv::BatchBuffers buffers() {
    kv::BatchBuffers b;
    b.slot_mapping = slots_;
    b.query_offsets = offsets_;
    b.sequence_lengths = lengths_;
    b.row_moves = row_moves_;
    b.row_changes = {row_changes_.get(), most_changes_};
    b.new_blocks = new_blocks_;
    b.copies = copies_;
    return b;
  }

 private:
  std::vector<kv::Slot> slots_;
  std::vector<std::int32_t> offsets_;
  std::vector<std::int32_t> lengths_;
  std::vector<kv::RowMove> row_moves_;
  std::vector<kv::BlockId> new_blocks_;
  std::vector<kv::BlockCopy> copies_;
  std::size_t most_changes_;
  std::unique_ptr<kv::RowChange[]> row_changes_;  // rows x width: mostly never touched
};

kv::BatchLimits batch_limits(Trace const& trace, kv::PlannerLimits const& limits) {
  // Without chunked prefill a longer prompt than the budget runs in a step of its own.
  std::int32_t const tokens =
      limits.chunked_prefill ? limits.max_num_batched_tokens
                             : std::max(limits.max_num_batched_tokens, trace.longest_request());
  return {.max_sequences = limits.max_num_seqs, .max_tokens = tokens};
}

class EngineReplay {
 public:
  EngineReplay(Trace const& trace, ReplayOptions const& options)
      : trace_(trace),
        options_(options),
        cache_(cache_config(options, options.limits.max_num_seqs, trace.longest_request())),
        planner_(options.limits),
        batch_(cache_, batch_limits(trace, options.limits)),
        arrays_(options.limits.max_num_seqs, batch_limits(trace, options.limits).max_tokens,
                cache_.table_width(), options.num_blocks),
        metrics_(options) {}

  Report run(Progress& progress) {
    auto const begin = std::chrono::steady_clock::now();
    auto const total = static_cast<std::int64_t>(trace_.requests.size());
    while (report_.finished + report_.cancelled + report_.rejected < total) {
      accept_arrivals();
      step();
      progress.update(report_.finished + report_.cancelled + report_.rejected);
    }
    check_no_leak(cache_);
    put_common(trace_, options_, cache_, report_);
    metrics_.put_into(now_, report_);
    watch_.put_into(report_);
    report_.wall_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  /// What the planner asks only when it matters.
  struct Details {
    EngineReplay& engine;
    std::int32_t looked_at = 0;

    kv::PreemptionCost preemption_cost(std::int32_t index) {
      return kv::preemption_cost(*engine.running_[static_cast<std::size_t>(index)]->sequence);
    }
    auto admission(std::int32_t index) {
      Live& live = *engine.waiting_[static_cast<std::size_t>(index)];
      ++looked_at;
      if (!live.key) live.key = engine.cache_.hash(live.tokens);
      return engine.cache_.admission(*live.key, {.reserve = live.num_tokens()});
    }
  };

  struct Entry {
    Live* live;
    kv::TokenRange query;
  };

  [[nodiscard]] double arrival(Request const& request) const {
    return static_cast<double>(request.arrival_ns) * 1e-9 * options_.time_scale;
  }

  void accept_arrivals() {
    for (; next_ < trace_.requests.size(); ++next_) {
      Request const& request = trace_.requests[next_];
      if (arrival(request) > now_) return;
      // The last token generated is never fed back: it takes no position.
      std::int32_t const all = request.prompt_tokens + std::max(request.output_tokens - 1, 0);
      if (!can_run(options_, all, request.prompt_tokens + request.output_tokens)) {
        ++report_.rejected;
        continue;
      }
      metrics_.accepted(request.prompt_tokens + request.output_tokens);
      auto live = std::make_unique<Live>();
      live->request = &request;
      live->number = static_cast<std::int64_t>(next_);
      waiting_.push_back(std::move(live));
    }
  }

  void step() {
    if (running_.empty() && waiting_.empty()) return wait_for_arrival();
    write_numbers();

    watch_.start();
    Details details{*this};
    kv::StepPlan const plan =
        planner_.plan(kv::pool_numbers(cache_), running_numbers_, waiting_numbers_, details);
    watch_.stop();
    note_pressure(plan, details);

    if (plan.outcome == kv::StepOutcome::blocked || plan.outcome == kv::StepOutcome::idle) {
      throw std::logic_error(fmt::format("the planner is {} with {} running and {} waiting",
                                         kv::to_string(plan.outcome), running_.size(),
                                         waiting_.size()));
    }
    watch_.start();
    apply(plan);
    watch_.stop();
    if (plan.outcome == kv::StepOutcome::run) run_step();
    if (plan.outcome == kv::StepOutcome::wait) finish_steps_in_flight(plan);
  }

  void wait_for_arrival() {
    if (next_ == trace_.requests.size()) return;
    double const then = arrival(trace_.requests[next_]);
    Moment moment = moment_of(cache_.stats());
    if (then > now_) metrics_.held(now_, then, moment, false);
    now_ = std::max(now_, then);
    pressure_ = false;
  }

  void write_numbers() {
    running_numbers_.clear();
    for (auto const& live : running_) {
      running_numbers_.push_back(kv::running_request(cache_, *live->sequence, live->num_tokens()));
    }
    waiting_numbers_.clear();
    auto const window =
        std::min(waiting_.size(), static_cast<std::size_t>(options_.limits.admission_window));
    for (std::size_t i = 0; i < window; ++i) {
      Live& live = *waiting_[i];
      if (live.tokens.empty()) trace_.write_prompt(*live.request, unique_, live.tokens);
      waiting_numbers_.push_back({.tokens = live.num_tokens(), .overtaken = live.overtaken});
    }
  }

  /// Under pressure: in this step a request waited for blocks, or gave its own back. A step whose
  /// tokens are used up by prompts on their way doesn't look at the queue: then nobody waits for
  /// blocks.
  void note_pressure(kv::StepPlan const& plan, Details const& details) {
    pressure_ = !plan.preempted.empty() || !plan.stalled.empty() ||
                details.looked_at > static_cast<std::int32_t>(plan.admitted.size());
  }

  void apply(kv::StepPlan const& plan) {
    entries_.clear();
    if (!plan.running_never_fits.empty() || !plan.never_fits.empty()) {
      throw std::logic_error("the planner refuses a request that fits the pool");
    }
    for (std::int32_t const index : plan.preempted) {
      Live& live = *running_[static_cast<std::size_t>(index)];
      std::move(*live.sequence).finish(kv::Reuse::resume);
      live.sequence.reset();
      live.key.reset();
      live.preempted = true;
    }
    for (auto const& passed : plan.passed) {
      waiting_[static_cast<std::size_t>(passed.index)]->overtaken += passed.by;
    }
    // Admissions first: they hold their hits before growth can evict them. Entries in plan order.
    admitted_entries_.clear();
    for (auto const& planned : plan.admitted) admit(planned);
    for (auto const& planned : plan.running) grow(planned);
    entries_.insert(entries_.end(), admitted_entries_.begin(), admitted_entries_.end());
    move_between_lists();
  }

  void admit(kv::PlannedRequest const& planned) {
    Live& live = *waiting_[static_cast<std::size_t>(planned.index)];
    auto opened = cache_.open(kv::SequenceId{static_cast<std::uint64_t>(live.number)}, *live.key,
                              {.reserve = planned.reserve, .resumed = live.preempted});
    if (!opened) {
      ++report_.plan_misses;
      return;
    }
    live.sequence.emplace(std::move(*opened));
    live.key.reset();
    std::int32_t const cached = live.sequence->cached();
    std::int32_t const count = std::min(planned.query.count, live.sequence->size() - cached);
    admitted_entries_.push_back({&live, {cached, count}});
    if (live.preempted) return;
    Request const& request = *live.request;
    report_.accepted_prompt_blocks += request.prompt_tokens / options_.block_tokens;
    report_.hit_blocks += cached / options_.block_tokens;
    report_.prompt_tokens += request.prompt_tokens;
    report_.hit_tokens += cached;
    metrics_.admitted(now_, request.prompt_tokens, cached);
  }

  void grow(kv::PlannedRequest const& planned) {
    Live& live = *running_[static_cast<std::size_t>(planned.index)];
    if (planned.reserve > 0) {
      auto const first = static_cast<std::size_t>(live.sequence->size());
      auto const added = live.sequence->append(
          std::span(live.tokens).subspan(first, static_cast<std::size_t>(planned.reserve)));
      if (!added) {
        ++report_.plan_misses;
        return;
      }
    }
    entries_.push_back({&live, planned.query});
  }

  static bool earlier(std::unique_ptr<Live> const& a, std::unique_ptr<Live> const& b) {
    return a->number < b->number;
  }

  /// Who has a sequence runs, in arrival order; who has none waits, those that ran before first.
  void move_between_lists() {
    std::vector<std::unique_ptr<Live>> preempted;
    for (auto& live : running_) {
      if (!live->sequence) preempted.push_back(std::move(live));
    }
    std::erase(running_, nullptr);
    // Only the head of the queue was looked at.
    auto const looked_at = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_numbers_.size());
    for (auto live = waiting_.begin(); live != looked_at; ++live) {
      if (!(*live)->sequence) continue;
      running_.insert(std::upper_bound(running_.begin(), running_.end(), *live, &earlier),
                      std::move(*live));
    }
    waiting_.erase(std::remove(waiting_.begin(), looked_at, nullptr), looked_at);
    for (auto& live : preempted) {
      auto const later = std::find_if(waiting_.begin(), waiting_.end(), [&](auto const& other) {
        return !other->preempted || other->number > live->number;
      });
      waiting_.insert(later, std::move(live));
    }
  }

  void run_step() {
    if (entries_.empty()) throw std::logic_error("a step was planned and nothing of it could run");
    std::int64_t num_tokens = 0;
    std::int64_t context_tokens = 0;
    watch_.start();
    batch_.begin_step();
    for (Entry const& entry : entries_) {
      auto const row = batch_.add(*entry.live->sequence, entry.query);
      if (!row) throw std::logic_error("the batch refuses a planned request");
      num_tokens += entry.query.count;
      context_tokens += entry.query.end();
    }
    auto const built = batch_.build(arrays_.buffers());
    if (!built) throw std::logic_error("the step's arrays are too small");
    watch_.stop();

    Moment moment = moment_of(cache_.stats());
    moment.waiting = static_cast<double>(waiting_.size());
    double const end = now_ + options_.cost.step_seconds(num_tokens, context_tokens);
    metrics_.held(now_, end, moment, pressure_);
    now_ = end;

    watch_.start();
    batch_.commit();
    end_step();
    watch_.stop();
    sample_tokens();
    watch_.end_step();
  }

  /// With deferred reclaim the device is one step behind: it has finished the step before.
  void end_step() {
    kv::Tick const tick = cache_.end_step();
    if (options_.reclaim == kv::Reclaim::deferred && in_flight_) cache_.reclaim(*in_flight_);
    in_flight_ = tick;
  }

  /// What a preempted request gave back may be available at once: then the next plan finds it.
  void finish_steps_in_flight(kv::StepPlan const& plan) {
    if (cache_.incoming_blocks() == 0 && !in_flight_ && plan.preempted.empty()) {
      throw std::logic_error("the planner waits for blocks, and none is on its way back");
    }
    cache_.reclaim(cache_.end_step());
    in_flight_.reset();
  }

  /// Each sequence whose tokens are all computed gets its next token, or ends. A client that leaves
  /// after 0 tokens leaves while its prompt is being computed.
  void sample_tokens() {
    for (Entry const& entry : entries_) {
      Live& live = *entry.live;
      Request const& request = *live.request;
      bool const leaves_early = request.cancel_after == 0;
      if (entry.query.end() < live.num_tokens() && !leaves_early) continue;
      if (!leaves_early) note_token(live);
      if (leaves_early || live.generated == request.cancel_after) {
        end(live, report_.cancelled);
      } else if (live.generated == request.output_tokens) {
        end(live, report_.finished);
      } else {
        live.tokens.push_back(trace_.output_token(request, live.generated - 1, unique_));
      }
    }
    std::erase_if(running_, [](auto const& live) { return !live->sequence; });
  }

  void end(Live& live, std::int64_t& count) {
    ++count;
    watch_.start();
    std::move(*live.sequence).finish(kv::Reuse::likely);
    watch_.stop();
    live.sequence.reset();
  }

  void note_token(Live& live) {
    if (live.generated == 0) {
      metrics_.first_token(now_ - arrival(*live.request));
    } else {
      metrics_.next_token(now_ - live.last_token_at);
    }
    live.last_token_at = now_;
    if (live.generated < live.request->output_tokens) {
      ++live.generated;
      ++report_.generated_tokens;
    }
  }

  Trace const& trace_;
  ReplayOptions const& options_;
  kv::KvCache cache_;
  kv::StepPlanner planner_;
  kv::Batch batch_;
  StepArrays arrays_;

  double now_ = 0;                              // simulated seconds
  std::size_t next_ = 0;                        // the next request to arrive
  std::vector<std::unique_ptr<Live>> running_;  // in arrival order
  std::deque<std::unique_ptr<Live>> waiting_;   // in queue order
  UniqueTokens unique_;
  std::optional<kv::Tick> in_flight_;
  bool pressure_ = false;

  std::vector<kv::RunningRequest> running_numbers_;
  std::vector<kv::WaitingRequest> waiting_numbers_;
  std::vector<Entry> entries_;
  std::vector<Entry> admitted_entries_;
  StepWatch watch_;
  EngineMetrics metrics_;
  Report report_;
};

}  // namespace

Report replay_full(Trace const& trace, ReplayOptions const& options, Progress& progress) {
  return EngineReplay(trace, options).run(progress);
}

}  // namespace replay

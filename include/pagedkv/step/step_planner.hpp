// SPDX-License-Identifier: Apache-2.0
/// \file
/// Continuous batching as a pure function: numbers in, a plan out, nothing else touched.
///
///     StepPlanner planner{{.max_num_batched_tokens = 2048, .max_num_seqs = 128}};
///     StepPlan const plan = planner.plan(pool, running, waiting);
///     for (auto index : plan.preempted) ...      // release, to the front of the queue
///     for (auto const& entry : plan.admitted) ... // cache.open(..., {.reserve = entry.reserve})
///     for (auto const& entry : plan.running) ...  // sequence.reserve(entry.reserve)
///
/// The rules, why a workload ends, and how to apply a plan: docs/design/step-planner.md. The
/// numbers' meaning: step_plan.hpp.
///
/// How it works. One pass over the running requests, decodes first, gives each what it can have of
/// three dwindling numbers: tokens, available blocks, incoming blocks. A request that can't have
/// one token's blocks is promised incoming ones, or makes room by preempting from a list sorted by
/// cost once, or stalls. If nobody was preempted or stalled, a pass over the head of the queue
/// admits what fits beside everything that running prompts still need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/error.hpp>
#include <pagedkv/step/step_plan.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

namespace detail {
/// Answers the planner from the structs themselves.
struct GivenNumbers {
  std::span<RunningRequest const> running;
  std::span<WaitingRequest const> waiting;

  [[nodiscard]] PreemptionCost preemption_cost(std::int32_t index) const noexcept {
    auto const& request = running[static_cast<std::size_t>(index)];
    return {request.unshared_tokens, request.unshared_blocks};
  }
  [[nodiscard]] AdmissionNumbers admission(std::int32_t index) const noexcept {
    auto const& request = waiting[static_cast<std::size_t>(index)];
    return {request.cached_tokens, request.blocks_needed};
  }
};
}  // namespace detail

/// Plans steps. Holds its limits and scratch memory, no state: a plan depends on the arguments
/// only. One thread at a time.
class StepPlanner {
 public:
  /// Allocates everything that plans will need. Limits that can't work: `raise()`, naming the term
  /// and the nearest value that would.
  explicit StepPlanner(PlannerLimits const& limits);

  StepPlanner(StepPlanner const&) = delete;  // plans point into its memory
  StepPlanner& operator=(StepPlanner const&) = delete;

  [[nodiscard]] PlannerLimits const& limits() const noexcept { return limits_; }

  /// Decides the next step.
  ///
  /// `running`: in arrival order, at most max_num_seqs. One that waits for something else (a
  /// transfer) is left out; its blocks then just aren't available. `waiting`: in queue order;
  /// preempted requests belong to the front. Any number; the first admission_window are looked at.
  /// Returns spans that are valid until the next call.
  /// O(running + admission_window), O(running log running) when it preempts; no allocation.
  [[nodiscard]] StepPlan plan(PoolNumbers const& pool, std::span<RunningRequest const> running,
                              std::span<WaitingRequest const> waiting) {
    return plan(pool, running, waiting, detail::GivenNumbers{running, waiting});
  }

  /// The same, asking for what is dear to compute only when it matters:
  /// `details.preemption_cost(i)` -> PreemptionCost of running request i, at most once each and
  /// only when somebody must be preempted or ended; `details.admission(i)` -> cached_tokens and
  /// blocks_needed of waiting request i, for those looked at. The fields of the same meaning in the
  /// structs are then not read.
  template <class Details>
  [[nodiscard]] StepPlan plan(PoolNumbers const& pool, std::span<RunningRequest const> running,
                              std::span<WaitingRequest const> waiting, Details&& details);

 private:
  using Int = std::int32_t;

  enum class State : std::uint8_t {
    open,       // not served (yet); may be a victim
    scheduled,  // runs in this step
    promised,   // waits for blocks set aside for it
    stalled,    // found nothing; may be a victim
    preempted,
    ended,  // can never fit
  };

  struct Blocked {
    Int index;
    Int admitted_before;  // how many were admitted when it was found not to fit
    bool for_tokens;      // blocks it could have had
  };

  void begin(PoolNumbers const& pool, std::span<RunningRequest const> running,
             std::span<WaitingRequest const> waiting);
  [[nodiscard]] StepPlan finish();

  // Running requests.
  template <class Details>
  void end_what_never_fits(Details& details);
  template <class Details>
  void serve(Int index, Details& details);
  [[nodiscard]] bool schedule(Int index, Int most);
  template <class Details>
  void find_room(Int index, Details& details);
  template <class Details>
  void sort_victims(Details& details);
  [[nodiscard]] Int cheapest_victim(Int served);
  void preempt(Int index);
  void settle_waived_copies();
  template <class Details>
  void preempt_to_find_out(Details& details);

  // Waiting requests.
  template <class Details>
  [[nodiscard]] bool give_step_to_starved(Details& details);
  template <class Details>
  void admit_from_queue(Details& details);
  enum class Fit : std::uint8_t { admitted, short_of_tokens, short_of_blocks };
  template <class Details>
  [[nodiscard]] Fit try_admit(Int index, std::int64_t& room, Details& details);
  void admit(Int index, Int cached_tokens, Int blocks_needed, std::int64_t& room);
  void note_passed();

  [[nodiscard]] std::int64_t room_for_admissions() const;
  [[nodiscard]] bool too_large(Int tokens) const noexcept { return tokens > largest_; }
  [[nodiscard]] bool nothing_scheduled() const noexcept {
    return scheduled_.empty() && admitted_.empty();
  }
  [[nodiscard]] bool may_admit() const noexcept {
    return tokens_left_ > 0 &&
           running_.size() + admitted_.size() < static_cast<std::size_t>(limits_.max_num_seqs);
  }
  [[nodiscard]] static Int left(RunningRequest const& r) noexcept { return r.tokens - r.computed; }
  [[nodiscard]] static bool is_decode(RunningRequest const& r) noexcept {
    return left(r) <= 1 + r.drafts;
  }
  [[nodiscard]] Int cap_tokens(std::int64_t end) const noexcept {
    std::int64_t const most = pool_.max_sequence_tokens > 0 ? pool_.max_sequence_tokens : INT32_MAX;
    return static_cast<Int>(std::min(end, most));
  }
  [[nodiscard]] RunningRequest const& running(Int index) const {
    return running_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] State& state(Int index) { return states_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] Int num_running() const noexcept { return static_cast<Int>(running_.size()); }
  [[nodiscard]] Int num_waiting() const noexcept { return static_cast<Int>(waiting_.size()); }
  [[nodiscard]] Int window() const noexcept {
    return std::min(num_waiting(), limits_.admission_window);
  }

  PlannerLimits limits_;

  // The arguments of the plan being made, and what is left of them.
  PoolNumbers pool_;
  std::span<RunningRequest const> running_;
  std::span<WaitingRequest const> waiting_;
  Int tokens_left_ = 0;
  Int num_decodes_ = 0;
  Int decodes_behind_ =
      0;  // the one being served: each may have a token before others their drafts
  std::int64_t available_ = 0;  // blocks to be had now
  std::int64_t incoming_ = 0;   // blocks on their way back and promised to nobody
  std::int64_t watermark_ = 0;
  Int largest_ = 0;            // tokens that one request can have
  bool any_incoming_ = false;  // waiting may help
  // Blocks that scheduled requests do without as long as none is available: twins to adopt, a copy
  // to waive. Preemptions come first when a plan is applied, and then they take those blocks.
  std::int64_t owed_ = 0;

  // Per running request.
  std::vector<State> states_;
  std::vector<Int> ends_;  // positions reserved after this step
  std::vector<PreemptionCost> costs_;

  // Victims by cost, once sorted; those before first_victim_ can't be victims any more.
  std::vector<Int> victims_;
  std::size_t first_victim_ = 0;
  bool victims_sorted_ = false;
  std::int64_t freeable_ = 0;  // what all eligible victims would give back

  std::vector<PlannedRequest> scheduled_;
  std::vector<PlannedRequest> admitted_;
  std::vector<Int> preempted_;
  std::vector<Int> stalled_;
  std::vector<Int> never_fits_;
  std::vector<Int> running_never_fits_;
  std::vector<Blocked> blocked_;
  std::vector<Passed> passed_;
};

// Set-up.

inline StepPlanner::StepPlanner(PlannerLimits const& limits) : limits_(limits) {
  auto const at_least = [](char const* name, Int value, Int least) {
    if (value < least) {
      raise("PlannerLimits: " + std::string(name) + " is " + std::to_string(value) +
            "; it must be at least " + std::to_string(least));
    }
  };
  at_least("max_num_seqs", limits.max_num_seqs, 1);
  at_least("max_num_batched_tokens (at least max_num_seqs, a token for each running request)",
           limits.max_num_batched_tokens, limits.max_num_seqs);
  at_least("max_prefill_tokens", limits.max_prefill_tokens, 0);
  at_least("watermark_blocks", limits.watermark_blocks, 0);
  at_least("admission_window", limits.admission_window, 1);
  at_least("max_overtaking", limits.max_overtaking, 0);
  if (!(limits.watermark >= 0.0 && limits.watermark < 1.0)) {
    raise("PlannerLimits: watermark is " + std::to_string(limits.watermark) +
          "; it is a share of the pool, from 0 to below 1");
  }
  auto const seqs = static_cast<std::size_t>(limits.max_num_seqs);
  auto const looked_at = static_cast<std::size_t>(limits.admission_window);
  states_.reserve(seqs);
  ends_.reserve(seqs);
  costs_.reserve(seqs);
  victims_.reserve(seqs);
  scheduled_.reserve(seqs);
  admitted_.reserve(std::min(seqs, looked_at));
  preempted_.reserve(seqs);
  stalled_.reserve(seqs);
  running_never_fits_.reserve(seqs);
  never_fits_.reserve(looked_at);
  blocked_.reserve(looked_at);
  passed_.reserve(looked_at);
}

// The whole.

template <class Details>
StepPlan StepPlanner::plan(PoolNumbers const& pool, std::span<RunningRequest const> running,
                           std::span<WaitingRequest const> waiting, Details&& details) {
  begin(pool, running, waiting);
  if (give_step_to_starved(details)) return finish();
  end_what_never_fits(details);
  decodes_behind_ = static_cast<Int>(
      std::count_if(running.begin(), running.end(), [](auto const& r) { return is_decode(r); }));
  for (Int i = 0; i < num_running(); ++i) {
    if (!is_decode(this->running(i))) continue;
    --decodes_behind_;
    serve(i, details);
  }
  num_decodes_ = static_cast<Int>(scheduled_.size());
  for (Int i = 0; i < num_running(); ++i) {
    if (!is_decode(this->running(i))) serve(i, details);
  }
  if (preempted_.empty() && stalled_.empty() && !waiting_.empty() && may_admit()) {
    admit_from_queue(details);
  }
  if (nothing_scheduled() && !any_incoming_ && preempted_.empty() && running_never_fits_.empty()) {
    preempt_to_find_out(details);
  }
  return finish();
}

inline void StepPlanner::begin(PoolNumbers const& pool, std::span<RunningRequest const> running,
                               std::span<WaitingRequest const> waiting) {
  PAGEDKV_ASSERT(running.size() <= static_cast<std::size_t>(limits_.max_num_seqs),
                 "StepPlanner::plan: at most max_num_seqs requests may run");
  PAGEDKV_ASSERT(pool.block_tokens > 0 && pool.num_blocks >= 0 && pool.available_blocks >= 0 &&
                     pool.incoming_blocks >= 0,
                 "StepPlanner::plan: pool numbers must not be negative, nor a block empty");
  pool_ = pool;
  running_ = running;
  waiting_ = waiting;
  tokens_left_ = limits_.max_num_batched_tokens;
  num_decodes_ = decodes_behind_ = 0;
  available_ = pool.available_blocks;
  incoming_ = pool.incoming_blocks;
  any_incoming_ = pool.incoming_blocks > 0;
  owed_ = 0;
  largest_ = cap_tokens(std::int64_t{pool.num_blocks} * pool.block_tokens);
  watermark_ =
      std::max(static_cast<Int>(limits_.watermark * pool.num_blocks), limits_.watermark_blocks);
  states_.assign(running.size(), State::open);
  costs_.assign(running.size(), PreemptionCost{});
  ends_.clear();
  for (auto const& request : running) {
    PAGEDKV_ASSERT(request.computed <= request.tokens && request.computed <= request.size &&
                       request.computed >= 0 && request.drafts >= 0 && request.lookahead >= 0,
                   "StepPlanner::plan: a running request has 0 <= computed <= tokens, size");
    ends_.push_back(request.size);
  }
  victims_.clear();
  victims_sorted_ = false;
  first_victim_ = 0;
  freeable_ = 0;
  scheduled_.clear();
  admitted_.clear();
  preempted_.clear();
  stalled_.clear();
  never_fits_.clear();
  running_never_fits_.clear();
  blocked_.clear();
  passed_.clear();
}

inline StepPlan StepPlanner::finish() {
  note_passed();
  if (!preempted_.empty() && !pool_.deferred_reclaim) settle_waived_copies();
  // Who stalled may have become the victim of a later one.
  std::erase_if(stalled_, [this](Int index) { return state(index) == State::preempted; });
  // Callers put them at the front of the queue in this order.
  std::sort(preempted_.begin(), preempted_.end());
  StepPlan plan;
  plan.num_tokens = limits_.max_num_batched_tokens - tokens_left_;
  plan.num_decodes = num_decodes_;
  plan.running = scheduled_;
  plan.admitted = admitted_;
  plan.preempted = preempted_;
  plan.stalled = stalled_;
  plan.never_fits = never_fits_;
  plan.running_never_fits = running_never_fits_;
  plan.passed = passed_;
  bool const short_of_blocks = !stalled_.empty() || !blocked_.empty();
  if (!nothing_scheduled()) {
    plan.outcome = StepOutcome::run;
  } else if (!never_fits_.empty() || !running_never_fits_.empty()) {
    plan.outcome = StepOutcome::replan;
  } else if (any_incoming_ && short_of_blocks) {
    plan.outcome = StepOutcome::wait;
  } else if (!preempted_.empty()) {
    plan.outcome = StepOutcome::replan;
  } else if (!stalled_.empty() || (!blocked_.empty() && running_.empty())) {
    plan.outcome = StepOutcome::blocked;
  } else {
    plan.outcome = StepOutcome::idle;
  }
  return plan;
}

// Running requests.

template <class Details>
void StepPlanner::end_what_never_fits(Details& details) {
  for (Int i = 0; i < num_running(); ++i) {
    if (!too_large(running(i).tokens - running(i).drafts)) continue;
    state(i) = State::ended;
    running_never_fits_.push_back(i);
    // The caller ends it, so its blocks are as good as on their way: no victim for them.
    incoming_ += details.preemption_cost(i).blocks;
  }
}

template <class Details>
void StepPlanner::serve(Int index, Details& details) {
  if (state(index) != State::open) return;
  auto const& request = running(index);
  Int most = std::min(left(request), tokens_left_);
  if (is_decode(request)) most = std::min(most, std::max(1, tokens_left_ - decodes_behind_));
  if (limits_.max_prefill_tokens > 0 && limits_.chunked_prefill && !is_decode(request)) {
    most = std::min(most, limits_.max_prefill_tokens);
  }
  if (most <= 0 || schedule(index, most)) return;
  find_room(index, details);
  bool const found = state(index) == State::open && schedule(index, most);
  if (!found) stalled_.push_back(index);
  if (!found && state(index) == State::open) state(index) = State::stalled;
}

// Gives the request up to `most` tokens, as many as the available blocks allow. False: not one.
inline bool StepPlanner::schedule(Int index, Int most) {
  auto const& request = running(index);
  std::int64_t const room = available_;
  bool const waives_copy = request.tail_copy == TailCopy::unless_full && room == 0;
  bool const copy = request.tail_copy != TailCopy::no && !waives_copy;
  // The last position that can be reserved: all blocks held and to be had, or none to be had.
  std::int64_t const reachable =
      room < copy ? request.size : (request.blocks + room - copy) * pool_.block_tokens;
  Int const lookahead = most == left(request) ? request.lookahead : 0;
  std::int64_t const wanted = std::int64_t{request.computed} + most + lookahead;
  Int const end = std::min(cap_tokens(wanted), cap_tokens(reachable));
  Int const count = std::min(most, end - request.computed);
  if (count <= 0) return false;

  Int const reserve = std::max(0, end - request.size);
  Int const blocks = reserve > 0 ? blocks_for(end, pool_.block_tokens) - request.blocks + copy : 0;
  scheduled_.push_back({.index = index,
                        .query = {request.computed, count},
                        .reserve = reserve,
                        .lookahead = end - request.computed - count,
                        .blocks = blocks});
  owed_ += reserve > 0 && waives_copy;
  available_ -= blocks;
  tokens_left_ -= count;
  ends_[static_cast<std::size_t>(index)] = request.size + reserve;
  if (victims_sorted_) freeable_ -= costs_[static_cast<std::size_t>(index)].blocks;
  state(index) = State::scheduled;
  return true;
}

// Not one token of it has its blocks: promises it incoming ones, preempts others, or neither.
template <class Details>
void StepPlanner::find_room(Int index, Details& details) {
  auto const& request = running(index);
  // One token more than computed isn't reserved yet: reserved positions need nothing.
  std::int64_t const need = blocks_for(request.computed + 1, pool_.block_tokens) - request.blocks +
                            (request.tail_copy != TailCopy::no);
  if (request.tail_copy == TailCopy::until_reclaim && need - 1 <= available_ + incoming_) {
    any_incoming_ = true;  // with the next reclaim
    return;
  }
  if (need > available_ + incoming_) {
    sort_victims(details);
    std::int64_t others = freeable_ - costs_[static_cast<std::size_t>(index)].blocks;
    if (!pool_.deferred_reclaim) others -= std::min(others, owed_);
    // Preempting what can't help only costs.
    if (need > available_ + incoming_ + others) return;
    while (need > available_ + incoming_) preempt(cheapest_victim(index));
  }
  if (need <= available_) return;
  std::int64_t const from_available = std::min(available_, need);
  available_ -= from_available;
  incoming_ -= need - from_available;
  if (victims_sorted_) freeable_ -= costs_[static_cast<std::size_t>(index)].blocks;
  state(index) = State::promised;
}

// Cheapest first; ties: latest arrival. Those that free nothing come last.
template <class Details>
void StepPlanner::sort_victims(Details& details) {
  if (victims_sorted_) return;
  victims_sorted_ = true;
  for (Int i = 0; i < num_running(); ++i) {
    if (state(i) != State::open && state(i) != State::stalled) continue;
    auto& cost = costs_[static_cast<std::size_t>(i)];
    cost = details.preemption_cost(i);
    freeable_ += cost.blocks;
    victims_.push_back(i);
  }
  std::sort(victims_.begin(), victims_.end(), [this](Int a, Int b) {
    auto const& cost_a = costs_[static_cast<std::size_t>(a)];
    auto const& cost_b = costs_[static_cast<std::size_t>(b)];
    if ((cost_a.blocks > 0) != (cost_b.blocks > 0)) return cost_a.blocks > 0;
    if (cost_a.tokens != cost_b.tokens) return cost_a.tokens < cost_b.tokens;
    return a > b;
  });
}

// -1: there is none. Amortized O(1): only the request being served is passed more than once.
inline StepPlanner::Int StepPlanner::cheapest_victim(Int served) {
  auto const eligible = [this](Int index) {
    return state(index) == State::open || state(index) == State::stalled;
  };
  while (first_victim_ < victims_.size() && !eligible(victims_[first_victim_])) ++first_victim_;
  for (std::size_t i = first_victim_; i < victims_.size(); ++i) {
    if (victims_[i] != served && eligible(victims_[i])) return victims_[i];
  }
  return -1;
}

inline void StepPlanner::preempt(Int index) {
  Int const blocks = costs_[static_cast<std::size_t>(index)].blocks;
  state(index) = State::preempted;
  preempted_.push_back(index);
  freeable_ -= blocks;
  if (pool_.deferred_reclaim) {
    incoming_ += blocks;
    any_incoming_ = any_incoming_ || blocks > 0;
  } else {
    std::int64_t const paid = std::min<std::int64_t>(owed_, blocks);
    owed_ -= paid;
    available_ += blocks - paid;
  }
}

// A copy was waived since no block was available; when the plan is applied, the blocks of those
// preempted later are there from the start. Says what will be taken then.
inline void StepPlanner::settle_waived_copies() {
  std::int64_t available = pool_.available_blocks;
  for (Int index : preempted_) available += costs_[static_cast<std::size_t>(index)].blocks;
  for (auto& entry : scheduled_) {
    auto const& request = running(entry.index);
    if (request.tail_copy == TailCopy::unless_full && entry.reserve > 0) {
      bool const copy = available > 0;
      Int const end = request.size + entry.reserve;
      entry.blocks = blocks_for(end, pool_.block_tokens) - request.blocks + copy;
    }
    available = std::max<std::int64_t>(0, available - entry.blocks);
  }
}

// Everybody who needs a block stalls and nothing comes back: what is shared among them hides what
// preempting several would free. One goes a plan, never the first; the next numbers tell more.
template <class Details>
void StepPlanner::preempt_to_find_out(Details& details) {
  if (stalled_.empty()) return;
  sort_victims(details);
  Int const victim = cheapest_victim(stalled_.front());
  if (victim >= 0) preempt(victim);
}

// Waiting requests.

// What admissions may take: the available blocks less what running prompts still need.
inline std::int64_t StepPlanner::room_for_admissions() const {
  std::int64_t room = available_;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (states_[i] == State::ended || states_[i] == State::preempted) continue;
    auto const& request = running_[i];
    if (request.tokens <= ends_[i]) continue;
    bool const copy = states_[i] != State::scheduled && request.tail_copy != TailCopy::no;
    room -= blocks_for(request.tokens, pool_.block_tokens) -
            blocks_for(ends_[i], pool_.block_tokens) + copy;
  }
  return room;
}

// Chunked prefill off: running requests would take from every step the tokens that a whole prompt
// needs. One that was passed often enough gets a step in which they pause.
template <class Details>
bool StepPlanner::give_step_to_starved(Details& details) {
  if (limits_.chunked_prefill || running_.empty() || !may_admit()) return false;
  std::int64_t running_tokens = 0;
  for (auto const& request : running_) running_tokens += left(request);
  for (Int i = 0; i < window(); ++i) {
    auto const& request = waiting_[static_cast<std::size_t>(i)];
    if (request.overtaken < limits_.max_overtaking || too_large(request.tokens)) continue;
    auto const numbers = details.admission(i);
    std::int64_t room = room_for_admissions() - watermark_;
    bool const short_of_tokens =
        running_tokens + request.tokens - numbers.cached_tokens > limits_.max_num_batched_tokens;
    if (!short_of_tokens || numbers.blocks_needed > room) return false;
    admit(i, numbers.cached_tokens, numbers.blocks_needed, room);
    return true;
  }
  return false;
}

template <class Details>
void StepPlanner::admit_from_queue(Details& details) {
  std::int64_t room = room_for_admissions();
  // How many may be admitted in all before a blocked request has been passed too often.
  std::int64_t allowed = INT64_MAX;
  Int next = 0;
  for (; next < window() && may_admit(); ++next) {
    auto const& request = waiting_[static_cast<std::size_t>(next)];
    if (too_large(request.tokens)) {
      never_fits_.push_back(next);
      continue;
    }
    auto const num_admitted = static_cast<std::int64_t>(admitted_.size());
    if (num_admitted >= allowed) break;
    Fit const fit = try_admit(next, room, details);
    if (fit == Fit::admitted) continue;
    blocked_.push_back({next, static_cast<Int>(num_admitted), fit == Fit::short_of_tokens});
    allowed = std::min(allowed, num_admitted + limits_.max_overtaking - request.overtaken);
  }
  // Nothing runs, nothing comes back, and still the first ones don't fit: something else holds the
  // pool for as long as it likes. Whoever fits may go.
  if (!nothing_scheduled() || any_incoming_ || blocked_.empty()) return;
  for (; next < num_waiting() && nothing_scheduled() && may_admit(); ++next) {
    if (!too_large(waiting_[static_cast<std::size_t>(next)].tokens)) {
      (void)try_admit(next, room, details);
    }
  }
}

// Admits the request if its blocks fit into `room`, which then shrinks by them.
template <class Details>
StepPlanner::Fit StepPlanner::try_admit(Int index, std::int64_t& room, Details& details) {
  auto const& request = waiting_[static_cast<std::size_t>(index)];
  auto const numbers = details.admission(index);
  std::int64_t const kept_free = nothing_scheduled() ? 0 : watermark_;
  if (numbers.blocks_needed > room - kept_free) return Fit::short_of_blocks;
  // A whole prompt longer than the budget runs alone.
  if (!limits_.chunked_prefill && !nothing_scheduled() &&
      request.tokens - numbers.cached_tokens > tokens_left_) {
    return Fit::short_of_tokens;
  }
  room -= kept_free;
  admit(index, numbers.cached_tokens, numbers.blocks_needed, room);
  room += kept_free;
  return Fit::admitted;
}

// Its blocks are known to fit into `room`.
inline void StepPlanner::admit(Int index, Int cached_tokens, Int blocks_needed,
                               std::int64_t& room) {
  auto const& request = waiting_[static_cast<std::size_t>(index)];
  PAGEDKV_ASSERT(cached_tokens >= 0 && cached_tokens < request.tokens && blocks_needed >= 0,
                 "StepPlanner::plan: a hit never covers all tokens of a request");
  Int const to_compute = request.tokens - cached_tokens;
  Int count = to_compute;
  if (limits_.chunked_prefill) {
    count = std::min(count, tokens_left_);
    if (limits_.max_prefill_tokens > 0) count = std::min(count, limits_.max_prefill_tokens);
  }
  Int const whole = blocks_for(request.tokens, pool_.block_tokens);
  Int end = cached_tokens + count;
  if (count == to_compute) {
    // Lookahead is a wish: it gets what the room allows.
    std::int64_t const reachable = (whole + room - blocks_needed) * pool_.block_tokens;
    end = std::min(cap_tokens(std::int64_t{end} + request.lookahead), cap_tokens(reachable));
  }
  Int const blocks = std::max(0, blocks_needed - whole + blocks_for(end, pool_.block_tokens));
  admitted_.push_back({.index = index,
                       .query = {cached_tokens, count},
                       .reserve = end,
                       .lookahead = end - cached_tokens - count,
                       .blocks = blocks});
  available_ -= blocks;
  room -= std::max(blocks, blocks_needed);
  tokens_left_ -= count;
}

inline void StepPlanner::note_passed() {
  for (auto const& blocked : blocked_) {
    Int by = static_cast<Int>(admitted_.size()) - blocked.admitted_before;
    // Running requests took its tokens: that too brings its own step nearer.
    if (by == 0 && blocked.for_tokens) by = 1;
    Int const overtaken = waiting_[static_cast<std::size_t>(blocked.index)].overtaken;
    by = std::min(by, limits_.max_overtaking - overtaken);
    if (by > 0) passed_.push_back({blocked.index, by});
  }
}

PAGEDKV_NAMESPACE_END

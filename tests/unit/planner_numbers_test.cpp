// SPDX-License-Identifier: Apache-2.0
// The planner's numbers of a real cache, and an engine in small: every block that a plan promises
// must be there when the plan is applied.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/manage/kv_cache.hpp>
#include <pagedkv/step/planner_numbers.hpp>
#include <pagedkv/step/step_planner.hpp>

#include "catch.hpp"

namespace kv = pagedkv;
using Int = std::int32_t;

namespace {

std::vector<kv::TokenId> counting(Int count, Int from = 0) {
  std::vector<kv::TokenId> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

}  // namespace

TEST_CASE("a cache's numbers are those the planner asks for") {
  kv::KvCache cache{{.block_tokens = 4,
                     .num_blocks = 10,
                     .max_sequences = 4,
                     .max_sequence_tokens = 36,
                     .reclaim = kv::Reclaim::deferred}};
  auto sequence = cache.open(kv::SequenceId{1}, counting(9), {.reserve = 9});
  REQUIRE(sequence);
  auto const pool = kv::pool_numbers(cache);
  CHECK(pool.num_blocks == 10);
  CHECK(pool.block_tokens == 4);
  CHECK(pool.available_blocks == 7);
  CHECK(pool.incoming_blocks == 0);
  CHECK(pool.max_sequence_tokens == 36);
  CHECK(pool.deferred_reclaim);
  sequence->commit(6);
  auto const request = kv::running_request(cache, *sequence, 9, 0, 3);
  CHECK(request.tokens == 9);
  CHECK(request.computed == 6);
  CHECK(request.lookahead == 3);
  CHECK(request.size == 9);
  CHECK(request.blocks == 3);
  CHECK(request.tail_copy == kv::TailCopy::no);
  auto const cost = kv::preemption_cost(*sequence);
  CHECK(cost.tokens == 9);
  CHECK(cost.blocks == 3);
  std::move(*sequence).finish(kv::Reuse::likely);
  CHECK(kv::pool_numbers(cache).incoming_blocks == 3);
}

TEST_CASE("a shared tail always costs a copy, a published one unless the pool is full") {
  kv::KvCache cache{
      {.block_tokens = 4, .num_blocks = 10, .max_sequences = 4, .max_sequence_tokens = 36}};
  auto sequence = cache.open(kv::SequenceId{1}, counting(8), {.reserve = 8});
  REQUIRE(sequence);
  sequence->commit(8);
  CHECK(kv::running_request(cache, *sequence, 9).tail_copy == kv::TailCopy::no);
  sequence->truncate(6);  // cuts a published block
  CHECK(kv::running_request(cache, *sequence, 7).tail_copy == kv::TailCopy::unless_full);
  auto branch = sequence->fork(kv::SequenceId{2});
  REQUIRE(branch);
  CHECK(kv::running_request(cache, *sequence, 7).tail_copy == kv::TailCopy::always);
  CHECK(kv::preemption_cost(*sequence).blocks == 0);
}

namespace {

struct Request {
  kv::SequenceId id;
  Int arrival = 0;
  std::vector<kv::TokenId> tokens;
  Int end = 0;  // tokens when it is done
  Int overtaken = 0;
  Int fork_at = -1;
  bool resumed = false;
  std::optional<kv::PromptKey> key;
  std::unique_ptr<kv::Sequence> sequence;

  Int size() const { return static_cast<Int>(tokens.size()); }
};

// The engine's step as docs/design/step-planner.md has it.
class Engine {
 public:
  // `tells`: steps say which sequences they use, so that blocks come back sooner.
  Engine(std::uint64_t seed, bool deferred, kv::Twins twins, bool tells)
      : random_(seed),
        tells_(tells),
        delay_(deferred ? draw(1, 3) : 0),
        cache_({.block_tokens = block_tokens_,
                .num_blocks = 24,
                .max_sequences = 32,
                .max_sequence_tokens = 200,
                .reclaim = deferred ? kv::Reclaim::deferred : kv::Reclaim::stream_ordered,
                .twins = twins}),
        planner_({.max_num_batched_tokens = 8 + draw(0, 40),
                  .max_num_seqs = 8,
                  .chunked_prefill = draw(0, 2) != 0,
                  .watermark = 0.05,
                  .max_overtaking = 6}) {
    for (Int i = 0; i < 60; ++i) {
      auto request = std::make_unique<Request>();
      request->arrival = i;
      request->id = kv::SequenceId{static_cast<std::uint64_t>(i)};
      // One of three shared prefixes, then tokens of its own.
      request->tokens = counting(draw(1, 24), 1000 * draw(1, 3));
      auto const own = counting(draw(0, 20), 100'000 + 100 * i);
      request->tokens.insert(request->tokens.end(), own.begin(), own.end());
      request->end = request->size() + draw(1, 30);
      if (draw(0, 3) == 0) request->fork_at = request->size() + draw(1, 5);
      arriving_.push_back(std::move(request));
    }
  }

  // What went wrong, or nothing.
  std::string run() {
    Int steps = 0;
    while (error_.empty() && (!arriving_.empty() || !waiting_.empty() || !running_.empty())) {
      if (!arriving_.empty() && draw(0, 1) == 0) {
        arriving_.front()->key = cache_.hash(arriving_.front()->tokens);
        waiting_.push_back(std::move(arriving_.front()));
        arriving_.pop_front();
      }
      step();
      if (++steps > 20'000) return "no end";
      if (steps % 16 == 0 && !cache_.verify()) return cache_.verify().broken;
    }
    for (Int i = 0; i <= delay_; ++i) end_step();
    if (error_.empty() && cache_.available_blocks() != 24) return "a leak";
    return error_;
  }

  Int preemptions = 0;
  Int copies = 0;
  Int hits = 0;

 private:
  using Owned = std::unique_ptr<Request>;

  Int draw(Int low, Int high) {
    return low + static_cast<Int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  void fail(char const* what) {
    if (error_.empty()) error_ = what;
  }

  struct Details {
    Engine& engine;
    kv::PreemptionCost preemption_cost(Int i) const {
      return kv::preemption_cost(*engine.running_[static_cast<std::size_t>(i)]->sequence);
    }
    kv::Admission admission(Int i) const {
      auto const& request = *engine.waiting_[static_cast<std::size_t>(i)];
      return engine.cache_.admission(*request.key, {.reserve = request.size()});
    }
  };

  void step() {
    std::vector<kv::RunningRequest> running;
    for (auto const& request : running_) {
      running.push_back(kv::running_request(cache_, *request->sequence, request->size()));
    }
    std::vector<kv::WaitingRequest> waiting;
    for (auto const& request : waiting_) {
      waiting.push_back({.tokens = request->size(), .overtaken = request->overtaken});
    }
    auto const plan = planner_.plan(kv::pool_numbers(cache_), running, waiting, Details{*this});
    if (plan.outcome == kv::StepOutcome::blocked) return fail("blocked");
    if (!plan.never_fits.empty() || !plan.running_never_fits.empty()) return fail("never fits");
    apply(plan);
    end_step();
  }

  void apply(kv::StepPlan const& plan) {
    std::vector<Owned> back;
    for (Int i : plan.preempted) {
      auto& request = running_[static_cast<std::size_t>(i)];
      std::move(*request->sequence).finish(kv::Reuse::resume);
      request->sequence.reset();
      request->resumed = true;
      request->overtaken = 0;
      request->key = cache_.hash(request->tokens);
      back.push_back(std::move(request));
      ++preemptions;
    }
    for (auto const& [index, by] : plan.passed) {
      waiting_[static_cast<std::size_t>(index)]->overtaken += by;
    }
    std::vector<std::pair<Request*, Int>> queries;
    std::vector<Owned> admitted;
    for (auto const& entry : plan.admitted) {
      auto request = std::move(waiting_[static_cast<std::size_t>(entry.index)]);
      Int const before = cache_.available_blocks();
      auto sequence = cache_.open(request->id, *request->key,
                                  {.reserve = entry.reserve, .resumed = request->resumed});
      if (!sequence) return fail("an admission failed");
      // What an admission before it revived is no longer idle.
      Int const taken = before - cache_.available_blocks();
      if (taken > entry.blocks) return fail("an admission took more than planned");
      if (plan.admitted.size() == 1 && taken != entry.blocks) return fail("an admission's blocks");
      hits += sequence->cached();
      Int const end = std::min(entry.query.end(), sequence->cached() + entry.query.count);
      request->sequence = std::make_unique<kv::Sequence>(*std::move(sequence));
      queries.emplace_back(request.get(), std::max(end, request->sequence->cached()));
      admitted.push_back(std::move(request));
    }
    for (auto const& entry : plan.running) {
      auto& request = *running_[static_cast<std::size_t>(entry.index)];
      // A sibling that went, or copied the tail before, saves a copy.
      if (request.sequence->blocks_needed(entry.reserve) > entry.blocks) {
        return fail("more blocks than planned");
      }
      if (!request.sequence->would_fit(entry.reserve)) return fail("would_fit disagrees");
      if (!request.sequence->reserve(entry.reserve)) return fail("a reserve failed");
      queries.emplace_back(&request, entry.query.end());
    }
    copies += static_cast<Int>(cache_.take_copies().size());
    std::erase(running_, nullptr);
    std::erase(waiting_, nullptr);
    for (auto& request : admitted) running_.push_back(std::move(request));
    for (auto request = back.rbegin(); request != back.rend(); ++request) {
      waiting_.insert(waiting_.begin(), std::move(*request));
    }
    std::vector<Owned> branches;
    for (auto const& [request, end] : queries) compute(*request, end, branches);
    for (auto& branch : branches) running_.push_back(std::move(branch));
    std::erase_if(running_, [](Owned const& r) { return r->size() >= r->end; });
    std::stable_sort(running_.begin(), running_.end(),
                     [](auto const& a, auto const& b) { return a->arrival < b->arrival; });
  }

  void compute(Request& request, Int end, std::vector<Owned>& branches) {
    auto& sequence = *request.sequence;
    if (tells_) sequence.used_by(cache_.open_tick());
    auto const ids = std::span(request.tokens).first(static_cast<std::size_t>(sequence.size()));
    sequence.set_tokens(sequence.committed(),
                        ids.subspan(static_cast<std::size_t>(sequence.committed())));
    sequence.commit(end);
    if (sequence.committed() < request.size()) return;
    bool const room = running_.size() + branches.size() < 8;
    if (request.fork_at >= 0 && request.size() >= request.fork_at && room) {
      request.fork_at = -1;
      auto branch = std::make_unique<Request>();
      branch->arrival = request.arrival;
      branch->id = kv::SequenceId{1'000'000 + request.id.value()};
      branch->tokens = request.tokens;
      branch->end = request.end;
      auto forked = sequence.fork(branch->id);
      if (!forked) return fail("a fork failed");
      branch->sequence = std::make_unique<kv::Sequence>(*std::move(forked));
      branch->tokens.push_back(draw(-4, -1));
      branches.push_back(std::move(branch));
    }
    request.tokens.push_back(draw(-4, -1));
  }

  void end_step() {
    auto const tick = cache_.end_step();
    if (delay_ == 0) return;
    ended_.push_back(tick);
    if (static_cast<Int>(ended_.size()) < delay_) return;
    cache_.reclaim(ended_.front());
    ended_.pop_front();
  }

  static constexpr Int block_tokens_ = 4;
  std::mt19937_64 random_;
  bool tells_;
  Int delay_;
  kv::KvCache cache_;
  kv::StepPlanner planner_;
  std::deque<Owned> arriving_;
  std::vector<Owned> waiting_;
  std::vector<Owned> running_;
  std::deque<kv::Tick> ended_;
  std::string error_;
};

}  // namespace

TEST_CASE("a real cache has every block that a plan promises") {
  Int preemptions = 0;
  Int copies = 0;
  Int hits = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Engine engine{seed, seed % 2 == 1, seed % 4 < 2 ? kv::Twins::keep : kv::Twins::adopt,
                  seed % 8 < 4};
    auto const error = engine.run();
    if (!error.empty()) {
      CAPTURE(seed, error);
      FAIL("the engine stopped");
    }
    preemptions += engine.preemptions;
    copies += engine.copies;
    hits += engine.hits;
  }
  INFO("preemptions " << preemptions << ", copies " << copies << ", hits " << hits);
  CHECK(preemptions > 1000);
  CHECK(copies > 300);
  CHECK(hits > 10'000);
}

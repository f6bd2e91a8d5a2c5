// SPDX-License-Identifier: Apache-2.0
// Progress, proved by running: random workloads on small pools of a toy cache, step after step,
// until every request has ended. The toy owns blocks by number and reference; it has shared
// prefixes (idle blocks that hits revive), forks, copies of shared tails, deferred reclaim, pins
// and cancels, so that the numbers the planner sees are those of a real cache, in kind.
//
// What turns these red: a scheduled request preempted, a promise given twice, admission by a
// prompt's first part, no preempt_to_find_out, no step for a starved whole prompt, a barrier that
// holds when pins fill the pool, demands that leave out copies or revived blocks.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/step/step_planner.hpp>

#include "catch.hpp"

namespace kv = pagedkv;
using Int = std::int32_t;

namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  Int operator()(Int low, Int high) {
    return low + static_cast<Int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(Int n) { return (*this)(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

std::size_t at(Int i) { return static_cast<std::size_t>(i); }

// Blocks by number. Content of a block: (family, k) for the k-th block of a shared prefix.
class ToyPool {
 public:
  ToyPool(Int num_blocks, bool deferred) : deferred_(deferred), references_(at(num_blocks)) {
    for (Int b = num_blocks - 1; b >= 0; --b) free_.push_back(b);
  }

  Int available() const { return static_cast<Int>(free_.size() + idle_.size()); }
  Int incoming() const { return static_cast<Int>(quarantine_.size()); }
  Int references(Int block) const { return references_[at(block)]; }
  bool is_idle(Int block) const { return std::count(idle_.begin(), idle_.end(), block) == 1; }

  // A free block, else the idle one released first. -1: none.
  Int allocate() {
    Int block = -1;
    if (!free_.empty()) {
      block = free_.back();
      free_.pop_back();
    } else if (!idle_.empty()) {
      block = idle_.front();
      idle_.pop_front();
      unpublish(block);
    }
    if (block >= 0) references_[at(block)] = 1;
    return block;
  }
  void hold(Int block) {
    if (references_[at(block)]++ == 0) std::erase(idle_, block);
  }
  void release(Int block, Int step) {
    if (--references_[at(block)] > 0) return;
    if (deferred_) {
      quarantine_.push_back({block, step});
    } else {
      give_back(block);
    }
  }
  void reclaim(Int step) {
    while (!quarantine_.empty() && quarantine_.front().second <= step) {
      give_back(quarantine_.front().first);
      quarantine_.pop_front();
    }
  }
  // Returns the block that holds this content from now on: the first one adopts its twins, so
  // that a block whose child is owned is owned too.
  Int publish(Int family, Int k, Int block, Int step) {
    Int const first = found(family, k);
    if (first == block) return block;
    if (first >= 0) {
      hold(first);
      release(block, step);
      return first;
    }
    auto const quarantined = index_.find({family, k});
    if (quarantined != index_.end()) unpublish(quarantined->second);
    index_[{family, k}] = block;
    content_[block] = {family, k};
    return block;
  }
  Int found(Int family, Int k) const {
    auto const it = index_.find({family, k});
    if (it == index_.end()) return -1;
    bool const quarantined = std::any_of(quarantine_.begin(), quarantine_.end(),
                                         [&](auto const& q) { return q.first == it->second; });
    return quarantined ? -1 : it->second;
  }

 private:
  void give_back(Int block) {
    if (content_.count(block) != 0) {
      idle_.push_back(block);
    } else {
      free_.push_back(block);
    }
  }
  void unpublish(Int block) {
    auto const it = content_.find(block);
    index_.erase(it->second);
    content_.erase(it);
  }

  bool deferred_;
  std::vector<Int> references_;
  std::vector<Int> free_;
  std::deque<Int> idle_;
  std::deque<std::pair<Int, Int>> quarantine_;  // block, step
  std::map<std::pair<Int, Int>, Int> index_;
  std::map<Int, std::pair<Int, Int>> content_;
};

struct Request {
  Int arrival = 0;
  Int family = 0;
  Int shared = 0;  // leading tokens that all of the family have
  Int prompt = 1;
  Int output = 1;    // tokens to generate
  Int fork_at = -1;  // after so many generated tokens a second branch starts
  Int tokens = 1;    // prompt and generated
  Int computed = 0;
  Int size = 0;
  Int overtaken = 0;
  Int preempted = 0;
  Int drafts = 0;
  bool cancel = false;
  std::vector<Int> blocks;

  bool done() const { return tokens >= prompt + output; }
};

struct Workload {
  kv::PlannerLimits limits;
  Int num_blocks = 8;
  Int block_tokens = 4;
  Int delay = 0;  // steps until what was released comes back; 0: at once
  Int pinned = 0;
  Int lookahead = 0;
  std::vector<Request> requests;
};

struct Outcome {
  std::string broken;  // what went wrong, or nothing
  Int steps = 0;
  Int ended = 0;
  Int refused = 0;
  Int preemptions = 0;
  Int replans = 0;
  Int finds = 0;  // plans that preempt to find out
  Int waits = 0;
  Int forks = 0;
  Int passes = 0;
  Int starved_steps = 0;
};

class Engine {
 public:
  Engine(Workload const& workload, std::uint64_t seed)
      : work_(workload),
        draw_(seed),
        pool_(workload.num_blocks, workload.delay > 0),
        planner_(workload.limits) {
    for (Int i = 0; i < work_.pinned; ++i) (void)pool_.allocate();
  }

  Outcome run() {
    std::size_t next = 0;
    Int without_progress = 0;
    while (out_.broken.empty()) {
      while (next < work_.requests.size() && (draw_.one_in(3) || nothing_alive())) {
        waiting_.push_back(std::make_unique<Request>(work_.requests[next++]));
      }
      if (nothing_alive() && next == work_.requests.size()) break;
      auto const tokens = step();
      without_progress = tokens > 0 ? 0 : without_progress + 1;
      // Each plan without a token preempts one of the running ones, or drops a request, or waits.
      if (without_progress > 2 * work_.limits.max_num_seqs + 2 * work_.delay + 20) {
        fail("no progress");
      }
      if (++out_.steps > 200'000) fail("no end");
    }
    if (out_.broken.empty() && pool_left() != work_.num_blocks - work_.pinned) fail("a leak");
    return out_;
  }

  // How many requests had ended when the one with this arrival number did.
  Int ended_before(Int arrival) const {
    auto const it = std::find(order_.begin(), order_.end(), arrival);
    return static_cast<Int>(it - order_.begin());
  }

 private:
  using Owned = std::unique_ptr<Request>;

  bool nothing_alive() const { return waiting_.empty() && running_.empty(); }
  void fail(std::string const& why) {
    if (out_.broken.empty()) out_.broken = why + " in step " + std::to_string(out_.steps);
  }
  Int pool_left() {
    pool_.reclaim(INT32_MAX);
    return pool_.available();
  }
  Int blocks_for(Int tokens) const { return kv::blocks_for(tokens, work_.block_tokens); }

  // Full blocks of the shared prefix that are cached now, never the last token.
  std::vector<Int> hits(Request const& request) const {
    std::vector<Int> result;
    Int const most = std::min(request.shared, request.tokens - 1) / work_.block_tokens;
    for (Int k = 0; k < most; ++k) {
      Int const block = pool_.found(request.family, k);
      if (block < 0) break;
      result.push_back(block);
    }
    return result;
  }

  kv::RunningRequest numbers(Request& r) {
    kv::RunningRequest n{.tokens = r.tokens,
                         .computed = r.computed,
                         .lookahead = work_.lookahead,
                         .size = r.size,
                         .blocks = static_cast<Int>(r.blocks.size())};
    r.drafts = 0;
    if (r.tokens - r.computed == 1 && work_.lookahead > 0) {
      r.drafts = std::min(work_.lookahead, r.prompt + r.output - r.tokens);
      n.tokens += r.drafts;
      n.drafts = r.drafts;
    }
    if (r.size % work_.block_tokens != 0 && pool_.references(r.blocks.back()) > 1) {
      n.tail_copy = kv::TailCopy::always;
    }
    for (std::size_t i = 0; i < r.blocks.size(); ++i) {
      if (pool_.references(r.blocks[i]) > 1) continue;
      ++n.unshared_blocks;
      n.unshared_tokens +=
          std::clamp(r.computed - static_cast<Int>(i) * work_.block_tokens, 0, work_.block_tokens);
    }
    return n;
  }

  void release(Request& r) {
    for (auto block = r.blocks.rbegin(); block != r.blocks.rend(); ++block) {
      pool_.release(*block, out_.steps);
    }
    r.blocks.clear();
    r.size = r.computed = 0;
  }

  // Takes exactly what the plan said; anything else is a broken promise.
  void grow(Request& r, Int reserve, Int planned) {
    Int taken = 0;
    if (reserve > 0 && r.size % work_.block_tokens != 0 && pool_.references(r.blocks.back()) > 1) {
      Int const copy = pool_.allocate();
      if (copy < 0) return fail("no block for a copy");
      pool_.release(r.blocks.back(), out_.steps);
      r.blocks.back() = copy;
      ++taken;
    }
    r.size += reserve;
    while (static_cast<Int>(r.blocks.size()) < blocks_for(r.size)) {
      Int const block = pool_.allocate();
      if (block < 0) return fail("no block for a position");
      r.blocks.push_back(block);
      ++taken;
    }
    // A sibling that went in this step leaves its blocks unshared: no copy then.
    if (taken > planned) fail("more blocks than planned");
  }

  Int step() {
    // Cancels come between steps.
    for (auto* list : {&running_, &waiting_}) {
      std::erase_if(*list, [&](Owned& r) {
        if (!r->cancel || !draw_.one_in(12)) return false;
        release(*r);
        ++out_.ended;
        return true;
      });
    }
    std::vector<kv::RunningRequest> running;
    for (auto& r : running_) running.push_back(numbers(*r));
    std::vector<kv::WaitingRequest> waiting;
    for (auto& r : waiting_) {
      auto const found = hits(*r);
      Int idle = 0;
      for (Int block : found) idle += pool_.is_idle(block);
      Int const num_hits = static_cast<Int>(found.size());
      waiting.push_back({.tokens = r->tokens,
                         .lookahead = work_.lookahead,
                         .overtaken = r->overtaken,
                         .cached_tokens = num_hits * work_.block_tokens,
                         .blocks_needed = blocks_for(r->tokens) - num_hits + idle});
    }
    kv::PoolNumbers const numbers{.num_blocks = work_.num_blocks,
                                  .block_tokens = work_.block_tokens,
                                  .available_blocks = pool_.available(),
                                  .incoming_blocks = pool_.incoming(),
                                  .deferred_reclaim = work_.delay > 0};
    auto const plan = planner_.plan(numbers, running, waiting);
    if (plan.outcome == kv::StepOutcome::blocked) fail("blocked");
    if (plan.outcome == kv::StepOutcome::idle && !nothing_alive()) fail("idle");
    if (plan.outcome == kv::StepOutcome::wait && numbers.incoming_blocks == 0 &&
        plan.preempted.empty()) {
      fail("waits for nothing");
    }
    out_.replans += plan.outcome == kv::StepOutcome::replan;
    out_.finds += plan.outcome == kv::StepOutcome::replan && !plan.preempted.empty();
    out_.waits += plan.outcome == kv::StepOutcome::wait;
    out_.passes += static_cast<Int>(plan.passed.size());
    out_.preemptions += static_cast<Int>(plan.preempted.size());
    out_.starved_steps += plan.running.empty() && !running.empty() && !plan.admitted.empty();
    apply(plan);
    // The clock goes on while the engine waits too.
    pool_.reclaim(out_.steps - work_.delay);
    return plan.num_tokens;
  }

  void apply(kv::StepPlan const& plan) {
    std::vector<Owned> back;
    for (Int i : plan.preempted) {
      auto& r = running_[at(i)];
      release(*r);
      ++r->preempted;
      back.push_back(std::move(r));
    }
    for (Int i : plan.running_never_fits) {
      release(*running_[at(i)]);
      running_[at(i)].reset();
      ++out_.refused;
    }
    for (auto const& [index, by] : plan.passed) {
      auto& r = *waiting_[at(index)];
      r.overtaken += by;
      if (r.overtaken > work_.limits.max_overtaking) fail("overtaken too often");
    }
    std::vector<Owned> admitted;
    std::vector<std::pair<Request*, Int>> computing;  // with the end of its query
    for (auto const& entry : plan.admitted) {
      auto r = std::move(waiting_[at(entry.index)]);
      r->overtaken = 0;
      Int const before = pool_.available();
      for (Int block : hits(*r)) {
        pool_.hold(block);
        r->blocks.push_back(block);
      }
      r->size = r->computed = static_cast<Int>(r->blocks.size()) * work_.block_tokens;
      grow(*r, std::max(0, entry.reserve - r->size), INT32_MAX);
      // Hits may be fewer than planned (evicted for an earlier one) or more; the sum is the same.
      if (before - pool_.available() > entry.blocks) fail("an admission took more than planned");
      computing.emplace_back(r.get(), std::min(entry.query.end(), r->computed + entry.query.count));
      admitted.push_back(std::move(r));
    }
    for (auto const& entry : plan.running) {
      auto& r = *running_[at(entry.index)];
      grow(r, entry.reserve, entry.blocks);
      computing.emplace_back(&r, entry.query.end());
    }
    for (Int i : plan.never_fits) {
      waiting_[at(i)].reset();
      ++out_.refused;
    }
    std::erase(waiting_, nullptr);
    std::erase(running_, nullptr);
    for (auto& r : admitted) running_.push_back(std::move(r));
    for (auto r = back.rbegin(); r != back.rend(); ++r) {
      waiting_.insert(waiting_.begin(), std::move(*r));
    }
    for (auto const& [request, end] : computing) compute(*request, end);
    for (auto& r : branches_) running_.push_back(std::move(r));
    branches_.clear();
    std::erase_if(running_, [&](Owned& r) {
      if (!r->done()) return false;
      order_.push_back(r->arrival);
      release(*r);
      ++out_.ended;
      return true;
    });
    std::stable_sort(running_.begin(), running_.end(),
                     [](Owned const& a, Owned const& b) { return a->arrival < b->arrival; });
  }

  void compute(Request& r, Int end) {
    r.computed = std::min(end, r.tokens);
    if (r.computed < r.tokens) return;
    // One token, and of the drafts that were computed some are accepted; the rest is truncated.
    Int const computed_drafts = end - r.tokens;
    Int const accepted = computed_drafts > 0 ? draw_(0, computed_drafts) : 0;
    r.tokens = std::min(r.tokens + accepted + 1, r.prompt + r.output);
    r.computed = std::min(r.computed + accepted, r.tokens - 1);
    while (static_cast<Int>(r.blocks.size()) > blocks_for(r.computed)) {
      pool_.release(r.blocks.back(), out_.steps);
      r.blocks.pop_back();
    }
    r.size = r.computed;
    Int const shared = std::min(r.shared, r.prompt) / work_.block_tokens;
    for (Int k = 0; k < shared; ++k) {
      r.blocks[at(k)] = pool_.publish(r.family, k, r.blocks[at(k)], out_.steps);
    }
    bool const room = running_.size() + branches_.size() < at(work_.limits.max_num_seqs);
    if (r.fork_at >= 0 && r.tokens - r.prompt >= r.fork_at && room) {
      r.fork_at = -1;
      branches_.push_back(std::make_unique<Request>(r));
      for (Int block : r.blocks) pool_.hold(block);
      ++out_.forks;
    }
  }

  Workload work_;
  Draw draw_;
  ToyPool pool_;
  kv::StepPlanner planner_;
  std::vector<Owned> waiting_;
  std::vector<Owned> running_;
  std::vector<Owned> branches_;
  Outcome out_;
  std::vector<Int> order_;  // arrival numbers in the order of the ends
};

Workload random_workload(Draw& draw) {
  Workload work;
  work.block_tokens = draw.one_in(3) ? draw(1, 3) : (1 << draw(0, 4));
  work.num_blocks = draw.one_in(3) ? draw(2, 6) : draw(6, 40);
  work.delay = draw.one_in(2) ? 0 : draw(1, 4);
  work.lookahead = draw.one_in(3) ? draw(1, 5) : 0;
  auto& limits = work.limits;
  limits.max_num_seqs = draw(1, 10);
  limits.max_num_batched_tokens = limits.max_num_seqs + draw(0, draw.one_in(2) ? 5 : 100);
  limits.max_prefill_tokens = draw.one_in(2) ? 0 : draw(1, 20);
  limits.chunked_prefill = !draw.one_in(3);
  limits.watermark = draw.one_in(2) ? 0.0 : 0.05;
  limits.admission_window = draw(1, 6);
  limits.max_overtaking = draw(0, 8);
  if (draw.one_in(5)) work.pinned = draw(0, work.num_blocks - 2);
  // What the pins leave is enough for each request alone, or it could wait for ever.
  Int const capacity = (work.num_blocks - work.pinned) * work.block_tokens;
  Int const num_requests = draw(1, 24);
  for (Int i = 0; i < num_requests; ++i) {
    Request r;
    r.arrival = i;
    r.family = draw(0, 2);
    r.prompt = draw(1, draw.one_in(3) ? capacity + capacity / 8 : capacity / 3 + 1);
    r.output = draw(1, draw.one_in(3) ? capacity / 2 + 1 : 8);
    if (work.pinned > 0) {
      r.prompt = std::min(r.prompt, capacity);
      r.output = std::min(r.output, capacity - r.prompt + 1);
    }
    r.shared = draw.one_in(2) ? 0 : std::min(r.prompt, draw(0, capacity / 2));
    r.tokens = r.prompt;
    if (draw.one_in(4)) r.fork_at = draw(1, 3);
    r.cancel = draw.one_in(6);
    work.requests.push_back(r);
  }
  return work;
}

}  // namespace

TEST_CASE("random workloads on small pools end, every request of them", "[progress]") {
  Outcome sum;
  for (std::uint64_t seed = 0; seed < 12'000; ++seed) {
    Draw draw{seed};
    auto const work = random_workload(draw);
    auto const out = Engine{work, seed}.run();
    if (!out.broken.empty()) {
      CAPTURE(seed, out.broken);
      FAIL("a workload doesn't end well");
    }
    if (out.ended + out.refused != static_cast<Int>(work.requests.size()) + out.forks) {
      CAPTURE(seed);
      FAIL("a request is missing");
    }
    sum.ended += out.ended;
    sum.refused += out.refused;
    sum.preemptions += out.preemptions;
    sum.replans += out.replans;
    sum.finds += out.finds;
    sum.waits += out.waits;
    sum.forks += out.forks;
    sum.passes += out.passes;
    sum.starved_steps += out.starved_steps;
    sum.steps += out.steps;
  }
  // What the workloads reach.
  INFO("steps " << sum.steps << " ended " << sum.ended << " refused " << sum.refused
                << " preemptions " << sum.preemptions << " replans " << sum.replans << " finds "
                << sum.finds << " waits " << sum.waits << " forks " << sum.forks << " passes "
                << sum.passes << " starved " << sum.starved_steps);
  CHECK(sum.preemptions > 5000);
  CHECK(sum.refused > 1000);
  CHECK(sum.replans > 1000);
  CHECK(sum.finds > 20);
  CHECK(sum.waits > 1000);
  CHECK(sum.forks > 1000);
  CHECK(sum.passes > 1000);
  CHECK(sum.starved_steps > 100);
}

TEST_CASE("a request that pins keep out for ever keeps nobody else out", "[progress]") {
  for (Int max_overtaking : {0, 3}) {
    for (Int window : {1, 2, 8}) {
      Workload work;
      work.num_blocks = 20;
      work.pinned = 8;
      work.limits = {.max_num_batched_tokens = 16,
                     .max_num_seqs = 4,
                     .watermark = 0.1,
                     .admission_window = window,
                     .max_overtaking = max_overtaking};
      Request large;
      large.prompt = large.tokens = 13 * work.block_tokens;
      work.requests.push_back(large);
      for (Int i = 1; i <= 12; ++i) {
        Request small;
        small.arrival = i;
        small.prompt = small.tokens = 1 + 3 * i;
        small.output = 5;
        work.requests.push_back(small);
      }
      auto const out = Engine{work, 1}.run();
      CAPTURE(max_overtaking, window, out.broken);
      CHECK(out.ended == 12);
      CHECK(out.broken.substr(0, 7) == "blocked");
    }
  }
}

TEST_CASE("a large request among a stream of small ones runs before most of them", "[progress]") {
  Workload work;
  work.num_blocks = 20;
  work.limits = {.max_num_batched_tokens = 64,
                 .max_num_seqs = 8,
                 .watermark = 0.0,
                 .admission_window = 4,
                 .max_overtaking = 10};
  for (Int i = 0; i < 200; ++i) {
    Request request;
    request.arrival = i;
    request.prompt = request.tokens = i == 4 ? 18 * work.block_tokens : 9;
    request.output = 6;
    work.requests.push_back(request);
  }
  Engine engine{work, 7};
  auto const out = engine.run();
  CHECK(out.broken == "");
  CHECK(out.ended == 200);
  // Four before it in the queue, ten that may pass it, and what it stopped after it.
  CHECK(engine.ended_before(4) <= 14);
}

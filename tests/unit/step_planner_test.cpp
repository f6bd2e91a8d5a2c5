// SPDX-License-Identifier: Apache-2.0
// The rules are those of docs/design/step-planner.md; a rule's tag stands in brackets there and
// here. Bugs that were put into the planner, one at a time, and a test that each turned red (most
// turn the random states or the workloads of step_planner_progress_test.cpp red as well):
//
//   [order]      one pass over all running requests      "decodes run before prefills, ..."
//   [budget]     no max_prefill_tokens, in either place  "a long prompt is capped in each step"
//   [budget]     count only the admitted                 "no more requests run than allowed"
//   [whole]      admit a part of a prompt                "... a prompt runs whole or not at all"
//   [whole]      a long prompt never runs                "... longer than the budget runs alone"
//   [whole]      no give_step_to_starved                 "a whole prompt gets its step ..."
//   [demand]     leave out the copy, or idle hits        "a plan's blocks are those ..."
//   [demand]     never waive a copy                      "a published tail with one owner ..."
//   [demand]     don't count own twins                   "adopting its own twins ..."
//   [demand]     forget what is owed (owed_, settle)     "every plan for a random state ..."
//   [demand]     no max_sequence_tokens                  "nothing is reserved beyond ..."
//   [admission]  don't subtract unfinished prompts       "an admission leaves the blocks alone ..."
//   [admission]  admit by a prompt's first part          "every plan for a random state ..."
//   [admission]  watermark never, or always              "the watermark counts only ..."
//   [admission]  admit beside a preemption               "nobody is admitted when ..."
//   [overtaking] the first that doesn't fit stops all    "a small request passes a large one ..."
//   [overtaking] no limit; forget earlier steps          "a large request is passed at most ..."
//   [overtaking] stop the queue even for pins            "... stops nobody for ever"
//   [overtaking] don't tell which were passed            "a small request passes a large one ..."
//   [shrink]     all tokens or none; lookahead or none   "a prefill / a decode ... before ..."
//   [incoming]   don't wait for incoming blocks          "incoming blocks are waited for, ..."
//   [incoming]   promise one block twice                 "incoming blocks are promised once"
//   [victim]     latest, or dearest, or first of a tie   "the victim is the cheapest ..."
//   [victim]     one that frees nothing                  "the victim is the cheapest ..."
//   [victim]     the request being served                "the request being served is no victim"
//   [victim]     one that runs in this step              "every plan for a random state ..."
//   [victim]     preempt though it can't help            "nobody is preempted in vain"
//   [never]      forget tokens, or running requests      "what can never fit is told at once"
//   [never]      don't wait for the blocks of the ended  "the blocks of a request that must ..."
//   [progress]   no preempt_to_find_out; take the first  "requests that only share blocks ..."
//   [cost]       ask for costs, or look at the queue,    "costs are asked for only when ..."
//                when it can't matter
#include <pagedkv/step/step_planner.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::PoolNumbers;
using kv::RunningRequest;
using kv::StepOutcome;
using kv::StepPlan;
using kv::StepPlanner;
using kv::TailCopy;
using kv::WaitingRequest;
using Int = std::int32_t;

namespace {

// Blocks of 4 tokens keep the arithmetic of the examples in one's head.
constexpr Int bt = 4;

PoolNumbers pool_of(Int blocks, Int available, Int incoming = 0) {
  return {.num_blocks = blocks,
          .block_tokens = bt,
          .available_blocks = available,
          .incoming_blocks = incoming};
}

RunningRequest decode(Int computed) {
  Int const blocks = kv::blocks_for(computed, bt);
  return {.tokens = computed + 1,
          .computed = computed,
          .size = computed,
          .blocks = blocks,
          .unshared_tokens = computed,
          .unshared_blocks = blocks};
}

RunningRequest prefill(Int computed, Int tokens) {
  RunningRequest request = decode(computed);
  request.tokens = tokens;
  return request;
}

WaitingRequest waits(Int tokens) {
  return {.tokens = tokens, .blocks_needed = kv::blocks_for(tokens, bt)};
}

kv::PlannerLimits limits_of(Int tokens, Int seqs) {
  return {.max_num_batched_tokens = tokens, .max_num_seqs = seqs, .watermark = 0.0};
}

std::vector<Int> indices(std::span<kv::PlannedRequest const> entries) {
  std::vector<Int> result;
  for (auto const& entry : entries) result.push_back(entry.index);
  return result;
}

std::vector<Int> list(std::span<Int const> entries) { return {entries.begin(), entries.end()}; }

using Ints = std::vector<Int>;
using Running = std::vector<RunningRequest>;
using Waiting = std::vector<WaitingRequest>;

}  // namespace

TEST_CASE("decodes run before prefills, and prefills before admissions", "[order]") {
  StepPlanner planner{limits_of(10, 8)};
  Running const running{prefill(4, 12), decode(5), prefill(0, 9), decode(9)};
  auto const plan = planner.plan(pool_of(64, 40), running, Waiting{waits(3)});
  CHECK(plan.outcome == StepOutcome::run);
  CHECK(indices(plan.running) == Ints{1, 3, 0});
  CHECK(plan.num_decodes == 2);
  CHECK(plan.running[2].query == kv::TokenRange{4, 8});
  CHECK(plan.num_tokens == 10);
  CHECK(plan.admitted.empty());
}

TEST_CASE("what is left of the budget goes to an admission in part", "[order]") {
  StepPlanner planner{limits_of(22, 8)};
  Running const running{prefill(4, 12), decode(5), prefill(0, 9), decode(9)};
  auto const plan = planner.plan(pool_of(64, 40), running, Waiting{waits(30)});
  CHECK(indices(plan.running) == Ints{1, 3, 0, 2});
  REQUIRE(plan.admitted.size() == 1);
  CHECK(plan.admitted[0].query == kv::TokenRange{0, 3});
  CHECK(plan.admitted[0].reserve == 3);
  CHECK(plan.admitted[0].blocks == 1);
}

TEST_CASE("a decode with drafts is a decode", "[order]") {
  StepPlanner planner{limits_of(16, 4)};
  RunningRequest speculating = decode(8);
  speculating.tokens += 3;
  speculating.drafts = 3;
  speculating.lookahead = 4;
  auto const plan = planner.plan(pool_of(64, 10), Running{prefill(0, 40), speculating}, {});
  CHECK(indices(plan.running) == Ints{1, 0});
  CHECK(plan.num_decodes == 1);
  CHECK(plan.running[0].query == kv::TokenRange{8, 4});
  CHECK(plan.running[0].reserve == 8);
  CHECK(plan.running[0].lookahead == 4);
  CHECK(plan.running[0].blocks == 2);
}

TEST_CASE("a long prompt is capped in each step", "[budget]") {
  auto limits = limits_of(100, 4);
  limits.max_prefill_tokens = 16;
  StepPlanner planner{limits};
  auto const plan =
      planner.plan(pool_of(100, 90), Running{prefill(16, 80)}, Waiting{waits(90), waits(10)});
  REQUIRE(plan.running.size() == 1);
  CHECK(plan.running[0].query == kv::TokenRange{16, 16});
  REQUIRE(plan.admitted.size() == 2);
  CHECK(plan.admitted[0].query == kv::TokenRange{0, 16});
  CHECK(plan.admitted[1].query == kv::TokenRange{0, 10});
}

TEST_CASE("no more requests run than allowed", "[budget]") {
  StepPlanner planner{limits_of(100, 3)};
  Waiting const waiting{waits(4), waits(4), waits(4)};
  CHECK(planner.plan(pool_of(100, 90), Running{decode(4), decode(4)}, waiting).admitted.size() ==
        1);
  CHECK(planner.plan(pool_of(100, 90), {}, waiting).admitted.size() == 3);
  CHECK(planner.plan(pool_of(100, 90), Running{decode(4), decode(4), decode(4)}, waiting)
            .admitted.empty());
}

TEST_CASE("without chunked prefill a prompt runs whole or not at all", "[whole]") {
  auto limits = limits_of(20, 8);
  limits.chunked_prefill = false;
  limits.max_prefill_tokens = 4;  // doesn't count
  StepPlanner planner{limits};
  auto const plan = planner.plan(pool_of(100, 90), Running{decode(7)},
                                 Waiting{waits(20), waits(12), waits(8), waits(7)});
  REQUIRE(plan.admitted.size() == 2);
  CHECK(plan.admitted[0].index == 1);
  CHECK(plan.admitted[0].query == kv::TokenRange{0, 12});
  CHECK(plan.admitted[1].index == 3);
  CHECK(plan.admitted[1].query == kv::TokenRange{0, 7});
  CHECK(plan.num_tokens == 20);
}

TEST_CASE("without chunked prefill a prompt longer than the budget runs alone", "[whole]") {
  auto limits = limits_of(20, 8);
  limits.chunked_prefill = false;
  StepPlanner planner{limits};
  auto const plan = planner.plan(pool_of(100, 90), {}, Waiting{waits(50), waits(2)});
  REQUIRE(plan.admitted.size() == 1);
  CHECK(plan.admitted[0].query == kv::TokenRange{0, 50});
  CHECK(plan.num_tokens == 50);
}

TEST_CASE("a whole prompt gets its step when running requests kept it from the tokens", "[whole]") {
  auto limits = limits_of(20, 8);
  limits.chunked_prefill = false;
  limits.max_overtaking = 3;
  StepPlanner planner{limits};
  Waiting waiting{waits(20)};
  for (Int step = 0; step < 3; ++step) {
    auto const plan = planner.plan(pool_of(100, 90), Running{decode(7)}, waiting);
    CHECK(indices(plan.running) == Ints{0});
    CHECK(plan.admitted.empty());
    REQUIRE(plan.passed.size() == 1);
    CHECK(plan.passed[0] == kv::Passed{0, 1});
    waiting[0].overtaken += plan.passed[0].by;
  }
  auto const plan = planner.plan(pool_of(100, 90), Running{decode(7)}, waiting);
  CHECK(plan.running.empty());
  CHECK(indices(plan.admitted) == Ints{0});
  CHECK(plan.preempted.empty());
  // Without the blocks for it the running ones go on.
  auto const full = planner.plan(pool_of(100, 4), Running{decode(7)}, waiting);
  CHECK(indices(full.running) == Ints{0});
}

TEST_CASE("a plan's blocks are those of the shared formula", "[demand]") {
  StepPlanner planner{limits_of(100, 8)};
  RunningRequest copying = decode(6);  // the last block half full, shared
  copying.tail_copy = TailCopy::always;
  RunningRequest reserved = decode(9);  // slots for the next 2 tokens are there already
  reserved.size = 11;
  Running const running{copying, reserved, decode(8), decode(5)};
  WaitingRequest hit = waits(21);  // 6 blocks; 3 hit, 2 of them idle
  hit.cached_tokens = 12;
  hit.blocks_needed = 3 + 2;
  auto const plan = planner.plan(pool_of(64, 20), running, Waiting{hit});
  REQUIRE(plan.running.size() == 4);
  CHECK(plan.running[0].blocks == 1);
  CHECK(plan.running[0].reserve == 1);
  CHECK(plan.running[1].blocks == 0);
  CHECK(plan.running[1].reserve == 0);
  CHECK(plan.running[2].blocks == 1);
  CHECK(plan.running[3].blocks == 0);
  CHECK(plan.running[3].reserve == 1);
  REQUIRE(plan.admitted.size() == 1);
  CHECK(plan.admitted[0].query == kv::TokenRange{12, 9});
  CHECK(plan.admitted[0].reserve == 21);
  CHECK(plan.admitted[0].blocks == 5);
}

TEST_CASE("an admission in part takes the blocks of that part and the idle hits", "[demand]") {
  StepPlanner planner{limits_of(5, 2)};
  WaitingRequest hit = waits(21);
  hit.cached_tokens = 12;
  hit.blocks_needed = 3 + 2;
  auto const plan = planner.plan(pool_of(64, 20), {}, Waiting{hit});
  REQUIRE(plan.admitted.size() == 1);
  CHECK(plan.admitted[0].query == kv::TokenRange{12, 5});
  CHECK(plan.admitted[0].reserve == 17);
  CHECK(plan.admitted[0].blocks == 2 + 2);  // positions 12 to 16 are in blocks 3 and 4
}

TEST_CASE("a published tail with one owner needs no copy when no block is available", "[demand]") {
  StepPlanner planner{limits_of(8, 2)};
  RunningRequest cut = decode(6);
  cut.tail_copy = TailCopy::unless_full;
  auto const full = planner.plan(pool_of(2, 0), Running{cut}, {});
  REQUIRE(full.outcome == StepOutcome::run);
  CHECK(full.running[0].blocks == 0);
  auto const room = planner.plan(pool_of(3, 1), Running{cut}, {});
  REQUIRE(room.outcome == StepOutcome::run);
  CHECK(room.running[0].blocks == 1);
  cut.tail_copy = TailCopy::always;
  CHECK(planner.plan(pool_of(2, 0), Running{cut}, {}).outcome == StepOutcome::blocked);
}

TEST_CASE("an admission leaves the blocks alone that running prompts still need", "[admission]") {
  StepPlanner planner{limits_of(8, 4)};
  // 10 of 80 tokens' blocks in this step, 20 in all; 24 available.
  Running const running{prefill(0, 80)};
  Waiting const waiting{waits(4), waits(20)};
  auto limits = limits_of(100, 4);
  limits.max_prefill_tokens = 40;
  StepPlanner wide{limits};
  auto const plan = wide.plan(pool_of(30, 24), running, waiting);
  CHECK(plan.running[0].blocks == 10);
  CHECK(indices(plan.admitted) == Ints{0});
  auto const roomy = wide.plan(pool_of(30, 26), running, waiting);
  CHECK(indices(roomy.admitted) == Ints{0, 1});
}

TEST_CASE("a prompt is admitted when all of it fits, not just its first part", "[admission]") {
  StepPlanner planner{limits_of(8, 4)};
  CHECK(planner.plan(pool_of(30, 19), {}, Waiting{waits(80)}).outcome == StepOutcome::blocked);
  CHECK(planner.plan(pool_of(30, 20), {}, Waiting{waits(80)}).outcome == StepOutcome::run);
}

TEST_CASE("the watermark counts only beside something else", "[admission]") {
  auto limits = limits_of(100, 4);
  limits.watermark = 0.2;
  StepPlanner planner{limits};  // 4 of 20 blocks
  CHECK(planner.plan(pool_of(20, 20), {}, Waiting{waits(80)}).admitted.size() == 1);
  CHECK(planner.plan(pool_of(20, 18), Running{decode(7)}, Waiting{waits(56)}).admitted.size() == 1);
  CHECK(planner.plan(pool_of(20, 18), Running{decode(7)}, Waiting{waits(57)}).admitted.empty());
  // The first one runs alone, the second beside it.
  CHECK(planner.plan(pool_of(20, 20), {}, Waiting{waits(40), waits(24)}).admitted.size() == 2);
  CHECK(planner.plan(pool_of(20, 20), {}, Waiting{waits(40), waits(25)}).admitted.size() == 1);
  limits.watermark_blocks = 5;  // the larger one counts
  StepPlanner more{limits};
  CHECK(more.plan(pool_of(20, 18), Running{decode(7)}, Waiting{waits(56)}).admitted.empty());
  CHECK(more.plan(pool_of(20, 18), Running{decode(7)}, Waiting{waits(52)}).admitted.size() == 1);
}

TEST_CASE("nobody is admitted when somebody was preempted or found no block", "[admission]") {
  StepPlanner planner{limits_of(100, 8)};
  // Request 0 needs a block; request 1 gives back 12.
  auto const preempting =
      planner.plan(pool_of(20, 0), Running{decode(8), decode(47)}, Waiting{waits(4)});
  CHECK(list(preempting.preempted) == Ints{1});
  CHECK(preempting.admitted.empty());
  // Request 1 needs nothing, request 0 waits for a block.
  auto const waiting =
      planner.plan(pool_of(20, 0, 1), Running{decode(8), decode(47)}, Waiting{waits(1)});
  CHECK(list(waiting.stalled) == Ints{0});
  CHECK(waiting.admitted.empty());
  // One block is there and request 0 needs two; no request takes the one.
  RunningRequest copying = decode(8);
  copying.tail_copy = TailCopy::always;
  auto const short_of_one =
      planner.plan(pool_of(20, 1), Running{copying, prefill(6, 6)}, Waiting{waits(4)});
  CHECK(list(short_of_one.preempted) == Ints{1});
  CHECK(short_of_one.admitted.empty());
  auto const alone = planner.plan(pool_of(20, 1), Running{copying}, Waiting{waits(4)});
  CHECK(list(alone.stalled) == Ints{0});
  CHECK(alone.admitted.empty());
}

TEST_CASE("a small request passes a large one that doesn't fit now", "[overtaking]") {
  StepPlanner planner{limits_of(100, 8)};
  auto const plan = planner.plan(pool_of(20, 9), Running{decode(43)},
                                 Waiting{waits(8), waits(60), waits(8), waits(52), waits(9)});
  CHECK(indices(plan.admitted) == Ints{0, 2, 4});
  REQUIRE(plan.passed.size() == 2);
  CHECK(plan.passed[0] == kv::Passed{1, 2});
  CHECK(plan.passed[1] == kv::Passed{3, 1});
}

TEST_CASE("a large request is passed at most max_overtaking times", "[overtaking]") {
  auto limits = limits_of(100, 64);
  limits.max_overtaking = 5;
  StepPlanner planner{limits};
  Waiting waiting{waits(60)};
  for (int i = 0; i < 9; ++i) waiting.push_back(waits(4));
  auto const first = planner.plan(pool_of(20, 9), Running{decode(43)}, waiting);
  CHECK(indices(first.admitted) == Ints{1, 2, 3, 4, 5});
  REQUIRE(first.passed.size() == 1);
  CHECK(first.passed[0] == kv::Passed{0, 5});
  waiting[0].overtaken = 5;
  CHECK(planner.plan(pool_of(20, 9), Running{decode(43)}, waiting).admitted.empty());
  waiting[0].overtaken = 3;
  CHECK(planner.plan(pool_of(20, 9), Running{decode(43)}, waiting).admitted.size() == 2);
  // Those before it in the queue don't pass it.
  std::swap(waiting[0], waiting[4]);
  CHECK(planner.plan(pool_of(20, 9), Running{decode(43)}, waiting).admitted.size() == 6);
}

TEST_CASE("a request that was passed often enough stops nobody for ever", "[overtaking]") {
  auto limits = limits_of(100, 64);
  limits.max_overtaking = 0;
  limits.admission_window = 2;
  StepPlanner planner{limits};
  // Nothing runs, and yet 11 blocks of 20 aren't there: something else holds them. One that fits
  // is found even beyond the window.
  Waiting const waiting{waits(60), waits(61), waits(62), waits(4), waits(4)};
  CHECK(indices(planner.plan(pool_of(20, 9), {}, waiting).admitted) == Ints{3});
  CHECK(planner.plan(pool_of(20, 9, 1), {}, waiting).outcome == StepOutcome::wait);
  CHECK(planner.plan(pool_of(20, 0), {}, waiting).outcome == StepOutcome::blocked);
}

TEST_CASE("a step looks at admission_window waiting requests", "[overtaking][cost]") {
  auto limits = limits_of(100, 64);
  limits.admission_window = 3;
  StepPlanner planner{limits};
  Waiting waiting(3, waits(60));
  waiting.push_back(waits(4));
  CHECK(planner.plan(pool_of(20, 9), Running{decode(43)}, waiting).admitted.empty());
  waiting.erase(waiting.begin());
  CHECK(planner.plan(pool_of(20, 9), Running{decode(43)}, waiting).admitted.size() == 1);
}

TEST_CASE("a prefill shrinks before anybody is preempted", "[shrink]") {
  StepPlanner planner{limits_of(100, 8)};
  auto const plan = planner.plan(pool_of(20, 2), Running{prefill(6, 60), decode(5)}, {});
  CHECK(plan.preempted.empty());
  CHECK(indices(plan.running) == Ints{1, 0});
  CHECK(plan.running[1].query == kv::TokenRange{6, 10});  // two left in its block, two blocks
  CHECK(plan.running[1].blocks == 2);
}

TEST_CASE("a decode drops lookahead and drafts before anybody is preempted", "[shrink]") {
  StepPlanner planner{limits_of(100, 8)};
  RunningRequest speculating = decode(6);
  speculating.tokens += 3;
  speculating.drafts = 3;
  speculating.lookahead = 4;
  auto const none = planner.plan(pool_of(20, 0), Running{speculating, decode(5)}, {});
  CHECK(none.preempted.empty());
  CHECK(none.running[0].query == kv::TokenRange{6, 2});
  CHECK(none.running[0].lookahead == 0);
  auto const one = planner.plan(pool_of(20, 1), Running{speculating, decode(5)}, {});
  CHECK(one.running[0].query == kv::TokenRange{6, 4});
  CHECK(one.running[0].lookahead == 2);
}

TEST_CASE("nothing is reserved beyond max_sequence_tokens", "[demand]") {
  StepPlanner planner{limits_of(100, 8)};
  RunningRequest speculating = decode(6);
  speculating.tokens += 3;
  speculating.drafts = 3;
  speculating.lookahead = 4;
  auto pool = pool_of(20, 10);
  pool.max_sequence_tokens = 9;
  WaitingRequest waiting = waits(8);
  waiting.lookahead = 5;
  auto const plan = planner.plan(pool, Running{speculating}, Waiting{waiting});
  CHECK(plan.running[0].query == kv::TokenRange{6, 3});
  CHECK(plan.running[0].lookahead == 0);
  REQUIRE(plan.admitted.size() == 1);
  CHECK(plan.admitted[0].reserve == 9);
}

TEST_CASE("lookahead of an admission takes what the room allows", "[demand]") {
  StepPlanner planner{limits_of(100, 8)};
  WaitingRequest waiting = waits(6);
  waiting.lookahead = 9;
  auto const plenty = planner.plan(pool_of(20, 4), {}, Waiting{waiting});
  CHECK(plenty.admitted[0].reserve == 15);
  CHECK(plenty.admitted[0].blocks == 4);
  auto const scarce = planner.plan(pool_of(20, 3), {}, Waiting{waiting});
  CHECK(scarce.admitted[0].reserve == 12);
  CHECK(scarce.admitted[0].lookahead == 6);
  CHECK(scarce.admitted[0].blocks == 3);
}

TEST_CASE("incoming blocks are waited for, and nobody is preempted", "[incoming]") {
  StepPlanner planner{limits_of(100, 8)};
  Running const running{decode(8), decode(6)};
  auto const wait = planner.plan(pool_of(20, 0, 1), running, {});
  CHECK(wait.outcome == StepOutcome::run);
  CHECK(indices(wait.running) == Ints{1});
  CHECK(list(wait.stalled) == Ints{0});
  CHECK(wait.preempted.empty());
  CHECK(list(planner.plan(pool_of(20, 0, 0), running, {}).preempted) == Ints{1});
  CHECK(planner.plan(pool_of(20, 0, 1), Running{decode(8)}, {}).outcome == StepOutcome::wait);
}

TEST_CASE("incoming blocks are promised once", "[incoming]") {
  StepPlanner planner{limits_of(100, 8)};
  // Two need a block each, one comes back: the second one has to make room.
  Running const running{decode(8), decode(12), decode(6)};
  auto const plan = planner.plan(pool_of(20, 0, 1), running, {});
  CHECK(list(plan.stalled) == Ints{0});
  CHECK(list(plan.preempted) == Ints{2});
  CHECK(indices(plan.running) == Ints{1});
  CHECK(planner.plan(pool_of(20, 0, 2), running, {}).preempted.empty());
  // A promise can be in part of what is available: request 0 needs two blocks and waits for one.
  RunningRequest copying = decode(8);
  copying.tail_copy = TailCopy::always;
  auto const part = planner.plan(pool_of(20, 1, 1), Running{copying, decode(12), decode(6)}, {});
  CHECK(list(part.stalled) == Ints{0});
  CHECK(list(part.preempted) == Ints{2});
  CHECK(indices(part.running) == Ints{1});
}

TEST_CASE("with deferred reclaim a victim's blocks are waited for", "[incoming]") {
  StepPlanner planner{limits_of(100, 8)};
  auto pool = pool_of(20, 0);
  pool.deferred_reclaim = true;
  // The first victim's blocks cover both.
  Running const running{decode(8), decode(12), decode(7)};
  auto const plan = planner.plan(pool, running, {});
  CHECK(list(plan.preempted) == Ints{2});
  CHECK(list(plan.stalled) == Ints{0, 1});
  CHECK(plan.outcome == StepOutcome::wait);
}

TEST_CASE("the victim is the cheapest to recompute", "[victim]") {
  StepPlanner planner{limits_of(100, 8)};
  Running running{decode(8), decode(42), decode(17), decode(30)};
  CHECK(list(planner.plan(pool_of(40, 0), running, {}).preempted) == Ints{2});
  // Shared tokens cost nothing to recompute.
  running[1].unshared_tokens = 3;
  running[1].unshared_blocks = 1;
  CHECK(list(planner.plan(pool_of(40, 0), running, {}).preempted) == Ints{1});
  // A request that frees nothing is of no use.
  running[1].unshared_tokens = 0;
  running[1].unshared_blocks = 0;
  CHECK(list(planner.plan(pool_of(40, 0), running, {}).preempted) == Ints{2});
  // A tie goes to the latest arrival.
  running[3] = running[2];
  CHECK(list(planner.plan(pool_of(40, 0), running, {}).preempted) == Ints{3});
}

TEST_CASE("the request being served is no victim, however cheap", "[victim]") {
  StepPlanner planner{limits_of(100, 8)};
  Running running{decode(4), decode(42), decode(18)};
  running[0].unshared_tokens = 0;
  auto const plan = planner.plan(pool_of(40, 0), running, {});
  CHECK(list(plan.preempted) == Ints{2});
  CHECK(indices(plan.running) == Ints{0, 1});
}

TEST_CASE("a request that runs is never preempted in the same step", "[victim]") {
  StepPlanner planner{limits_of(100, 8)};
  // Request 0 runs in its own block; request 1 needs one and finds none to take it from.
  auto const plan = planner.plan(pool_of(4, 0), Running{decode(5), decode(8)}, {});
  CHECK(indices(plan.running) == Ints{0});
  CHECK(list(plan.stalled) == Ints{1});
  CHECK(plan.preempted.empty());
}

TEST_CASE("nobody is preempted in vain", "[victim]") {
  StepPlanner planner{limits_of(100, 8)};
  Running running{decode(8), decode(17), decode(18)};
  running[0].tail_copy = TailCopy::always;  // two blocks
  for (auto* request : {&running[1], &running[2]}) request->unshared_blocks = 0;
  running[2].unshared_blocks = 1;
  auto const plan = planner.plan(pool_of(40, 0), running, {});
  CHECK(plan.preempted.empty());
  CHECK(list(plan.stalled) == Ints{0});
  CHECK(indices(plan.running) == Ints{1, 2});
}

TEST_CASE("as many are preempted as are needed", "[victim]") {
  StepPlanner planner{limits_of(100, 8)};
  Running running{decode(8), decode(17), decode(18), decode(19)};
  running[0].tail_copy = TailCopy::always;  // two blocks
  for (std::size_t i = 1; i < 4; ++i) running[i].unshared_blocks = 1;
  auto const plan = planner.plan(pool_of(40, 0), running, {});
  CHECK(list(plan.preempted) == Ints{1, 2});
  CHECK(indices(plan.running) == Ints{0, 3});
}

TEST_CASE("what can never fit is told at once", "[never]") {
  StepPlanner planner{limits_of(100, 8)};
  auto pool = pool_of(10, 1);
  pool.max_sequence_tokens = 36;
  auto const plan = planner.plan(pool, Running{decode(30), prefill(4, 50), decode(36)},
                                 Waiting{waits(41), waits(37), waits(36), waits(4)});
  CHECK(list(plan.running_never_fits) == Ints{1, 2});
  CHECK(list(plan.never_fits) == Ints{0, 1});
  CHECK(indices(plan.running) == Ints{0});
  CHECK(indices(plan.admitted) == Ints{3});
  // Told even when there is no room for any request, and then it is worth planning again.
  auto const full = planner.plan(pool_of(10, 0), {}, Waiting{waits(41)});
  CHECK(list(full.never_fits) == Ints{0});
  CHECK(full.outcome == StepOutcome::replan);
}

TEST_CASE("a prompt of all the pool's blocks fits", "[never]") {
  StepPlanner planner{limits_of(100, 8)};
  auto const plan = planner.plan(pool_of(10, 10), {}, Waiting{waits(40)});
  CHECK(indices(plan.admitted) == Ints{0});
  // Its next token doesn't.
  auto const next = planner.plan(pool_of(10, 0), Running{decode(40)}, {});
  CHECK(list(next.running_never_fits) == Ints{0});
  CHECK(next.outcome == StepOutcome::replan);
}

TEST_CASE("the blocks of a request that must end are waited for", "[never]") {
  StepPlanner planner{limits_of(100, 8)};
  auto const plan = planner.plan(pool_of(10, 0), Running{decode(8), decode(40), decode(6)}, {});
  CHECK(list(plan.running_never_fits) == Ints{1});
  CHECK(list(plan.stalled) == Ints{0});
  CHECK(plan.preempted.empty());
}

TEST_CASE("requests that only share blocks give way one by one, never the first", "[progress]") {
  StepPlanner planner{limits_of(100, 8)};
  Running running{decode(8), decode(8), decode(8)};
  for (auto& request : running) request.unshared_tokens = request.unshared_blocks = 0;
  auto const plan = planner.plan(pool_of(2, 0), Running{}, {});
  CHECK(plan.outcome == StepOutcome::idle);
  auto const first = planner.plan(pool_of(3, 0), running, {});
  CHECK(first.outcome == StepOutcome::replan);
  CHECK(list(first.preempted) == Ints{2});
  running.pop_back();
  CHECK(list(planner.plan(pool_of(3, 0), running, {}).preempted) == Ints{1});
  running.pop_back();
  CHECK(planner.plan(pool_of(3, 0), running, {}).outcome == StepOutcome::blocked);
}

TEST_CASE("a request without anything to compute isn't scheduled", "[progress]") {
  StepPlanner planner{limits_of(100, 8)};
  auto const plan = planner.plan(pool_of(10, 4), Running{prefill(8, 8)}, {});
  CHECK(plan.outcome == StepOutcome::idle);
  CHECK(plan.running.empty());
}

TEST_CASE("costs are asked for only when they matter, and once", "[cost]") {
  struct Details {
    Running const& running;
    Waiting const& waiting;
    std::vector<int> preemption_asked = std::vector<int>(8);
    std::vector<int> admission_asked = std::vector<int>(8);
    kv::PreemptionCost preemption_cost(Int i) {
      ++preemption_asked[static_cast<std::size_t>(i)];
      auto const& request = running[static_cast<std::size_t>(i)];
      return {request.unshared_tokens, request.unshared_blocks};
    }
    kv::AdmissionNumbers admission(Int i) {
      ++admission_asked[static_cast<std::size_t>(i)];
      return {0, waiting[static_cast<std::size_t>(i)].blocks_needed};
    }
  };
  auto limits = limits_of(20, 4);
  limits.admission_window = 3;
  StepPlanner planner{limits};
  Running const running{decode(8), decode(6), decode(7)};
  Waiting const waiting(5, waits(200));
  Details quiet{running, waiting};
  (void)planner.plan(pool_of(60, 2), running, waiting, quiet);
  CHECK(quiet.preemption_asked == std::vector<int>(8, 0));
  CHECK(quiet.admission_asked == std::vector<int>{1, 1, 1, 0, 0, 0, 0, 0});
  Details patient{running, waiting};
  (void)planner.plan(pool_of(60, 0, 1), running, waiting, patient);
  CHECK(patient.preemption_asked == std::vector<int>(8, 0));
  CHECK(patient.admission_asked == std::vector<int>(8, 0));  // a request found no block
  Details pressed{running, waiting};
  auto const plan = planner.plan(pool_of(60, 0), running, waiting, pressed);
  CHECK(list(plan.preempted) == Ints{1});
  CHECK(pressed.preemption_asked == std::vector<int>{1, 1, 1, 0, 0, 0, 0, 0});
  CHECK(pressed.admission_asked == std::vector<int>(8, 0));
}

TEST_CASE("limits that can't work are refused by name") {
  auto const message = [](kv::PlannerLimits const& limits) -> std::string {
    try {
      StepPlanner planner{limits};
    } catch (kv::Error const& error) {
      return error.what();
    }
    return {};
  };
  CHECK(message({}).empty());
  CHECK_THAT(message({.max_num_seqs = 0}), kv::testing::contains_text("max_num_seqs is 0"));
  CHECK_THAT(message({.max_num_batched_tokens = 64, .max_num_seqs = 65}),
             kv::testing::contains_text("is 64; it must be at least 65"));
  CHECK_THAT(message({.watermark = 1.0}), kv::testing::contains_text("watermark is 1.0"));
  CHECK_THAT(message({.watermark = -0.5}), kv::testing::contains_text("watermark"));
  CHECK_THAT(message({.admission_window = 0}), kv::testing::contains_text("admission_window"));
  CHECK_THAT(message({.max_overtaking = -1}), kv::testing::contains_text("max_overtaking"));
}

// Random states: each rule that can be read off a plan, checked from the outside.

namespace {

struct RandomState {
  kv::PlannerLimits limits;
  PoolNumbers pool;
  Running running;
  Waiting waiting;
};

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

RandomState random_state(Draw& draw) {
  RandomState state;
  Int const block_tokens = draw.one_in(4) ? draw(1, 7) : (1 << draw(0, 5));
  Int const blocks = draw.one_in(3) ? draw(1, 12) : draw(8, 300);
  auto& limits = state.limits;
  limits.max_num_seqs = draw(1, 12);
  limits.max_num_batched_tokens = limits.max_num_seqs + draw(0, draw.one_in(2) ? 6 : 200);
  limits.max_prefill_tokens = draw.one_in(2) ? 0 : draw(1, 40);
  limits.chunked_prefill = !draw.one_in(3);
  limits.watermark = draw.one_in(2) ? 0.0 : 0.01 * draw(0, 30);
  limits.watermark_blocks = draw.one_in(2) ? 0 : draw(0, 4);
  limits.admission_window = draw(1, 10);
  limits.max_overtaking = draw(0, 6);
  auto& pool = state.pool;
  pool.num_blocks = blocks;
  pool.block_tokens = block_tokens;
  pool.max_sequence_tokens = draw.one_in(2) ? 0 : draw(1, blocks * block_tokens);
  pool.deferred_reclaim = draw.one_in(3);
  Int left = blocks;
  Int const num_running = draw(0, limits.max_num_seqs);
  for (Int i = 0; i < num_running; ++i) {
    RunningRequest request;
    request.size = draw(0, std::min(left * block_tokens, 3 * left * block_tokens / 4 + 1));
    request.blocks = kv::blocks_for(request.size, block_tokens);
    request.computed = draw.one_in(4) ? draw(0, request.size) : request.size;
    if (draw.one_in(4)) request.drafts = draw(0, 5);
    if (draw.one_in(4)) request.lookahead = draw(0, 9);
    Int const to_compute = draw.one_in(3) ? draw(0, 2 * block_tokens * draw(1, 6)) : 1;
    request.tokens = request.computed + to_compute + (to_compute == 1 ? request.drafts : 0);
    request.drafts = std::min(request.drafts, std::max(0, request.tokens - request.computed - 1));
    if (request.size % block_tokens != 0 && draw.one_in(4)) {
      request.tail_copy = draw.one_in(2) ? TailCopy::always : TailCopy::unless_full;
    }
    // What is shared may be counted as held by several.
    request.unshared_blocks = draw.one_in(3) ? draw(0, request.blocks) : request.blocks;
    request.unshared_tokens = draw(0, request.unshared_blocks * block_tokens);
    left -= request.unshared_blocks;
    state.running.push_back(request);
  }
  if (draw.one_in(2)) left = std::min(left, draw(0, 3));
  pool.available_blocks = draw(0, left);
  pool.incoming_blocks = draw.one_in(2) ? 0 : draw(0, left - pool.available_blocks);
  Int const num_waiting = draw(0, 14);
  for (Int i = 0; i < num_waiting; ++i) {
    WaitingRequest request;
    request.tokens = draw(1, (draw.one_in(3) ? blocks + 2 : blocks / 4 + 1) * block_tokens);
    Int const hits = draw.one_in(2) ? 0 : draw(0, (request.tokens - 1) / block_tokens);
    request.cached_tokens = hits * block_tokens;
    Int const idle = draw(0, std::min(hits, pool.available_blocks));
    request.blocks_needed = kv::blocks_for(request.tokens, block_tokens) - hits + idle;
    if (draw.one_in(4)) request.lookahead = draw(0, 9);
    request.overtaken = draw(0, limits.max_overtaking);
    state.waiting.push_back(request);
  }
  return state;
}

bool too_large(PoolNumbers const& pool, Int tokens) {
  return kv::blocks_for(tokens, pool.block_tokens) > pool.num_blocks ||
         (pool.max_sequence_tokens > 0 && tokens > pool.max_sequence_tokens);
}

bool is_decode(RunningRequest const& request) {
  return request.tokens - request.computed <= 1 + request.drafts;
}

// Whether one token of a running request could be computed with `room` blocks.
bool one_token_fits(PoolNumbers const& pool, RunningRequest const& request, Int room) {
  if (request.tokens == request.computed) return false;
  if (too_large(pool, request.tokens - request.drafts)) return false;
  if (request.size > request.computed) return true;
  Int need = kv::blocks_for(request.computed + 1, pool.block_tokens) - request.blocks;
  if (request.tail_copy == TailCopy::always) ++need;
  if (request.tail_copy == TailCopy::unless_full && room > 0) ++need;
  return need <= room;
}

// Returns the rule that the plan breaks, or nothing.
std::string broken_rule(RandomState const& state, StepPlan const& plan) {
  auto const& [limits, pool, running, waiting] = state;
  auto const bt_ = pool.block_tokens;
  auto const at = [](auto const& items, Int i) -> auto const& {
    return items.at(static_cast<std::size_t>(i));
  };

  // Each request in one list.
  std::vector<int> seen(running.size());
  for (auto const& entry : plan.running) ++seen.at(static_cast<std::size_t>(entry.index));
  for (Int i : plan.preempted) ++seen.at(static_cast<std::size_t>(i));
  for (Int i : plan.stalled) ++seen.at(static_cast<std::size_t>(i));
  for (Int i : plan.running_never_fits) ++seen.at(static_cast<std::size_t>(i));
  for (int times : seen) {
    if (times > 1) return "a running request stands in two lists";
  }
  std::vector<int> seen_waiting(waiting.size());
  for (auto const& entry : plan.admitted) ++seen_waiting.at(static_cast<std::size_t>(entry.index));
  for (Int i : plan.never_fits) ++seen_waiting.at(static_cast<std::size_t>(i));
  for (auto const& entry : plan.passed) ++seen_waiting.at(static_cast<std::size_t>(entry.index));
  for (int times : seen_waiting) {
    if (times > 1) return "a waiting request stands in two lists";
  }

  // Order.
  Int last = -1;
  for (std::size_t i = 0; i < plan.running.size(); ++i) {
    auto const& request = at(running, plan.running[i].index);
    if (is_decode(request) != (static_cast<Int>(i) < plan.num_decodes)) return "decodes first";
    if (static_cast<Int>(i) == plan.num_decodes) last = -1;
    if (plan.running[i].index <= last) return "arrival order";
    last = plan.running[i].index;
  }
  last = -1;
  for (auto const& entry : plan.admitted) {
    if (entry.index <= last) return "queue order";
    last = entry.index;
  }

  // Budget.
  Int tokens = 0;
  for (auto const& entry : plan.running) tokens += entry.query.count;
  for (auto const& entry : plan.admitted) tokens += entry.query.count;
  if (tokens != plan.num_tokens) return "num_tokens is the sum";
  bool const alone = plan.running.empty() && plan.admitted.size() == 1 && !limits.chunked_prefill;
  if (tokens > limits.max_num_batched_tokens && !alone) return "token budget";
  if (running.size() + plan.admitted.size() > static_cast<std::size_t>(limits.max_num_seqs) &&
      !plan.admitted.empty()) {
    return "max_num_seqs";
  }

  // Queries and demands, each taken from what the plan has left.
  Int room = pool.available_blocks;
  if (!pool.deferred_reclaim) {
    for (Int i : plan.preempted) room += at(running, i).unshared_blocks;
  }
  std::vector<Int> ends;
  for (auto const& request : running) ends.push_back(request.size);
  for (auto const& entry : plan.running) {
    auto const& request = at(running, entry.index);
    Int const count = entry.query.count;
    if (entry.query.first != request.computed || count < 1) return "query starts at computed";
    if (count > request.tokens - request.computed) return "no more tokens than there are";
    if (limits.max_prefill_tokens > 0 && limits.chunked_prefill && !is_decode(request) &&
        count > limits.max_prefill_tokens) {
      return "max_prefill_tokens";
    }
    Int const end = request.size + entry.reserve;
    if (end < entry.query.end()) return "positions are reserved";
    if (pool.max_sequence_tokens > 0 && entry.reserve > 0 && end > pool.max_sequence_tokens) {
      return "max_sequence_tokens";
    }
    if (entry.reserve > 0 && end != entry.query.end() + entry.lookahead) return "lookahead";
    if (entry.lookahead > request.lookahead) return "no more lookahead than wished";
    Int need = 0;
    if (entry.reserve > 0) {
      need = kv::blocks_for(end, bt_) - request.blocks;
      if (request.tail_copy == TailCopy::always) ++need;
      if (request.tail_copy == TailCopy::unless_full && room > 0) ++need;
    }
    if (entry.blocks != need) return "the shared formula";
    if (need > room) return "blocks that aren't there";
    room -= need;
    ends.at(static_cast<std::size_t>(entry.index)) = end;
  }

  // Admissions.
  if (!plan.admitted.empty() && !(plan.preempted.empty() && plan.stalled.empty())) {
    return "no admission beside a preemption or a stall";
  }
  Int unfinished = 0;
  for (std::size_t i = 0; i < running.size(); ++i) {
    unfinished +=
        std::max(0, kv::blocks_for(running[i].tokens, bt_) - kv::blocks_for(ends[i], bt_));
  }
  for (Int i : plan.running_never_fits) {
    unfinished -= std::max(0, kv::blocks_for(at(running, i).tokens, bt_) - at(running, i).blocks);
  }
  Int const watermark =
      std::max(static_cast<Int>(limits.watermark * pool.num_blocks), limits.watermark_blocks);
  for (auto const& entry : plan.admitted) {
    auto const& request = at(waiting, entry.index);
    if (entry.query.first != request.cached_tokens || entry.query.count < 1) return "hit first";
    Int const to_compute = request.tokens - request.cached_tokens;
    if (entry.query.count > to_compute) return "no more tokens than the prompt";
    if (!limits.chunked_prefill && entry.query.count != to_compute) return "whole or not at all";
    if (limits.chunked_prefill && limits.max_prefill_tokens > 0 &&
        entry.query.count > limits.max_prefill_tokens) {
      return "max_prefill_tokens of an admission";
    }
    if (entry.reserve != entry.query.end() + entry.lookahead) return "reserve of an admission";
    if (entry.lookahead > request.lookahead) return "lookahead of an admission";
    Int const whole = kv::blocks_for(request.tokens, bt_);
    Int const need =
        std::max(0, request.blocks_needed - whole + kv::blocks_for(entry.reserve, bt_));
    if (entry.blocks != need) return "the shared formula of an admission";
    room -= need;
    unfinished += std::max(0, request.blocks_needed - need);
    if (room < 0) return "blocks that aren't there, admitted";
    bool const something_else = !plan.running.empty() || entry.index != plan.admitted[0].index;
    if (room < unfinished + (something_else ? watermark : 0)) return "room for running prompts";
  }

  // Overtaking.
  bool const held_by_others = plan.running.empty() && plan.admitted.size() == 1;
  for (auto const& entry : plan.passed) {
    if (entry.by < 1 || entry.by + at(waiting, entry.index).overtaken > limits.max_overtaking) {
      return "passed too often";
    }
  }
  if (!plan.admitted.empty() && !held_by_others) {
    for (Int i = 0; i < plan.admitted.back().index; ++i) {
      if (seen_waiting.at(static_cast<std::size_t>(i)) == 0) return "passed and not told";
    }
    for (auto const& entry : plan.passed) {
      Int behind = 0;
      for (auto const& other : plan.admitted) behind += other.index > entry.index;
      if (behind > entry.by) return "passed more often than told";
    }
    if (plan.admitted.back().index >= limits.admission_window) return "admission_window";
  }

  // Preemption.
  for (Int victim : plan.preempted) {
    auto const& cost = at(running, victim);
    for (std::size_t i = 0; i < running.size(); ++i) {
      // Left over and never served: it could have been taken instead.
      if (seen[i] != 0 || running[i].unshared_blocks == 0) continue;
      auto const key = std::pair{cost.unshared_tokens, -victim};
      if (std::pair{running[i].unshared_tokens, -static_cast<Int>(i)} < key) {
        return "a cheaper victim was there";
      }
    }
  }
  if (!plan.preempted.empty() && plan.outcome != StepOutcome::replan) {
    Int most = 0;
    for (auto const& request : running) {
      if (request.tokens > request.computed) {
        most +=
            std::max(0, kv::blocks_for(request.tokens + request.lookahead, bt_) - request.blocks) +
            1;
      }
    }
    if (most <= pool.available_blocks + pool.incoming_blocks) return "preempted without need";
  }

  // never_fits.
  for (Int i : plan.never_fits) {
    if (!too_large(pool, at(waiting, i).tokens)) return "never_fits, but it fits";
  }
  for (auto const& entry : plan.admitted) {
    if (too_large(pool, at(waiting, entry.index).tokens)) return "admitted, but it never fits";
  }
  bool const starved_step = plan.running.empty() && !plan.admitted.empty();
  for (std::size_t i = 0; i < running.size() && !starved_step; ++i) {
    bool const told = std::count(plan.running_never_fits.begin(), plan.running_never_fits.end(),
                                 static_cast<Int>(i)) == 1;
    if (told != too_large(pool, running[i].tokens - running[i].drafts)) return "running_never_fits";
  }

  // Progress.
  bool const scheduled = !plan.running.empty() || !plan.admitted.empty();
  if (scheduled != (plan.outcome == StepOutcome::run)) return "run means that something runs";
  if (!scheduled) {
    // What is available may be promised to a request that waits for the rest of its need.
    Int const to_be_had = plan.outcome == StepOutcome::wait ? 0 : pool.available_blocks;
    for (std::size_t i = 0; i < running.size(); ++i) {
      bool const victim =
          std::count(plan.preempted.begin(), plan.preempted.end(), static_cast<Int>(i)) == 1;
      if (!victim && one_token_fits(pool, running[i], to_be_had)) return "one could have run";
    }
    if (plan.outcome == StepOutcome::wait && pool.incoming_blocks == 0) {
      bool const frees = pool.deferred_reclaim && !plan.preempted.empty();
      if (!frees) return "nothing to wait for";
    }
    if (plan.outcome == StepOutcome::replan && plan.preempted.empty() && plan.never_fits.empty() &&
        plan.running_never_fits.empty()) {
      return "nothing to apply";
    }
    if (plan.outcome == StepOutcome::blocked && running.empty()) {
      for (auto const& request : waiting) {
        if (!too_large(pool, request.tokens) && request.blocks_needed <= pool.available_blocks) {
          return "a waiting request could have run";
        }
      }
    }
    if (plan.outcome == StepOutcome::blocked && pool.incoming_blocks > 0) return "should wait";
    if (plan.outcome == StepOutcome::idle) {
      for (auto const& request : running) {
        if (request.tokens > request.computed) return "idle with something to compute";
      }
      if (running.empty() && !waiting.empty()) return "idle with a waiting request";
    }
  }
  return {};
}

struct PlanCopy {
  explicit PlanCopy(StepPlan const& plan)
      : outcome(plan.outcome),
        running(plan.running.begin(), plan.running.end()),
        admitted(plan.admitted.begin(), plan.admitted.end()),
        preempted(plan.preempted.begin(), plan.preempted.end()),
        passed(plan.passed.begin(), plan.passed.end()) {}
  bool operator==(PlanCopy const&) const = default;

  StepOutcome outcome;
  std::vector<kv::PlannedRequest> running;
  std::vector<kv::PlannedRequest> admitted;
  std::vector<Int> preempted;
  std::vector<kv::Passed> passed;
};

}  // namespace

TEST_CASE("every plan for a random state keeps every rule", "[property]") {
  std::map<StepOutcome, int> outcomes;
  int preemptions = 0;
  int passes = 0;
  int starved_steps = 0;
  for (std::uint64_t seed = 0; seed < 60'000; ++seed) {
    Draw draw{seed};
    auto const state = random_state(draw);
    StepPlanner planner{state.limits};
    auto const plan = planner.plan(state.pool, state.running, state.waiting);
    auto const broken = broken_rule(state, plan);
    if (!broken.empty()) {
      CAPTURE(seed, broken);
      FAIL("a rule is broken");
    }
    ++outcomes[plan.outcome];
    preemptions += !plan.preempted.empty();
    passes += !plan.passed.empty();
    starved_steps += plan.running.empty() && !plan.admitted.empty() && !state.running.empty();
    // The same planner, used, and another state in between: the same plan.
    PlanCopy const first{plan};
    auto const other = random_state(draw);
    if (static_cast<Int>(other.running.size()) <= state.limits.max_num_seqs) {
      (void)planner.plan(other.pool, other.running, other.waiting);
    }
    if (!(PlanCopy{planner.plan(state.pool, state.running, state.waiting)} == first)) {
      CAPTURE(seed);
      FAIL("a plan depends on what was planned before");
    }
  }
  // The states are worth something only if they reach all corners.
  for (auto outcome : {StepOutcome::run, StepOutcome::wait, StepOutcome::replan,
                       StepOutcome::blocked, StepOutcome::idle}) {
    CAPTURE(kv::to_string(outcome));
    CHECK(outcomes[outcome] > 300);
  }
  CHECK(preemptions > 3000);
  CHECK(passes > 1000);
  CHECK(starved_steps > 300);
}

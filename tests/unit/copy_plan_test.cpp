// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/copy_plan.hpp>

#include <cstdint>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockCopy;
using kv::BlockId;
using kv::CopyPlan;

namespace {

using Copies = std::vector<BlockCopy>;

BlockCopy copy(std::int32_t src, std::int32_t dst, std::int32_t tokens = 1) {
  return {BlockId{src}, BlockId{dst}, tokens};
}
Copies pending(CopyPlan const& plan) { return {plan.pending().begin(), plan.pending().end()}; }
Copies take(CopyPlan& plan, std::uint64_t tick) {
  auto const taken = plan.take(tick);
  return {taken.begin(), taken.end()};
}
std::vector<std::int32_t> released(CopyPlan& plan, std::uint64_t tick) {
  std::vector<std::int32_t> ends;
  plan.release(tick, [&](BlockId b) { ends.push_back(b.value()); });
  return ends;
}
std::vector<std::int32_t> held(CopyPlan const& plan) {
  std::vector<std::int32_t> ends;
  plan.for_each_taken_end([&](BlockId b) { ends.push_back(b.value()); });
  return ends;
}

}  // namespace

TEST_CASE("copy plan: each copy is handed out once") {
  CopyPlan plan(8);
  CHECK(plan.num_pending() == 0);
  plan.add(copy(0, 1, 3));
  plan.add(copy(0, 2, 2));
  CHECK(plan.num_pending() == 2);
  CHECK(take(plan, 1) == Copies{copy(0, 1, 3), copy(0, 2, 2)});
  CHECK(plan.num_pending() == 0);
  CHECK(take(plan, 1).empty());
}

TEST_CASE("copy plan: what was handed out stays readable while others are planned") {
  CopyPlan plan(8);
  plan.add(copy(0, 1, 3));
  auto const taken = plan.take(1);
  plan.add(copy(4, 5, 2));
  CHECK(taken[0] == copy(0, 1, 3));
}

TEST_CASE("copy plan: a copy is found by its destination until it is dropped") {
  CopyPlan plan(8);
  plan.add(copy(0, 1, 1));
  plan.add(copy(2, 3, 2));
  plan.add(copy(2, 4, 3));
  CHECK(plan.into(BlockId{3}) == copy(2, 3, 2));
  CHECK(plan.drop(BlockId{1}) == copy(0, 1, 1));
  CHECK(plan.num_pending() == 2);
  CHECK(plan.into(BlockId{3}) == copy(2, 3, 2));
  CHECK(plan.into(BlockId{4}) == copy(2, 4, 3));
  CHECK(plan.drop(BlockId{4}) == copy(2, 4, 3));
  CHECK(pending(plan) == Copies{copy(2, 3, 2)});
  CHECK(plan.drop(BlockId{3}) == copy(2, 3, 2));
  CHECK(take(plan, 1).empty());
}

TEST_CASE("copy plan: both ends are let go with the step that took them, and not before") {
  CopyPlan plan(8);
  plan.add(copy(0, 1));
  take(plan, 4);
  plan.add(copy(2, 3));
  take(plan, 5);
  plan.add(copy(6, 7));  // planned, not taken: never let go by a tick
  CHECK(held(plan) == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(released(plan, 3).empty());
  CHECK(released(plan, 4) == std::vector<std::int32_t>{0, 1});
  CHECK(held(plan) == std::vector<std::int32_t>{2, 3});
  CHECK(released(plan, 9) == std::vector<std::int32_t>{2, 3});
  CHECK(released(plan, 9).empty());
  CHECK(plan.num_pending() == 1);
}

TEST_CASE("copy plan: any number of copies over time, as many at once as there are blocks") {
  constexpr std::int32_t n = 5;
  CopyPlan plan(n);
  for (std::uint64_t tick = 1; tick < 50; ++tick) {
    for (std::int32_t i = 0; i < n; ++i) plan.add(copy(i, (i + 1) % n, static_cast<int>(tick)));
    auto const taken = take(plan, tick);
    REQUIRE(taken.size() == n);
    CHECK(taken.back().num_tokens == static_cast<int>(tick));
    CHECK(held(plan).size() == 2 * n);
    CHECK(released(plan, tick).size() == 2 * n);
  }
}

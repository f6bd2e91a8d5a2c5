// SPDX-License-Identifier: Apache-2.0
#include "samples/block_sum.cuh"

#include <vector>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;
using samples::SumBug;

namespace {

template <SumBug bug>
emulated::Result sum_blocks(int seed) {
  int const n = 3 * samples::sum_threads + 37 + seed;
  std::vector<float> in(static_cast<std::size_t>(n));
  std::vector<float> want(4, 0.0F);
  for (int i = 0; i < n; ++i) {
    auto const at = static_cast<std::size_t>(i);
    in[at] = static_cast<float>((i * 37 + seed) % 101 - 50);
    want[at / samples::sum_threads] += in[at];  // small integers: exact in any order
  }
  emulated::DeviceBuffer<float> const numbers(in, "in");
  emulated::DeviceBuffer<float> out(4, "out");
  auto const error = launch(samples::block_sum<bug>, 4, samples::sum_threads, samples::sum_threads,
                            nullptr, numbers.data(), out.data(), n);
  return emulated::judge(error, out.copy() == want);
}

}  // namespace

TEST_CASE("A right block sum is right under every schedule", "[emulated]") {
  auto const found = emulated::try_all_schedules(sum_blocks<SumBug::none>);
  INFO(found.text());
  CHECK(found.runs == 4 * emulated::num_seeds);
  CHECK(found.clean());
}

TEST_CASE("A missing barrier after the cells are filled is seen", "[emulated]") {
  auto const found =
      emulated::try_schedule(emulated::Schedule::random, sum_blocks<SumBug::no_first_barrier>);
  INFO(found.text());
#if PAGEDKV_UNDER_TSAN
  CHECK(found.races > 0);
  CHECK_THAT(found.race_place, contains_text("block_sum.cuh:"));
#else
  CHECK(found.wrong == found.runs);
#endif
}

TEST_CASE("A missing barrier in the loop is seen", "[emulated]") {
  auto const found =
      emulated::try_schedule(emulated::Schedule::random, sum_blocks<SumBug::no_loop_barrier>);
  INFO(found.text());
#if PAGEDKV_UNDER_TSAN
  CHECK(found.races > 0);
  CHECK_THAT(found.race_place, contains_text("block_sum.cuh:"));
#else
  CHECK(found.wrong == found.runs);
#endif
}

TEST_CASE("A barrier in both branches is a fault with its line", "[emulated]") {
  auto const found = emulated::try_all_schedules(sum_blocks<SumBug::divergent_barrier>);
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("block_sum.cuh:"));
  CHECK_THAT(found.faults[0], contains_text("threads of one block meet in different barriers"));
}

TEST_CASE("A barrier that some threads never reach is a fault with its line", "[emulated]") {
  auto const found = emulated::try_all_schedules(sum_blocks<SumBug::barrier_after_return>);
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("block_sum.cuh:"));
  CHECK_THAT(found.faults[0],
             contains_text("a barrier that some threads of the block never reach"));
}

TEST_CASE("Cells of shared memory that nobody filled are NaN", "[emulated]") {
  auto const found = emulated::try_all_schedules(sum_blocks<SumBug::not_filled>);
  INFO(found.text());
  CHECK(found.wrong == found.runs);
}

#if PAGEDKV_UNDER_ASAN
TEST_CASE("Accesses past the end of shared memory are reported with their line", "[emulated]") {
  auto const read = emulated::death_of([] { sum_blocks<SumBug::shared_read_past_end>(1); });
  CHECK_THAT(read, contains_text("block_sum.cuh:"));
  auto const write = emulated::death_of([] { sum_blocks<SumBug::shared_write_past_end>(1); });
  CHECK_THAT(write, contains_text("block_sum.cuh:"));
  auto const dynamic = emulated::death_of([] { sum_blocks<SumBug::dynamic_write_past_end>(1); });
  CHECK_THAT(dynamic, contains_text("AddressSanitizer"));
  CHECK_THAT(dynamic, contains_text("block_sum.cuh:"));
}
#else
TEST_CASE("A read past the end of shared memory gives NaN", "[emulated]") {
  auto const found = emulated::try_all_schedules(sum_blocks<SumBug::shared_read_past_end>);
  INFO(found.text());
  CHECK(found.wrong == found.runs);
}

TEST_CASE("A write past the end of shared memory is a fault", "[emulated]") {
  auto const fixed = emulated::try_all_schedules(sum_blocks<SumBug::shared_write_past_end>);
  INFO(fixed.text());
  CHECK(fixed.faulted == fixed.runs);
  auto const dynamic = emulated::try_all_schedules(sum_blocks<SumBug::dynamic_write_past_end>);
  INFO(dynamic.text());
  CHECK(dynamic.faulted == dynamic.runs);
  REQUIRE(!dynamic.faults.empty());
  CHECK_THAT(dynamic.faults[0], contains_text("past the end of a shared variable of 128 bytes"));
}
#endif

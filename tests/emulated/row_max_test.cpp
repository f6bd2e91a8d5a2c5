// SPDX-License-Identifier: Apache-2.0
#include "samples/row_max.cuh"

#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;
using samples::RowMaxBug;

namespace {

template <RowMaxBug bug>
emulated::Result largest_of_rows(int seed) {
  constexpr int num_rows = 7;
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<int> offsets{0};
  std::vector<int> values;
  std::vector<int> want;
  for (int r = 0; r < num_rows; ++r) {
    int largest = -1;
    for (auto n = r == 2 ? 0U : random() % 90; n > 0; --n) {
      values.push_back(static_cast<int>(random() % 100000));
      largest = std::max(largest, values.back());
    }
    offsets.push_back(static_cast<int>(values.size()));
    want.push_back(largest);
  }
  emulated::DeviceBuffer<int> const starts(offsets, "offsets");
  emulated::DeviceBuffer<int> const numbers(values, "values");
  emulated::DeviceBuffer<int> out(num_rows, "out");
  emulated::DeviceBuffer<unsigned> count(std::vector<unsigned>{0}, "count");
  auto const error = launch(samples::row_max<bug>, 2, 128, 0, nullptr, starts.data(),
                            numbers.data(), out.data(), count.data(), num_rows, 20);
  return emulated::judge(error, out.copy() == want && count[0] == values.size());
}

}  // namespace

TEST_CASE("Rows of any length have their maximum under every schedule", "[emulated]") {
  auto const found = emulated::try_all_schedules(largest_of_rows<RowMaxBug::none>);
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("Lanes may leave behind the ballot that makes the mask", "[emulated]") {
  auto const found = emulated::try_all_schedules(largest_of_rows<RowMaxBug::none_with_exits>);
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("A shuffle that reads a lane that has ended is a fault with its line", "[emulated]") {
  auto const found = emulated::try_all_schedules(largest_of_rows<RowMaxBug::exited_lane>);
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("row_max.cuh:"));
  CHECK_THAT(found.faults[0], contains_text("a shuffle reads lane"));
}

TEST_CASE("A shuffle in both branches is a fault with its line", "[emulated]") {
  auto const found = emulated::try_all_schedules(largest_of_rows<RowMaxBug::shuffle_in_branch>);
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("row_max.cuh:"));
  CHECK_THAT(found.faults[0], contains_text("lanes of one warp meet in different collectives"));
}

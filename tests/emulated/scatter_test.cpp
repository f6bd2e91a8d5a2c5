// SPDX-License-Identifier: Apache-2.0
#include "samples/scatter.cuh"

#include <cstring>
#include <random>
#include <vector>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;
using samples::ScatterBug;

namespace {

constexpr int row_bytes = 80;

/// Scatters rows into a pool and compares every row that was to be written. A null `slots`: some
/// that are right, and padding.
struct Scatter {
  std::int64_t num_slots;
  std::vector<std::int64_t> slots;
};

template <ScatterBug bug>
emulated::Result scatter_rows(Scatter const& job) {
  auto const num_rows = job.slots.size();
  std::vector<std::uint8_t> rows(num_rows * row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint8_t>(i * 7 + 1);
  emulated::DeviceBuffer<std::uint8_t> const from(rows, "rows");
  emulated::DeviceBuffer<std::int64_t> const slots(job.slots, "slots");
  auto pool = emulated::DeviceBuffer<std::uint8_t>::sparse(
      static_cast<std::size_t>(job.num_slots) * row_bytes, "pool");
  auto const error = launch(
      samples::scatter<bug>, static_cast<unsigned>(num_rows), 64, 0, nullptr,
      samples::ScatterArgs{from.data(), pool.data(), slots.data(), job.num_slots, row_bytes});
  if (error != cudaSuccess) return emulated::Result::faulted;
  bool right = true;
  for (std::size_t r = 0; r < num_rows; ++r) {
    auto const slot = job.slots[r];
    if (slot < 0 || slot >= job.num_slots) continue;
    right &= std::memcmp(pool.data() + slot * row_bytes, &rows[r * row_bytes], row_bytes) == 0;
  }
  return right ? emulated::Result::right : emulated::Result::wrong;
}

Scatter some_rows(int seed) {
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  Scatter job{64, {}};
  for (std::int64_t slot = 0; slot < 64; slot += 5) {
    job.slots.push_back(random() % 4 == 0 ? -1 : slot + static_cast<std::int64_t>(random() % 5));
  }
  for (auto& slot : job.slots) slot = slot < 64 ? slot : 63;
  job.slots.back() = 64;  // one past the pool: skipped
  return job;
}

/// A pool of more than 2^31 bytes, of which one page is touched.
Scatter large_pool() {
  std::int64_t const num_slots = (std::int64_t{1} << 31) / row_bytes + 1000;
  return {num_slots, {3, num_slots - 1, num_slots / 2}};
}

}  // namespace

TEST_CASE("Rows arrive in their slots under every schedule, padding nowhere", "[emulated]") {
  auto const found = emulated::try_all_schedules(
      [](int seed) { return scatter_rows<ScatterBug::none>(some_rows(seed)); });
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("A pool larger than 2^31 bytes is written where it should be", "[emulated]") {
  auto const found =
      emulated::try_all_schedules([](int) { return scatter_rows<ScatterBug::none>(large_pool()); });
  INFO(found.text());
  CHECK(found.clean());
}

#if PAGEDKV_UNDER_TSAN
TEST_CASE("Two blocks that write one cell are a race", "[emulated]") {
  auto const found = emulated::try_all_schedules([](int) {
    return scatter_rows<ScatterBug::two_blocks_one_cell>({64, {1, 2, 3, 4}});
  });
  INFO(found.text());
  CHECK(found.races > 0);
  CHECK_THAT(found.race_place, contains_text("scatter.cuh:"));
}
#elif PAGEDKV_UNDER_ASAN
TEST_CASE("Wild writes are reported with their line", "[emulated]") {
  auto const offset =
      emulated::death_of([] { scatter_rows<ScatterBug::offset_of_32_bits>(large_pool()); });
  CHECK_THAT(offset, contains_text("scatter.cuh:"));
  auto const padding = emulated::death_of([] {
    scatter_rows<ScatterBug::unchecked_slot>({64, {1, -1}});
  });
  CHECK_THAT(padding, contains_text("scatter.cuh:"));
  auto const past = emulated::death_of([] {
    scatter_rows<ScatterBug::unchecked_slot>({64, {1, 64}});
  });
  CHECK_THAT(past, contains_text("scatter.cuh:"));
}
#else
TEST_CASE("An offset of 32 bits is a fault that names the pool", "[emulated]") {
  auto const found = emulated::try_all_schedules(
      [](int) { return scatter_rows<ScatterBug::offset_of_32_bits>(large_pool()); });
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("access at byte -21474"));
  CHECK_THAT(found.faults[0], contains_text("of 'pool'"));
}

TEST_CASE("A slot that nobody checked is a fault that names the pool", "[emulated]") {
  // Right in front of the pool there is no page that faults: what is written there is found out.
  auto const padding = emulated::try_all_schedules([](int) {
    return scatter_rows<ScatterBug::unchecked_slot>({64, {1, -1}});
  });
  INFO(padding.text());
  CHECK(padding.faulted == padding.runs);
  REQUIRE(!padding.faults.empty());
  CHECK_THAT(padding.faults[0], contains_text("next to 'pool'"));

  auto const past = emulated::try_all_schedules([](int) {
    return scatter_rows<ScatterBug::unchecked_slot>({64, {1, 64}});
  });
  INFO(past.text());
  CHECK(past.faulted == past.runs);
  REQUIRE(!past.faults.empty());
  CHECK_THAT(past.faults[0], contains_text("access at byte 5120 of 'pool', which has 5120 bytes"));
}
#endif

// SPDX-License-Identifier: Apache-2.0
// What the executor promises to kernels, and what it says of those that break its rules.
#include "executor/executor.hpp"

#include <numeric>
#include <vector>

#include <pagedkv/data/cuda/device.cuh>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;

namespace {

PAGEDKV_KERNEL(64, 1) mark_threads(unsigned* cells) {
  unsigned const block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned const thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned const threads = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(&cells[block * threads + thread], 1U);
}

/// out: 16 results of every lane.
PAGEDKV_KERNEL(64, 1) use_collectives(unsigned* out) {
  auto const lane = static_cast<int>(threadIdx.x % 32);
  unsigned* const mine = out + std::size_t{threadIdx.x} * 16;
  mine[0] = static_cast<unsigned>(__shfl_sync(all_lanes, lane, 5));
  mine[1] = static_cast<unsigned>(__shfl_sync(all_lanes, lane, 9, 8));
  mine[2] = static_cast<unsigned>(__shfl_up_sync(all_lanes, lane, 3));
  mine[3] = static_cast<unsigned>(__shfl_down_sync(all_lanes, lane, 3));
  mine[4] = static_cast<unsigned>(__shfl_down_sync(all_lanes, lane, 3, 16));
  mine[5] = static_cast<unsigned>(__shfl_xor_sync(all_lanes, double{1.5} * lane, 7));
  mine[6] = __ballot_sync(all_lanes, lane % 3 == 0);
  mine[7] = static_cast<unsigned>(__any_sync(all_lanes, lane == 31));
  mine[8] = static_cast<unsigned>(__all_sync(all_lanes, lane < 31));
  mine[9] = __match_any_sync(all_lanes, lane / 8);
  mine[10] = static_cast<unsigned>(__reduce_min_sync(all_lanes, 5 - lane));
  mine[11] = __reduce_max_sync(all_lanes, static_cast<unsigned>(5 - lane));
  mine[12] = static_cast<unsigned>(__reduce_add_sync(all_lanes, lane));
  mine[13] = static_cast<unsigned>(__syncthreads_count(threadIdx.x < 40 ? 1 : 0));
  mine[14] = static_cast<unsigned>(__syncthreads_and(threadIdx.x < 40 ? 1 : 0));
  mine[15] = static_cast<unsigned>(__syncthreads_or(threadIdx.x == 63 ? 1 : 0));
}

PAGEDKV_KERNEL(64, 1) wait_for_nobody() {
  if (threadIdx.x == 3) __shfl_sync(all_lanes, 1, 0);
  if (threadIdx.x != 3) __syncthreads();
}
PAGEDKV_KERNEL(64, 1) leave_own_mask() { __ballot_sync(0xFFFEU, 1); }
PAGEDKV_KERNEL(64, 1) name_absent_lanes() { __ballot_sync(all_lanes, 1); }
PAGEDKV_KERNEL(64, 1) give_up() {
  if (threadIdx.x == 17) __trap();
}
PAGEDKV_KERNEL(64, 1) depend(int waits) {
  if (waits != 0) wait_for_previous_kernel();
  allow_next_kernel();
}
PAGEDKV_KERNEL(64, 1) note_order(int* order, int* count) {
  order[atomicAdd(count, 1)] = static_cast<int>(threadIdx.x + blockIdx.x * blockDim.x);
}
PAGEDKV_KERNEL(64, 1) add_through_last_block(int* parts, unsigned* ended, int* sum) {
  parts[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
  __threadfence();
  if (atomicAdd(ended, 1U) + 1 != gridDim.x) return;
  __threadfence();
  int total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b];
  *sum = total;
}
PAGEDKV_KERNEL(64, 1) perm(unsigned* out) {
  out[threadIdx.x] = __byte_perm(0x33221100U, 0xF7665544U, 0x1F70U + threadIdx.x);
}

std::string only_fault(cudaError_t error) {
  auto const faults = emulated::take_faults();
  if (error == cudaSuccess || faults.empty()) return {};
  return faults[0];
}

}  // namespace

TEST_CASE("Every thread of every block runs once, with its own indices", "[emulated]") {
  auto const found = emulated::try_all_schedules([](int) {
    emulated::DeviceBuffer<unsigned> cells(std::vector<unsigned>(3 * 4 * 2 * 30, 0), "cells");
    auto const error = launch(mark_threads, dim3(3, 4, 2), dim3(5, 3, 2), 0, nullptr, cells.data());
    return emulated::judge(error, cells.copy() == std::vector<unsigned>(cells.size(), 1));
  });
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("Collectives give what CUDA defines", "[emulated]") {
  emulated::DeviceBuffer<unsigned> out(64 * 16, "out");
  REQUIRE(launch(use_collectives, 1, 64, 0, nullptr, out.data()) == cudaSuccess);
  for (unsigned t = 0; t < 64; ++t) {
    unsigned const lane = t % 32;
    unsigned const* const mine = out.data() + std::size_t{t} * 16;
    CHECK(mine[0] == 5);
    CHECK(mine[1] == lane / 8 * 8 + 1);
    CHECK(mine[2] == (lane < 3 ? lane : lane - 3));
    CHECK(mine[3] == (lane > 28 ? lane : lane + 3));
    CHECK(mine[4] == (lane % 16 > 12 ? lane : lane + 3));
    CHECK(mine[5] == (lane ^ 7U) * 3 / 2);
    CHECK(mine[6] == 0x49249249U);
    CHECK(mine[7] == 1);
    CHECK(mine[8] == 0);
    CHECK(mine[9] == 0xFFU << (lane / 8 * 8));
    CHECK(static_cast<int>(mine[10]) == -26);
    CHECK(mine[11] == 0xFFFF'FFFFU);
    CHECK(mine[12] == 496);
    CHECK(mine[13] == 40);
    CHECK(mine[14] == 0);
    CHECK(mine[15] == 1);
  }
}

TEST_CASE("Schedules are different orders, and a seed repeats one", "[emulated]") {
  auto const order_of = [](emulated::Schedule schedule, std::uint64_t seed) {
    emulated::options() = {schedule, seed};
    emulated::DeviceBuffer<int> order(128, "order");
    emulated::DeviceBuffer<int> count(std::vector<int>{0}, "count");
    REQUIRE(launch(note_order, 2, 64, 0, nullptr, order.data(), count.data()) == cudaSuccess);
    return order.copy();
  };
  using emulated::Schedule;
  auto const ascending = order_of(Schedule::ascending, 1);
  std::vector<int> want(128);
  std::iota(want.begin(), want.end(), 0);
  CHECK(ascending == want);
  CHECK(order_of(Schedule::descending, 1) == std::vector<int>(want.rbegin(), want.rend()));
  auto const random = order_of(Schedule::random, 1);
  CHECK(random != ascending);
  CHECK(random == order_of(Schedule::random, 1));
  CHECK(random != order_of(Schedule::random, 2));
  auto const skewed = order_of(Schedule::warp_skew, 1);
  CHECK(skewed != random);
  CHECK(skewed[0] / 32 == skewed[31] / 32);
}

TEST_CASE("The last block sees what the others wrote before their fences", "[emulated]") {
  auto const found = emulated::try_all_schedules([](int) {
    emulated::DeviceBuffer<int> parts(9, "parts");
    emulated::DeviceBuffer<unsigned> ended(std::vector<unsigned>{0}, "ended");
    emulated::DeviceBuffer<int> sum(1, "sum");
    auto const error =
        launch(add_through_last_block, 9, 1, 0, nullptr, parts.data(), ended.data(), sum.data());
    return emulated::judge(error, sum[0] == 45);
  });
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("Configurations that no device takes are refused", "[emulated]") {
  CHECK(launch(give_up, 0, 32, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(give_up, 1, 0, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(give_up, 1, 1025, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(give_up, dim3(1, 65536), 32, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(give_up, 1, dim3(1, 1, 65), 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(give_up, 1, 32, 227 * 1024 + 1, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(emulated::take_faults().empty());
}

TEST_CASE("Threads that wait for each other for ever are a fault with both lines", "[emulated]") {
  auto const error = launch(wait_for_nobody, 1, 64, 0, nullptr);
  CHECK(error == cudaErrorLaunchFailure);
  auto const faults = emulated::take_faults();
  REQUIRE(faults.size() == 2);
  CHECK_THAT(faults[0] + faults[1], contains_text("this barrier waits for threads"));
  CHECK_THAT(faults[0] + faults[1], contains_text("this collective waits for lanes"));
  CHECK_THAT(faults[0], contains_text("executor_test.cpp:"));
}

TEST_CASE("Masks that can't be right are faults", "[emulated]") {
  CHECK_THAT(only_fault(launch(leave_own_mask, 1, 64, 0, nullptr)),
             contains_text("the calling lane is not in its mask"));
  CHECK_THAT(only_fault(launch(name_absent_lanes, 1, 48, 0, nullptr)),
             contains_text("the mask names lanes the block doesn't have"));
}

TEST_CASE("A trap is a fault of its thread", "[emulated]") {
  auto const fault = only_fault(launch(give_up, dim3(2, 1), 64, 0, nullptr));
  CHECK_THAT(fault, contains_text("__trap()"));
  CHECK_THAT(fault, contains_text("thread (17, 0, 0)"));
}

TEST_CASE("After a fault the next launch runs as if nothing had been", "[emulated]") {
  CHECK(launch(give_up, 1, 64, 0, nullptr) == cudaErrorLaunchFailure);
  CHECK(emulated::take_faults().size() == 1);
  emulated::DeviceBuffer<unsigned> cells(std::vector<unsigned>(64, 0), "cells");
  CHECK(launch(mark_threads, 1, 64, 0, nullptr, cells.data()) == cudaSuccess);
  CHECK(cells.copy() == std::vector<unsigned>(64, 1));
}

TEST_CASE("A dependent launch must wait for the kernel before it", "[emulated]") {
  CHECK(launch_dependent(depend, 2, 64, 0, nullptr, 1) == cudaSuccess);
  CHECK(launch(depend, 2, 64, 0, nullptr, 0) == cudaSuccess);
  CHECK_THAT(only_fault(launch_dependent(depend, 2, 64, 0, nullptr, 0)),
             contains_text("without wait_for_previous_kernel()"));
}

TEST_CASE("Bytes are picked as by the instruction", "[emulated]") {
  emulated::DeviceBuffer<unsigned> out(4, "out");
  REQUIRE(launch(perm, 1, 4, 0, nullptr, out.data()) == cudaSuccess);
  CHECK(out[0] == 0x11FFF700U);
  CHECK(out[3] == 0x11FFF733U);
}

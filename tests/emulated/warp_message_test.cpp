// SPDX-License-Identifier: Apache-2.0
#include "samples/warp_message.cuh"

#include <vector>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;
using samples::MessageBug;

namespace {

template <MessageBug bug>
emulated::Result rotate_warps(int seed) {
  std::vector<int> in(64);
  std::vector<int> want(64);
  for (int i = 0; i < 64; ++i) in[static_cast<std::size_t>(i)] = 1000 * seed + i * i;
  for (int i = 0; i < 64; ++i) {
    int const next = i / 32 * 32 + (i + 1) % 32;
    want[static_cast<std::size_t>(i)] = in[static_cast<std::size_t>(next)] + i % 32;
  }
  emulated::DeviceBuffer<int> const numbers(in, "in");
  emulated::DeviceBuffer<int> out(64, "out");
  auto const error = launch(samples::rotate<bug>, 1, 64, 0, nullptr, numbers.data(), out.data());
  return emulated::judge(error, out.copy() == want);
}

}  // namespace

TEST_CASE("Messages behind __syncwarp arrive under every schedule", "[emulated]") {
  auto const found = emulated::try_all_schedules(rotate_warps<MessageBug::none>);
  INFO(found.text());
  CHECK(found.clean());
}

// On the executor the shuffle happens to order the lanes: only TSan knows that it needn't.
#if PAGEDKV_UNDER_TSAN
TEST_CASE("A shuffle instead of __syncwarp is a race", "[emulated]") {
  auto const found = emulated::try_all_schedules(rotate_warps<MessageBug::no_syncwarp>);
  INFO(found.text());
  CHECK(found.races > 0);
  CHECK_THAT(found.race_place, contains_text("warp_message.cuh:"));
}
#endif

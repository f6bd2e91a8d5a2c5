// SPDX-License-Identifier: Apache-2.0
#include "samples/staged_copy.cuh"

#include <cstring>
#include <vector>

#include "catch.hpp"
#include "executor/findings.hpp"

using namespace pagedkv::cuda;
using pagedkv::testing::contains_text;
using samples::CopyBug;

namespace {

template <CopyBug bug>
emulated::Result copy_vectors(int seed) {
  int const n = 5 * samples::copy_threads + seed;
  std::vector<uint4> in;
  for (int i = 0; i < n; ++i) {
    auto const x = static_cast<unsigned>(i + 1000 * seed);
    in.push_back(make_uint4(x, x + 1, x * x, ~x));
  }
  emulated::DeviceBuffer<uint4> const from(in, "from");
  emulated::DeviceBuffer<uint4> to(in.size(), "to");
  auto const error = launch(samples::staged_copy<bug>, 2, samples::copy_threads, 0, nullptr,
                            from.data(), to.data(), n);
  return emulated::judge(error, std::memcmp(to.data(), in.data(), in.size() * sizeof(uint4)) == 0);
}

}  // namespace

TEST_CASE("Asynchronous copies behind a wait and a barrier are there", "[emulated]") {
  auto const found = emulated::try_all_schedules(copy_vectors<CopyBug::none>);
  INFO(found.text());
  CHECK(found.clean());
}

TEST_CASE("A thread that ends with copies under way is a fault at the copy", "[emulated]") {
  auto const found = emulated::try_all_schedules(copy_vectors<CopyBug::no_wait>);
  INFO(found.text());
  CHECK(found.faulted == found.runs);
  REQUIRE(!found.faults.empty());
  CHECK_THAT(found.faults[0], contains_text("staged_copy.cuh:"));
  CHECK_THAT(found.faults[0], contains_text("never waited for this asynchronous copy"));
}

TEST_CASE("What is read before its wait isn't there yet", "[emulated]") {
  auto const found = emulated::try_all_schedules(copy_vectors<CopyBug::waits_too_little>);
  INFO(found.text());
  CHECK(found.wrong == found.runs);
}

TEST_CASE("A wait doesn't replace a barrier", "[emulated]") {
  auto const found =
      emulated::try_schedule(emulated::Schedule::random, copy_vectors<CopyBug::no_barrier>);
  INFO(found.text());
#if PAGEDKV_UNDER_TSAN
  CHECK(found.races > 0);
#else
  CHECK(found.wrong == found.runs);
#endif
}

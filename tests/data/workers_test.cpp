// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include <pagedkv/data/cpu/workers.hpp>
#include <pagedkv/error.hpp>

#include "catch.hpp"

namespace kv = pagedkv;
using pagedkv::cpu::Workers;

TEST_CASE("every index is visited once, whatever the number of threads") {
  for (std::int32_t const threads : {1, 2, 5}) {
    Workers workers(threads);
    CHECK(workers.num_threads() == threads);
    for (std::int64_t const count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      workers.parallel_for(count, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
      for (auto const& v : visits) CHECK(v == 1);
    }
  }
}

TEST_CASE("many short loops end, and the caller sees what was written") {
  Workers workers(3);
  std::vector<std::int64_t> values(16);
  for (std::int64_t round = 0; round < 3000; ++round) {
    workers.parallel_for(16, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += i; });
  }
  for (std::size_t i = 0; i < 16; ++i) CHECK(values[i] == static_cast<std::int64_t>(i) * 3000);
}

TEST_CASE("scratch is as large as asked for and aligned") {
  Workers workers(2, 1000);
  CHECK(workers.scratch().size() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(workers.scratch().data()) % 64 == 0);
}

TEST_CASE("workers without a thread are refused") { CHECK_THROWS_AS(Workers(0), kv::Error); }

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

RunResult updates_of(int seed, std::int32_t columns) {
  std::mt19937 random(static_cast<unsigned>(seed));
  constexpr std::int32_t rows = 9;
  std::int64_t const stride = columns + 3;
  std::vector<std::int32_t> want(static_cast<std::size_t>(rows * stride));
  for (auto& block : want) block = static_cast<std::int32_t>(random() % 1000);
  DeviceBuffer<std::int32_t> table(want, "table");
  auto const at = [&](std::int32_t row, std::int64_t column) -> std::int32_t& {
    return want[static_cast<std::size_t>(row * stride + column)];
  };

  // Chains: a row that moved is overwritten, and one that was overwritten moves.
  std::vector<RowMove> moves = {{8, 2}, {7, 8}, {2, 7}, {6, 2}};
  for (RowMove const m : moves) {
    for (std::int32_t c = 0; c < columns; ++c) at(m.to, c) = at(m.from, c);
  }
  std::vector<RowChange> changes;
  for (std::int32_t row = 0; row < rows; ++row) {
    for (std::int32_t c = 0; c < columns; c += 1 + static_cast<std::int32_t>(random() % 9)) {
      changes.push_back({row, c, static_cast<std::int32_t>(random() % 1000)});
      at(row, c) = changes.back().block;
    }
  }
  moves.push_back({-1, 3});
  moves.push_back({3, rows});
  changes.push_back({-1, 0, 5});
  changes.push_back({rows, 0, 5});
  changes.push_back({0, columns, 5});
  changes.push_back({0, -1, 5});
  DeviceBuffer<RowMove> const device_moves(moves, "moves");
  DeviceBuffer<RowChange> const device_changes(changes, "changes");
  auto const error =
      cuda::update_tables({table.data(), stride, rows, columns},
                          {device_moves.data(), static_cast<std::int32_t>(moves.size()),
                           device_changes.data(), static_cast<std::int32_t>(changes.size())},
                          nullptr);
  finish();
  return judge(error, table.copy() == want);
}

}  // namespace

TEST_CASE("row moves in order, then changes; padding does nothing") {
  for (std::int32_t const columns : {1, 31, 128, 129, 300}) {
    auto const findings = try_orders([&](int seed) { return updates_of(seed, columns); });
    INFO(columns << " columns: " << findings.text());
    CHECK(findings.clean());
  }
}

TEST_CASE("no updates, no table") {
  CHECK(cuda::update_tables({}, {}, nullptr) == cuda::cudaSuccess);
  CHECK(cuda::update_tables({nullptr, 4, 1, 4}, {nullptr, 1, nullptr, 0}, nullptr) ==
        cuda::cudaErrorInvalidValue);
  std::int32_t cells[4] = {};
  CHECK(cuda::update_tables({cells, 2, 1, 4}, {}, nullptr) == cuda::cudaErrorInvalidValue);
}

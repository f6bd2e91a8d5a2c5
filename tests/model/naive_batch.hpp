// SPDX-License-Identifier: Apache-2.0
/// \file
/// The step's batch with paper and pencil: which sequence stands in which row, and what a
/// device that follows moves and changes has in its table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/step/batch.hpp>

#include "check.hpp"

namespace pagedkv::testing {

struct NaiveEntry {
  std::uint64_t uid = 0;
  TokenRange query;
  int length = 0;
  bool gone = false;
};

class NaiveBatch {
 public:
  void configure(BatchLimits const& limits, int table_width) {
    limits_ = limits;
    width = table_width;
    table.assign(std::size_t(limits.max_sequences) * std::size_t(width), 0);
  }

  int width = 0;
  std::vector<NaiveEntry> entries;
  std::vector<int> table;  ///< on the device, [max_sequences, width]
  int num_tokens = 0;
  int undelivered_moves = 0;

  [[nodiscard]] int num_sequences() const { return int(entries.size()); }
  [[nodiscard]] int row_of(std::uint64_t uid) const {
    for (std::size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].uid == uid && !entries[e].gone) return int(e);
    }
    return -1;
  }

  /// The sequence was destroyed; its entry goes at the next occasion.
  void gone(std::uint64_t uid) {
    for (auto& e : entries) e.gone = e.gone || e.uid == uid;
  }
  void drop_gone() {
    for (std::size_t e = entries.size(); e-- > 0;) {
      if (entries[e].gone) erase(e);
    }
  }
  void begin_step() {
    drop_gone();
    for (auto& e : entries) e.query.count = 0;
    num_tokens = 0;
  }
  /// The row, or -1 for batch_full.
  int add(std::uint64_t uid, int num_blocks, TokenRange query) {
    int row = row_of(uid);
    int const before = row >= 0 ? entries[std::size_t(row)].query.count : 0;
    if (num_tokens - before + query.count > limits_.max_tokens) return -1;
    if (num_blocks > width) return -1;
    if (row < 0) {
      if (num_sequences() == limits_.max_sequences) drop_gone();
      if (num_sequences() == limits_.max_sequences) return -1;
      row = num_sequences();
      entries.push_back({uid, {}, 0, false});
    }
    entries[std::size_t(row)].query = query;
    entries[std::size_t(row)].length = query.end();
    num_tokens += query.count - before;
    return row;
  }
  bool remove(std::uint64_t uid) {
    int const row = row_of(uid);
    if (row < 0) return false;
    erase(std::size_t(row));
    return true;
  }
  [[nodiscard]] bool moves_were_lost() const { return undelivered_moves > limits_.max_sequences; }

  // The device's side.
  void move_row(RowMove const& move) {
    expect(in_table(move.from) && in_table(move.to), "a row move names a row beyond the table");
    std::copy_n(table.begin() + std::ptrdiff_t(move.from) * width, width,
                table.begin() + std::ptrdiff_t(move.to) * width);
  }
  void change(RowChange const& c) {
    expect(in_table(c.row) && c.column >= 0 && c.column < width, "a change beyond the table");
    table[std::size_t(c.row) * std::size_t(width) + std::size_t(c.column)] = c.block;
  }
  /// Row `row` has these blocks, and 0 after them.
  void expect_row(int row, std::vector<int> const& blocks) const {
    for (int j = 0; j < width; ++j) {
      int const want = j < int(blocks.size()) ? blocks[std::size_t(j)] : 0;
      int const got = table[std::size_t(row) * std::size_t(width) + std::size_t(j)];
      if (got != want) {
        mismatch("device table, row ", row, " column ", j, ": ", got, ", should be ", want);
      }
    }
  }

 private:
  [[nodiscard]] bool in_table(int row) const { return row >= 0 && row < limits_.max_sequences; }
  void erase(std::size_t e) {
    num_tokens -= entries[e].query.count;
    if (e + 1 != entries.size()) {
      entries[e] = entries.back();
      ++undelivered_moves;
    }
    entries.pop_back();
  }

  BatchLimits limits_;
};

}  // namespace pagedkv::testing

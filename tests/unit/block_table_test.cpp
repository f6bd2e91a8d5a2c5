// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/block_table.hpp>

#include <algorithm>
#include <utility>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;

TEST_CASE("block tables: rows lie apart, each of the full width") {
  kv::BlockTables tables(3, 5);
  CHECK(tables.width() == 5);
  for (std::int32_t r = 0; r < 3; ++r) std::fill_n(tables.row(r), 5, BlockId{r});
  for (std::int32_t r = 0; r < 3; ++r) {
    CHECK(std::count(tables.row(r), tables.row(r) + 5, BlockId{r}) == 5);
  }
}

TEST_CASE("block tables: the address of a row never changes") {
  kv::BlockTables tables(2, 4);
  BlockId* const before = tables.row(1);
  std::fill_n(tables.row(0), 4, BlockId{9});
  CHECK(tables.row(1) == before);
  CHECK(std::as_const(tables).row(1) == before);
}

TEST_CASE("block tables: no rows, and many") {
  kv::BlockTables const none(0, 8);
  CHECK(none.width() == 8);
  kv::BlockTables wide(1 << 10, 1 << 10);
  wide.row(1023)[1023] = BlockId{7};
  CHECK(wide.row(1023)[1023] == BlockId{7});
  CHECK(wide.row(1) - wide.row(0) >= 1024);
}

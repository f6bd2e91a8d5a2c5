// SPDX-License-Identifier: Apache-2.0
// The operations compiled with PAGEDKV_ASSERT_LEVEL 0: what they promise without checks.
#include "../data/data_support.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Granularity;
using pagedkv::KvFormat;

static_assert(PAGEDKV_ASSERT_LEVEL == 0);

TEST_CASE("a gather leaves rows untouched whose position or block isn't there") {
  constexpr std::int32_t heads = 2;
  constexpr std::int32_t dim = 16;
  constexpr std::int32_t block_tokens = 4;
  constexpr std::int32_t num_blocks = 3;
  constexpr auto lowest = std::numeric_limits<std::int32_t>::min();
  constexpr auto highest = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> const table = {2, -1, 0, num_blocks, highest, lowest, 1};
  auto const is_there = [&](std::int32_t position) {
    std::int32_t const column = position / block_tokens;
    return position >= 0 && (column == 0 || column == 2 || column == 6);
  };
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      kv::Geometry const g{.num_layers = 1,
                           .num_kv_heads = heads,
                           .head_dim_k = dim,
                           .head_dim_v = dim,
                           .block_tokens = block_tokens,
                           .format = format};
      kv::KvStorage const storage(g, num_blocks, {}, scales_for(g));
      std::vector<kv::Slot> slots(num_blocks * block_tokens);
      for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<kv::Slot>(i);
      Rows written({num_blocks * block_tokens, heads, dim}, 3);
      ops.write_kv(storage.view(), 0, written.rows(), written.rows(), slots);

      // From 3 before the first position to 9 behind the last one of the row.
      for (kv::TokenRange const range : {kv::TokenRange{-3, 40}, {highest - 5, 5}, {2, 4}}) {
        Rows k({range.count, heads, dim});
        Rows v({range.count, heads, dim});
        Rows expected_k({range.count, heads, dim});
        Rows expected_v({range.count, heads, dim});
        auto const& layer = storage.view().layers[0];
        for (std::int32_t i = 0; i < range.count; ++i) {
          std::int32_t const position = range.first + i;
          if (!is_there(position)) continue;
          std::int32_t const block = table[static_cast<std::size_t>(position / block_tokens)];
          for (std::int32_t h = 0; h < heads; ++h) {
            auto const of_k = read(layer.k, block, position % block_tokens, h);
            auto const of_v = read(layer.v, block, position % block_tokens, h);
            std::memcpy(expected_k.vector(i, h), of_k.data(), dim * sizeof(float));
            std::memcpy(expected_v.vector(i, h), of_v.data(), dim * sizeof(float));
          }
        }
        ops.gather_kv(storage.view(), 0, table, range, k.mutable_rows(), v.mutable_rows());
        INFO(ops.name << " " << to_string(format) << " from " << range.first);
        CHECK(k.bytes() == expected_k.bytes());
        CHECK(v.bytes() == expected_v.bytes());
      }
    }
  }
}

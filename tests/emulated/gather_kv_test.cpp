// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/gather_kv.cuh>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr std::int32_t num_blocks = 7;
constexpr std::int32_t num_heads = 2;

struct Case {
  LayerFormat format{};
  Element output = Element::f16;
  std::int32_t dim_k = 64;
  std::int32_t dim_v = 64;
  KvLayout layout{};
  std::int64_t gap = 0;
  bool is_table = false;  ///< a dense table instead of lists
};

/// Three sequences, one of them without rows, of an order of blocks of the seed's; rows behind the
/// last and rows of positions past a sequence's blocks stay as they were.
emulated::Result gathers(Case const& c, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::int32_t const block_tokens = seed % 2 == 0 ? 4 : 3;
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = num_heads,
                   .head_dim_k = c.dim_k,
                   .head_dim_v = c.dim_v,
                   .block_tokens = block_tokens,
                   .format = c.format};
  KvStorage oracle(g, num_blocks, c.layout, scales_for(g));
  std::vector<Slot> all;
  for (Slot s = 0; s < num_blocks * block_tokens; ++s) all.push_back(s);
  auto const n = static_cast<std::int64_t>(all.size());
  Rows::Shape const k_shape{n, num_heads, c.dim_k};
  Rows::Shape const v_shape{n, num_heads, std::max(c.dim_v, 1)};
  Rows k(k_shape);
  Rows v(v_shape);
  fill_rows(k, k_shape, random, 2.0F);
  fill_rows(v, v_shape, random, 5.0F);
  cpu::scalar::write_kv(oracle.view(), 0, k.rows(), v.rows(), all);

  auto const blocks = random_blocks(num_blocks, random);
  std::vector<std::int32_t> table(blocks.begin(), blocks.begin() + 6);
  std::vector<std::int32_t> const indptr = {0, 2, 2, 6};
  if (c.is_table)
    table = {blocks[0], blocks[1], -1,        99,        -1,        -1,
             -1,        -1,        blocks[2], blocks[3], blocks[4], blocks[5]};
  std::vector<std::int32_t> const first = {2, 0, 1};
  // The first sequence asks for two positions more than its blocks have.
  std::int64_t const count0 = 2 * block_tokens - 2 + 2;
  std::int64_t const count2 = 4 * block_tokens - 1;
  std::vector<std::int64_t> const offsets = {0, count0, count0, count0 + count2};
  std::int64_t const max_rows = offsets.back() + 3;

  Rows want_k({max_rows, num_heads, c.dim_k, c.output, c.gap, c.gap});
  Rows want_v({max_rows, num_heads, std::max(c.dim_v, 1), c.output, c.gap, 0});
  DeviceRows const got_k(want_k);
  DeviceRows const got_v(want_v);
  auto const gather = [&](std::vector<std::int32_t> row, TokenRange range, std::int64_t to) {
    MutableKvRows out_k = want_k.mutable_rows();
    MutableKvRows out_v = want_v.mutable_rows();
    out_k.data = want_k.vector(to, 0);
    out_v.data = want_v.vector(to, 0);
    cpu::scalar::gather_kv(oracle.view(), 0, row, range, out_k, out_v);
  };
  gather({blocks[0], blocks[1]}, {2, 2 * block_tokens - 2}, 0);
  gather({blocks[2], blocks[3], blocks[4], blocks[5]}, {1, static_cast<std::int32_t>(count2)},
         count0);

  DevicePool pool(oracle);
  emulated::DeviceBuffer<std::int32_t> const device_table(table, "table");
  emulated::DeviceBuffer<std::int32_t> const device_indptr(indptr, "indptr");
  emulated::DeviceBuffer<std::int32_t> const device_first(first, "first positions");
  emulated::DeviceBuffer<std::int64_t> const device_offsets(offsets, "row offsets");
  cuda::GatherRanges ranges;
  ranges.indices = device_table.data();
  ranges.indptr = c.is_table ? nullptr : device_indptr.data();
  ranges.table_stride = c.is_table ? 4 : 0;
  ranges.first_positions = device_first.data();
  ranges.row_offsets = device_offsets.data();
  ranges.num_sequences = 3;
  ranges.max_rows = max_rows;
  auto const error = cuda::detail::gather_kv(pool.view(), 0, ranges, got_k.mutable_rows(),
                                             got_v.mutable_rows(), nullptr);
  return emulated::judge(error, got_k.bytes() == want_k.bytes() && got_v.bytes() == want_v.bytes());
}

void check(Case const& c) {
  auto const findings = try_orders([&](int seed) { return gathers(c, seed); });
  INFO(to_string(c.format.k) << " to " << to_string(c.output) << ", dims " << c.dim_k << " and "
                             << c.dim_v << ": " << findings.text());
  CHECK(findings.clean());
}

constexpr Element outputs[] = {Element::f16, Element::bf16, Element::f32};

}  // namespace

TEST_CASE("a gather reads what the oracle reads, bit for bit") {
  for (KvFormat const format : all_formats()) {
    if (format.element == Element::f32) continue;
    for (Element const output : outputs) {
      check({.format = format, .output = output});
      check({.format = format,
             .output = output,
             .layout = {BlockOrder::hnd, PoolOrder::block_major},
             .is_table = true});
    }
    check({.format = format, .dim_k = 128, .dim_v = 256});
    check({.format = format, .dim_k = 80, .dim_v = 0});
    check({.format = format, .output = Element::f32, .dim_k = 33, .dim_v = 20});
    check({.format = format, .output = Element::bf16, .gap = 3, .is_table = true});
  }
}

TEST_CASE("K and V of different formats are gathered, each by its own") {
  check({.format = {KvFormat{Element::fp8_e4m3, Granularity::per_block_head},
                    KvFormat{Element::int4, Granularity::per_token_head}}});
}

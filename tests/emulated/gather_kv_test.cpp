// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/operations.hpp>

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

/// Three sequences, one of them without rows; rows behind the last, and rows of positions past a
/// sequence's blocks, stay as they were. What is read is found once, for every order of threads.
class Gathering {
 public:
  Gathering(Case const& c, unsigned seed)
      : block_tokens_(seed % 2 == 0 ? 4 : 3),
        geometry_{.num_layers = 1,
                  .num_kv_heads = num_heads,
                  .head_dim_k = c.dim_k,
                  .head_dim_v = c.dim_v,
                  .block_tokens = block_tokens_,
                  .format = c.format},
        oracle_(geometry_, num_blocks, c.layout, scales_for(geometry_)),
        // The first sequence asks for two positions more than its blocks have.
        offsets_{0, 2 * block_tokens_, 2 * block_tokens_, 6 * block_tokens_ - 1},
        is_table_(c.is_table),
        empty_k_({max_rows(), num_heads, c.dim_k, c.output, c.gap, c.gap}),
        empty_v_({max_rows(), num_heads, std::max(c.dim_v, 1), c.output, c.gap, 0}),
        want_k_(empty_k_),
        want_v_(empty_v_) {
    std::mt19937 random(seed);
    fill_pool(c, random);
    auto const blocks = random_blocks(num_blocks, random);
    table_.assign(blocks.begin(), blocks.begin() + 6);
    read({blocks[0], blocks[1]}, {2, 2 * block_tokens_ - 2}, 0);
    read({blocks[2], blocks[3], blocks[4], blocks[5]}, {1, 4 * block_tokens_ - 1}, offsets_[1]);
    if (c.is_table) {
      table_ = {blocks[0], blocks[1], -1,        99,        -1,        -1,
                -1,        -1,        blocks[2], blocks[3], blocks[4], blocks[5]};
    }
  }

  RunResult run() {
    DevicePool pool(oracle_);
    DeviceRows const k(empty_k_);
    DeviceRows const v(empty_v_);
    DeviceBuffer<std::int32_t> const table(table_, "table");
    DeviceBuffer<std::int32_t> const indptr(std::vector<std::int32_t>{0, 2, 2, 6}, "indptr");
    DeviceBuffer<std::int32_t> const first(std::vector<std::int32_t>{2, 0, 1}, "first positions");
    DeviceBuffer<std::int64_t> const offsets(offsets_, "row offsets");
    cuda::GatherRanges ranges;
    ranges.indices = table.data();
    ranges.indptr = is_table_ ? nullptr : indptr.data();
    ranges.table_stride = is_table_ ? 4 : 0;
    ranges.first_positions = first.data();
    ranges.row_offsets = offsets.data();
    ranges.num_sequences = 3;
    ranges.max_rows = max_rows();
    auto const error =
        cuda::gather_kv(pool.view(), 0, ranges, k.mutable_rows(), v.mutable_rows(), nullptr);
    finish();
    return judge(error, k.bytes() == want_k_.bytes() && v.bytes() == want_v_.bytes());
  }

 private:
  [[nodiscard]] std::int64_t max_rows() const { return offsets_.back() + 3; }

  void fill_pool(Case const& c, std::mt19937& random) {
    std::vector<Slot> all;
    for (Slot s = 0; s < num_blocks * block_tokens_; ++s) all.push_back(s);
    auto const n = static_cast<std::int64_t>(all.size());
    Rows::Shape const k_shape{n, num_heads, c.dim_k};
    Rows::Shape const v_shape{n, num_heads, std::max(c.dim_v, 1)};
    Rows k(k_shape);
    Rows v(v_shape);
    fill_rows(k, k_shape, random, 2.0F);
    fill_rows(v, v_shape, random, 5.0F);
    cpu::scalar::write_kv(oracle_.view(), 0, k.rows(), v.rows(), all);
  }
  /// The oracle's rows of one sequence, from row `to` on.
  void read(std::vector<std::int32_t> const& row, TokenRange range, std::int64_t to) {
    MutableKvRows k = want_k_.mutable_rows();
    MutableKvRows v = want_v_.mutable_rows();
    k.data = want_k_.vector(to, 0);
    v.data = want_v_.vector(to, 0);
    cpu::scalar::gather_kv(oracle_.view(), 0, row, range, k, v);
  }

  std::int32_t block_tokens_;
  Geometry geometry_;
  KvStorage oracle_;
  std::vector<std::int64_t> offsets_;
  bool is_table_;
  Rows empty_k_;
  Rows empty_v_;
  Rows want_k_;
  Rows want_v_;
  std::vector<std::int32_t> table_;
};

void check(Case const& c) {
  static unsigned next_seed = 1;
  Gathering gathering(c, next_seed++);
  auto const findings = try_orders([&](int) { return gathering.run(); });
  INFO(to_string(c.format.k) << " to " << to_string(c.output) << ", dims " << c.dim_k << " and "
                             << c.dim_v << ": " << findings.text());
  CHECK(findings.clean());
}

constexpr Element outputs[] = {Element::f16, Element::bf16, Element::f32};

}  // namespace

TEST_CASE("a gather reads what the oracle reads, bit for bit: every format, layout and head_dim") {
  bool is_table = false;
  for (KvFormat const format : read_formats()) {
    for (KvLayout const layout : layouts) {
      for (std::int32_t const dim : {64, 80, 128, 192, 256}) {
        for (Element const output : outputs) {
          check({.format = format,
                 .output = output,
                 .dim_k = dim,
                 .dim_v = dim,
                 .layout = layout,
                 .is_table = is_table});
          is_table = !is_table;
        }
      }
    }
  }
}

TEST_CASE("K and V of different lengths, no V, number by number") {
  for (KvFormat const format : read_formats()) {
    check({.format = format, .dim_k = 128, .dim_v = 256});
    check({.format = format, .dim_k = 80, .dim_v = 0});
    check({.format = format, .output = Element::f32, .dim_k = 33, .dim_v = 20});
    check({.format = format,
           .output = Element::bf16,
           .layout = layouts[1],
           .gap = 3,
           .is_table = true});
  }
}

TEST_CASE("K and V of different formats are gathered, each by its own") {
  check({.format = {KvFormat{Element::fp8_e4m3, Granularity::per_block_head},
                    KvFormat{Element::int4, Granularity::per_token_head}}});
}

TEST_CASE("nothing to gather launches nothing; what can't work is refused") {
  KvFormat const format{Element::fp8_e4m3, Granularity::per_token_head};
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = num_heads,
                   .head_dim_k = 64,
                   .head_dim_v = 64,
                   .block_tokens = 4,
                   .format = format};
  KvStorage storage(g, num_blocks);
  DevicePool pool(storage);
  Rows host({1, num_heads, 64, Element::f16});
  DeviceRows const rows(host);
  DeviceBuffer<std::int32_t> const table(std::vector<std::int32_t>{-1}, "table");
  DeviceBuffer<std::int64_t> const offsets(std::vector<std::int64_t>{0, 1}, "row offsets");
  auto const gather = [&](auto change) {
    KvLayer layer = pool.view().layers[0];
    KvView view = pool.view();
    MutableKvRows k = rows.mutable_rows();
    cuda::GatherRanges ranges{table.data(), nullptr, 1, nullptr, offsets.data(), 1, 1};
    change(layer, ranges, k);
    view.layers = std::span(&layer, 1);
    return cuda::gather_kv(view, 0, ranges, k, rows.mutable_rows(), nullptr);
  };
  auto const refuses = [&](auto change) { return gather(change) == cuda::cudaErrorInvalidValue; };
  using Ranges = cuda::GatherRanges;
  CHECK(gather([](KvLayer&, Ranges&, MutableKvRows&) {}) == cuda::cudaSuccess);
  CHECK(gather([](KvLayer&, Ranges& r, MutableKvRows&) { r = {}; }) == cuda::cudaSuccess);
  CHECK(refuses([](KvLayer& l, Ranges&, MutableKvRows&) { l.v.scales = nullptr; }));
  CHECK(refuses([](KvLayer& l, Ranges&, MutableKvRows&) { l.k.data = nullptr; }));
  CHECK(refuses([](KvLayer&, Ranges& r, MutableKvRows&) { r.indices = nullptr; }));
  CHECK(refuses([](KvLayer&, Ranges& r, MutableKvRows&) { r.row_offsets = nullptr; }));
  CHECK(refuses([](KvLayer&, Ranges& r, MutableKvRows&) { r.num_sequences = -1; }));
  CHECK(refuses([](KvLayer&, Ranges& r, MutableKvRows&) { r.max_rows = -1; }));
  CHECK(refuses([](KvLayer&, Ranges& r, MutableKvRows&) { r.table_stride = -1; }));
  CHECK(refuses(
      [](KvLayer&, Ranges& r, MutableKvRows&) { r.max_rows = (std::int64_t{1} << 62) + 1; }));
  CHECK(refuses([](KvLayer&, Ranges&, MutableKvRows& k) { k.element = Element::int8; }));
  CHECK(refuses([](KvLayer&, Ranges&, MutableKvRows& k) { k.data = nullptr; }));
  finish();
  CHECK(rows.bytes() == host.bytes());
}

TEST_CASE("a position before the first is nobody's, not the sequence's before") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = num_heads,
                   .head_dim_k = 64,
                   .head_dim_v = 0,
                   .block_tokens = 1,
                   .format = KvFormat{Element::f32, Granularity::none}};
  KvStorage oracle(g, num_blocks);
  Rows rows({1, num_heads, 64}, 5);
  std::vector<Slot> const slot = {3};
  cpu::scalar::write_kv(oracle.view(), 0, rows.rows(), {}, slot);
  DevicePool pool(oracle);
  Rows want({2, num_heads, 64});
  DeviceRows const out(want);
  std::memcpy(want.vector(0, 0), rows.vector(0, 0), num_heads * 64 * sizeof(float));
  DeviceBuffer<std::int32_t> const table(std::vector<std::int32_t>{3, 3}, "table");
  DeviceBuffer<std::int32_t> const first(std::vector<std::int32_t>{0, -1}, "first positions");
  DeviceBuffer<std::int64_t> const offsets(std::vector<std::int64_t>{0, 1, 2}, "row offsets");
  cuda::GatherRanges ranges{table.data(), nullptr, 1, first.data(), offsets.data(), 2, 2};
  REQUIRE(cuda::gather_kv(pool.view(), 0, ranges, out.mutable_rows(), {}, nullptr) ==
          cuda::cudaSuccess);
  finish();
  CHECK(out.bytes() == want.bytes());

  // Nor is a row beyond max_rows anybody's, whatever the offsets say.
  ranges.first_positions = nullptr;
  ranges.max_rows = 1;
  REQUIRE(cuda::gather_kv(pool.view(), 0, ranges, out.mutable_rows(), {}, nullptr) ==
          cuda::cudaSuccess);
  finish();
  CHECK(out.bytes() == want.bytes());
}

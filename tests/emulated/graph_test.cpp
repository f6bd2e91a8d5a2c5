// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "cuda_objects.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr std::int32_t num_blocks = 6;
constexpr std::int32_t heads = 2;
constexpr std::int32_t dim = 64;
constexpr std::int32_t step_tokens = 6;  // some of them padding
constexpr std::int32_t table_columns = 4;

/// What changes from step to step; the graph holds the addresses.
struct StepArrays {
  DeviceBuffer<Slot> slots{step_tokens, "slots"};
  DeviceBuffer<BlockRun> runs{3, "runs"};
  DeviceBuffer<BlockCopy> copies{2, "copies"};
  DeviceBuffer<RowChange> changes{2, "changes"};
  DeviceBuffer<std::int32_t> table{table_columns, "table"};
  DeviceBuffer<std::int64_t> row_offsets{2, "row offsets"};
};

/// A step of two layers, one of them per_block_head, and the oracle beside it.
class CapturedStep {
 public:
  CapturedStep()
      : geometry_{.num_layers = 2,
                  .num_kv_heads = heads,
                  .head_dim_k = dim,
                  .head_dim_v = dim,
                  .block_tokens = 4,
                  .format = KvFormat{Element::fp8_e4m3, Granularity::per_token_head},
                  .overrides = {{{1, 1},
                                 KvFormat{Element::fp8_e4m3, Granularity::per_block_head}}}},
        oracle_(geometry_, num_blocks),
        pool_(oracle_) {
    for (std::int32_t c = 0; c < table_columns; ++c) arrays_.table.data()[c] = -1;
  }

  void enqueue(cudaStream_t stream) {
    auto const view = pool_.view();
    cuda::WriteSlots const to{arrays_.slots.data(), step_tokens, arrays_.runs.data(), 3};
    take(cuda::update_tables({arrays_.table.data(), table_columns, 1, table_columns},
                             {nullptr, 0, arrays_.changes.data(), 2}, stream));
    take(cuda::copy_blocks(view, pool_.layers(), arrays_.copies.data(), 2, stream));
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      take(cuda::write_kv(view, layer, device_k_.rows(), device_v_.rows(), to, stream));
    }
    cuda::GatherRanges ranges;
    ranges.indices = arrays_.table.data();
    ranges.table_stride = table_columns;
    ranges.row_offsets = arrays_.row_offsets.data();
    ranges.num_sequences = 1;
    ranges.max_rows = 4 * table_columns;
    take(cuda::gather_kv(view, 0, ranges, out_.mutable_rows(), out_v_.mutable_rows(), stream));
  }

  /// Tokens go to `block`, which comes behind a copy of the block before, and becomes a column.
  /// Requires: nothing of the last step is under way.
  void prepare(std::int32_t step) {
    std::int32_t const block = step % num_blocks;
    std::int32_t const count = 1 + step % 4;
    std::vector<Slot> slots(step_tokens, padding_slot);
    for (std::int32_t t = 0; t < count; ++t) slots[static_cast<std::size_t>(t)] = 4 * block + t;
    BlockCopy const copy{BlockId{(block + num_blocks - 1) % num_blocks},
                         BlockId{(block + 1) % num_blocks}, 4};
    std::memcpy(arrays_.slots.data(), slots.data(), slots.size() * sizeof(Slot));
    arrays_.runs.data()[0] = {BlockId{block}, 0, count, 0};
    arrays_.runs.data()[1] = {BlockId{0}, 0, 0, 0};
    arrays_.runs.data()[2] = {BlockId{0}, 0, 0, 0};
    arrays_.copies.data()[0] = copy;
    arrays_.copies.data()[1] = {BlockId{0}, BlockId{0}, 0};
    arrays_.changes.data()[0] = {0, step % table_columns, block};
    arrays_.changes.data()[1] = {-1, 0, 0};
    table_[static_cast<std::size_t>(step % table_columns)] = block;
    // Columns that no step has filled yet leave their rows untouched.
    arrays_.row_offsets.data()[0] = 0;
    arrays_.row_offsets.data()[1] = 4 * table_columns;

    cpu::scalar::copy_blocks(oracle_.view(), std::span(&copy, 1));
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      cpu::scalar::write_kv(oracle_.view(), layer, k_.rows(), v_.rows(), slots);
    }
    for (std::int32_t c = 0; c < table_columns; ++c) {
      if (table_[static_cast<std::size_t>(c)] < 0) continue;
      MutableKvRows k = want_.mutable_rows();
      MutableKvRows v = want_v_.mutable_rows();
      k.data = want_.vector(4 * c, 0);
      v.data = want_v_.vector(4 * c, 0);
      std::int32_t const of_block[] = {table_[static_cast<std::size_t>(c)]};
      cpu::scalar::gather_kv(oracle_.view(), 0, of_block, {0, 4}, k, v);
    }
  }

  [[nodiscard]] bool is_right() {
    return error_ == cudaSuccess && pool_.equals(oracle_) && out_.bytes() == want_.bytes() &&
           out_v_.bytes() == want_v_.bytes();
  }

 private:
  void take(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  Geometry geometry_;
  KvStorage oracle_;
  DevicePool pool_;
  StepArrays arrays_;
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(table_columns, -1);
  Rows k_{{step_tokens, heads, dim, Element::bf16}, 1};
  Rows v_{{step_tokens, heads, dim, Element::bf16}, 2};
  DeviceRows device_k_{k_};
  DeviceRows device_v_{v_};
  Rows want_{{4 * table_columns, heads, dim, Element::f16}};
  Rows want_v_{{4 * table_columns, heads, dim, Element::f16}};
  DeviceRows out_{want_};
  DeviceRows out_v_{want_v_};
  cudaError_t error_ = cudaSuccess;
};

}  // namespace

TEST_CASE("a captured step is replayed with other slots, copies and table entries") {
  WorkStream const stream;
  CapturedStep step;
  Graph const graph(stream, [&](cudaStream_t s) { step.enqueue(s); });
  CHECK(step.is_right());  // nothing has run yet
  for (std::int32_t i = 0; i < 9; ++i) {
    step.prepare(i);
    CHECK_FALSE(step.is_right());
    graph.launch(stream);
    stream.wait();
    INFO("step " << i);
    REQUIRE(step.is_right());
  }
}

TEST_CASE("a captured calibration and a captured rotation read each replay's rows") {
  WorkStream const stream;
  KvFormat const f32{Element::f32, Granularity::none};
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 1,
                   .head_dim_k = dim,
                   .head_dim_v = 0,
                   .block_tokens = 4,
                   .format = f32};
  KvStorage oracle(g, num_blocks);
  DevicePool pool(oracle);
  DeviceBuffer<float> numbers(dim, "rows");
  DeviceBuffer<Slot> slot(1, "slot");
  DeviceBuffer<std::int32_t> position(1, "position");
  std::vector<float> tables(2 * dim);
  for (std::size_t i = 0; i < tables.size(); ++i) tables[i] = 0.01F * static_cast<float>(i);
  DeviceBuffer<float> const device_tables(tables, "tables");
  DeviceBuffer<float> amax(std::vector<float>{0.0F}, "amax");
  cuda::AmaxTable const table{amax.data(), nullptr, 1, 1, dim, 0};
  std::size_t bytes = 0;
  REQUIRE(cuda::calibrate_amax_workspace(table, bytes) == cudaSuccess);
  DeviceBuffer<std::byte> workspace((bytes + 255) / 256 * 256, "workspace");
  auto const rope = [](float const* floats, std::int32_t const* positions) {
    return rope_of_cache(floats, 2, dim, RopePairing::interleaved, positions);
  };
  KvRows const rows{numbers.data(), Element::f32, dim, dim};
  Graph const graph(stream, [&](cudaStream_t s) {
    REQUIRE(cuda::calibrate_amax(table, 0, {rows, {}, 1, slot.data()}, workspace.data(), bytes,
                                 s) == cudaSuccess);
    REQUIRE(cuda::write_kv_rope(pool.view(), 0, rows, {},
                                rope(device_tables.data(), position.data()), {slot.data(), 1},
                                s) == cudaSuccess);
  });
  CHECK(amax.copy() == std::vector<float>{0.0F});
  float largest = 0.0F;
  for (std::int32_t i = 1; i < 7; ++i) {
    std::vector<float> x(dim);
    for (std::size_t d = 0; d < x.size(); ++d) x[d] = static_cast<float>(i * (i % 4) + 1) - 0.5F;
    largest = std::max(largest, x[0]);
    std::memcpy(numbers.data(), x.data(), x.size() * sizeof(float));
    slot.data()[0] = 3 * i;
    position.data()[0] = i % 2;
    Slot const here = 3 * i;
    rotate_vector(rope(tables.data(), nullptr), i % 2, x.data(), dim);
    cpu::scalar::write_kv(oracle.view(), 0, {x.data(), Element::f32, dim, dim}, {},
                          std::span(&here, 1));
    graph.launch(stream);
    stream.wait();
    INFO("replay " << i);
    CHECK(amax.copy() == std::vector<float>{largest});
    REQUIRE(pool.equals(oracle));
  }
}

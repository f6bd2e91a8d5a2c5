// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

TEST_CASE("offsets beyond 2^31 elements reach their vectors in every kernel") {
  // dim 64: through 16-byte accesses; 60: number by number.
  for (std::int32_t const dim : {64, 60}) {
    constexpr std::int64_t block_stride = std::int64_t{1} << 31;
    auto memory = DeviceBuffer<std::uint16_t>::sparse(3 * block_stride, "large memory");
    KvLayer layer;
    layer.k.data = reinterpret_cast<std::byte*>(memory.data());
    layer.k.format = {Element::bf16, Granularity::none};
    layer.k.head_dim = dim;
    layer.k.token_stride = 2 * dim;
    layer.k.head_stride = dim;
    layer.k.block_stride = block_stride;
    layer.v = layer.k;
    layer.v.data += std::int64_t{1} << 20;
    KvView const view{std::span(&layer, 1), 3, 16, 2};
    REQUIRE(kv_view_error(view).empty());

    Rows k({2, 2, dim, Element::bf16}, 1);
    Rows v({2, 2, dim, Element::bf16}, 2);
    DeviceRows const device_k(k);
    DeviceRows const device_v(v);
    DeviceBuffer<Slot> const slots(std::vector<Slot>{2 * 16 + 15, 1 * 16}, "slots");
    REQUIRE(cuda::write_kv(view, 0, device_k.rows(), device_v.rows(), {slots.data(), 2}, nullptr) ==
            cuda::cudaSuccess);
    finish();
    CHECK(read(layer.k, 2, 15, 1) == k.floats(0, 1));
    CHECK(read(layer.v, 1, 0, 0) == v.floats(1, 0));

    DeviceBuffer<std::int32_t> const table(std::vector<std::int32_t>{0, 2}, "table");
    DeviceBuffer<std::int32_t> const first(std::vector<std::int32_t>{31}, "first positions");
    DeviceBuffer<std::int64_t> const offsets(std::vector<std::int64_t>{0, 1}, "row offsets");
    Rows out({1, 2, dim, Element::bf16});
    DeviceRows const out_k(out);
    DeviceRows const out_v(out);
    cuda::GatherRanges const ranges{table.data(), nullptr, 2, first.data(), offsets.data(), 1, 1};
    REQUIRE(cuda::gather_kv(view, 0, ranges, out_k.mutable_rows(), out_v.mutable_rows(), nullptr) ==
            cuda::cudaSuccess);
    finish();
    for (auto const& [read_rows, given] : {std::pair{&out_k, &k}, std::pair{&out_v, &v}}) {
      std::memcpy(out.vector(0, 0), given->vector(0, 0), static_cast<std::size_t>(4 * dim));
      CHECK(read_rows->bytes() == out.bytes());
    }

    DeviceBuffer<KvLayer> const layers(std::span(&layer, 1), "layers");
    DeviceBuffer<BlockCopy> const copies(std::vector<BlockCopy>{{BlockId{2}, BlockId{0}, 16}},
                                         "copies");
    REQUIRE(cuda::copy_blocks(view, layers.data(), copies.data(), 1, nullptr) == cuda::cudaSuccess);
    finish();
    CHECK(read(layer.k, 0, 15, 0) == k.floats(0, 0));
    DeviceBuffer<BlockId> const last(std::vector<BlockId>{BlockId{2}}, "blocks");
    REQUIRE(cuda::zero_blocks(view, layers.data(), last.data(), 1, nullptr) == cuda::cudaSuccess);
    finish();
    CHECK(read(layer.k, 2, 15, 1) == std::vector<float>(static_cast<std::size_t>(dim)));
  }
}

TEST_CASE("rows of a step further apart than 2^31 elements") {
  constexpr std::int64_t stride = std::int64_t{1} << 31;
  auto memory = DeviceBuffer<std::int32_t>::sparse(2 * stride + 8, "large memory");
  auto* const rows = reinterpret_cast<std::byte*>(memory.data());
  KvLayer layer;
  DeviceBuffer<std::byte> pool(4096, "pool");
  layer.k.data = pool.data();
  layer.k.format = {Element::f16, Granularity::none};
  layer.k.head_dim = 16;
  layer.k.token_stride = 16;
  layer.k.head_stride = 16;
  layer.k.block_stride = 16;
  KvView const view{std::span(&layer, 1), 4, 1, 1};
  float const one = 1.0F;
  std::memset(rows, 0, 64);
  std::memcpy(rows + stride * 4, &one, sizeof one);
  DeviceBuffer<Slot> const slots(std::vector<Slot>{0, 2}, "slots");
  KvRows const far{rows, Element::f32, stride, 16};
  REQUIRE(cuda::write_kv(view, 0, far, {}, {slots.data(), 2}, nullptr) == cuda::cudaSuccess);
  finish();
  CHECK(read(layer.k, 2, 0, 0)[0] == 1.0F);
  CHECK(read(layer.k, 0, 0, 0)[0] == 0.0F);
}

TEST_CASE("scales further apart than 2^31 floats are written, copied and read") {
  constexpr std::int64_t far = std::int64_t{1} << 30;
  constexpr std::int32_t dim = 64;
  auto memory = DeviceBuffer<float>::sparse(3 * far, "large memory");
  for (Granularity const granularity : {Granularity::per_token_head, Granularity::per_block_head}) {
    DeviceBuffer<std::byte> bytes(std::vector<std::byte>(3 * 2 * dim), "pool");
    std::vector<std::byte> near_bytes(3 * 2 * dim);
    std::vector<float> near_scales(6);
    KvLayer layer;
    layer.k.data = bytes.data();
    layer.k.format = {Element::fp8_e4m3, granularity};
    layer.k.head_dim = dim;
    layer.k.token_stride = layer.k.head_stride = dim;
    layer.k.block_stride = 2 * dim;
    layer.k.scales = memory.data();
    layer.k.scale_block_stride = far;
    layer.k.scale_token_stride = granularity == Granularity::per_token_head ? 1 : 0;
    KvLayer near = layer;
    near.k.data = near_bytes.data();
    near.k.scales = near_scales.data();
    near.k.scale_block_stride = 2;
    KvView const there{std::span(&layer, 1), 3, 2, 1};
    KvView const here{std::span(&near, 1), 3, 2, 1};
    REQUIRE(kv_view_error(there).empty());
    auto const scales_agree = [&] {
      bool agree = true;
      for (std::int64_t block = 0; block < 3; ++block) {
        for (std::int64_t offset = 0; offset < 2; ++offset) {
          agree = agree && *layer.k.scale(block, offset, 0) == *near.k.scale(block, offset, 0);
        }
      }
      return agree;
    };
    for (std::int64_t block = 0; block < 3; ++block) {
      for (std::int64_t offset = 0; offset < 2; ++offset) *layer.k.scale(block, offset, 0) = 0.0F;
    }

    Rows rows({2, 1, dim, Element::f16}, 7);
    DeviceRows const device_rows(rows);
    std::vector<Slot> const slots = {4, 5};
    DeviceBuffer<Slot> const device_slots(slots, "slots");
    DeviceBuffer<BlockRun> const runs(std::vector<BlockRun>{{BlockId{2}, 0, 2, 0}}, "runs");
    cpu::scalar::write_kv(here, 0, rows.rows(), {}, slots);
    REQUIRE(cuda::write_kv(there, 0, device_rows.rows(), {},
                           {device_slots.data(), 2, runs.data(), 1}, nullptr) == cuda::cudaSuccess);
    finish();
    CHECK(bytes.copy() == near_bytes);
    CHECK(scales_agree());
    CHECK(*layer.k.scale(2, 1, 0) > 0.0F);

    DeviceBuffer<KvLayer> const layers(std::span<KvLayer const>(&layer, 1), "layers");
    std::vector<BlockCopy> const copies = {{BlockId{2}, BlockId{1}, 2}};
    DeviceBuffer<BlockCopy> const device_copies(copies, "copies");
    cpu::scalar::copy_blocks(here, copies);
    REQUIRE(cuda::copy_blocks(there, layers.data(), device_copies.data(), 1, nullptr) ==
            cuda::cudaSuccess);
    finish();
    CHECK(bytes.copy() == near_bytes);
    CHECK(scales_agree());

    Rows want({2, 1, dim});
    DeviceRows const out(want);
    std::vector<std::int32_t> const blocks = {2};
    cpu::scalar::gather_kv(here, 0, blocks, {0, 2}, want.mutable_rows(), {});
    DeviceBuffer<std::int32_t> const table(blocks, "table");
    DeviceBuffer<std::int64_t> const offsets(std::vector<std::int64_t>{0, 2}, "row offsets");
    REQUIRE(cuda::gather_kv(there, 0, {table.data(), nullptr, 1, nullptr, offsets.data(), 1, 2},
                            out.mutable_rows(), {}, nullptr) == cuda::cudaSuccess);
    finish();
    CHECK(out.bytes() == want.bytes());
  }
}

TEST_CASE("attention over blocks further apart than 2^31 elements, scales too") {
  constexpr std::int64_t far = std::int64_t{1} << 31;
  constexpr std::int32_t dim = 64;
  auto memory = DeviceBuffer<std::byte>::sparse(3 * far, "large memory");
  auto scales = DeviceBuffer<float>::sparse(3 * (far / 2), "scales");
  KvLayer layer;
  layer.k.data = memory.data();
  layer.k.format = {Element::fp8_e4m3, Granularity::per_token_head};
  layer.k.head_dim = dim;
  layer.k.token_stride = layer.k.head_stride = dim;
  layer.k.block_stride = far;
  layer.k.scales = scales.data();
  layer.k.scale_token_stride = 1;
  layer.k.scale_block_stride = far / 2;
  layer.v = layer.k;
  layer.v.data += 4096;
  layer.v.scales += 1024;
  KvView const view{std::span(&layer, 1), 3, 1, 1};
  Rows k({1, 1, dim}, 3);
  Rows v({1, 1, dim}, 4);
  std::vector<Slot> const slot = {2};
  cpu::scalar::write_kv(view, 0, k.rows(), v.rows(), slot);
  DeviceBuffer<std::int32_t> const table(std::vector<std::int32_t>{2}, "table");
  DeviceBuffer<std::int32_t> const length(std::vector<std::int32_t>{1}, "lengths");
  DeviceBuffer<float> const q(std::vector<float>(dim, 1.0F), "q");
  DeviceBuffer<float> out(std::vector<float>(dim), "out");
  DeviceBuffer<float> workspace(
      static_cast<std::size_t>(cuda::decode_workspace_floats(1, 1, dim, 1)), "workspace");
  REQUIRE(cuda::decode_attention(view, 0, {table.data(), nullptr, 1, length.data(), 1},
                                 {q.data(), out.data(), Element::f32, 1, dim, dim},
                                 {1.0F, 0, 1, workspace.data()}, nullptr) == cuda::cudaSuccess);
  finish();
  CHECK(out.copy() == read(layer.v, 2, 0, 0));  // of one token: what is stored
}

TEST_CASE("rows of a table further apart than 2^31 entries") {
  constexpr std::int64_t stride = std::int64_t{1} << 30;
  auto table = DeviceBuffer<std::int32_t>::sparse(3 * stride, "large table");
  table.data()[0] = 5;
  table.data()[2 * stride + 1] = 6;
  DeviceBuffer<RowMove> const moves(std::vector<RowMove>{{0, 2}}, "moves");
  DeviceBuffer<RowChange> const changes(std::vector<RowChange>{{2, 1, 8}}, "changes");
  REQUIRE(cuda::update_tables({table.data(), stride, 3, 2}, {moves.data(), 1, changes.data(), 1},
                              nullptr) == cuda::cudaSuccess);
  finish();
  CHECK(table[2 * stride] == 5);
  CHECK(table[2 * stride + 1] == 8);
}

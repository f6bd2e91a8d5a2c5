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

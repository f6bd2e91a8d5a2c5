// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/gather_kv.cuh>
#include <pagedkv/data/cuda/move_blocks.cuh>
#include <pagedkv/data/cuda/write_kv.cuh>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

TEST_CASE("offsets beyond 2^31 elements reach their vectors in every kernel") {
  // dim 64: through 16-byte accesses; 60: number by number.
  for (std::int32_t const dim : {64, 60}) {
    constexpr std::int64_t block_stride = std::int64_t{1} << 31;
    auto memory = emulated::DeviceBuffer<std::uint16_t>::sparse(3 * block_stride, "large memory");
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
    std::vector<Slot> const slots = {2 * 16 + 15, 1 * 16};
    REQUIRE(cuda::detail::write_kv(view, 0, k.rows(), v.rows(), {slots.data(), 2}, nullptr) ==
            cuda::cudaSuccess);
    CHECK(read(layer.k, 2, 15, 1) == k.floats(0, 1));
    CHECK(read(layer.v, 1, 0, 0) == v.floats(1, 0));

    std::vector<std::int32_t> const table = {0, 2};
    std::int32_t const first = 31;
    std::int64_t const offsets[] = {0, 1};
    Rows out_k({1, 2, dim});
    Rows out_v({1, 2, dim});
    cuda::GatherRanges const ranges{table.data(), nullptr, 2, &first, offsets, 1, 1};
    REQUIRE(cuda::detail::gather_kv(view, 0, ranges, out_k.mutable_rows(), out_v.mutable_rows(),
                                    nullptr) == cuda::cudaSuccess);
    CHECK(out_k.floats(0, 1) == k.floats(0, 1));
    CHECK(out_v.floats(0, 0) == v.floats(0, 0));

    BlockCopy const copy{BlockId{2}, BlockId{0}, 16};
    REQUIRE(cuda::detail::copy_blocks(view, &layer, &copy, 1, nullptr) == cuda::cudaSuccess);
    CHECK(read(layer.k, 0, 15, 0) == k.floats(0, 0));
    BlockId const last{2};
    REQUIRE(cuda::detail::zero_blocks(view, &layer, &last, 1, nullptr) == cuda::cudaSuccess);
    CHECK(read(layer.k, 2, 15, 1) == std::vector<float>(static_cast<std::size_t>(dim)));
  }
}

TEST_CASE("rows of a step further apart than 2^31 elements") {
  constexpr std::int64_t stride = std::int64_t{1} << 31;
  auto memory = emulated::DeviceBuffer<std::int32_t>::sparse(2 * stride + 8, "large memory");
  auto* const rows = reinterpret_cast<std::byte*>(memory.data());
  KvLayer layer;
  std::vector<std::byte> pool(4096);
  layer.k.data = pool.data();
  layer.k.format = {Element::f16, Granularity::none};
  layer.k.head_dim = 16;
  layer.k.token_stride = 16;
  layer.k.head_stride = 16;
  layer.k.block_stride = 16;
  KvView const view{std::span(&layer, 1), 4, 1, 1};
  float const one = 1.0F;
  quant::encode_vector(Element::f32, {}, &one, 1, rows + stride * 4);
  std::vector<Slot> const slots = {0, 2};
  KvRows const far{rows, Element::f32, stride, 16};
  REQUIRE(cuda::detail::write_kv(view, 0, far, {}, {slots.data(), 2}, nullptr) ==
          cuda::cudaSuccess);
  CHECK(read(layer.k, 2, 0, 0)[0] == 1.0F);
  CHECK(read(layer.k, 0, 0, 0)[0] == 0.0F);
}

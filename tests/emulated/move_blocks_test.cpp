// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr KvLayout three_layouts[] = {{BlockOrder::nhd, PoolOrder::layer_major},
                                      {BlockOrder::hnd, PoolOrder::layer_major},
                                      {BlockOrder::nhd, PoolOrder::block_major}};
constexpr std::int32_t num_blocks = 6;

Geometry geometry(KvFormat format, std::int32_t dim) {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim_k = dim,
          .head_dim_v = dim == 64   ? 32
                        : dim == 21 ? 0
                                    : dim,
          .block_tokens = 5,
          .format = format,
          .overrides = {{{1, 1}, KvFormat{Element::bf16, Granularity::none}}}};
}

/// Random bytes everywhere but in static scales.
KvStorage full_pool(Geometry const& g, KvLayout layout) {
  KvStorage storage(g, num_blocks, layout, scales_for(g));
  std::vector<Slot> slots;
  for (Slot s = 0; s < num_blocks * g.block_tokens; ++s) slots.push_back(s);
  auto const n = static_cast<std::int64_t>(slots.size());
  for (std::int32_t layer = 0; layer < g.num_layers; ++layer) {
    auto const seed = static_cast<std::uint32_t>(layer);
    Rows k({n, g.num_kv_heads, g.head_dim_k}, 10 + seed);
    Rows v({n, g.num_kv_heads, std::max(g.head_dim_v, 1)}, 20 + seed);
    cpu::scalar::write_kv(storage.view(), layer, k.rows(), v.rows(), slots);
  }
  return storage;
}

}  // namespace

TEST_CASE("copies move the oracle's bytes and scales: all layers, formats and layouts") {
  for (KvFormat const format : all_formats()) {
    for (KvLayout const layout : three_layouts) {
      for (std::int32_t const dim : {64, 20, 21}) {
        Geometry const g = geometry(format, dim);
        KvStorage oracle = full_pool(g, layout);
        auto const before = bytes_of(oracle);
        auto const findings = try_orders([&](int seed) {
          std::memcpy(oracle.memory().data(), before.data(), before.size());
          DevicePool pool(oracle);
          std::vector<BlockCopy> copies = {{BlockId{2}, BlockId{0}, 1 + seed % 5},
                                           {BlockId{3}, BlockId{1}, 5}};
          cpu::scalar::copy_blocks(oracle.view(), copies);
          // Of what does nothing, one at a time: each costs a block of threads a tensor.
          BlockCopy const nothing[] = {{BlockId{2}, BlockId{4}, 0},
                                       {BlockId{-1}, BlockId{4}, 5},
                                       {BlockId{num_blocks}, BlockId{4}, 5},
                                       {BlockId{3}, BlockId{num_blocks}, 5},
                                       {BlockId{3}, BlockId{4}, 6}};
          copies.push_back(nothing[seed % 5]);
          DeviceBuffer<BlockCopy> const list(copies, "copies");
          auto const error = cuda::copy_blocks(pool.view(), pool.layers(), list.data(),
                                               static_cast<std::int32_t>(copies.size()), nullptr);
          finish();
          return judge(error, pool.equals(oracle));
        });
        INFO(to_string(format) << ", dim " << dim << ": " << findings.text());
        CHECK(findings.clean());
      }
    }
  }
}

TEST_CASE("zeroed blocks are the oracle's, static scales stay") {
  for (KvFormat const format : all_formats()) {
    for (KvLayout const layout : three_layouts) {
      Geometry const g = geometry(format, 64);
      KvStorage oracle = full_pool(g, layout);
      auto const before = bytes_of(oracle);
      auto const findings = try_orders([&](int seed) {
        std::memcpy(oracle.memory().data(), before.data(), before.size());
        DevicePool pool(oracle);
        std::vector<BlockId> blocks = {BlockId{seed % 3}, BlockId{5}};
        cpu::scalar::zero_blocks(oracle.view(), blocks);
        blocks.push_back(BlockId{-1});
        blocks.push_back(BlockId{num_blocks});
        DeviceBuffer<BlockId> const list(blocks, "blocks");
        auto const error = cuda::zero_blocks(pool.view(), pool.layers(), list.data(),
                                             static_cast<std::int32_t>(blocks.size()), nullptr);
        finish();
        return judge(error, pool.equals(oracle));
      });
      INFO(to_string(format) << ": " << findings.text());
      CHECK(findings.clean());
    }
  }
}

TEST_CASE("a block of more pieces than one, and nothing to move") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 8,
                   .head_dim_k = 256,
                   .head_dim_v = 80,
                   .block_tokens = 16,
                   .format = KvFormat{Element::f32, Granularity::none}};
  KvStorage oracle = full_pool(g, {});
  DevicePool pool(oracle);
  CHECK(cuda::copy_blocks(pool.view(), pool.layers(), nullptr, 0, nullptr) == cuda::cudaSuccess);
  CHECK(cuda::copy_blocks(pool.view(), pool.layers(), nullptr, 1, nullptr) ==
        cuda::cudaErrorInvalidValue);
  BlockCopy const copy{BlockId{1}, BlockId{2}, 13};
  cpu::scalar::copy_blocks(oracle.view(), std::span(&copy, 1));
  DeviceBuffer<BlockCopy> const list(std::span(&copy, 1), "copies");
  CHECK(cuda::copy_blocks(pool.view(), pool.layers(), list.data(), 1, nullptr) ==
        cuda::cudaSuccess);
  finish();
  CHECK(pool.equals(oracle));
}

TEST_CASE("moving in a view that kernels can't follow is refused") {
  Geometry const g = geometry({Element::int8, Granularity::per_token_head}, 64);
  KvStorage oracle = full_pool(g, {});
  DevicePool pool(oracle);
  DeviceBuffer<BlockId> const blocks(std::vector<BlockId>{BlockId{1}}, "blocks");
  auto const refuses = [&](auto change) {
    std::vector<KvLayer> layers(pool.view().layers.begin(), pool.view().layers.end());
    KvView view = pool.view();
    change(layers, view);
    view.layers = layers;
    return cuda::zero_blocks(view, pool.layers(), blocks.data(), 1, nullptr) ==
           cuda::cudaErrorInvalidValue;
  };
  using Layers = std::vector<KvLayer>;
  CHECK(refuses([](Layers& l, KvView&) { l[0].k.scales = nullptr; }));
  CHECK(refuses([](Layers& l, KvView&) { l[1].v.data = nullptr; }));
  CHECK(refuses([](Layers& l, KvView&) { l[1].k = {}; }));
  CHECK(refuses([](Layers& l, KvView&) { l.clear(); }));
  CHECK(refuses([](Layers&, KvView& v) { v.block_tokens = 0; }));
  CHECK(refuses([](Layers&, KvView& v) { v.num_blocks = 0; }));
  // A block of a tensor takes more than 2^30 bytes.
  CHECK(refuses([](Layers&, KvView& v) { v.block_tokens = INT32_MAX; }));
  CHECK(cuda::zero_blocks(pool.view(), nullptr, blocks.data(), 1, nullptr) ==
        cuda::cudaErrorInvalidValue);
  CHECK(cuda::zero_blocks(pool.view(), pool.layers(), blocks.data(), -1, nullptr) ==
        cuda::cudaErrorInvalidValue);
  // More blocks of threads than a grid has.
  CHECK(cuda::zero_blocks(pool.view(), pool.layers(), blocks.data(), INT32_MAX, nullptr) ==
        cuda::cudaErrorInvalidValue);
  CHECK(pool.equals(oracle));
}

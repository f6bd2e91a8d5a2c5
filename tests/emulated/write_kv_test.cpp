// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "write_steps.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

TEST_CASE("every format, input and layout stores the oracle's bytes, head_dim 64") {
  for (KvFormat const format : all_formats()) {
    for (Element const input : inputs) {
      for (KvLayout const layout : layouts) {
        check_write({.format = format, .input = input, .layout = layout});
      }
    }
  }
}

TEST_CASE("head_dim 80 to 256, K and V apart, one head or three") {
  for (KvFormat const format : all_formats()) {
    check_write({.format = format, .dim_k = 128, .dim_v = 128, .heads = 3});
    check_write({.format = format, .input = Element::bf16, .dim_k = 256, .dim_v = 256, .heads = 1});
    check_write({.format = format, .dim_k = 192, .dim_v = 128, .layout = layouts[1]});
    check_write({.format = format, .input = Element::f32, .dim_k = 80, .dim_v = 112, .heads = 3});
  }
}

TEST_CASE("no V, and latents longer than a warp has lanes for") {
  for (KvFormat const format : all_formats()) {
    check_write({.format = format, .dim_k = 64, .dim_v = 0});
    check_write({.format = format, .dim_k = 576, .dim_v = 0, .heads = 1, .block_tokens = 2});
  }
}

TEST_CASE("K and V of different formats") {
  KvFormat const k[] = {{Element::fp8_e4m3, Granularity::per_head},
                        {Element::bf16, Granularity::none},
                        {Element::fp8_e5m2, Granularity::per_block_head}};
  KvFormat const v[] = {{Element::int4, Granularity::per_token_head},
                        {Element::fp8_e4m3, Granularity::per_block_head},
                        {Element::int8, Granularity::per_token_head}};
  for (std::size_t i = 0; i < std::size(k); ++i) check_write({.format = {k[i], v[i]}});
}

TEST_CASE("rows that aren't aligned, vectors that 16 doesn't divide") {
  for (KvFormat const format : all_formats()) {
    check_write({.format = format, .dim_k = 72, .dim_v = 33, .heads = 3});
    check_write({.format = format, .input = Element::f16, .gap = 1});
    check_write({.format = format, .input = Element::bf16, .gap = 8, .misaligned = 2});
    check_write(
        {.format = format, .input = Element::f32, .dim_k = 20, .dim_v = 7, .misaligned = 4});
  }
}

TEST_CASE("blocks of one token, of an odd number, and of many") {
  for (KvFormat const format : all_formats()) {
    for (std::int32_t const block_tokens : {1, 7, 16}) {
      check_write({.format = format, .heads = 1, .block_tokens = block_tokens});
    }
  }
}

TEST_CASE("an empty step launches nothing; what can't work is refused") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 2,
                   .head_dim_k = 64,
                   .head_dim_v = 64,
                   .block_tokens = 4,
                   .format = KvFormat{Element::fp8_e4m3, Granularity::per_tensor}};
  KvStorage oracle(g, 3, {}, scales_for(g));
  DevicePool pool(oracle);
  Rows rows({1, 2, 64, Element::f16}, 1);
  Slot const slot = 0;
  cuda::WriteSlots const one{&slot, 1};
  auto const write = [&](KvRows const& k, cuda::WriteSlots const& to, std::int32_t layer = 0) {
    return cuda::write_kv(pool.view(), layer, k, rows.rows(), to, nullptr);
  };
  CHECK(write(rows.rows(), {}) == cuda::cudaSuccess);
  CHECK(pool.equals(oracle));
  CHECK(write(rows.rows(), one, 1) == cuda::cudaErrorInvalidValue);
  CHECK(write(rows.rows(), {nullptr, 1}) == cuda::cudaErrorInvalidValue);
  // Times 2 heads and 4 chunks it is 8 again.
  CHECK(write(rows.rows(), {&slot, (std::int64_t{1} << 62) + 1}) == cuda::cudaErrorInvalidValue);
  CHECK(write({nullptr, Element::f16, 128, 64}, one) == cuda::cudaErrorInvalidValue);
  CHECK(write({rows.rows().data, Element::int8, 128, 64}, one) == cuda::cudaErrorInvalidValue);
  KvRows odd = rows.rows();
  odd.data = static_cast<std::byte const*>(odd.data) + 1;
  CHECK(write(odd, one) == cuda::cudaErrorInvalidValue);
  auto const refuses = [&](auto change) {
    KvLayer layer = pool.view().layers[0];
    KvView view = pool.view();
    change(layer, view);
    view.layers = std::span(&layer, 1);
    return cuda::write_kv(view, 0, rows.rows(), rows.rows(), one, nullptr) ==
           cuda::cudaErrorInvalidValue;
  };
  CHECK(refuses([](KvLayer& l, KvView&) { l.k.scales = nullptr; }));
  CHECK(refuses([](KvLayer& l, KvView&) { l.v.data = nullptr; }));
  CHECK(refuses([](KvLayer& l, KvView&) { l.v.format.granularity = Granularity::none; }));
  CHECK(refuses([](KvLayer& l, KvView&) { l.k.head_dim = max_head_dim + 1; }));
  CHECK(refuses([](KvLayer&, KvView& v) { v.num_kv_heads = 65536; }));
  CHECK(refuses([](KvLayer&, KvView& v) { v.block_tokens = 0; }));
  CHECK(pool.equals(oracle));
}

namespace {

/// Every 16-bit input in one step.
void check_all_inputs(Element input, KvFormat format, float scale) {
  constexpr std::int32_t dim = 256;
  constexpr std::int32_t tokens = 65536 / dim;
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 1,
                   .head_dim_k = dim,
                   .head_dim_v = 0,
                   .block_tokens = 16,
                   .format = format};
  std::vector<StaticScales> scales(1);
  if (is_static(format)) scales[0].k = {scale};
  KvStorage oracle(g, tokens / 16, {}, scales);
  DevicePool pool(oracle);
  Rows rows({tokens, 1, dim, input});
  std::vector<Slot> all;
  std::vector<BlockRun> blocks;
  for (std::int32_t t = 0; t < tokens; ++t) {
    if (t % 16 == 0) blocks.push_back({BlockId{t / 16}, 0, 16, t});
    for (std::int32_t i = 0; i < dim; ++i) {
      auto const bits = static_cast<std::uint16_t>(t * dim + i);
      std::memcpy(rows.vector(t, 0) + 2 * i, &bits, 2);
    }
    all.push_back(t);
  }
  cpu::scalar::write_kv(oracle.view(), 0, rows.rows(), {}, all);
  DeviceRows const device(rows);
  DeviceBuffer<Slot> const slots(all, "slots");
  DeviceBuffer<BlockRun> const runs(blocks, "runs");
  auto const error = cuda::write_kv(pool.view(), 0, device.rows(), {},
                                    {slots.data(), tokens, runs.data(), tokens / 16}, nullptr);
  finish();
  INFO(to_string(format) << " from " << to_string(input) << ", scale " << scale);
  CHECK(error == cuda::cudaSuccess);
  CHECK(pool.equals(oracle));
}

}  // namespace

TEST_CASE("all halfs and all bfloat16s through the kernels that convert") {
  for (Element const input : {Element::f16, Element::bf16}) {
    for (KvFormat const format : all_formats()) {
      for (float const scale : {1.0F, 0.0117F, 37.0F}) {
        if (scale == 1.0F || is_static(format)) check_all_inputs(input, format, scale);
      }
    }
  }
}

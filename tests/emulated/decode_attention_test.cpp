// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

struct Case {
  KvFormat format{};
  std::int32_t dim = 64;
  std::int32_t group = 1;
  std::int32_t window = 0;
  std::int32_t num_splits = 1;
  KvLayout layout{};
};

/// Four sequences, one of them padding, against the oracle: within 1e-3 of the largest result.
void check(Case const& c) {
  constexpr std::int32_t block_tokens = 4;
  constexpr std::int32_t num_blocks = 11;
  constexpr std::int32_t kv_heads = 2;
  static unsigned next_seed = 1;
  std::mt19937 random(next_seed++);
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = kv_heads,
                   .head_dim_k = c.dim,
                   .head_dim_v = c.dim,
                   .block_tokens = block_tokens,
                   .format = c.format};
  KvStorage oracle(g, num_blocks, c.layout, scales_for(g));
  std::vector<Slot> all;
  for (Slot s = 0; s < num_blocks * block_tokens; ++s) all.push_back(s);
  Rows k({num_blocks * block_tokens, kv_heads, c.dim}, next_seed);
  Rows v({num_blocks * block_tokens, kv_heads, c.dim}, next_seed + 1000);
  cpu::scalar::write_kv(oracle.view(), 0, k.rows(), v.rows(), all);

  std::int32_t const q_heads = kv_heads * c.group;
  std::int64_t const stride = std::int64_t{q_heads} * c.dim;
  std::vector<float> q(static_cast<std::size_t>(4 * stride));
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(random);
  std::vector<float> want(q.size(), -7.0F);
  std::vector<std::int32_t> const lengths = {1, 0, 17, 22};
  std::vector<std::int32_t> const indptr = {0, 1, 1, 6, 12};
  auto const blocks = random_blocks(num_blocks, random);
  std::vector<std::int32_t> indices(blocks.begin(), blocks.begin() + 6);
  indices.insert(indices.end(), blocks.begin() + 4, blocks.begin() + 10);
  float const scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
  cpu::scalar::decode_attention(oracle.view(), 0, {indptr, indices, lengths},
                                {q.data(), want.data(), q_heads, stride, stride},
                                {scale, c.window});

  DevicePool pool(oracle);
  auto const findings = try_orders([&](int) {
    DeviceBuffer<float> const device_q(q, "q");
    DeviceBuffer<float> out(std::vector<float>(q.size(), -7.0F), "out");
    DeviceBuffer<std::int32_t> const device_lengths(lengths, "lengths");
    DeviceBuffer<std::int32_t> const device_indptr(indptr, "indptr");
    DeviceBuffer<std::int32_t> const device_indices(indices, "indices");
    DeviceBuffer<float> workspace(
        static_cast<std::size_t>(cuda::decode_workspace_floats(4, q_heads, c.dim, c.num_splits)),
        "workspace");
    auto const error = cuda::decode_attention(
        pool.view(), 0, {device_indices.data(), device_indptr.data(), 0, device_lengths.data(), 4},
        {device_q.data(), out.data(), Element::f32, q_heads, stride, stride},
        {scale, c.window, c.num_splits, workspace.data()}, nullptr);
    finish();
    float largest = 0.0F;
    for (float const x : want) largest = std::fmax(largest, x == -7.0F ? 0.0F : std::fabs(x));
    bool right = true;
    for (std::size_t i = 0; i < want.size(); ++i) {
      bool const same =
          want[i] == -7.0F ? out[i] == -7.0F : std::fabs(out[i] - want[i]) <= 1e-3F * largest;
      right = right && same;
    }
    return judge(error, right);
  });
  INFO(to_string(c.format) << ", dim " << c.dim << ", group " << c.group << ": "
                           << findings.text());
  CHECK(findings.clean());
}

}  // namespace

TEST_CASE("attention over every format is the oracle's within a thousandth") {
  for (KvFormat const format : all_formats()) {
    check({.format = format, .group = 3, .num_splits = 2});
    check({.format = format, .dim = 128, .layout = {BlockOrder::hnd, PoolOrder::block_major}});
  }
}

TEST_CASE("groups of many heads, windows, more splits than tokens, head_dim 256") {
  KvFormat const e4m3{Element::fp8_e4m3, Granularity::per_token_head};
  KvFormat const bf16{Element::bf16, Granularity::none};
  for (KvFormat const format : {e4m3, bf16}) {
    check({.format = format, .group = 8, .window = 5, .num_splits = 3});
    check({.format = format, .group = 5, .num_splits = 30});
    check({.format = format, .dim = 256, .group = 2, .window = 1});
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "write_steps.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr RopePairing pairings[] = {RopePairing::half_split, RopePairing::interleaved};

}  // namespace

TEST_CASE("K is rotated, then stored as the oracle does: every format, input and layout") {
  for (KvFormat const format : kernel_formats()) {
    for (Element const input : inputs) {
      for (KvLayout const layout : layouts) {
        RopePairing const pairing = pairings[input == Element::bf16];
        check_write({.format = format,
                     .input = input,
                     .layout = layout,
                     .rotary_dim = 64,
                     .pairing = pairing});
      }
    }
  }
}

TEST_CASE("head_dim 80 to 256, all of it rotated or less") {
  for (KvFormat const format : kernel_formats()) {
    for (RopePairing const pairing : pairings) {
      // Half of 80 is no multiple of 16: a chunk has numbers of both halves.
      check_write({.format = format,
                   .input = Element::f32,
                   .dim_k = 80,
                   .dim_v = 80,
                   .rotary_dim = 80,
                   .pairing = pairing});
      check_write(
          {.format = format, .dim_k = 80, .dim_v = 64, .rotary_dim = 32, .pairing = pairing});
      check_write({.format = format,
                   .input = Element::bf16,
                   .dim_k = 128,
                   .dim_v = 128,
                   .layout = layouts[1],
                   .rotary_dim = 128,
                   .pairing = pairing});
    }
    check_write({.format = format, .dim_k = 128, .dim_v = 256, .heads = 1, .rotary_dim = 64});
    check_write({.format = format, .dim_k = 256, .dim_v = 128, .heads = 1, .rotary_dim = 256});
    check_write({.format = format, .dim_k = 64, .dim_v = 0, .heads = 3, .rotary_dim = 48});
  }
}

TEST_CASE("number by number: odd widths, rows and tables that aren't aligned, long vectors") {
  for (KvFormat const format : kernel_formats()) {
    for (RopePairing const pairing : pairings) {
      check_write(
          {.format = format, .dim_k = 72, .dim_v = 33, .rotary_dim = 20, .pairing = pairing});
      check_write({.format = format,
                   .input = Element::bf16,
                   .gap = 8,
                   .misaligned = 2,
                   .rotary_dim = 64,
                   .pairing = pairing});
      check_write({.format = format, .rotary_dim = 64, .pairing = pairing, .table_shift = 1});
    }
    for (std::int32_t const rotary_dim : {20, 24}) {
      check_write({.format = format, .input = Element::f32, .rotary_dim = rotary_dim});
    }
    check_write({.format = format, .rotary_dim = 32, .table_gap = 8, .table_shift = 4});
    check_write({.format = format, .input = Element::f32, .rotary_dim = 64, .table_gap = 3});
    check_write({.format = format,
                 .dim_k = 576,
                 .dim_v = 0,
                 .heads = 1,
                 .block_tokens = 2,
                 .rotary_dim = 64});
  }
}

TEST_CASE("blocks of one token, of an odd number, and of many, rotated") {
  for (KvFormat const format : kernel_formats()) {
    for (std::int32_t const block_tokens : {1, 7, 16}) {
      check_write({.format = format, .heads = 1, .block_tokens = block_tokens, .rotary_dim = 64});
    }
  }
}

TEST_CASE("V of another format or input is stored as it came") {
  check_write({.format = {KvFormat{Element::fp8_e4m3, Granularity::per_head},
                          KvFormat{Element::int4, Granularity::per_token_head}},
               .rotary_dim = 64});
  check_write({.format = {KvFormat{Element::bf16, Granularity::none},
                          KvFormat{Element::fp8_e4m3, Granularity::per_block_head}},
               .rotary_dim = 32});
}

TEST_CASE("a rope that can't work is refused, an empty step launches nothing") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 2,
                   .head_dim_k = 64,
                   .head_dim_v = 64,
                   .block_tokens = 4,
                   .format = KvFormat{Element::f16, Granularity::none}};
  KvStorage oracle(g, 3, {}, {});
  DevicePool pool(oracle);
  Rows host_rows({1, 2, 64, Element::f16}, 1);
  DeviceRows const rows(host_rows);
  DeviceBuffer<Slot> const slot(std::vector<Slot>{0}, "slot");
  DeviceBuffer<std::int32_t> const position(std::vector<std::int32_t>{0}, "position");
  DeviceBuffer<float> const table(std::vector<float>(64, 0.5F), "table");
  Rope const right = rope_of_cache(table.data(), 1, 64, RopePairing::half_split, position.data());
  auto const write = [&](Rope const& rope, std::int64_t num_tokens = 1) {
    return cuda::write_kv_rope(pool.view(), 0, rows.rows(), rows.rows(), rope,
                               {slot.data(), num_tokens}, nullptr);
  };
  auto const refused = [&](auto change) {
    Rope rope = right;
    change(rope);
    return write(rope) == cuda::cudaErrorInvalidValue;
  };
  CHECK(refused([](Rope& r) { r.cos = nullptr; }));
  CHECK(refused([](Rope& r) { r.sin = nullptr; }));
  CHECK(refused([](Rope& r) { r.positions = nullptr; }));
  CHECK(refused([](Rope& r) { r.rotary_dim = 0; }));
  CHECK(refused([](Rope& r) { r.rotary_dim = 31; }));
  CHECK(refused([](Rope& r) { r.rotary_dim = 66; }));
  CHECK(refused([](Rope& r) { r.max_position = -1; }));
  CHECK(write(right, 0) == cuda::cudaSuccess);
  CHECK(pool.equals(oracle));
  CHECK(write(right) == cuda::cudaSuccess);
  finish();
  CHECK_FALSE(pool.equals(oracle));
}

// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include "catch.hpp"
#include "data_support.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::KvStorage;
using pagedkv::Slot;

namespace {

constexpr kv::KvLayout nhd{};
constexpr kv::KvLayout hnd{kv::BlockOrder::hnd, kv::PoolOrder::block_major};

Geometry geometry(std::int32_t heads, std::int32_t dim_k, std::int32_t dim_v, KvFormat format,
                  std::int32_t block_tokens = 4) {
  return {.num_layers = 1,
          .num_kv_heads = heads,
          .head_dim_k = dim_k,
          .head_dim_v = dim_v,
          .block_tokens = block_tokens,
          .format = format};
}

/// What the definition says is stored for one vector (all but per_block_head).
void check_vector(kv::KvTensor const& t, std::int64_t block, std::int64_t offset, std::int64_t head,
                  std::vector<float> const& x) {
  auto scale = scale_of(t, block, offset, head);
  if (t.format.granularity == Granularity::per_token_head) {
    auto const made = kv::quant::vector_scale(t.format.element, x.data(), t.head_dim);
    CHECK(same_floats(scale.scale, made.scale));
    CHECK(same_floats(scale.zero, made.zero));
    scale = made;
  }
  CHECK(stored(t, block, offset, head) == encoded(t.format.element, scale, x));
}

struct Case {
  std::int32_t heads = 1;
  std::int32_t dim_k = 8;
  std::int32_t dim_v = 8;
  KvFormat format{};
  Element input = Element::f32;
  std::int64_t gap = 0;
  std::size_t misaligned = 0;
  kv::KvLayout layout{};
};

/// Writes to scattered slots with padding between them and looks at every vector.
void check_case(Operations const& ops, Case const& c, std::uint32_t seed) {
  Geometry const g = geometry(c.heads, c.dim_k, c.dim_v, c.format);
  KvStorage storage(g, 5, c.layout, scales_for(g));
  std::vector<Slot> const slots = {7, -1, 2, 19, -1, 3, 0};
  auto const n = static_cast<std::int64_t>(slots.size());
  Rows k({n, c.heads, c.dim_k, c.input, c.gap, 3 * c.gap, c.misaligned}, seed);
  Rows v({n, c.heads, c.dim_v, c.input, 2 * c.gap, c.gap, c.misaligned}, seed + 1);
  ops.write_kv(storage.view(), 0, k.rows(), v.rows(), slots);
  auto const& layer = storage.view().layers[0];
  INFO(ops.name << " " << to_string(c.format) << " from " << to_string(c.input) << ", " << c.heads
                << " heads of " << c.dim_k << " and " << c.dim_v);
  for (std::int64_t i = 0; i < n; ++i) {
    Slot const slot = slots[static_cast<std::size_t>(i)];
    if (slot < 0) continue;
    for (std::int32_t h = 0; h < c.heads; ++h) {
      check_vector(layer.k, slot / 4, slot % 4, h, k.floats(i, h));
      if (c.dim_v > 0) check_vector(layer.v, slot / 4, slot % 4, h, v.floats(i, h));
    }
  }
}

}  // namespace

TEST_CASE("numbers worked out by hand: static and dynamic scales") {
  for (auto const& ops : both_operations) {
    INFO(ops.name);
    Rows k({1, 1, 4});
    Rows v({1, 1, 4});
    float const x[] = {1.0F, -0.5F, 448.0F, 1000.0F};
    for (std::int64_t i = 0; i < 4; ++i) k.set(0, 0, i, x[i]), v.set(0, 0, i, -x[i]);
    Slot const slot = 5;
    std::span<Slot const> const slots(&slot, 1);

    Geometry g = geometry(1, 4, 4, {Element::fp8_e4m3, Granularity::per_tensor});
    KvStorage fp8(g, 2, nhd, std::vector<kv::StaticScales>{{{1.0F}, {2.0F}}});
    ops.write_kv(fp8.view(), 0, k.rows(), v.rows(), slots);
    auto const& t = fp8.view().layers[0];
    CHECK(stored(t.k, 1, 1, 0) == std::vector<std::byte>{std::byte{0x38}, std::byte{0xB0},
                                                         std::byte{0x7E}, std::byte{0x7E}});
    // -1 / 2 = -0.5 = 0xB0; 0.25 = 0x28; -224 = 0xF6; -500 saturates.
    CHECK(stored(t.v, 1, 1, 0) == std::vector<std::byte>{std::byte{0xB0}, std::byte{0x28},
                                                         std::byte{0xF6}, std::byte{0xFE}});

    g = geometry(1, 4, 4, {Element::int8, Granularity::per_token_head});
    KvStorage int8(g, 2);
    ops.write_kv(int8.view(), 0, k.rows(), v.rows(), slots);
    auto const& s = int8.view().layers[0];
    CHECK(*s.k.scale(1, 1, 0) == 1000.0F * (1.0F / 127.0F));
    // 1 * 0.127 = 0; -0.06 = 0; 448 * 0.127 = 56.9 = 57; 127.
    CHECK(stored(s.k, 1, 1, 0) ==
          std::vector<std::byte>{std::byte{0}, std::byte{0}, std::byte{57}, std::byte{127}});

    g = geometry(1, 4, 4, {Element::int4, Granularity::per_token_head});
    KvStorage int4(g, 2);
    ops.write_kv(int4.view(), 0, k.rows(), v.rows(), slots);
    auto const& q = int4.view().layers[0];
    // low -0.5, range 1000.5, step 66.7: codes 0, 0, 7, 15; two in a byte, the first one low.
    CHECK(q.k.scale(1, 1, 0)[1] == -0.5F);
    CHECK(stored(q.k, 1, 1, 0) == std::vector<std::byte>{std::byte{0x00}, std::byte{0xF7}});
  }
}

TEST_CASE("every format stores what the definition says, whatever the shape and the strides") {
  struct Shape {
    std::int32_t heads, dim_k, dim_v;
  };
  Shape const shapes[] = {{1, 8, 8},     {2, 64, 64}, {3, 80, 48},   {1, 96, 96},
                          {2, 128, 128}, {5, 192, 9}, {1, 256, 256}, {128, 8, 8},
                          {4, 13, 128},  {1, 576, 0}, {7, 33, 31},   {8, 128, 128}};
  std::uint32_t seed = 1;
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      if (format.granularity == Granularity::per_block_head) continue;
      for (auto const& shape : shapes) {
        for (Element const input : {Element::f32, Element::f16, Element::bf16}) {
          bool const odd = seed % 2 == 1;
          check_case(ops,
                     {shape.heads, shape.dim_k, shape.dim_v, format, input, odd ? 5 : 0,
                      odd ? std::size_t{3} : std::size_t{0}, seed % 3 == 0 ? hnd : nhd},
                     seed);
          ++seed;
        }
      }
    }
  }
}

TEST_CASE("only the named slots change, and a step of no tokens changes nothing") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Geometry const g = geometry(2, 24, 24, format);
      KvStorage storage(g, 3, nhd, scales_for(g));
      Rows all({12, 2, 24}, 5);
      std::vector<Slot> every;
      for (Slot s = 0; s < 12; ++s) every.push_back(s);
      ops.write_kv(storage.view(), 0, all.rows(), all.rows(), every);
      auto const before = bytes_of(storage);
      ops.write_kv(storage.view(), 0, {}, {}, {});
      CHECK(bytes_of(storage) == before);

      std::vector<Slot> const padding = {-1, -1};
      ops.write_kv(storage.view(), 0, all.rows(), all.rows(), padding);
      CHECK(bytes_of(storage) == before);

      Rows two({2, 2, 24}, 6);
      std::vector<Slot> const some = {4, -1};
      ops.write_kv(storage.view(), 0, two.rows(), two.rows(), some);
      KvStorage expected(g, 3, nhd, scales_for(g));
      std::copy(before.begin(), before.end(), expected.memory().begin());
      auto const& from = storage.view().layers[0];
      auto const& to = expected.view().layers[0];
      for (std::int32_t h = 0; h < 2; ++h) {
        for (auto const& [a, b] : {std::pair(&from.k, &to.k), std::pair(&from.v, &to.v)}) {
          auto const vector = stored(*a, 1, 0, h);
          std::copy(vector.begin(), vector.end(), b->vector(1, 0, h));
          if (format.granularity != Granularity::none && !is_static(format)) {
            std::memcpy(b->scale(1, 0, h), a->scale(1, 0, h),
                        static_cast<std::size_t>(bytes_per_scale_entry(format.element)));
          }
        }
      }
      INFO(ops.name << " " << to_string(format));
      CHECK(bytes_of(storage) == bytes_of(expected));
    }
  }
}

TEST_CASE("layers of different formats are written side by side") {
  Geometry g = geometry(2, 16, 16, {Element::fp8_e4m3, Granularity::per_token_head});
  g.num_layers = 3;
  g.overrides = {{{0, 1}, KvFormat{Element::f32, Granularity::none}},
                 {{2, 1},
                  kv::LayerFormat(KvFormat{Element::int8, Granularity::per_head},
                                  KvFormat{Element::int4, Granularity::per_token_head})}};
  for (auto const& ops : both_operations) {
    KvStorage storage(g, 2, hnd, scales_for(g));
    std::vector<Slot> const slots = {1, 6};
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      auto const seed = static_cast<std::uint32_t>(layer);
      Rows k({2, 2, 16}, 2 * seed);
      Rows v({2, 2, 16}, 2 * seed + 1);
      ops.write_kv(storage.view(), layer, k.rows(), v.rows(), slots);
    }
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      auto const seed = static_cast<std::uint32_t>(layer);
      Rows k({2, 2, 16}, 2 * seed);
      Rows v({2, 2, 16}, 2 * seed + 1);
      auto const& l = storage.view().layers[static_cast<std::size_t>(layer)];
      for (std::int32_t h = 0; h < 2; ++h) {
        check_vector(l.k, 0, 1, h, k.floats(0, h));
        check_vector(l.v, 1, 2, h, v.floats(1, h));
      }
    }
  }
}

TEST_CASE("NaN and infinities in one token change no other token's bytes") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Geometry const g = geometry(2, 40, 40, format);
      std::vector<Slot> const slots = {0, 1, 2, 3, 4};
      auto const written = [&](bool poisoned) {
        KvStorage storage(g, 2, nhd, scales_for(g));
        Rows rows({5, 2, 40, Element::bf16}, 9);
        if (poisoned) {
          for (std::int64_t i = 0; i < 40; ++i) {
            rows.set(2, 0, i, i % 3 == 0 ? nan : i % 3 == 1 ? inf : -inf);
          }
          rows.set(2, 1, 17, nan);
          rows.set(2, 1, 39, -inf);
        } else {
          // The same maximum for per_block_head, whatever token 2 holds.
          for (std::int64_t i = 0; i < 40; ++i) rows.set(2, 0, i, 0.0F);
          rows.set(2, 1, 17, 0.0F);
          rows.set(2, 1, 39, 0.0F);
        }
        ops.write_kv(storage.view(), 0, rows.rows(), rows.rows(), slots);
        return storage;
      };
      KvStorage const clean = written(false);
      KvStorage const dirty = written(true);
      INFO(ops.name << " " << to_string(format));
      for (std::int32_t h = 0; h < 2; ++h) {
        for (Slot const slot : {0, 1, 3, 4}) {
          auto const& a = clean.view().layers[0].k;
          auto const& b = dirty.view().layers[0].k;
          CHECK(stored(a, slot / 4, slot % 4, h) == stored(b, slot / 4, slot % 4, h));
          CHECK(same_floats(scale_of(a, slot / 4, slot % 4, h).scale,
                            scale_of(b, slot / 4, slot % 4, h).scale));
        }
      }
      // The other elements of the vector are as they were, too.
      auto const a = read(clean.view().layers[0].k, 0, 2, 1);
      auto const b = read(dirty.view().layers[0].k, 0, 2, 1);
      CHECK(same_floats(std::span(a).first(17), std::span(b).first(17)));
      if (format.element != Element::int8 && !kv::quant::has_zero(format.element)) {
        CHECK(std::isnan(b[17]));
      } else {
        CHECK(std::isfinite(b[17]));
      }
    }
  }
}

TEST_CASE("per_block_head: a growing maximum requantizes what the block holds") {
  for (auto const& ops : both_operations) {
    INFO(ops.name);
    Geometry const g = geometry(2, 16, 16, {Element::fp8_e4m3, Granularity::per_block_head});
    KvStorage storage(g, 2, nhd);
    Rows rows({4, 2, 16});
    // Magnitudes 1, 100, 1000, 10: scales 2^-8, 1/4, 4 (1000 / 448 -> 4), 4.
    float const magnitude[] = {1.0F, 100.0F, 1000.0F, 10.0F};
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t i = 0; i < 16; ++i) {
        rows.set(t, 0, i, magnitude[t] * (i % 2 == 0 ? 1.0F : -0.5F));
        rows.set(t, 1, i, 1.0F);
      }
    }
    auto const& t = storage.view().layers[0].k;
    float const scales[] = {0x1p-8F, 0.25F, 4.0F, 4.0F};
    for (std::int64_t i = 0; i < 4; ++i) {
      kv::KvRows row = rows.rows();
      row.data = rows.vector(i, 0);
      Slot const slot = 4 + i;
      ops.write_kv(storage.view(), 0, row, row, std::span(&slot, 1));
      CHECK(*t.scale(1, i, 0) == scales[i]);
      CHECK(*t.scale(1, i, 1) == 0x1p-8F);
      for (std::int64_t past = 0; past <= i; ++past) {
        auto const x = read(t, 1, past, 0);
        CHECK(std::abs(x[0] - magnitude[past]) <= magnitude[past] / 16 + scales[i] * 0x1p-10F);
        CHECK(x[1] == -0.5F * x[0]);
      }
    }
    // The block is used again: its first token starts the scale anew.
    kv::KvRows first = rows.rows();
    Slot const slot = 4;
    ops.write_kv(storage.view(), 0, first, first, std::span(&slot, 1));
    CHECK(*t.scale(1, 0, 0) == 0x1p-8F);
  }
}

TEST_CASE("per_block_head: a run of many tokens takes one scale, and stops at its block") {
  for (auto const& ops : both_operations) {
    for (Element const element : {Element::fp8_e4m3, Element::fp8_e5m2}) {
      Geometry const g = geometry(3, 20, 12, {element, Granularity::per_block_head});
      KvStorage storage(g, 3, hnd);
      Rows k({7, 3, 20}, 3);
      Rows v({7, 3, 12}, 4);
      std::vector<Slot> const slots = {4, 5, 6, 7, 8, 9, 10};  // one block, then its neighbour
      ops.write_kv(storage.view(), 0, k.rows(), v.rows(), slots);
      auto const& t = storage.view().layers[0];
      for (std::int32_t h = 0; h < 3; ++h) {
        for (auto const& [first, count, block] : {std::tuple(0, 4, 1), std::tuple(4, 3, 2)}) {
          float amax = 0.0F;
          for (int i = first; i < first + count; ++i) {
            amax = std::max(amax, kv::quant::amax(k.floats(i, h).data(), 20));
          }
          auto const scale = kv::quant::power_of_two_scale(element, amax);
          CHECK(*t.k.scale(block, 0, h) == scale.value);
          for (int i = 0; i < count; ++i) {
            CHECK(stored(t.k, block, i, h) ==
                  encoded(element, {scale.value, 0.0F}, k.floats(first + i, h)));
          }
        }
      }
    }
  }
}

TEST_CASE("offsets beyond 2^31 elements reach their slot") {
  constexpr std::int64_t size = std::int64_t{12} << 30;
  void* const memory = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  for (auto const& ops : both_operations) {
    kv::KvLayer layer;
    layer.k.data = static_cast<std::byte*>(memory);
    layer.k.format = {Element::bf16, Granularity::none};
    layer.k.head_dim = 64;
    layer.k.token_stride = 2 * 64;
    layer.k.head_stride = 64;
    layer.k.block_stride = std::int64_t{1} << 31;
    layer.v = layer.k;
    layer.v.data += std::int64_t{1} << 20;
    kv::KvView const view{std::span(&layer, 1), 3, 16, 2};
    REQUIRE(kv::kv_view_error(view).empty());
    Rows k({2, 2, 64, Element::bf16}, 1);
    Rows v({2, 2, 64, Element::bf16}, 2);
    std::vector<Slot> const slots = {2 * 16 + 15, 1 * 16};
    ops.write_kv(view, 0, k.rows(), v.rows(), slots);
    CHECK(read(layer.k, 2, 15, 1) == k.floats(0, 1));
    CHECK(read(layer.v, 1, 0, 0) == v.floats(1, 0));

    std::vector<std::int32_t> const table = {0, 2};
    Rows out_k({1, 2, 64, Element::f32});
    Rows out_v({1, 2, 64, Element::f32});
    ops.gather_kv(view, 0, table, {31, 1}, out_k.mutable_rows(), out_v.mutable_rows());
    CHECK(out_k.floats(0, 1) == k.floats(0, 1));
    CHECK(out_v.floats(0, 0) == v.floats(0, 0));

    kv::BlockCopy const copy{kv::BlockId{2}, kv::BlockId{0}, 16};
    ops.copy_blocks(view, std::span(&copy, 1));
    CHECK(read(layer.k, 0, 15, 0) == k.floats(0, 0));
    kv::BlockId const last{2};
    ops.zero_blocks(view, std::span(&last, 1));
    CHECK(read(layer.k, 2, 15, 1) == std::vector<float>(64));
  }
  ::munmap(memory, static_cast<std::size_t>(size));
}

#if PAGEDKV_ASSERT_LEVEL >= 1
TEST_CASE("a wrong slot names the token, the slot and the limit, before anything is written") {
  for (auto const& ops : both_operations) {
    Geometry const g = geometry(1, 8, 8, {Element::f32, Granularity::none});
    KvStorage storage(g, 3, nhd);
    Rows rows({3, 1, 8}, 1);
    std::vector<Slot> const slots = {4, -1, 12};
    auto const outcome =
        outcome_of([&] { ops.write_kv(storage.view(), 0, rows.rows(), rows.rows(), slots); });
    CHECK(outcome.aborted);
    CHECK(outcome.message == "write_kv: slot 12 of token 2; the pool has slots 0 to 11");
    auto const layer =
        outcome_of([&] { ops.write_kv(storage.view(), 1, rows.rows(), rows.rows(), slots); });
    CHECK(layer.message == "write_kv: layer 1; the view has 1");
    kv::KvRows wrong = rows.rows();
    wrong.element = Element::int8;
    auto const element =
        outcome_of([&] { ops.write_kv(storage.view(), 0, wrong, rows.rows(), slots); });
    CHECK(element.message == "write_kv: K: rows of int8; they must be f32, f16 or bf16");
  }
}
#endif

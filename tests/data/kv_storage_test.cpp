// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <utility>

#include "catch.hpp"
#include "data_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::BlockOrder;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvStorage;
using pagedkv::PoolOrder;

namespace {

constexpr kv::KvLayout all_layouts[] = {{BlockOrder::nhd, PoolOrder::layer_major},
                                        {BlockOrder::hnd, PoolOrder::layer_major},
                                        {BlockOrder::nhd, PoolOrder::block_major},
                                        {BlockOrder::hnd, PoolOrder::block_major}};

Geometry mixed_geometry() {
  return {.num_layers = 4,
          .num_kv_heads = 3,
          .head_dim_k = 20,
          .head_dim_v = 7,
          .block_tokens = 5,
          .format = kv::LayerFormat({Element::fp8_e4m3, Granularity::per_token_head},
                                    {Element::int4, Granularity::per_token_head}),
          .overrides = {{{0, 1}, kv::KvFormat{Element::bf16, Granularity::none}},
                        {{2, 1}, kv::KvFormat{Element::fp8_e5m2, Granularity::per_block_head}},
                        {{3, 1}, kv::KvFormat{Element::int8, Granularity::per_head}}}};
}

std::string message_of(Geometry const& g, std::int32_t num_blocks,
                       std::vector<kv::StaticScales> const& scales = {}) {
  try {
    KvStorage const storage(g, num_blocks, {}, scales);
  } catch (kv::Error const& error) {
    return error.what();
  }
  return "";
}

/// Marks every byte of vectors and dynamic scales; counts those marked before.
std::int64_t mark_tensor(kv::KvView const& view, kv::KvTensor const& t,
                         std::set<std::byte const*>& seen) {
  std::int64_t twice = 0;
  auto const mark = [&](std::byte const* p, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; ++i) twice += seen.insert(p + i).second ? 0 : 1;
  };
  if (t.head_dim == 0) return 0;
  for (std::int32_t b = 0; b < view.num_blocks; ++b) {
    for (std::int32_t h = 0; h < view.num_kv_heads; ++h) {
      for (std::int32_t i = 0; i < view.block_tokens; ++i) {
        mark(t.vector(b, i, h), bytes_per_vector(t.format.element, t.head_dim));
        if (scale_bytes_per_vector(t.format) > 0) {
          mark(reinterpret_cast<std::byte*>(t.scale(b, i, h)), scale_bytes_per_vector(t.format));
        }
      }
      if (scale_bytes_per_block_head(t.format) > 0) {
        mark(reinterpret_cast<std::byte*>(t.scale(b, 0, h)), scale_bytes_per_block_head(t.format));
      }
    }
  }
  return twice;
}

}  // namespace

TEST_CASE("every vector and scale has bytes of its own, as many as the geometry counts") {
  Geometry const g = mixed_geometry();
  for (auto const layout : all_layouts) {
    KvStorage storage(g, 6, layout, scales_for(g));
    auto const view = storage.view();
    REQUIRE(kv::kv_view_error(view).empty());
    std::set<std::byte const*> seen;
    std::int64_t twice = 0;
    for (auto const& layer : view.layers) {
      twice += mark_tensor(view, layer.k, seen) + mark_tensor(view, layer.v, seen);
    }
    CHECK(twice == 0);
    CHECK(static_cast<std::int64_t>(seen.size()) == 6 * g.bytes_per_block());
    CHECK(*seen.begin() >= storage.memory().data());
    CHECK(*seen.rbegin() < storage.memory().data() + storage.memory().size());
    CHECK(storage.bytes() == 6 * g.bytes_per_block() + g.static_scale_bytes());
    CHECK(storage.allocated_bytes() >= storage.bytes());
    CHECK(reinterpret_cast<std::uintptr_t>(storage.memory().data()) % 64 == 0);
  }
}

TEST_CASE("a real model's pool has no padding but for the last static scales") {
  Geometry const g{.num_layers = 4,
                   .num_kv_heads = 8,
                   .head_dim_k = 128,
                   .head_dim_v = 128,
                   .block_tokens = 16,
                   .format = kv::KvFormat{Element::fp8_e4m3, Granularity::per_token_head}};
  for (auto const layout : all_layouts) {
    KvStorage const storage(g, 10, layout);
    CHECK(storage.allocated_bytes() == 10 * g.bytes_per_block());
  }
}

TEST_CASE("block-major keeps all layers of a block in one run") {
  Geometry const g = mixed_geometry();
  for (auto const order : {BlockOrder::nhd, BlockOrder::hnd}) {
    KvStorage storage(g, 6, {order, PoolOrder::block_major}, scales_for(g));
    auto const view = storage.view();
    REQUIRE(storage.block_bytes() >= g.bytes_per_block());
    CHECK(storage.block_bytes() % 64 == 0);
    auto const* const base = storage.memory().data();
    for (auto const& layer : view.layers) {
      for (auto const* t : {&layer.k, &layer.v}) {
        for (std::int32_t b = 0; b < 6; ++b) {
          auto const first = t->vector(b, 0, 0) - base;
          auto const last = t->vector(b, 4, 2) - base;
          CHECK(first / storage.block_bytes() == b);
          CHECK(last / storage.block_bytes() == b);
        }
      }
    }
  }
}

TEST_CASE("in block-major every tensor begins at a multiple of 16, whatever scales go before") {
  for (std::int32_t const num_layers : {1, 2, 3}) {
    for (std::int32_t const num_kv_heads : {1, 3}) {
      for (kv::KvFormat const format :
           {kv::KvFormat{Element::fp8_e4m3, Granularity::per_block_head},
            kv::KvFormat{Element::int4, Granularity::per_token_head}}) {
        Geometry const g{.num_layers = num_layers,
                         .num_kv_heads = num_kv_heads,
                         .head_dim_k = 64,
                         .head_dim_v = 16,
                         .block_tokens = 1,
                         .format = format};
        KvStorage storage(g, 2, {BlockOrder::nhd, PoolOrder::block_major});
        auto const* const base = storage.memory().data();
        for (auto const& layer : storage.view().layers) {
          CHECK((layer.k.vector(1, 0, 0) - base) % 16 == 0);
          CHECK((layer.v.vector(1, 0, 0) - base) % 16 == 0);
        }
      }
    }
  }
}

TEST_CASE("layouts put neighbours where their names say") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 2,
                   .head_dim_k = 8,
                   .head_dim_v = 8,
                   .block_tokens = 4,
                   .format = kv::KvFormat{Element::f32, Granularity::none}};
  KvStorage const nhd(g, 2, {BlockOrder::nhd, PoolOrder::layer_major});
  CHECK(nhd.view().layers[0].k.head_stride == 8);
  CHECK(nhd.view().layers[0].k.token_stride == 16);
  KvStorage const hnd(g, 2, {BlockOrder::hnd, PoolOrder::layer_major});
  CHECK(hnd.view().layers[0].k.token_stride == 8);
  CHECK(hnd.view().layers[0].k.head_stride == 32);
  CHECK(hnd.view().layers[0].k.block_stride == 64);
  CHECK(hnd.view().layers[0].v.data - hnd.view().layers[0].k.data == 2 * 64 * 4);
}

TEST_CASE("moving a storage keeps its views") {
  Geometry const g = mixed_geometry();
  KvStorage first(g, 2, {}, scales_for(g));
  auto const view = first.view();
  KvStorage const second = std::move(first);
  CHECK(second.view().layers.data() == view.layers.data());
  CHECK(second.view().layers[0].k.data == view.layers[0].k.data);
}

TEST_CASE("static scales stand where the view says, K and V apart") {
  Geometry const g = mixed_geometry();
  auto const scales = scales_for(g);
  KvStorage const storage(g, 2, {}, scales);
  auto const& layer = storage.view().layers[3];
  for (std::int32_t head = 0; head < 3; ++head) {
    auto const h = static_cast<std::size_t>(head);
    CHECK(*layer.k.scale(1, 4, head) == scales[3].k[h]);
    CHECK(*layer.v.scale(0, 2, head) == scales[3].v[h]);
  }
}

TEST_CASE("a wrong storage says what is wrong") {
  Geometry const g = mixed_geometry();
  CHECK_THAT(message_of(g, 0, scales_for(g)), contains_text("num_blocks is 0"));
  CHECK_THAT(message_of(g, 2), contains_text("K of layer 3 is int8/per_head and takes 3 static "
                                             "scales; 0 are given"));
  auto scales = scales_for(g);
  scales[3].v[1] = -0.5F;
  CHECK_THAT(message_of(g, 2, scales), contains_text("static scale 1 of V of layer 3 is -0.5"));
  scales = scales_for(g);
  scales[0].k.push_back(1.0F);
  CHECK_THAT(message_of(g, 2, scales), contains_text("takes 0 static scales; 1 are given"));
  scales.pop_back();
  CHECK_THAT(message_of(g, 2, scales), contains_text("3 layers"));
  Geometry wide = g;
  wide.head_dim_k = 1025;
  CHECK_THAT(message_of(wide, 2, scales_for(g)), contains_text("1025 elements; at most 1024"));
  wide.head_dim_k = 0;
  CHECK_THAT(message_of(wide, 2, scales_for(g)), contains_text("head_dim_k is 0"));
}

TEST_CASE("an engine that owns its memory gets the storage's view of it") {
  Geometry const g = mixed_geometry();
  for (auto const layout : all_layouts) {
    KvStorage storage(g, 6, layout, scales_for(g));
    kv::KvPlacement const placement(g, 6, layout);
    REQUIRE(placement.allocated_bytes() == storage.allocated_bytes());
    auto const statics = placement.static_scales(scales_for(g));
    CHECK(static_cast<std::int64_t>(statics.size() * sizeof(float)) ==
          placement.allocated_bytes() - placement.bytes_of_blocks());
    CHECK(std::memcmp(storage.memory().data() + placement.bytes_of_blocks(), statics.data(),
                      statics.size() * sizeof(float)) == 0);
    auto const layers = placement.layers(storage.memory().data());
    auto const view = placement.view(layers);
    REQUIRE(kv::kv_view_error(view).empty());
    CHECK(view.num_slots() == storage.view().num_slots());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      auto const& want = storage.view().layers[i];
      CHECK(layers[i].k.vector(5, 4, 2) == want.k.vector(5, 4, 2));
      CHECK(layers[i].v.vector(5, 4, 2) == want.v.vector(5, 4, 2));
      if (layers[i].v.scales != nullptr) CHECK(layers[i].v.scale(5, 4, 2) == want.v.scale(5, 4, 2));
    }
  }
}

TEST_CASE("a view that an engine filled in wrongly is told the layer and the field") {
  Geometry const g = mixed_geometry();
  KvStorage const storage(g, 2, {}, scales_for(g));
  auto const with = [&](auto&& change) {
    std::vector<kv::KvLayer> layers(storage.view().layers.begin(), storage.view().layers.end());
    kv::KvView view = storage.view();
    view.layers = layers;
    change(layers, view);
    return kv::kv_view_error(view);
  };
  CHECK(with([](auto&, auto&) {}).empty());
  CHECK_THAT(with([](auto& l, auto&) { l[1].v.token_stride = 3; }),
             contains_text("V of layer 1: an odd stride of int4"));
  CHECK_THAT(with([](auto& l, auto&) { l[2].k.data = nullptr; }),
             contains_text("K of layer 2: data is null"));
  CHECK_THAT(with([](auto& l, auto&) { l[2].k.scales = nullptr; }),
             contains_text("K of layer 2: scales is null"));
  CHECK_THAT(with([](auto& l, auto&) { l[0].k.scales = l[1].k.scales; }),
             contains_text("K of layer 0: scales is set"));
  CHECK_THAT(with([](auto& l, auto&) { l[2].v.scale_token_stride = 1; }),
             contains_text("V of layer 2: scale_token_stride is 1"));
  auto const with_static = [&](kv::Granularity granularity, auto&& change) {
    return with([&](auto& l, auto&) {
      l[2].k.format = {kv::Element::fp8_e4m3, granularity};
      l[2].k.scale_block_stride = l[2].k.scale_token_stride = 0;
      l[2].k.scale_head_stride = granularity == kv::Granularity::per_head ? 7 : 0;
      change(l[2].k);
    });
  };
  for (auto const granularity : {kv::Granularity::per_tensor, kv::Granularity::per_head}) {
    CHECK(with_static(granularity, [](auto&) {}).empty());
    CHECK_THAT(with_static(granularity, [](auto& k) { k.scale_block_stride = 4; }),
               contains_text("scale_block_stride is 4; it must be 0 where blocks share a scale"));
    CHECK_THAT(with_static(granularity, [](auto& k) { k.scale_token_stride = 4; }),
               contains_text("scale_token_stride is 4; it must be 0 where a block's tokens"));
  }
  CHECK_THAT(with_static(kv::Granularity::per_tensor, [](auto& k) { k.scale_head_stride = 1; }),
             contains_text("scale_head_stride is 1; it must be 0 where heads share a scale"));
  for (auto const stride :
       {&kv::KvTensor::head_stride, &kv::KvTensor::token_stride, &kv::KvTensor::block_stride}) {
    CHECK_THAT(with([&](auto& l, auto&) { l[2].k.*stride -= 1; }),
               contains_text("vectors overlap"));
    CHECK_THAT(with([&](auto& l, auto&) { l[2].v.*stride *= -1; }),
               contains_text("vectors overlap"));
  }
  CHECK_THAT(with([](auto& l, auto&) { l[0].k.head_dim = 0; }),
             contains_text("K of layer 0: head_dim is 0"));
  CHECK_THAT(with([](auto&, auto& v) { v.block_tokens = 0; }),
             contains_text("block_tokens is 0; it must be at least 1"));
}

TEST_CASE("memory that was never written reads as 0, or as NaN in fully checked builds") {
  Geometry const g{.num_layers = 1,
                   .num_kv_heads = 1,
                   .head_dim_k = 8,
                   .head_dim_v = 0,
                   .block_tokens = 4,
                   .format = kv::KvFormat{Element::fp8_e4m3, Granularity::per_token_head}};
  KvStorage storage(g, 2);
  auto const& t = storage.view().layers[0].k;
#if PAGEDKV_ASSERT_LEVEL >= 2
  CHECK(std::isnan(read(t, 1, 0, 0)[0]));
#else
  CHECK(read(t, 1, 0, 0)[0] == 0.0F);
#endif
  kv::BlockId const block{1};
  kv::cpu::zero_blocks(storage.view(), std::span(&block, 1));
  CHECK(read(t, 1, 3, 0)[7] == 0.0F);
}

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/model/geometry.hpp>

#include <cstdint>
#include <random>
#include <string>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::Element;
using kv::Geometry;
using kv::Granularity;
using kv::KvFormat;
using kv::testing::contains_text;

namespace {

KvFormat format(char const* text) { return *kv::parse_kv_format(text); }

/// Meta-Llama-3.1-70B.
Geometry llama_70b(KvFormat stored) { return {80, 8, 128, 128, 16, stored, {}}; }

/// Counts vector by vector and scale by scale, in bits, with none of the library's helpers.
std::int64_t counted_block_bits(Geometry const& geometry) {
  std::int64_t bits = 0;
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    auto stored = geometry.format;
    for (auto const& other : geometry.overrides) {
      if (layer >= other.layers.first && layer - other.layers.first < other.layers.count) {
        stored = other.format;
      }
    }
    for (bool const is_k : {true, false}) {
      auto const dim = is_k ? geometry.head_dim_k : geometry.head_dim_v;
      auto const [element, granularity] = is_k ? stored.k : stored.v;
      if (dim == 0) continue;
      for (int head = 0; head < geometry.num_kv_heads; ++head) {
        for (int token = 0; token < geometry.block_tokens; ++token) {
          if (element == Element::int4) {
            bits += (dim / 2 + dim % 2) * 8;
          } else if (element == Element::f32) {
            bits += dim * 32;
          } else if (element == Element::f16 || element == Element::bf16) {
            bits += dim * 16;
          } else {
            bits += dim * 8;
          }
          if (granularity == Granularity::per_token_head) bits += 32;
          if (element == Element::int4 || element == Element::int8_asym) bits += 32;
        }
        if (granularity == Granularity::per_block_head) bits += 32;
      }
    }
  }
  return bits;
}

KvFormat random_format(std::mt19937& random) {
  auto const element = kv::all_elements[random() % kv::all_elements.size()];
  auto const choices = kv::granularities_of(element);
  return {element, choices[random() % choices.size()]};
}

static_assert(kv::kv_heads_per_rank(8, 4) == 2 && kv::kv_heads_per_rank(8, 16) == 1);
static_assert(kv::kv_head_copies(8, 8) == 1 && kv::kv_head_copies(8, 16) == 2);
static_assert(!kv::can_shard(8, 3) && kv::can_shard(1, 3) && !kv::can_shard(8, 12));

TEST_CASE("Llama 3.1 70B in f16 takes 327,680 bytes a token and 40 GiB at 131,072 tokens") {
  auto const geometry = llama_70b(format("f16"));
  CHECK(geometry.bytes_per_token() == kv::BytesPerToken{327'680, 1});
  CHECK(geometry.bytes_per_block() == 16 * 327'680);
  CHECK(geometry.bytes_for(131'072) == 42'949'672'960);
  CHECK(geometry.static_scale_bytes() == 0);
}

TEST_CASE("fp8 per_tensor takes exactly half of f16, per_token_head a 32nd more than that") {
  auto const tensor = llama_70b(format("fp8_e4m3/per_tensor"));
  CHECK(tensor.bytes_per_token() == kv::BytesPerToken{163'840, 1});
  CHECK(tensor.static_scale_bytes() == 80 * 2 * 4);
  auto const token_head = llama_70b(format("fp8_e4m3/per_token_head"));
  CHECK(token_head.bytes_per_token() == kv::BytesPerToken{163'840 + 163'840 / 32, 1});
  CHECK(token_head.static_scale_bytes() == 0);
}

TEST_CASE("a block's scale is shared by its tokens, so a token costs a ratio") {
  Geometry geometry{1, 1, 128, 128, 16, format("fp8_e4m3/per_block_head"), {}};
  CHECK(geometry.bytes_per_block() == 2 * (16 * 128 + 4));
  CHECK(geometry.bytes_per_token() == kv::BytesPerToken{513, 2});
  CHECK(geometry.bytes_per_token().value() == 256.5);
  geometry.block_tokens = 8;
  CHECK(geometry.bytes_per_token() == kv::BytesPerToken{257, 1});
}

TEST_CASE("bytes equal a count vector by vector, for random geometries") {
  std::mt19937 random(20240801);
  for (int round = 0; round < 2000; ++round) {
    auto const pick = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    Geometry geometry;
    geometry.num_layers = pick(1, 9);
    geometry.num_kv_heads = pick(1, 9);
    geometry.head_dim_k = pick(1, 70);
    geometry.head_dim_v = pick(0, 70);
    geometry.block_tokens = pick(1, 33);
    geometry.format = {random_format(random), random_format(random)};
    for (int first = 0; first < geometry.num_layers; first += 3) {
      if (pick(0, 2) != 0) continue;
      auto const count = pick(1, std::min(3, geometry.num_layers - first));
      geometry.overrides.push_back(
          {{first, count}, {random_format(random), random_format(random)}});
    }
    REQUIRE(kv::geometry_error(geometry).empty());
    REQUIRE(geometry.bytes_per_block() * 8 == counted_block_bits(geometry));
    auto const token = geometry.bytes_per_token();
    REQUIRE(token.bytes * geometry.block_tokens == geometry.bytes_per_block() * token.tokens);
    auto const tokens = pick(0, 1000);
    REQUIRE(geometry.bytes_for(tokens) == (tokens + geometry.block_tokens - 1) /
                                              geometry.block_tokens * geometry.bytes_per_block());
  }
}

TEST_CASE("K and V may differ in size and format, and V may be absent") {
  Geometry const differing{2, 4, 192, 128, 1, {format("f16"), format("int4")}, {}};
  CHECK(differing.bytes_per_block() == 2 * 4 * (192 * 2 + 64 + 8));
  Geometry const latent{61, 1, 576, 0, 1, format("bf16"), {}};
  CHECK(latent.bytes_per_block() == 61 * 576 * 2);
  Geometry const latent_fp8{61, 1, 576, 0, 1, format("fp8_e4m3"), {}};
  CHECK(latent_fp8.static_scale_bytes() == 61 * 4);
}

TEST_CASE("an override is sized wherever its layer lies") {
  auto geometry = llama_70b(format("fp8_e4m3"));
  geometry.overrides = {{{0, 1}, format("bf16")}};
  CHECK(geometry.bytes_per_token() == kv::BytesPerToken{79 * 2048 + 4096, 1});
  CHECK(geometry.static_scale_bytes() == 79 * 8);
  CHECK(geometry.bytes_per_token({0, 40}, 8) == kv::BytesPerToken{39 * 2048 + 4096, 1});
  CHECK(geometry.bytes_per_token({40, 40}, 8) == kv::BytesPerToken{40 * 2048, 1});
  CHECK(geometry.static_scale_bytes({0, 40}, 8) == 39 * 8);
}

TEST_CASE("tensor parallelism shards heads and, beyond their number, copies them") {
  auto const geometry = llama_70b(format("f16"));
  for (int const tensor : {1, 2, 4, 8, 16, 32}) {
    REQUIRE(kv::parallel_error(geometry, {tensor, 1}).empty());
    auto const heads = kv::kv_heads_per_rank(8, tensor);
    CHECK(heads * tensor == 8 * kv::kv_head_copies(8, tensor));
    CHECK(geometry.bytes_per_block(geometry.all_layers(), heads) * tensor ==
          geometry.bytes_per_block() * kv::kv_head_copies(8, tensor));
  }
}

TEST_CASE("a latent lies on every rank") {
  Geometry const latent{61, 1, 576, 0, 16, format("bf16"), {}};
  for (int const tensor : {1, 3, 8}) {
    REQUIRE(kv::parallel_error(latent, {tensor, 1}).empty());
    CHECK(kv::kv_heads_per_rank(1, tensor) == 1);
    CHECK(kv::kv_head_copies(1, tensor) == tensor);
  }
}

TEST_CASE("pipeline stages cover all layers in order, the longer ones first") {
  for (int layers = 1; layers <= 20; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      int next = 0;
      int longest = 0;
      int before = layers;
      for (int stage = 0; stage < stages; ++stage) {
        auto const range = kv::stage_layers(layers, stages, stage);
        REQUIRE(range.first == next);
        REQUIRE((range.count >= 1 && range.count <= before));
        next = range.end();
        before = range.count;
        longest = std::max(longest, range.count);
      }
      REQUIRE(next == layers);
      REQUIRE(longest == (layers + stages - 1) / stages);
    }
  }
}

TEST_CASE("a wrong geometry is told by field") {
  auto const error = [](auto const& change) {
    auto geometry = llama_70b(format("f16"));
    change(geometry);
    return kv::geometry_error(geometry);
  };
  CHECK(error([](Geometry&) {}).empty());
  CHECK(error([](Geometry& g) { g.num_layers = 0; }) == "num_layers is 0; it must be at least 1");
  CHECK_THAT(error([](Geometry& g) { g.num_layers = 2'000'000'000; }), contains_text("65536"));
  CHECK_THAT(error([](Geometry& g) { g.num_kv_heads = -1; }), contains_text("num_kv_heads"));
  CHECK_THAT(error([](Geometry& g) { g.head_dim_k = 0; }), contains_text("head_dim_k"));
  CHECK_THAT(error([](Geometry& g) { g.head_dim_v = -8; }), contains_text("head_dim_v"));
  CHECK_THAT(error([](Geometry& g) { g.block_tokens = 0; }), contains_text("block_tokens"));
  CHECK(error([](Geometry& g) {
          g.format = KvFormat{Element::int4, Granularity::none};
        }) == "format: int4 can't be scaled none; it takes: per_token_head");
  CHECK_THAT(error([](Geometry& g) {
               g.overrides = {{{80, 1}, format("bf16")}};
             }),
             contains_text("layers 0 to 79"));
  CHECK_THAT(error([](Geometry& g) {
               g.overrides = {{{79, 2}, format("bf16")}};
             }),
             contains_text("layers 79 to 80"));
  CHECK_THAT(error([](Geometry& g) {
               g.overrides = {{{0, 4}, format("bf16")}, {{3, 1}, format("f16")}};
             }),
             contains_text("overlaps the one of layers 0 to 3"));
  CHECK_THAT(error([](Geometry& g) {
               g.overrides = {{{0, 1}, KvFormat{Element::bf16, Granularity::per_head}}};
             }),
             contains_text("layers 0 to 0: bf16 can't be scaled per_head"));
}

TEST_CASE("sizes beyond 64 bits are told, never wrapped") {
  Geometry geometry{65536, 65536, 65536, 65536, 65536, format("f32"), {}};
  CHECK_THAT(kv::geometry_error(geometry), contains_text("2^60"));
  geometry.block_tokens = 2'147'483'647;
  geometry.num_kv_heads = 2'147'483'647;
  geometry.head_dim_k = 2'147'483'647;
  CHECK_THAT(kv::geometry_error(geometry), contains_text("2^60"));
  CHECK_THROWS_AS(geometry.bytes_per_block(), kv::Error);
  Geometry const large{1, 1, 2'147'483'647, 2'147'483'647, 1024, format("f32"), {}};
  REQUIRE(kv::geometry_error(large).empty());
  CHECK(large.bytes_per_block() == 2 * 4 * 2'147'483'647LL * 1024);
  CHECK_THROWS_AS(large.bytes_for(2'147'483'647), kv::Error);
}

TEST_CASE("a tensor_parallel that the heads can't be dealt out to names the nearest that work") {
  auto const geometry = llama_70b(format("f16"));
  CHECK_THAT(kv::parallel_error(geometry, {3, 1}), contains_text("are 2 and 4"));
  CHECK_THAT(kv::parallel_error(geometry, {7, 1}), contains_text("are 4 and 8"));
  CHECK_THAT(kv::parallel_error(geometry, {12, 1}), contains_text("are 8 and 16"));
  CHECK_THAT(kv::parallel_error(geometry, {0, 1}), contains_text("tensor_parallel is 0"));
  CHECK_THAT(kv::parallel_error(geometry, {1, 0}), contains_text("pipeline_parallel is 0"));
  CHECK_THAT(kv::parallel_error(geometry, {1, 81}), contains_text("80 layers"));
  CHECK_THAT(kv::parallel_error(geometry, {1 << 20, 2}), contains_text("1048576"));
  CHECK(kv::parallel_error(geometry, {1, 80}).empty());
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/interop/flash_attention.hpp>

#include "catch.hpp"
#include "misuse.hpp"
#include "refusals.hpp"
#include "world.hpp"

namespace kv = pagedkv;
namespace flash_attention = pagedkv::interop::flash_attention;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::interop::Tensor;

namespace {

constexpr KvFormat e4m3_tensor{Element::fp8_e4m3, Granularity::per_tensor};
constexpr KvFormat e4m3_head{Element::fp8_e4m3, Granularity::per_head};

Geometry geometry(kv::LayerFormat format, std::int32_t block_tokens, std::int32_t dim) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .head_dim_k = dim,
          .head_dim_v = dim,
          .block_tokens = block_tokens,
          .format = format};
}

/// How both versions find a token: cache[table[b, position / page], position % page, head].
[[nodiscard]] float token(Tensor const& cache, Tensor const& table, std::int64_t b,
                          std::int64_t position, std::int64_t head, std::int64_t i) {
  std::int64_t const page_size = cache.shape[1];
  std::int64_t const page = whole(table, {b, position / page_size});
  return number(cache, {page, position % page_size, head, i});
}
/// FA3: scores and outputs are multiplied by descale[b, head]; absent, by nothing.
[[nodiscard]] float descaled(float stored, Tensor const& descale, std::int64_t b,
                             std::int64_t head) {
  return descale.exists() ? stored * number(descale, {b, head}) : stored;
}

/// What the calls check first.
void check_shapes(Tensor const& cache, Tensor const& table, World const& world,
                  StepSeen const& seen) {
  auto const& g = world.geometry();
  CHECK(cache.shape[1] == g.block_tokens);
  CHECK(cache.shape[2] == g.num_kv_heads);
  CHECK(cache.shape[3] == g.head_dim_k);
  CHECK(cache.strides[3] == 1);
  CHECK(table.shape[0] == seen.step.padded_sequences);
  CHECK(table.strides[1] == 1);
}

std::int64_t length_of(StepSeen const& seen, std::int64_t b) {
  return b < seen.step.num_sequences ? seen.request_of_row[static_cast<std::size_t>(b)]->seq.size()
                                     : 0;
}
std::int64_t queries_of(StepSeen const& seen, std::int64_t b) {
  return b < seen.step.num_sequences ? seen.request_of_row[static_cast<std::size_t>(b)]->query.count
                                     : 0;
}

void check_fa2(KvFormat format, Placement const& placement, std::uint32_t seed) {
  INFO(to_string(format) << ", " << placement.name << ", seed " << seed);
  World world(geometry(format, 256, 8), placement, seed);
  for (int i = 0; i < 14; ++i) {
    world.step([&](StepSeen const& seen) {
      auto cumulated = seen.cumulated;
      auto const decode = flash_attention::fa2_decode(seen.step, seen.arrays, seen.table);
      auto const varlen =
          flash_attention::fa2_varlen(seen.step, seen.arrays, seen.table, cumulated, seen.maxima);
      std::int64_t longest = 0;
      std::int64_t most_queries = 0;
      for (std::int64_t b = 0; b < seen.step.padded_sequences; ++b) {
        CHECK(whole(decode.cache_seqlens, {b}) == length_of(seen, b));
        CHECK(whole(varlen.cu_seqlens_k, {b + 1}) - whole(varlen.cu_seqlens_k, {b}) ==
              length_of(seen, b));
        CHECK(whole(varlen.cu_seqlens_q, {b + 1}) - whole(varlen.cu_seqlens_q, {b}) ==
              queries_of(seen, b));
        longest = std::max(longest, length_of(seen, b));
        most_queries = std::max(most_queries, queries_of(seen, b));
      }
      CHECK(varlen.max_seqlen_k == longest);
      CHECK(varlen.max_seqlen_q == most_queries);
      CHECK(varlen.block_table == decode.block_table);
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        auto const cache = flash_attention::fa2_cache(world.pool().view(), layer);
        REQUIRE(cache.has_value());
        check_shapes(cache->k, decode.block_table, world, seen);
        check_all(world, seen, layer, [&](auto b, auto position, bool is_v, auto head, auto i2) {
          return token(is_v ? cache->v : cache->k, decode.block_table, b, position, head, i2);
        });
      }
    });
  }
}

void check_fa3(kv::LayerFormat format, std::int32_t block_tokens, Placement const& placement,
               std::uint32_t seed) {
  INFO(to_string(format.k) << ", " << to_string(format.v) << ", " << placement.name
                           << ", blocks of " << block_tokens << ", seed " << seed);
  World world(geometry(format, block_tokens, 16), placement, seed);
  for (int i = 0; i < 20; ++i) {
    world.step([&](StepSeen const& seen) {
      std::int64_t const n = seen.step.padded_sequences;
      auto const args = flash_attention::fa3_step(seen.step, seen.arrays, seen.table, seen.maxima);
      std::int64_t most_queries = 0;
      for (std::int64_t b = 0; b < n; ++b) {
        CHECK(whole(args.cache_seqlens, {b}) == length_of(seen, b));
        CHECK(whole(args.cu_seqlens_q, {b + 1}) - whole(args.cu_seqlens_q, {b}) ==
              queries_of(seen, b));
        most_queries = std::max(most_queries, queries_of(seen, b));
      }
      CHECK(args.cu_seqlens_q.shape[0] == n + 1);
      CHECK(args.max_seqlen_q == most_queries);
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        auto const cache = flash_attention::fa3_cache(world.pool().view(), layer);
        REQUIRE(cache.has_value());
        auto const k_descale = flash_attention::descale_of_batch(cache->k_descale, n);
        auto const v_descale = flash_attention::descale_of_batch(cache->v_descale, n);
        CHECK(k_descale.exists() == (format.k.granularity != Granularity::none));
        if (k_descale.exists()) {
          CHECK(k_descale.shape[0] == n);
          CHECK(k_descale.shape[1] == world.geometry().num_kv_heads);
        }
        check_shapes(cache->k, args.page_table, world, seen);
        check_all(world, seen, layer, [&](auto b, auto position, bool is_v, auto head, auto i2) {
          float const stored =
              token(is_v ? cache->v : cache->k, args.page_table, b, position, head, i2);
          return descaled(stored, is_v ? v_descale : k_descale, b, head);
        });
      }
    });
  }
}

auto const ask_fa2 = [](kv::KvView const& view) { return flash_attention::fa2_cache(view, 0); };
auto const ask_fa3 = [](kv::KvView const& view) { return flash_attention::fa3_cache(view, 0); };

}  // namespace

TEST_CASE("FlashAttention 2 reads every K and V from what it is given") {
  std::uint32_t seed = 200;
  for (Element const element : {Element::f16, Element::bf16}) {
    for (Placement const& placement : placements) check_fa2({element}, placement, seed++);
  }
}

TEST_CASE("FlashAttention 3 reads every K and V from what it is given") {
  std::uint32_t seed = 300;
  for (kv::LayerFormat const format :
       {kv::LayerFormat(KvFormat{Element::f16}), kv::LayerFormat(KvFormat{Element::bf16}),
        kv::LayerFormat(e4m3_tensor), kv::LayerFormat(e4m3_head),
        kv::LayerFormat(e4m3_head, e4m3_tensor)}) {
    for (Placement const& placement : placements) {
      check_fa3(format, seed % 2 == 0 ? 16 : 5, placement, seed);
      ++seed;
    }
  }
}

TEST_CASE("FlashAttention takes these formats and no others") {
  CHECK(taken_formats(ask_fa2) == std::vector<std::string>{"f16", "bf16"});
  CHECK(taken_formats(ask_fa3) ==
        std::vector<std::string>{"f16", "bf16", "fp8_e4m3/per_tensor", "fp8_e4m3/per_head"});
}

TEST_CASE("FlashAttention's refusals name the term and lead to what it takes") {
  check_that_refusals_lead_to_what_is_taken(ask_fa2);
  check_that_refusals_lead_to_what_is_taken(ask_fa3);

  PaperPool const small({.block_tokens = 16});
  CHECK(flash_attention::fa2_cache(small.view(), 0).refusal().message ==
        "FlashAttention 2: block_tokens is 16; it takes multiples of 256; the nearest is 256");
  CHECK(flash_attention::fa3_cache(small.view(), 0).has_value());
  PaperPool const larger({.block_tokens = 500});
  CHECK(flash_attention::fa2_cache(larger.view(), 0).refusal().nearest == "512");
}

TEST_CASE("FlashAttention 3 takes a V of another head_dim from two families of kernels") {
  struct Case {
    std::int32_t dim_k;
    std::int32_t dim_v;
    KvFormat format;
    bool taken;
  };
  KvFormat const f16{Element::f16};
  for (Case const c :
       {Case{192, 128, f16, true}, Case{136, 104, f16, true}, Case{192, 96, f16, false},
        Case{128, 120, f16, false}, Case{200, 128, f16, false}, Case{64, 512, f16, true},
        Case{64, 512, e4m3_head, false}, Case{64, 256, e4m3_head, true}, Case{72, 512, f16, false},
        Case{256, 256, f16, true}, Case{256, 264, f16, false}}) {
    PaperPool const pool({.k = c.format, .v = c.format, .dim_k = c.dim_k, .dim_v = c.dim_v});
    auto const answer = flash_attention::fa3_cache(pool.view(), 0);
    INFO(c.dim_k << ", " << c.dim_v << ", " << to_string(c.format));
    CHECK(answer.has_value() == c.taken);
    if (!c.taken) CHECK(answer.refusal().term == "head_dim of V");
  }
  PaperPool const fa2({.dim_k = 192, .dim_v = 128});
  CHECK(flash_attention::fa2_cache(fa2.view(), 0).refusal().term == "head_dim of V");
}

TEST_CASE("lengths are cumulated into the caller's memory or not at all") {
  std::vector<std::int32_t> lengths = {3, 0, 7};
  kv::BatchBuffers const host{.sequence_lengths = lengths};
  kv::BatchStep const step{.num_sequences = 3, .padded_sequences = 3};
  std::vector<std::int32_t> out(5, -1);
  REQUIRE(flash_attention::cumulate_lengths(step, host, out).has_value());
  CHECK(out == std::vector<std::int32_t>{0, 3, 3, 10, -1});

  auto const short_out = std::span(out).first(3);
  CHECK(flash_attention::cumulate_lengths(step, host, short_out).error() == kv::Errc::batch_full);
  lengths = {INT32_MAX, 0, 1};
  CHECK(flash_attention::cumulate_lengths(step, host, out).error() == kv::Errc::batch_full);
  lengths = {INT32_MAX, 0, 0};
  REQUIRE(flash_attention::cumulate_lengths(step, host, out).has_value());
  CHECK(out[3] == INT32_MAX);

  REQUIRE(flash_attention::cumulate_lengths({}, {}, out).has_value());  // an empty step
  CHECK(out[0] == 0);
}

TEST_CASE("a table with too few rows is a broken contract") {
  std::vector<std::int32_t> blocks(4);
  std::vector<std::int32_t> lengths(3);
  kv::BatchBuffers const arrays{.sequence_lengths = lengths};
  kv::BlockTable const table{blocks.data(), 2, 2, 2};
  kv::BatchStep const step{.num_sequences = 2, .padded_sequences = 3};
  auto const outcome = outcome_of([&] { (void)flash_attention::fa2_decode(step, arrays, table); });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.message, contains_text("a row for each sequence"));
}

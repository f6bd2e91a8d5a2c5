// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/interop/vllm.hpp>

#include "catch.hpp"
#include "refusals.hpp"
#include "world.hpp"

namespace kv = pagedkv;
namespace vllm = pagedkv::interop::vllm;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::interop::Dtype;
using pagedkv::interop::Tensor;

namespace {

constexpr KvFormat e4m3_tensor{Element::fp8_e4m3, Granularity::per_tensor};
constexpr KvFormat e4m3_head{Element::fp8_e4m3, Granularity::per_head};

/// How vLLM's flash backend reads: kv_cache is taken apart along its first dimension and, for fp8,
/// seen as e4m3; block_table[b, position // block_size] is the block, and a scale has one number or
/// one for each head.
struct VllmReader {
  vllm::FlashCache const& cache;
  vllm::FlashMetadata const& meta;

  [[nodiscard]] std::int64_t block_size() const { return cache.kv_cache.shape[2]; }
  [[nodiscard]] float scaled(float stored, bool is_v, std::int64_t head) const {
    Tensor const& scale = is_v ? cache.v_scale : cache.k_scale;
    if (!scale.exists()) return stored;
    return stored * number(scale, {scale.shape[0] == 1 ? 0 : head});
  }
  [[nodiscard]] float in_slot(std::int64_t slot, bool is_v, std::int64_t head,
                              std::int64_t i) const {
    Tensor viewed = cache.kv_cache;
    if (std::string(cache.kv_cache_dtype) == "fp8_e4m3") {
      REQUIRE(viewed.dtype == Dtype::u8);
      viewed.dtype = Dtype::e4m3fn;
    }
    return scaled(number(viewed, {is_v, slot / block_size(), slot % block_size(), head, i}), is_v,
                  head);
  }
  [[nodiscard]] float attended(std::int64_t b, std::int64_t position, bool is_v, std::int64_t head,
                               std::int64_t i) const {
    Tensor const& t = is_v ? cache.value_cache : cache.key_cache;
    std::int64_t const block = whole(meta.block_table, {b, position / block_size()});
    return scaled(number(t, {block, position % block_size(), head, i}), is_v, head);
  }
};

/// `reshape_and_cache_flash` would have stored token t of the step in slot_mapping[t].
void check_slots(World const& world, StepSeen const& seen, VllmReader const& reader,
                 std::int32_t layer) {
  auto const& g = world.geometry();
  for (std::size_t b = 0; b < seen.request_of_row.size(); ++b) {
    Request const& r = *seen.request_of_row[b];
    std::int64_t const first = whole(reader.meta.query_start_loc, {static_cast<std::int64_t>(b)});
    for (std::int32_t j = 0; j < r.query.count; ++j) {
      std::int64_t const slot = whole(reader.meta.slot_mapping, {first + j});
      for (bool const is_v : {false, true}) {
        for (std::int32_t head = 0; head < g.num_kv_heads; ++head) {
          Floats const expected = world.expected(r, r.query.first + j, layer, is_v, head);
          Floats found;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            found.push_back(reader.in_slot(slot, is_v, head, static_cast<std::int64_t>(i)));
          }
          CHECK(found == expected);
        }
      }
    }
  }
}

void check_step(World const& world, StepSeen const& seen) {
  auto const meta = vllm::flash_metadata(seen.step, seen.arrays, seen.table, seen.maxima);
  std::int64_t longest = 0;
  std::int64_t most_queries = 0;
  for (std::int64_t b = 0; b < seen.step.padded_sequences; ++b) {
    bool const is_padding = b >= seen.step.num_sequences;
    auto const* const r = is_padding ? nullptr : seen.request_of_row[static_cast<std::size_t>(b)];
    std::int64_t const queries =
        whole(meta.query_start_loc, {b + 1}) - whole(meta.query_start_loc, {b});
    CHECK(whole(meta.seq_lens, {b}) == (is_padding ? 0 : r->seq.size()));
    CHECK(queries == (is_padding ? 0 : r->query.count));
    longest = std::max(longest, whole(meta.seq_lens, {b}));
    most_queries = std::max(most_queries, queries);
  }
  CHECK(meta.max_seq_len == longest);
  CHECK(meta.max_query_len == most_queries);
  CHECK(meta.slot_mapping.dtype == Dtype::i64);
  CHECK(meta.slot_mapping.shape[0] == seen.step.padded_tokens);
  CHECK(meta.num_actual_tokens == seen.step.num_tokens);
  for (std::int64_t t = meta.num_actual_tokens; t < seen.step.padded_tokens; ++t) {
    CHECK(whole(meta.slot_mapping, {t}) == -1);
  }
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    auto const cache = vllm::flash_cache(world.pool().view(), layer);
    REQUIRE(cache.has_value());
    CHECK(cache->kv_cache.shape[0] == 2);
    VllmReader const reader{*cache, meta};
    check_slots(world, seen, reader, layer);
    check_all(world, seen, layer, [&](auto... at) { return reader.attended(at...); });
  }
}

auto const ask = [](kv::KvView const& view) { return vllm::flash_cache(view, 0); };

}  // namespace

TEST_CASE("vLLM's flash layout reads every K and V from what it is given") {
  std::uint32_t seed = 400;
  for (kv::LayerFormat const format :
       {kv::LayerFormat(KvFormat{Element::f16}), kv::LayerFormat(KvFormat{Element::bf16}),
        kv::LayerFormat(e4m3_tensor), kv::LayerFormat(e4m3_head)}) {
    for (Placement const& placement : placements) {
      INFO(to_string(format.k) << ", " << placement.name << ", seed " << seed);
      World world({.num_layers = 2,
                   .num_kv_heads = 3,
                   .head_dim_k = 16,
                   .head_dim_v = 16,
                   .block_tokens = seed % 2 == 0 ? 16 : 32,
                   .format = format},
                  placement, seed);
      for (int i = 0; i < 15; ++i) {
        world.step([&](StepSeen const& seen) { check_step(world, seen); });
      }
      ++seed;
    }
  }
}

TEST_CASE("vLLM takes these formats and no others") {
  CHECK(taken_formats(ask) ==
        std::vector<std::string>{"f16", "bf16", "fp8_e4m3/per_tensor", "fp8_e4m3/per_head"});
}

TEST_CASE("vLLM's refusals name the term and lead to what it takes") {
  check_that_refusals_lead_to_what_is_taken(ask);

  PaperPool const e5m2({.k = {Element::fp8_e5m2, Granularity::per_head},
                        .v = {Element::fp8_e5m2, Granularity::per_head}});
  CHECK(ask(e5m2.view()).refusal().nearest == "fp8_e4m3/per_head");
  PaperPool const odd({.block_tokens = 20});
  CHECK(ask(odd.view()).refusal().message ==
        "vLLM flash: block_tokens is 20; it takes multiples of 16; the nearest is 16");
}

TEST_CASE("vLLM's one tensor needs V like K and behind it") {
  PaperPool pool({});
  REQUIRE(ask(pool.view()).has_value());
  std::swap(pool.layer().k.data, pool.layer().v.data);
  CHECK(ask(pool.view()).refusal().term == "V");
  std::swap(pool.layer().k.data, pool.layer().v.data);
  pool.layer().v.block_stride += 64;
  CHECK_THAT(ask(pool.view()).refusal().message, contains_text("the same strides, V behind K"));
}

TEST_CASE("vLLM wants as many scales for V as for K, and heads' scales side by side") {
  PaperPool const mixed({.k = e4m3_tensor, .v = e4m3_head});
  CHECK(ask(mixed.view()).refusal().message ==
        "vLLM flash: format of V is fp8_e4m3/per_head; it takes the format of K, "
        "fp8_e4m3/per_tensor; the nearest is fp8_e4m3/per_tensor");
  PaperPool pool({.k = e4m3_head, .v = e4m3_head});
  REQUIRE(ask(pool.view()).has_value());
  pool.layer().v.scale_head_stride = 3;
  CHECK(ask(pool.view()).refusal().message ==
        "vLLM flash: scale_head_stride of V is 3; it takes scales that are neighbours; the nearest "
        "is 1");
}

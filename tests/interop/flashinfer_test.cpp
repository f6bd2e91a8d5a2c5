// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/interop/flashinfer.hpp>

#include "catch.hpp"
#include "misuse.hpp"
#include "refusals.hpp"
#include "world.hpp"

namespace kv = pagedkv;
namespace flashinfer = pagedkv::interop::flashinfer;
using namespace pagedkv::testing;
using flashinfer::Backend;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::interop::Dtype;
using pagedkv::interop::Tensor;

namespace {

Geometry geometry(kv::LayerFormat format, std::int32_t block_tokens) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .head_dim_k = 64,
          .head_dim_v = 64,
          .block_tokens = block_tokens,
          .format = format};
}

/// How FlashInfer reads a paged cache, from its documentation ("KV-Cache Layout"), `get_seq_lens`
/// and `paged_kv_t`: nothing but the arguments.
struct FlashInferReader {
  flashinfer::PagedKv const& cache;
  flashinfer::PageTable const& table;

  [[nodiscard]] std::int64_t batch_size() const { return table.kv_last_page_len.shape[0]; }
  /// As the kernels count.
  [[nodiscard]] std::int64_t length(std::int64_t b) const {
    std::int64_t const first = whole(table.kv_indptr, {b});
    std::int64_t const end = whole(table.kv_indptr, {b + 1});
    if (first == end) return 0;
    return (end - first - 1) * cache.page_size + whole(table.kv_last_page_len, {b});
  }
  /// As `plan` counts, where a sequence without pages isn't a case of its own.
  [[nodiscard]] std::int64_t planned_length(std::int64_t b) const {
    std::int64_t const pages = whole(table.kv_indptr, {b + 1}) - whole(table.kv_indptr, {b});
    return std::max<std::int64_t>(pages - 1, 0) * cache.page_size +
           whole(table.kv_last_page_len, {b});
  }
  [[nodiscard]] std::int64_t page(std::int64_t b, std::int64_t position) const {
    return whole(table.kv_indices, {whole(table.kv_indptr, {b}) + position / cache.page_size});
  }
  [[nodiscard]] float scaled(float stored, bool is_v, std::int64_t head) const {
    float const one = is_v ? cache.v_scale : cache.k_scale;
    Tensor const& each = is_v ? cache.v_scales : cache.k_scales;
    return stored * (each.exists() ? number(each, {head}) : one);
  }
  /// The pair of 4-D tensors, in the order that `kv_layout` names.
  [[nodiscard]] float paired(std::int64_t b, std::int64_t position, bool is_v, std::int64_t head,
                             std::int64_t i) const {
    Tensor const& t = is_v ? cache.v : cache.k;
    std::int64_t const entry = position % cache.page_size;
    bool const nhd = std::string(cache.kv_layout) == "NHD";
    std::int64_t const p = page(b, position);
    return scaled(nhd ? number(t, {p, entry, head, i}) : number(t, {p, head, entry, i}), is_v,
                  head);
  }
  /// The 5-D tensor: kv[:, 0] is K, kv[:, 1] is V.
  [[nodiscard]] float single(std::int64_t b, std::int64_t position, bool is_v, std::int64_t head,
                             std::int64_t i) const {
    std::int64_t const entry = position % cache.page_size;
    bool const nhd = std::string(cache.kv_layout) == "NHD";
    std::int64_t const p = page(b, position);
    return scaled(nhd ? number(cache.kv, {p, is_v, entry, head, i})
                      : number(cache.kv, {p, is_v, head, entry, i}),
                  is_v, head);
  }
  /// `paged_kv_t` made with k_strides and v_strides: 32-bit strides, elements of the type.
  [[nodiscard]] float by_struct(std::int64_t b, std::int64_t position, bool is_v, std::int64_t head,
                                std::int64_t i) const {
    Tensor const& t = is_v ? cache.v : cache.k;
    bool const hnd = std::string(cache.kv_layout) == "HND";
    auto const stride_page = static_cast<std::uint32_t>(t.strides[0]);
    auto const stride_n = static_cast<std::uint32_t>(hnd ? t.strides[2] : t.strides[1]);
    auto const stride_h = static_cast<std::uint32_t>(hnd ? t.strides[1] : t.strides[2]);
    auto const offset = static_cast<std::size_t>(page(b, position)) * stride_page +
                        static_cast<std::size_t>(head) * stride_h +
                        static_cast<std::size_t>(position % cache.page_size) * stride_n +
                        static_cast<std::size_t>(i);
    auto const size =
        static_cast<std::size_t>(t.dtype == Dtype::e4m3fn || t.dtype == Dtype::e5m2 ? 1 : 2);
    return scaled(number_at(static_cast<std::byte const*>(t.data) + offset * size, t.dtype), is_v,
                  head);
  }
};

void check_step(World const& world, StepSeen const& seen,
                std::vector<flashinfer::PagedKv> const& caches) {
  auto const table = flashinfer::page_table(seen.step, seen.arrays);
  for (std::size_t layer = 0; layer < caches.size(); ++layer) {
    FlashInferReader const reader{caches[layer], table};
    REQUIRE(reader.batch_size() == seen.step.padded_sequences);
    for (std::int64_t b = 0; b < reader.batch_size(); ++b) {
      bool const is_padding = b >= seen.step.num_sequences;
      auto const* const r = is_padding ? nullptr : seen.request_of_row[static_cast<std::size_t>(b)];
      std::int64_t const length = is_padding ? 0 : r->seq.size();
      CHECK(reader.length(b) == length);
      CHECK(reader.planned_length(b) == length);
      std::int64_t const last = whole(table.kv_last_page_len, {b});
      CHECK((length == 0 ? last == 0 : last >= 1 && last <= caches[layer].page_size));
      std::int64_t const queries = whole(table.qo_indptr, {b + 1}) - whole(table.qo_indptr, {b});
      CHECK(queries == (is_padding ? 0 : r->query.count));
    }
    auto const l = static_cast<std::int32_t>(layer);
    check_all(world, seen, l, [&](auto... at) { return reader.paired(at...); });
    check_all(world, seen, l, [&](auto... at) { return reader.by_struct(at...); });
    if (caches[layer].kv.exists()) {
      check_all(world, seen, l, [&](auto... at) { return reader.single(at...); });
    }
  }
}

void check_backend(Backend backend, kv::LayerFormat format, std::int32_t block_tokens,
                   Placement const& placement, std::uint32_t seed) {
  INFO(to_string(format.k) << ", " << to_string(format.v) << ", " << placement.name
                           << ", blocks of " << block_tokens << ", seed " << seed);
  World world(geometry(format, block_tokens), placement, seed);
  std::vector<flashinfer::PagedKv> caches;
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    auto const cache =
        flashinfer::paged_kv(world.pool().view(), layer, backend, world.pool().scales(layer));
    REQUIRE(cache.has_value());
    CHECK(cache->kv.exists());  // in all of these placements K and V lie alike
    bool const is_hnd = placement.layout.block == kv::BlockOrder::hnd && block_tokens > 1;
    CHECK(std::string(cache->kv_layout) == (is_hnd ? "HND" : "NHD"));
    caches.push_back(*cache);
  }
  for (int i = 0; i < 20; ++i) {
    world.step([&](StepSeen const& seen) { check_step(world, seen, caches); });
  }
}

constexpr KvFormat e4m3_tensor{Element::fp8_e4m3, Granularity::per_tensor};
constexpr KvFormat e4m3_head{Element::fp8_e4m3, Granularity::per_head};

auto asking(Backend backend) {
  return [backend](kv::KvView const& view) {
    return flashinfer::paged_kv(view, 0, backend, {{0.5F}, {0.25F}});
  };
}

}  // namespace

TEST_CASE("FlashInfer fa2 reads every K and V from what it is given") {
  std::uint32_t seed = 1;
  for (KvFormat const format : {KvFormat{Element::f16}, KvFormat{Element::bf16}, e4m3_tensor,
                                KvFormat{Element::fp8_e5m2, Granularity::per_tensor}}) {
    for (Placement const& placement : placements) {
      check_backend(Backend::fa2, format, seed % 2 == 0 ? 16 : 5, placement, seed);
      ++seed;
    }
  }
  check_backend(Backend::fa2, KvFormat{Element::f16}, 1, placements[1], seed);
}

TEST_CASE("FlashInfer fa3 reads every K and V from what it is given") {
  std::uint32_t seed = 100;
  for (kv::LayerFormat const format :
       {kv::LayerFormat(KvFormat{Element::f16}), kv::LayerFormat(KvFormat{Element::bf16}),
        kv::LayerFormat(e4m3_tensor), kv::LayerFormat(e4m3_head),
        kv::LayerFormat(e4m3_head, e4m3_tensor), kv::LayerFormat(e4m3_tensor, e4m3_head)}) {
    for (Placement const& placement : placements) {
      check_backend(Backend::fa3, format, seed % 2 == 0 ? 16 : 5, placement, seed);
      ++seed;
    }
  }
}

TEST_CASE("FlashInfer takes these formats and no others") {
  CHECK(taken_formats(asking(Backend::fa2)) ==
        std::vector<std::string>{"f16", "bf16", "fp8_e4m3/per_tensor", "fp8_e5m2/per_tensor"});
  CHECK(taken_formats(asking(Backend::fa3)) ==
        std::vector<std::string>{"f16", "bf16", "fp8_e4m3/per_tensor", "fp8_e4m3/per_head"});
}

TEST_CASE("FlashInfer's refusals name the term and lead to what it takes") {
  check_that_refusals_lead_to_what_is_taken(asking(Backend::fa2));
  check_that_refusals_lead_to_what_is_taken(asking(Backend::fa3));

  PaperPool const pool({.k = {Element::fp8_e4m3, Granularity::per_token_head},
                        .v = {Element::fp8_e4m3, Granularity::per_token_head}});
  CHECK(flashinfer::paged_kv(pool.view(), 0, Backend::fa2).refusal().message ==
        "FlashInfer fa2: format of K is fp8_e4m3/per_token_head; it takes f16, bf16, "
        "fp8_e4m3/per_tensor, fp8_e5m2/per_tensor, for its scales are one number for K and one for "
        "V; the nearest is fp8_e4m3/per_tensor");
}

TEST_CASE("FlashInfer refuses a pair that its kernels have one type or dimension for") {
  PaperPool const mixed({.k = {Element::f16}, .v = {Element::bf16}});
  auto const by_type = flashinfer::paged_kv(mixed.view(), 0, Backend::fa2);
  CHECK(by_type.refusal().term == "format of V");
  CHECK(by_type.refusal().nearest == "f16");

  PaperPool const wide({.dim_k = 128, .dim_v = 64});
  auto const by_dim = flashinfer::paged_kv(wide.view(), 0, Backend::fa2);
  CHECK(by_dim.refusal().term == "head_dim of V");
  CHECK(by_dim.refusal().nearest == "128");

  // Padded, never cut.
  for (auto const& [dim, nearest] : {std::pair(80, "128"), {129, "256"}, {300, "256"}}) {
    PaperPool const odd({.dim_k = dim, .dim_v = dim});
    CHECK(flashinfer::paged_kv(odd.view(), 0, Backend::fa2).refusal().nearest == nearest);
  }

  PaperPool const latent({.dim_v = 0});
  CHECK_THAT(flashinfer::paged_kv(latent.view(), 0, Backend::fa3).refusal().message,
             contains_text("V is absent"));
}

TEST_CASE("FlashInfer refuses addresses and strides that its loads or counters can't have") {
  PaperPool pool({});
  pool.layer().k.data += 8;
  CHECK(flashinfer::paged_kv(pool.view(), 0, Backend::fa2).refusal().term == "data of K");
  pool.layer().k.data += 8;
  CHECK(flashinfer::paged_kv(pool.view(), 0, Backend::fa2).has_value());

  pool.layer().v.token_stride += 4;
  auto const odd = flashinfer::paged_kv(pool.view(), 0, Backend::fa2);
  CHECK(odd.refusal().term == "token_stride of V");
  CHECK(odd.refusal().nearest == "272 bytes");
  pool.layer().v.token_stride -= 4;

  pool.layer().k.block_stride = std::int64_t{1} << 32;
  auto const wide = flashinfer::paged_kv(pool.view(), 0, Backend::fa2);
  CHECK(wide.refusal().term == "a stride of K");
  pool.layer().k.block_stride -= 8;
  auto const widest = flashinfer::paged_kv(pool.view(), 0, Backend::fa2);
  REQUIRE(widest.has_value());
  CHECK_FALSE(widest->kv.exists());  // K and V don't lie alike any more
}

TEST_CASE("a scale that the kernel wants from the host must be given") {
  PaperPool const pool({.k = e4m3_tensor, .v = e4m3_tensor});
  auto const without = flashinfer::paged_kv(pool.view(), 0, Backend::fa2);
  CHECK(without.refusal().term == "static_scales of K");
  auto const only_k = flashinfer::paged_kv(pool.view(), 0, Backend::fa2, {{0.5F}, {}});
  CHECK(only_k.refusal().term == "static_scales of V");
  auto const both = flashinfer::paged_kv(pool.view(), 0, Backend::fa2, {{0.5F}, {0.25F}});
  REQUIRE(both.has_value());
  CHECK(both->k_scale == 0.5F);
  CHECK(both->v_scale == 0.25F);
  CHECK_FALSE(both->k_scales.exists());
}

TEST_CASE("FlashInfer fa3 finds the scales of heads side by side or not at all") {
  PaperPool pool({.k = e4m3_head, .v = e4m3_head});
  REQUIRE(flashinfer::paged_kv(pool.view(), 0, Backend::fa3).has_value());
  pool.layer().k.scale_head_stride = 2;
  auto const far = flashinfer::paged_kv(pool.view(), 0, Backend::fa3);
  CHECK(far.refusal().term == "scale_head_stride of K");
  CHECK(far.refusal().nearest == "1");
}

TEST_CASE("arrays that build didn't write are a broken contract") {
  kv::BatchStep const step{.num_sequences = 1, .padded_sequences = 1, .num_indices = 1};
  auto const outcome = outcome_of([&] { (void)flashinfer::page_table(step, {}); });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.message, contains_text("Batch::build must write it"));
}

// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include <pagedkv/data/cpu/operations.hpp>

#include "catch.hpp"
#include "formats.hpp"
#include "needle_search.hpp"
#include "running_maximum.hpp"

namespace kv = pagedkv;

namespace {

constexpr kv::KvFormat block_head{kv::Element::fp8_e4m3, kv::Granularity::per_block_head};
constexpr std::size_t dim = quality::needle_head_dim;
constexpr std::size_t row = quality::needle_heads * dim;

double score(quality::NeedleContext const& context, std::size_t head, float const* k) {
  double sum = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    sum += static_cast<double>(context.query[head * dim + i]) * static_cast<double>(k[i]);
  }
  return sum * static_cast<double>(quality::NeedleContext::softmax_scale());
}

/// Nats between the needle's score and all the others' together.
double margin(quality::NeedleContext const& context, quality::Needle const& needle,
              std::size_t head) {
  double others = 0;
  for (std::size_t t = 0; t < static_cast<std::size_t>(context.length); ++t) {
    others += std::exp(score(context, head, &context.k[t * row + head * dim]));
  }
  return score(context, head, &needle.k[head * dim]) - std::log(others);
}

TEST_CASE("a needle's margin over all other tokens is what the page says, at every length") {
  for (std::int32_t const length : {256, 4096, 131072}) {
    auto const context = quality::make_needle_context(length, 1);
    for (std::size_t head = 0; head < quality::needle_heads; ++head) {
      INFO(length << " tokens, head " << head);
      CHECK_THAT(margin(context, context.needles[3], head), Catch::Matchers::WithinAbs(4.5, 0.2));
    }
  }
}

TEST_CASE("the same seed makes the same context, another one other tokens for the same query") {
  auto const a = quality::make_needle_context(512, 1);
  auto const b = quality::make_needle_context(512, 1);
  auto const c = quality::make_needle_context(512, 2);
  CHECK(a.k == b.k);
  CHECK(a.v == b.v);
  CHECK(a.needles[3].v == b.needles[3].v);
  CHECK(a.query == c.query);
  CHECK(a.k != c.k);
}

TEST_CASE("f16, every fp8_e4m3 and int8 per token and head find every needle") {
  auto const found_all = quality::parse_formats(
      {"f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8/per_token_head", "int8_asym"});
  quality::NeedleSearch search{found_all, {64, 1024, 4096}, 3};
  for (auto const& asked : quality::search_needles(search, [](std::int64_t) {})) {
    INFO(kv::to_string(asked.format) << ", " << asked.length << " tokens, depth " << asked.depth);
    CHECK(asked.found);
  }
}

TEST_CASE("a running maximum without requantizing loses needles that requantizing finds") {
  for (std::int32_t const length : {1024, 4096}) {
    for (std::uint64_t const seed : {1, 2, 3}) {
      auto const context = quality::make_needle_context(length, seed);
      int const found = quality::count_needles(context, block_head, kv::cpu::write_kv);
      int const without =
          quality::count_needles(context, block_head, quality::testing::write_running_maximum);

      INFO(length << " tokens, seed " << seed << ": " << without << " found without requantizing");
      CHECK(found == 11);
      CHECK(without <= 5);
    }
  }
}

TEST_CASE("a needle that isn't there isn't found") {
  auto context = quality::make_needle_context(1024, 1);
  // Another value than the one that is asked for arrives in the cache.
  auto const write = [](kv::KvView const& view, std::int32_t layer, kv::KvRows const& k,
                        kv::KvRows const& v, std::span<kv::Slot const> slots) {
    kv::cpu::write_kv(view, layer, v, k, slots);
  };
  CHECK(quality::count_needles(context, {}, write) == 0);
}

TEST_CASE("rows come format by format, then by length, then by depth; progress counts them") {
  quality::NeedleSearch search{quality::parse_formats({"bf16", "f16"}), {64, 128}, 1};
  std::int64_t last = 0;
  auto const rows = quality::search_needles(search, [&](std::int64_t done) {
    CHECK(done == last + 1);
    last = done;
  });
  REQUIRE(rows.size() == 44);
  CHECK(last == 44);
  CHECK(rows[0].format.element == kv::Element::f16);
  CHECK(rows[11].length == 128);
  CHECK(rows[22].format.element == kv::Element::bf16);
  CHECK(rows[10].depth == 1.0);
}

TEST_CASE("a context too short for its decoys is refused by name") {
  CHECK_THROWS_WITH(quality::make_needle_context(63, 1),
                    "a needle needs a context of at least 64 tokens, not 63");
}

TEST_CASE("formats: all of them, an element's, one, and what is refused") {
  CHECK(quality::all_formats().size() == 16);
  CHECK(quality::parse_formats({"fp8_e4m3"}).size() == 4);
  CHECK(quality::parse_formats({"int8/per_head", "f16", "int8/per_head"}) ==
        std::vector<kv::KvFormat>{{kv::Element::f16, kv::Granularity::none},
                                  {kv::Element::int8, kv::Granularity::per_head}});
  CHECK_THROWS_WITH(quality::parse_formats({"fp9"}), kv::testing::contains_text("fp8_e4m3"));
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "heat_map.hpp"
#include "rows.hpp"

namespace kv = pagedkv;

namespace {

constexpr kv::KvFormat f16{kv::Element::f16, kv::Granularity::none};
constexpr kv::KvFormat e4m3{kv::Element::fp8_e4m3, kv::Granularity::per_token_head};

quality::Rows some_rows() {
  quality::Rows rows;
  for (auto const format : {f16, e4m3}) {
    for (std::int32_t const length : {1024, 1000}) {
      for (double const depth : {0.0, 0.5}) {
        bool const found = format == f16 || depth > 0;
        rows.needles.push_back({"attention", format, length, depth, found});
      }
    }
  }
  rows.qualities.push_back({"a<b", f16, 640, 4.5, 0, 1});
  rows.qualities.push_back({"a<b", e4m3, 330.5, 4.6, 0.01, 0.96, 0.002});
  return rows;
}

std::vector<std::string> keys_of(nlohmann::ordered_json const& row) {
  std::vector<std::string> keys;
  for (auto const& [key, value] : row.items()) keys.push_back(key);
  return keys;
}

TEST_CASE("JSON: one array, needles with six keys and qualities with seven") {
  auto const json = nlohmann::ordered_json::parse(quality::to_json(some_rows()));
  REQUIRE(json.is_array());
  REQUIRE(json.size() == 10);
  CHECK(keys_of(json[0]) ==
        std::vector<std::string>{"needle", "format", "granularity", "length", "depth", "found"});
  CHECK(keys_of(json[8]) == std::vector<std::string>{"quality", "format", "granularity",
                                                     "bytes_per_token", "perplexity", "kl",
                                                     "top1"});
  CHECK(json[4] == nlohmann::ordered_json{{"needle", "attention"},
                                          {"format", "fp8_e4m3"},
                                          {"granularity", "per_token_head"},
                                          {"length", 1024},
                                          {"depth", 0.0},
                                          {"found", false}});
  CHECK(json[8]["granularity"] == "none");
  CHECK(json[9]["bytes_per_token"] == 330.5);
}

TEST_CASE("JSON without rows is an empty array, and what isn't a number is null") {
  CHECK(nlohmann::json::parse(quality::to_json({})) == nlohmann::json::array());
  quality::Rows rows;
  rows.qualities.push_back({"m", f16, 640, std::numeric_limits<double>::infinity(), 0, 1});
  CHECK(nlohmann::json::parse(quality::to_json(rows))[0]["perplexity"].is_null());
}

TEST_CASE("the table counts needles by format and length, and compares perplexities") {
  auto const table = quality::to_table(some_rows());
  CHECK_THAT(table, kv::testing::contains_text("fp8_e4m3/per_token_head         1/2      1/2"));
  CHECK_THAT(table, kv::testing::contains_text("+2.222% ± 0.200%"));
  CHECK(quality::to_table({}).empty());
}

TEST_CASE("the page has a map for each format, needs nothing else, and escapes names") {
  auto const html = quality::to_html(some_rows());
  CHECK_THAT(html, kv::testing::contains_text("fp8_e4m3/per_token_head: 2 of 4"));
  CHECK_THAT(html, kv::testing::contains_text("1000 tokens, depth 50 %: found"));
  CHECK_THAT(html, kv::testing::contains_text("Quality of a&lt;b"));
  for (char const* outside : {"http", "src=", "url(", "<link"}) {
    CHECK(html.find(outside) == std::string::npos);
  }
}

}  // namespace

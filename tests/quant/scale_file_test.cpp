// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/scale_file.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <pagedkv/quant/calibration.hpp>

#include "catch.hpp"
#include "support/nearest_code.hpp"
#include "support/scale_files.hpp"

namespace quant = pagedkv::quant;
using pagedkv::Element;
using pagedkv::Granularity;
using quant::ScaleSet;
using namespace pagedkv::testing;

namespace {

ScaleSet set_of(char const* format, std::vector<quant::LayerScales> layers) {
  return {*pagedkv::parse_kv_format(format), "a \"model\"\n", "amax of 3 tokens",
          std::move(layers)};
}

TEST_CASE("a scale file reads back bit for bit") {
  ScratchFolder const folder;
  std::mt19937 random(41);
  ScaleSet set = set_of("int8/per_head", {});
  for (int layer = 0; layer < 500; ++layer) {
    std::vector<float> four;
    while (four.size() < 4) {
      float const any = std::fabs(float_of(static_cast<std::uint32_t>(random())));
      if (quant::scale_error(any).empty()) four.push_back(any);
    }
    set.layers.push_back({{four[0], four[1]}, {four[2], four[3]}});
  }
  set.layers[0].k = {std::numeric_limits<float>::max(), 0x1p-127F};  // a subnormal one
  auto const path = folder.path("kv_cache_scales.json");
  quant::write_scale_file(path, set);
  auto const read = quant::read_scale_file(path, scaled_model(500, "int8/per_head"));
  CHECK(read.scales == set);
  CHECK(read.report.set.size() == 1000);
  CHECK(quant::load_scales(path, scaled_model(500, "int8/per_head")).scales == set);
}

TEST_CASE("a calibrated set goes through a file into the model it was made for") {
  ScratchFolder const folder;
  auto const geometry = scaled_model(1, "fp8_e4m3/per_head");
  quant::CalibrationObserver observer(geometry, {.format = geometry.format.k, .model = "tiny"});
  observer.observe_k(0, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  observer.observe_v(0, std::vector<float>{8, 7, 6, 5, 4, 3, 2, 1});
  auto const path = folder.path("s.json");
  quant::write_scale_file(path, observer.scales());
  auto const [scales, report] = quant::load_scales(path, geometry);
  CHECK(scales == observer.scales());
  CHECK_THAT(to_string(report), contains_text("layer 0 V: 2 scales from layers[0].v of " + path));
}

TEST_CASE("what couldn't be read again isn't written") {
  ScratchFolder const folder;
  auto const refuse = [&](ScaleSet const& set, char const* text) {
    CHECK_THROWS_WITH(quant::write_scale_file(folder.path("x.json"), set), contains_text(text));
    CHECK_FALSE(std::filesystem::exists(folder.path("x.json")));
  };
  refuse(set_of("fp8_e4m3/per_tensor", {}), "without any scale");
  refuse(set_of("fp8_e4m3/per_token_head", {{{1}, {1}}}), "static ones");
  refuse(set_of("fp8_e4m3/per_tensor", {{{1}, {0}}}), "layer 0, V is 0");
  refuse(set_of("fp8_e4m3/per_head", {{{1, 2}, {1}}}), "1 scales; expected 2");
  refuse(set_of("fp8_e4m3/per_tensor", {{{1}, {std::nanf("")}}}), "finite");
  CHECK_THROWS_WITH(quant::write_scale_file(folder.path("no/such/folder.json"),
                                            set_of("fp8_e4m3/per_tensor", {{{1}, {1}}})),
                    contains_text("can't be written"));
}

std::string own_json(std::string const& layers, std::string const& more = "") {
  return R"({"format": "pagedkv.kv_cache_scales", "version": 1, "model": "m", "made": "x",
             "element": "fp8_e4m3", "granularity": "per_tensor", "layers": [)" +
         layers + "]" + more + "}";
}

TEST_CASE("scale files: every fault is an error that says where and what was expected") {
  ScratchFolder const folder;
  auto const geometry = scaled_model(1, "fp8_e4m3/per_tensor");
  auto const refuse = [&](std::string const& text, char const* message) {
    auto const path = folder.file("s.json", text);
    INFO(text);
    CHECK_THROWS_WITH(quant::read_scale_file(path, geometry), contains_text(message));
    CHECK_THROWS_WITH(quant::read_scale_file(path, geometry), contains_text("s.json"));
  };
  CHECK(
      quant::read_scale_file(folder.file("s.json", own_json(R"({"k": [2], "v": [0.5]})")), geometry)
          .scales.k(0, 1)
          .value == 2.0F);
  refuse("", "is empty");
  refuse(" \n", "is empty");
  refuse("[1, 2", "is cut short: its JSON goes on behind the last byte (line 1, at [2])");
  refuse(own_json(R"({"k": [2], "v": [0.5]})").substr(0, 100), "is cut short");
  refuse("{\n\"a\": 1,\n b}", "isn't JSON in line 3, at a, near 'b'");
  for (char const* const number : {"NaN", "Infinity", "-Infinity", "1e999", "nan", "-inf"}) {
    refuse(own_json("{\"k\": [2], \"v\": [1]},\n{\"k\": [1, " + std::string(number) + "]}"),
           (std::string("isn't JSON in line 3, at layers[1].k[1]: '") + number +
            "' is no finite number; expected scales that are finite and larger than 0")
               .c_str());
  }
  refuse("[]", "'format' is missing");
  refuse(R"({"format": "other"})", "expected 'pagedkv.kv_cache_scales'");
  refuse(R"({"format": "pagedkv.kv_cache_scales"})", "version is missing; expected 1");
  refuse(R"({"format": "pagedkv.kv_cache_scales", "version": 2})", "version is 2; expected 1");
  refuse(own_json(R"({"k": [1], "v": [1]})", R"(, "scale": 1)"), "unknown field 'scale'");
  refuse(own_json(R"({"k": [1], "v": [1]})", R"(, "made": "y")"), "'made' is there twice");
  refuse(own_json(R"({"k": [1], "k": [2], "v": [1]})"), "'k' is there twice");
  refuse(own_json(R"({"k": [1]})"), "layers[0].v is missing");
  refuse(own_json(R"({"k": [1], "v": [1], "q": [1]})"), "unknown field 'q' in layers[0]");
  refuse(own_json(R"({"k": [1], "v": ["1"]})"), "layers[0].v[0] is string; expected a number");
  refuse(own_json(R"({"k": [1], "v": [0]})"), "layers[0].v[0] is 0");
  refuse(own_json(R"({"k": [-1], "v": [1]})"), "layers[0].k[0] is -1");
  refuse(own_json(R"({"k": [1e60], "v": [1]})"), "finite");
  refuse(own_json(R"({"k": [1e-60], "v": [1]})"), "larger than 0");
  refuse(own_json(R"({"k": [], "v": [1]})"), "layer 0, K has 0 scales; expected 1");
  refuse(own_json(R"({"k": [1, 1], "v": [1]})"), "layer 0, K has 2 scales; expected 1");
  refuse(own_json(""), "scales for 0 layers; expected the model's 1");
  refuse(own_json("3"), "layers[0] isn't an object");
  CHECK_THROWS_WITH(quant::read_scale_file(folder.path("none.json"), geometry),
                    contains_text("none.json: can't be read"));
}

TEST_CASE("values nested deeper than the stack are refused like others") {
  ScratchFolder const folder;
  std::string const deep = std::string(400'000, '[') + std::string(400'000, ']');
  auto const refuse = [&](std::string const& text, char const* message) {
    CHECK_THROWS_WITH(
        quant::load_scales(folder.file("s.json", text), scaled_model(1, "fp8_e4m3/per_tensor")),
        contains_text(message));
  };
  refuse(deep, "'format' is missing");
  refuse(R"({"format": )" + deep + "}", "'format' is missing");
  refuse(R"({"format": "pagedkv.kv_cache_scales", "version": )" + deep + "}",
         "the version is array; expected 1");
  refuse(own_json(deep), "layers[0] isn't an object");
  refuse(own_json(R"({"k": )" + deep + "}"), "layers[0].k[0] is array");
  refuse(own_json(R"({"k": [1], "v": [1]})", R"(, "scale": )" + deep), "unknown field 'scale'");
  refuse(R"({"kv_cache": )" + deep + "}", "isn't an object");
  refuse(std::string(400'000, '['), "is cut short");
}

TEST_CASE("a scale file with any bytes changed is refused, or read with scales that can be") {
  ScratchFolder const folder;
  auto const geometry = scaled_model(2, "fp8_e4m3/per_head");
  std::string const own =
      R"({"format": "pagedkv.kv_cache_scales", "version": 1, "model": "m", "made": "x", )"
      R"("element": "fp8_e4m3", "granularity": "per_head", "layers": [)"
      R"({"k": [0.5, 2], "v": [0.25, 8]}, {"k": [1.5, 3], "v": [0.75, 9]}]})";
  std::string const vllm =
      R"({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": )"
      R"({"0": {"0": 0.5, "1": 2}, "1": {"0": 0.25, "1": 4}}}})";
  constexpr std::string_view likely = "0123456789-+.eE\"{}[],: \n\\untrf\xC3";
  std::mt19937 random(7);
  for (auto const& good : {own, vllm}) {
    int read = 0;
    for (int i = 0; i < 3000; ++i) {
      auto text = good;
      for (auto n = 1 + random() % 3; n > 0; --n) {
        text[random() % text.size()] = likely[random() % likely.size()];
      }
      INFO(text);
      try {
        auto const loaded = quant::load_scales(folder.file("s.json", text), geometry);
        CHECK(quant::scale_set_error(loaded.scales, geometry).empty());
        ++read;
      } catch (pagedkv::Error const& error) {
        CHECK_THAT(error.what(), contains_text("s.json"));
      }
    }
    CHECK(read > 20);
    CHECK(read < 1500);
  }
}

TEST_CASE("scales that the cache would not use are an error") {
  ScratchFolder const folder;
  auto const path = folder.file("s.json", own_json(R"({"k": [2], "v": [2]})"));
  CHECK_THROWS_WITH(quant::load_scales(path, scaled_model(1, "fp8_e4m3/per_token_head")),
                    contains_text("nothing would use them"));
  CHECK_THROWS_WITH(quant::load_scales(path, scaled_model(1, "int8/per_tensor")),
                    contains_text("stored as int8/per_tensor"));
}

TEST_CASE("scales of exactly 1 are taken and pointed out") {
  ScratchFolder const folder;
  auto const path = folder.file("s.json", own_json(R"({"k": [1], "v": [2]})"));
  auto const read = quant::load_scales(path, scaled_model(1, "fp8_e4m3"));
  CHECK_THAT(to_string(read.report), contains_text("1 of 2 scales are exactly 1"));
}

std::string vllm_json(std::string const& factors, char const* dtype = "float8_e4m3fn") {
  return std::string(R"({"model_type": "llama", "kv_cache": {"dtype": ")") + dtype +
         R"(", "scaling_factor": )" + factors + "}}";
}

TEST_CASE("vLLM's JSON of one rank gives one scale a layer, for K and V") {
  ScratchFolder const folder;
  auto const path =
      folder.file("kv_cache_scales.json", vllm_json(R"({"0": {"0": 0.5, "1": 0.25}})"));
  auto const read = quant::load_scales(path, scaled_model(2, "fp8_e4m3/per_tensor"));
  CHECK(read.scales.format == *pagedkv::parse_kv_format("fp8_e4m3/per_tensor"));
  CHECK(read.scales.model == "llama");
  CHECK(read.scales.k(1, 0).value == 0.25F);
  CHECK(read.scales.v(0, 0).value == 0.5F);
  CHECK_THAT(to_string(read.report), contains_text("feeds both K and V"));
}

TEST_CASE("vLLM's JSON of several ranks deals the heads out") {
  ScratchFolder const folder;
  auto const two = folder.file("two.json", vllm_json(R"({"0": {"0": 0.5}, "1": {"0": 0.25}})"));
  auto const read = quant::load_scales(two, scaled_model(1, "fp8_e4m3/per_head"));
  CHECK(read.scales.layers[0].k == std::vector<float>{0.5F, 0.25F});
  auto const four = folder.file(
      "four.json", vllm_json(R"({"0": {"0": 1}, "1": {"0": 1}, "2": {"0": 2}, "3": {"0": 2}})"));
  auto const copies = quant::load_scales(four, scaled_model(1, "fp8_e4m3/per_head"));
  CHECK(copies.scales.layers[0].v == std::vector<float>{1, 2});
  auto wide = scaled_model(1, "fp8_e4m3/per_head");
  wide.num_kv_heads = 6;  // three neighbours a rank
  CHECK(quant::load_scales(two, wide).scales.layers[0].k ==
        std::vector<float>{0.5F, 0.5F, 0.5F, 0.25F, 0.25F, 0.25F});
}

TEST_CASE("vLLM's JSON: every fault is an error, never 1.0") {
  ScratchFolder const folder;
  auto const geometry = scaled_model(2, "fp8_e4m3/per_head");
  auto const refuse = [&](std::string const& text, char const* message) {
    INFO(text);
    CHECK_THROWS_WITH(quant::load_scales(folder.file("v.json", text), geometry),
                      contains_text(message));
  };
  refuse(R"({"kv_cache": 3})", "isn't an object");
  refuse(vllm_json("{}", "float8_e5m2"), "expected 'float8_e4m3fn'");
  refuse(R"({"kv_cache": {"dtype": "float8_e4m3fn"}})", "scaling_factor is missing");
  refuse(vllm_json("{}"), "a member for each rank");
  refuse(vllm_json(R"({"0": {"0": 1}})"), "has no layer 1; expected 0 to 1");
  refuse(vllm_json(R"({"0": {"0": 1, "1": 1, "2": 1}})"), "unknown layer '2'");
  refuse(vllm_json(R"({"0": {"0": 1, "1": 1, "01": 1}})"), "unknown layer '01'");
  refuse(vllm_json(R"({"1": {"0": 1, "1": 1}})"), "has no rank 0");
  refuse(vllm_json(R"({"0": {"0": 1, "1": NaN}})"),
         "at kv_cache.scaling_factor[0][1]: 'NaN' is no finite number");
  refuse(vllm_json(R"({"0": {"0": 1, "1": 0}})"), "kv_cache.scaling_factor[0][1] is 0");
  refuse(vllm_json(R"({"0": {"0": 1, "1": null}})"), "is null; expected a number");
  refuse(vllm_json(R"({"0": {"0": 1, "0": 2, "1": 1}})"), "there twice");
  refuse(vllm_json(R"({"0": {"0": [1, 1], "1": [1, 1]}})"), "is array; expected a number");
  refuse(vllm_json(R"({"0": {"0": 1, "1": 1}, "1": {"0": 1, "1": 1}, "2": {"0": 1, "1": 1}})"),
         "3 ranks");
  refuse(vllm_json(R"({"0": {"0": 1, "1": 1}, "1": {"0": 1, "1": 2},
                       "2": {"0": 1, "1": 3}, "3": {"0": 1, "1": 3}})"),
         "rank 1 holds a copy");
}

}  // namespace

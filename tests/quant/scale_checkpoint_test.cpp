// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/quant/scale_file.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support/scale_files.hpp"

namespace quant = pagedkv::quant;
using quant::LoadedScales;
using namespace pagedkv::testing;

namespace {

std::string const layer0 = "model.layers.0.self_attn.";

LoadedScales load(std::vector<FileTensor> const& tensors, char const* format = "fp8_e4m3",
                  std::int32_t layers = 1) {
  ScratchFolder const folder;
  return quant::load_scales(folder.file("model.safetensors", safetensors(tensors)),
                            scaled_model(layers, format));
}
void refuse(std::vector<FileTensor> const& tensors, std::string const& message,
            char const* format = "fp8_e4m3") {
  CHECK_THROWS_WITH(load(tensors, format), contains_text(message));
}

TEST_CASE("every producer's spelling of K and V is understood") {
  std::vector<std::pair<std::string, std::string>> const spellings = {
      {"model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale"},
      {"model.layers.0.self_attn.attn.k_scale", "model.layers.0.self_attn.attn.v_scale"},
      {"model.layers.0.self_attn.k_proj.k_scale", "model.layers.0.self_attn.v_proj.v_scale"},
      {"model.layers.0.self_attn.qkv_proj.k_scale", "model.layers.0.self_attn.qkv_proj.v_scale"},
      {"model.layers.0.self_attn.qkqkv_proj.k_scale",
       "model.layers.0.self_attn.qkqkv_proj.v_scale"},
      {"model.layers.0.self_attn.k_proj.output_scale",
       "model.layers.0.self_attn.v_proj.output_scale"},
      {"backbone.layers.0.mixer.k_proj.k_scale", "backbone.layers.0.mixer.v_proj.v_scale"},
      {"backbone.layers.0.mixer.k_proj.output_scale",
       "backbone.layers.0.mixer.v_proj.output_scale"},
      {"model.layers.0.self_attn.k_cache.scale", "model.layers.0.self_attn.v_cache.scale"},
      {"model.layers.0.self_attn.mla_attn.mla_attn.k_scale",
       "model.layers.0.self_attn.mla_attn.mla_attn.v_scale"},
      {"transformer.h.0.attn.k_scale", "transformer.h.0.attn.v_scale"}};
  for (auto const& [k, v] : spellings) {
    INFO(k);
    auto const read = load({{k, {0.5F}}, {v, {0.25F}, "[1]"}});
    CHECK(read.scales.k(0, 1).value == 0.5F);
    CHECK(read.scales.v(0, 1).value == 0.25F);
    REQUIRE(read.report.set.size() == 2);
    CHECK(read.report.set[0].name == k);
    CHECK(read.report.set[1].name == v);
  }
}

TEST_CASE("a lone kv_scale feeds both, and the report says so") {
  auto const read = load({{layer0 + "kv_scale", {0.5F}}});
  CHECK(read.scales.layers[0].k == std::vector<float>{0.5F});
  CHECK(read.scales.layers[0].v == std::vector<float>{0.5F});
  CHECK_THAT(to_string(read.report), contains_text(layer0 + "kv_scale' feeds both K and V"));
}

TEST_CASE("scales of 16 bits are read exactly") {
  auto const read = load(
      {{layer0 + "k_scale", {0x3C01}, "[]", "F16"}, {layer0 + "v_scale", {0x3F81}, "[1]", "BF16"}});
  CHECK(read.scales.k(0, 0).value == 1.0F + 0x1p-10F);
  CHECK(read.scales.v(0, 0).value == 1.0F + 0x1p-7F);
}

TEST_CASE("one scale for each head, in both shapes; a single one is spread") {
  auto const read = load({{layer0 + "k_scale", {0.5F, 0.25F}, "[2]"},
                          {layer0 + "v_scale", {2, 3}, "[2,1,1]"},
                          {"model.layers.1.self_attn.k_scale", {7}},
                          {"model.layers.1.self_attn.v_scale", {8}, "[1]"}},
                         "fp8_e4m3/per_head", 2);
  CHECK(read.scales.format == *pagedkv::parse_kv_format("fp8_e4m3/per_head"));
  CHECK(read.scales.layers[0].k == std::vector<float>{0.5F, 0.25F});
  CHECK(read.scales.layers[0].v == std::vector<float>{2, 3});
  CHECK(read.scales.layers[1].k == std::vector<float>{7, 7});
  CHECK(read.scales.layers[1].v == std::vector<float>{8, 8});
}

TEST_CASE("scales of a checkpoint may lie in several files, beside everything else") {
  ScratchFolder const folder;
  std::vector<std::string> const paths = {
      folder.file("model-00001-of-00002.safetensors",
                  safetensors({{layer0 + "k_scale", {0.5F}},
                               {layer0 + "q_scale", {9}},
                               {layer0 + "k_proj.weight", {1, 2}, "[2]"},
                               {layer0 + "k_proj.weight_scale", {3}},
                               {layer0 + "k_proj.input_scale", {3}},
                               {layer0 + "k_norm.scale", {3}},
                               {layer0 + "o_proj.output_scale", {3}},
                               {"model.layers.0.mlp.gate_proj.output_scale", {3}}})),
      folder.file("model-00002-of-00002.safetensors",
                  safetensors({{layer0 + "v_scale", {0.25F}},
                               {layer0 + "prob_output_scale", {9}},
                               {layer0 + "k_zero_point", {0}},
                               {layer0 + "v_proj.scales", {3}},
                               {"lm_head.weight", {1}}}))};
  auto const read = quant::load_scales(paths, scaled_model(1, "fp8_e4m3"));
  CHECK(read.scales.k(0, 0).value == 0.5F);
  CHECK(read.scales.v(0, 0).value == 0.25F);
  CHECK(read.report.set[0].file == paths[0]);
  CHECK(read.report.set[1].file == paths[1]);
  CHECK_THAT(to_string(read.report), contains_text("2 scales of queries and probabilities"));
}

TEST_CASE("-1 means absent") {
  auto const read =
      load({{layer0 + "k_scale", {-1}}, {layer0 + "v_scale", {-1}}, {layer0 + "kv_scale", {0.5F}}});
  CHECK(read.scales.v(0, 0).value == 0.5F);
  CHECK_THAT(to_string(read.report), contains_text("is -1: taken as absent"));
  refuse({{layer0 + "k_scale", {0.5F}}, {layer0 + "v_scale", {-1}}}, "layer 0, V has no scale");
  refuse({{layer0 + "k_scale", {-1}}, {layer0 + "v_scale", {-1}}}, "layer 0, K has no scale");
}

TEST_CASE("missing scales are an error that names layer and tensor") {
  refuse({{layer0 + "k_scale", {0.5F}}}, "layer 0, V has no scale; expected a tensor like");
  refuse({{"model.layers.0.mlp.weight", {1}}}, "layer 0, K has no scale");
  CHECK_THROWS_WITH(load({{layer0 + "kv_scale", {0.5F}}}, "fp8_e4m3", 3),
                    contains_text("layer 1, K has no scale"));
}

TEST_CASE("a layer stored without static scales needs none") {
  ScratchFolder const folder;
  auto geometry = scaled_model(2, "fp8_e4m3");
  geometry.overrides = {{{1, 1}, pagedkv::LayerFormat(*pagedkv::parse_kv_format("bf16"))}};
  auto const path = folder.file("m.safetensors", safetensors({{layer0 + "kv_scale", {0.5F}}}));
  CHECK(quant::load_scales(path, geometry).scales.layers[1].k.empty());
}

TEST_CASE("unknown scales of K and V are an error that names the tensor") {
  for (auto const* const name :
       {"kv_cache_scaling_factor", "key_scale", "k_scale_inv", "k_quant_scale", "v_proj.k_scale",
        "k_proj.out_scale", "qkv_proj.output_scale", "kv_cache.scale", "k.scale"}) {
    INFO(name);
    refuse({{layer0 + "kv_scale", {0.5F}}, {layer0 + name, {0.5F}}},
           "tensor '" + layer0 + name + "' looks like a scale of K or V");
  }
}

TEST_CASE("two scales for the same thing are an error that names both") {
  refuse({{layer0 + "k_scale", {1}}, {layer0 + "v_scale", {1}}, {layer0 + "k_proj.k_scale", {1}}},
         "is a second scale of layer 0");
  refuse({{layer0 + "kv_scale", {1}}, {layer0 + "k_scale", {1}}}, "'" + layer0 + "k_scale'");
  refuse({{layer0 + "k_scale", {1}}, {layer0 + "k_scale", {2}}}, "is there twice");
  ScratchFolder const folder;
  auto const bytes = safetensors({{layer0 + "kv_scale", {1}}});
  std::vector<std::string> const paths = {folder.file("a", bytes), folder.file("b", bytes)};
  CHECK_THROWS_WITH(quant::load_scales(paths, scaled_model(1, "fp8_e4m3")),
                    contains_text("expected one for K and one for V"));
}

TEST_CASE("scales that are none are an error that names tensor and file") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (float const wrong : {0.0F, -0.5F, inf, -inf, std::nanf(""), 1e-40F}) {
    INFO(wrong);
    refuse({{layer0 + "k_scale", {wrong}}, {layer0 + "v_scale", {1}}},
           "model.safetensors: tensor '" + layer0 + "k_scale' is ");
  }
  refuse({{layer0 + "k_scale", {1, -1}, "[2]"}, {layer0 + "v_scale", {1}}}, "larger than 0",
         "fp8_e4m3/per_head");
}

TEST_CASE("other shapes, types and layers are refused with what was expected") {
  FileTensor const v{layer0 + "v_scale", {1}};
  refuse({{layer0 + "k_scale", {1, 1, 1}, "[3]"}, v},
         "shape [3]; expected [], [1], [2] or [2, 1, 1]");
  refuse({{layer0 + "k_scale", {1, 1}, "[1,2]"}, v}, "shape [1, 2]");
  refuse({{layer0 + "k_scale", {1}, "[]", "F64"}, v}, "dtype F64; expected F32, F16 or BF16");
  refuse({{layer0 + "k_scale", {1, 2}, "[]"}, v}, "has 8 bytes; expected 4 of F32");
  refuse({{"model.layers.1.self_attn.k_scale", {1}}, v},
         "is of layer 1; the model has layers 0 to 0");
  refuse({{"self_attn.k_scale", {1}}, v}, "no layer in its name");
  refuse({{layer0 + "kv_scale", {1}}, {layer0 + "k_zero_point", {3}}}, "expected symmetric");
}

TEST_CASE("scales of fp8 serve no other format") {
  for (auto const* const format : {"fp8_e5m2", "int8"}) {
    refuse({{layer0 + "kv_scale", {1}}}, "but the scales are for fp8_e4m3/per_tensor", format);
  }
  refuse({{layer0 + "kv_scale", {1}}}, "nothing would use them", "fp8_e4m3/per_token_head");
  refuse({{layer0 + "kv_scale", {1, 2}, "[2]"}}, "scales are for fp8_e4m3/per_head");
}

TEST_CASE("latent attention has no V: its scale is ignored and the report says so") {
  ScratchFolder const folder;
  auto geometry = scaled_model(1, "fp8_e4m3");
  geometry.head_dim_v = 0;
  auto const path = folder.file(
      "m.safetensors", safetensors({{layer0 + "k_scale", {0.5F}}, {layer0 + "v_scale", {2}}}));
  auto const read = quant::load_scales(path, geometry);
  CHECK(read.scales.layers[0].v.empty());
  CHECK_THAT(to_string(read.report), contains_text("the model has no V"));
}

/// True if it loads; false for an Error; anything else ends the test program.
bool loads(std::string const& bytes) {
  static ScratchFolder const folder;
  std::vector<std::string> const paths = {folder.file("m", bytes)};
  try {
    (void)quant::read_checkpoint_scales(paths, scaled_model(1, "fp8_e4m3/per_head"));
    return true;
  } catch (pagedkv::Error const&) {
    return false;
  }
}

TEST_CASE("malformed checkpoints are errors") {
  auto const header = [](std::string const& entry) {
    return with_header("{\"" + layer0 + "kv_scale\":" + entry + "}", f32_bytes({0.5F}));
  };
  REQUIRE(loads(header(R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})")));
  for (auto const* const entry :
       {"3", "null", "[]", "{}", R"({"dtype":"F32","shape":[]})",
        R"({"dtype":"F32","data_offsets":[0,4]})", R"({"shape":[],"data_offsets":[0,4]})",
        R"({"dtype":3,"shape":[],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":"x","data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[0]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[4,0]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[0,5]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[1,5]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[-4,0]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[18446744073709551612,18446744073709551615]})",
        R"({"dtype":"F32","shape":[],"data_offsets":[0,99999999999999999999]})",
        R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})"}) {
    INFO(entry);
    CHECK_FALSE(loads(header(entry)));
  }
  CHECK_FALSE(loads(""));
  CHECK_FALSE(loads("short"));
  CHECK_FALSE(loads(std::string(8, '\xFF')));                     // a header of 2^64 - 1 bytes
  CHECK_FALSE(loads(std::string("\x05\0\0\0\0\0\0\0{}", 10)));    // longer than the file
  CHECK_FALSE(loads(std::string("\x02\0\0\0\0\0\0\0[]", 10)));    // no object
  CHECK_FALSE(loads(std::string("\x02\0\0\0\0\0\0\0{}", 10)));    // no scales
  CHECK_FALSE(loads(with_header(std::string(100000, '['), "")));  // deep
  CHECK_FALSE(loads(with_header("{\"\xFF\xFE\": {}}", "")));      // no UTF-8
}

TEST_CASE("what lies outside the file is refused by what the header says") {
  ScratchFolder const folder;
  auto const refuse_bytes = [&](std::string const& bytes, char const* message) {
    std::vector<std::string> const paths = {folder.file("m", bytes)};
    CHECK_THROWS_WITH(quant::read_checkpoint_scales(paths, scaled_model(1, "fp8_e4m3")),
                      contains_text(message));
  };
  auto const at = [](char const* offsets) {
    return with_header(
        "{\"" + layer0 + R"(kv_scale":{"dtype":"F32","shape":[],"data_offsets":)" + offsets + "}}",
        f32_bytes({0.5F}));
  };
  refuse_bytes(at("[4,0]"), "lies at [4, 0]; expected begin and end within the file's 4 bytes");
  refuse_bytes(at("[1,5]"), "lies at [1, 5]; expected begin and end within the file's 4 bytes");
  refuse_bytes(std::string("\x03\0\0\0\0\0\0\0{}", 10),
               "says that its header has 3 bytes, the file has 10");
}

TEST_CASE("all tensors fill the data without hole and overlap, whatever they are") {
  ScratchFolder const folder;
  auto const load_at = [&](std::string const& weight, std::string const& more,
                           std::size_t data_bytes) {
    auto const scale = layer0 + R"(kv_scale":{"dtype":"F32","shape":[],"data_offsets":[0,4]})";
    auto const other = R"(w":{"dtype":"F32","shape":[2],"data_offsets":)" + weight + "}";
    auto const path =
        folder.file("m.safetensors", with_header("{\"" + other + ",\"" + scale + more + "}",
                                                 f32_bytes({0.5F, 1, 2, 3}).substr(0, data_bytes)));
    return quant::load_scales(path, scaled_model(1, "fp8_e4m3"));
  };
  CHECK(load_at("[4,12]", "", 12).scales.k(0, 0).value == 0.5F);
  CHECK(load_at("[4,12]", R"(,"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]})", 12)
            .scales.k(0, 0)
            .value == 0.5F);
  auto const refuse_at = [&](char const* weight, std::size_t data_bytes, char const* message) {
    INFO(weight);
    CHECK_THROWS_WITH(load_at(weight, "", data_bytes), contains_text(message));
    CHECK_THROWS_WITH(load_at(weight, "", data_bytes), contains_text("m.safetensors: "));
  };
  refuse_at("[4,12]", 11,
            "tensor 'w' lies at [4, 12]; expected begin and end within the file's 11");
  refuse_at("[4,12]", 11, "cut short");
  refuse_at("[4,12]", 13, "has 13 bytes of data, but the last tensor, 'w', ends at 12");
  refuse_at("[5,13]", 13, "tensor 'w' lies at [5, 13]; expected to begin at 4");
  refuse_at("[5,13]", 13, "a hole");
  refuse_at("[3,11]", 11, "they overlap");
  refuse_at("[0,4]", 4, "they overlap");
  refuse_at("3", 4, "tensor 'w' has no data_offsets");
  CHECK_THROWS_WITH(
      quant::load_scales(folder.file("n.safetensors", with_header("{\"" + layer0 +
                                                                      R"(kv_scale":{"dtype":"F32",)"
                                                                      R"("shape":[],)"
                                                                      R"("data_offsets":[4,8]}})",
                                                                  f32_bytes({1, 2}))),
                         scaled_model(1, "fp8_e4m3")),
      contains_text("expected to begin at 0"));
}

TEST_CASE("a checkpoint's name alone says what it should be, and errors say what it looks like") {
  ScratchFolder const folder;
  auto const refuse_file = [&](char const* name, std::string const& bytes, char const* message) {
    INFO(message);
    CHECK_THROWS_WITH(quant::load_scales(folder.file(name, bytes), scaled_model(1, "fp8_e4m3")),
                      contains_text(message));
  };
  auto const whole = safetensors({{layer0 + "kv_scale", {0.5F}}});
  refuse_file("m.safetensors", "", "is empty; a safetensors file begins with");
  refuse_file("m.safetensors", "abc", "is cut short: it has 3 bytes");
  refuse_file("m.safetensors", whole.substr(0, 60), "is cut short: it says that its header has ");
  refuse_file("m", whole.substr(0, 60), "is cut short: it says that its header has ");
  refuse_file("m.safetensors", "{\"layers\": []}", "isn't a safetensors file: its first 8 bytes");
  refuse_file("m.safetensors", with_header("[1]", ""), "doesn't begin with '{'");
  refuse_file("m.safetensors", with_header("{\"a\": [1,", ""), "its header is cut short: its JSON");
  refuse_file("m.safetensors", with_header("{\"a\": 1 2}", ""), "its header isn't JSON in line 1");
}

TEST_CASE("only the decoder's layers are the model's; scales of other modules are reported") {
  for (auto const* const stack :
       {"model.layers.", "layers.", "model.language_model.layers.", "language_model.model.layers.",
        "transformer.h.", "h.", "transformer.blocks.", "model.decoder.layers.", "gpt_neox.layers.",
        "transformer.encoder.layers.", "backbone.layers."}) {
    INFO(stack);
    std::string const layer = std::string(stack) + "0.attn.";
    auto const read = load({{layer + "k_scale", {0.5F}}, {layer + "v_scale", {0.25F}}});
    CHECK(read.scales.v(0, 0).value == 0.25F);
    CHECK(read.report.notes.empty());
  }
  for (auto const* const module :
       {"mtp.layers.0.", "model.mtp.layers.0.", "mtp_layers.0.", "vision_tower.encoder.layers.0.",
        "visual.blocks.0.", "model.visual.blocks.0.", "vision_model.encoder.layers.0.",
        "vision_tower.vision_model.encoder.layers.7.", "model.encoder.layers.0."}) {
    INFO(module);
    std::string const other = std::string(module) + "self_attn.";
    auto const read = load({{layer0 + "kv_scale", {0.5F}},
                            {other + "k_scale", {9}},
                            {other + "k_quant_scale", {9}},
                            {other + "v_zero_point", {9}}});
    CHECK(read.scales.k(0, 0).value == 0.5F);
    CHECK(read.report.set.size() == 2);
    CHECK_THAT(to_string(read.report), contains_text("note: 3 scales of '"));
    CHECK_THAT(to_string(read.report),
               contains_text("' were ignored: not a layer of the decoder (first: '" + other));
    // It doesn't stand in for a missing one, either.
    refuse({{other + "kv_scale", {9}}}, "layer 0, K has no scale");
    refuse({{other + "kv_scale", {9}}}, other + "kv_scale'");
  }
}

TEST_CASE("a zero point of -0.0 is 0") {
  FileTensor const scale{layer0 + "kv_scale", {1}};
  CHECK(load({scale, {layer0 + "k_zero_point", {-0.0F, 0.0F}, "[2]"}}).report.set.size() == 2);
  CHECK(load({scale, {layer0 + "k_zero_point", {0x8000}, "[]", "BF16"}}).report.set.size() == 2);
  refuse({scale, {layer0 + "k_zero_point", {-1}}}, "isn't 0");
  refuse({scale, {layer0 + "k_zero_point", {0x0080}, "[]", "F16"}}, "isn't 0");
  refuse({scale, {layer0 + "k_zero_point", {-0.0F}, "[]", "I32"}}, "isn't 0");
}

TEST_CASE("several files are the shards of one checkpoint") {
  ScratchFolder const folder;
  std::vector<std::string> const paths = {
      folder.file("a.json", "{}"), folder.file("b.json", "{}"),
      folder.file("c.safetensors", safetensors({{layer0 + "kv_scale", {1}}}))};
  auto const refuse_files = [&](std::vector<std::string> const& files, char const* message) {
    CHECK_THROWS_WITH(quant::load_scales(files, scaled_model(1, "fp8_e4m3")),
                      contains_text(message));
  };
  refuse_files({paths[0], paths[1]}, "a.json: isn't a safetensors file, but one of 2 files");
  refuse_files({paths[2], paths[1]}, "b.json: isn't a safetensors file, but one of 2 files");
}

TEST_CASE("a checkpoint that is cut short or changed anywhere is read or refused, no more") {
  auto const whole = safetensors(
      {{layer0 + "k_scale", {0.5F, 0.25F}, "[2]"}, {layer0 + "v_scale", {0.5F}, "[1]"}});
  REQUIRE(loads(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK_FALSE(loads(whole.substr(0, size)));
  int read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (char const byte : {'\0', '9', '"', ']'}) {
      auto changed = whole;
      changed[at] = byte;
      read += loads(changed);
    }
  }
  CHECK(read < static_cast<int>(whole.size()) * 4);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-engine as its users see it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <pagedkv/quant/scale_file.hpp>
#include <sstream>

#include "engine_helpers.hpp"
#include "gguf_writer.hpp"
#include "run_program.hpp"

namespace {

namespace kv = pagedkv;
using kv::testing::contains_text;
using Json = nlohmann::json;

/// A random model with a byte-level tokenizer of 61 pieces in a GGUF file.
struct Fixture {
  kv::testing::TemporaryFolder folder;
  engine::Model model = engine::random_model(testing::tiny_config(), 21);

  Fixture() {
    auto writer = testing::gguf_metadata(model.config);
    std::vector<std::string> tokens = {"<end>"};
    for (char c = 'A'; c < 'A' + 60; ++c) tokens.emplace_back(1, c);
    std::vector<std::int32_t> kinds(61, 1);
    kinds[0] = 3;
    writer.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", tokens);
    writer.integers("tokenizer.ggml.token_type", kinds).texts("tokenizer.ggml.merges", {});
    writer.count("tokenizer.ggml.eos_token_id", 0);
    testing::add_tensors(writer, model);
    testing::write_file(folder.file("model.gguf"), writer.bytes());
  }

  /// Runs with these request lines; more options behind.
  kv::testing::ProgramResult run(std::string const& lines, std::string const& more = {}) {
    testing::write_file(folder.file("r.jsonl"), lines);
    return kv::testing::run_program(
        "pagedkv-engine",
        fmt::format("--model '{}' --requests '{}' --output '{}' {}", folder.file("model.gguf"),
                    folder.file("r.jsonl"), folder.file("o.jsonl"), more));
  }
  /// The answers by id (and sample).
  [[nodiscard]] std::map<std::string, Json> answers() const {
    std::map<std::string, Json> all;
    std::istringstream text(kv::testing::read_file(folder.file("o.jsonl")));
    for (std::string line; std::getline(text, line);) {
      auto const answer = Json::parse(line);
      auto key = answer["id"].dump();
      if (answer.contains("index")) key = fmt::format("{}.{}", key, answer["index"].dump());
      all[key] = answer;
    }
    return all;
  }
  [[nodiscard]] std::vector<std::int32_t> expected(std::vector<std::int32_t> const& prompt,
                                                   std::int32_t max_tokens,
                                                   std::vector<std::int32_t> const& stop) const {
    return engine::greedy_reference(model, prompt, max_tokens, stop);
  }
};

TEST_CASE("answers have the fields that are promised, and the reference's ids") {
  Fixture f;
  auto const result = f.run(
      R"({"id": "text", "prompt": "HELLO", "max_tokens": 9}
{"id": 7, "prompt_ids": [3, 5, 8], "max_tokens": 6, "stop_ids": []}

{"id": "many", "prompt": "ABC", "n": 2, "max_tokens": 3, "temperature": 0}
{"id": "context", "prompt_ids": [1, 2], "max_tokens": 1000, "stop_ids": []}
)",
      "--kv-format f32");
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  auto const answers = f.answers();
  REQUIRE(answers.size() == 5);
  auto const& text = answers.at("\"text\"");
  CHECK(text["prompt_ids"] == Json({8, 5, 12, 12, 15}));
  auto const ids = f.expected({8, 5, 12, 12, 15}, 9, {0});
  CHECK(text["output_ids"] == Json(ids));
  std::string spelled;
  for (auto const id : ids) spelled += static_cast<char>('A' + id - 1);
  CHECK(text["text"] == spelled);
  CHECK(text["cached_tokens"] == 0);
  CHECK(text["preempted"] == 0);
  CHECK(text.size() == 6);
  CHECK(answers.at("7")["output_ids"] == Json(f.expected({3, 5, 8}, 6, {})));
  CHECK(answers.at("\"many\".0")["output_ids"] == answers.at("\"many\".1")["output_ids"]);
  CHECK(answers.at("\"context\"")["output_ids"].size() == 94);
  for (char const* word :
       {"tokens/s", "usage", "prefix hits", "KV bytes/token", "time in pagedkv"}) {
    CHECK_THAT(result.out, contains_text(word));
  }
}

TEST_CASE("a small pool preempts, gives the same ids and says so") {
  Fixture f;
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines +=
        fmt::format(R"({{"id": {}, "prompt_ids": [{}, 4, 9], "max_tokens": 40, "stop_ids": []}})"
                    "\n",
                    i, i + 1);
  }
  auto const result = f.run(lines,
                            "--blocks 30 --block-tokens 4 --max-num-batched-tokens 16 "
                            "--metrics '" +
                                f.folder.file("m.txt") + "'");
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  int preempted = 0;
  for (auto const& [id, answer] : f.answers()) {
    preempted += answer["preempted"].get<int>();
    CHECK(answer["output_ids"] == Json(f.expected({std::stoi(id) + 1, 4, 9}, 40, {})));
  }
  CHECK(preempted > 0);
  auto const metrics = kv::testing::read_file(f.folder.file("m.txt"));
  CHECK_THAT(metrics, contains_text(fmt::format("pagedkv_preemptions_total {}", preempted)));
}

TEST_CASE("a request is refused only for its prompt and one token; the others are answered") {
  Fixture f;
  auto const result = f.run(
      R"({"id": "fits", "prompt": "ABCDEFG", "max_tokens": 90, "stop_ids": []}
{"id": "large", "prompt": "ABCDEFGH"}
)",
      "--blocks 2 --block-tokens 4");
  CHECK(result.status == 3);
  CHECK_THAT(result.err, contains_text("request \"large\" is refused: its prompt of 8 tokens and "
                                       "one more don't fit 2 blocks of 4; --blocks 3 would do"));
  auto const answers = f.answers();
  CHECK(answers.at("\"fits\"")["output_ids"].size() == 2);
  CHECK(answers.at("\"large\"").contains("error"));
}

TEST_CASE("the default pool takes every prompt, however few samples run at once") {
  Fixture f;  // 96 positions
  std::string ids = "1";
  for (int i = 1; i < 96; ++i) ids += ",1";
  auto const lines = fmt::format(R"({{"id": "all", "prompt_ids": [{0}]}}
{{"id": "more", "prompt_ids": [{0},1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})",
                                 ids);
  for (char const* more : {"", "--max-num-seqs 1", "--max-num-batched-tokens 1"}) {
    INFO(more);
    CHECK(f.run(lines, more).status == 0);
    for (auto const& [id, answer] : f.answers()) CHECK(answer["output_ids"] == Json::array());
  }
}

TEST_CASE("answers of an earlier run stay when nothing can be run") {
  Fixture f;
  testing::write_file(f.folder.file("o.jsonl"), "earlier");
  std::string const line = R"({"id": "a", "prompt": "A"})";
  CHECK(f.run(line, "--max-num-seqs 8 --max-num-batched-tokens 4").status == 1);
  CHECK(f.run("{", "").status == 1);
  CHECK(kv::testing::read_file(f.folder.file("o.jsonl")) == "earlier");
}

TEST_CASE("a bad line is refused with its file, line and field") {
  Fixture f;
  auto const error = [&f](std::string const& line) {
    auto const result = f.run(R"({"id": "good", "prompt": "A"})"
                              "\n" +
                              line + "\n");
    CHECK(result.status == 1);
    CHECK_THAT(result.err, contains_text("r.jsonl:2: "));
    return result.err;
  };
  CHECK_THAT(error("{"), contains_text("isn't JSON from column 2 on"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "temperature": 1e999})"),
             contains_text("a number in it is too large"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "prompt": "B"})"),
             contains_text("field 'prompt': is there twice; expected once"));
  CHECK_THAT(error(R"({"id": 1, "id": 1, "prompt": "A"})"), contains_text("field 'id'"));
  CHECK_THAT(error("[]"), contains_text("expected an object"));
  CHECK_THAT(error(R"({"prompt": "A"})"), contains_text("field 'id': is missing"));
  CHECK_THAT(error(R"({"id": "good", "prompt": "A"})"), contains_text("field 'id'"));
  CHECK_THAT(error(R"({"id": 1.5, "prompt": "A"})"), contains_text("field 'id'"));
  CHECK_THAT(error(R"({"id": 1})"), contains_text("field 'prompt': is missing"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "prompt_ids": [1]})"),
             contains_text("field 'prompt': expected either"));
  CHECK_THAT(error(R"({"id": 1, "prompt": ""})"), contains_text("field 'prompt': has no tokens"));
  CHECK_THAT(error(R"({"id": 1, "prompt_ids": [1, 61]})"),
             contains_text("field 'prompt_ids': expected an integer from 0 to 60, is 61"));
  CHECK_THAT(error(R"({"id": 1, "prompt_ids": 4})"), contains_text("expected an array"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "max_tokens": -1})"),
             contains_text("field 'max_tokens': expected an integer from 0"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "max_tokens": 1e99})"), contains_text("max_tokens"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "n": 0})"), contains_text("field 'n'"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "temperature": -2})"),
             contains_text("field 'temperature'"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "cancel_after": "x"})"),
             contains_text("field 'cancel_after'"));
  CHECK_THAT(error(R"({"id": 1, "prompt": "A", "max_token": 4})"),
             contains_text("field 'max_token': isn't known; did you mean 'max_tokens'?"));
}

TEST_CASE("options that can't work are refused with what would") {
  Fixture f;
  std::string const line = R"({"id": "a", "prompt": "A"})";
  auto const error = [&](std::string const& options) {
    auto const result = f.run(line, options);
    CHECK(result.status != 0);
    return result.err;
  };
  CHECK_THAT(error("--kv-format fp8"), contains_text("did you mean fp8_e4m3?"));
  CHECK_THAT(error("--kv-format f16 --granularity per_head"), contains_text("it takes: none"));
  CHECK_THAT(error("--kv-format fp8_e4m3 --granularity per_tensor"), contains_text("--scales"));
  CHECK_THAT(error("--kv-format f32 --scales x"),
             contains_text("f32 takes no scales from files; leave --scales out, or take "
                           "--kv-format fp8_e4m3, fp8_e5m2 or int8"));
  CHECK_THAT(error("--kv-format int4 --scales x"), contains_text("int4/per_token_head takes no"));
  CHECK_THAT(error("--kv-format int8 --granularity per_token_head --scales x"),
             contains_text("take --granularity per_tensor or per_head"));
  CHECK_THAT(error("--max-num-seqs 8 --max-num-batched-tokens 4"), contains_text("max_num"));
  CHECK_THAT(error("--block-token 4"), contains_text("did you mean --block-tokens?"));
  CHECK_THAT(error("--blocks 0"), contains_text("--blocks"));
  CHECK_THAT(error("--tokenizer x"), contains_text("x: a GGUF file has its tokenizer inside"));
  CHECK(f.run(line, "--max-num-batched-tokens 4").status == 0);
}

TEST_CASE("static scales come from a file, and one of a layer serves all of its heads") {
  Fixture f;
  std::string const line = R"({"id": "a", "prompt": "HELLO", "max_tokens": 5, "stop_ids": []})";
  kv::quant::ScaleSet set;
  set.layers.assign(2, {{0.03F}, {0.02F}});
  auto const path = f.folder.file("scales.json");
  kv::quant::write_scale_file(path, set);
  for (char const* more : {"", "--granularity per_tensor", "--granularity per_head"}) {
    INFO(more);
    auto const result =
        f.run(line, fmt::format("--kv-format fp8_e4m3 --scales '{}' {}", path, more));
    INFO(result.err);
    CHECK(result.status == 0);
    CHECK(f.answers().at("\"a\"")["output_ids"].size() == 5);
    CHECK_THAT(result.out, contains_text("fp8_e4m3/per_"));
    CHECK_THAT(result.err,
               contains_text("2 layers, 0 to 1, K: 1 scale from layers[N].k of " + path));
    CHECK_THAT(result.err, contains_text("2 layers, 0 to 1, V: "));
  }
  set.layers.pop_back();
  kv::quant::write_scale_file(path, set);
  auto const result = f.run(line, fmt::format("--kv-format fp8_e4m3 --scales '{}'", path));
  CHECK(result.status == 1);
  CHECK_THAT(result.err, contains_text("scales.json"));
  CHECK(f.run(line, fmt::format("--scales '{}'", path)).status != 0);
}

/// A safetensors file with one f32 number for each name.
std::string checkpoint_of(std::vector<std::string> const& names, float number) {
  std::string header, data;
  for (auto const& name : names) {
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[],"data_offsets":[{},{}]}})",
                          header.empty() ? "" : ",", name, data.size(), data.size() + 4);
    data.append(reinterpret_cast<char const*>(&number), 4);
  }
  header = "{" + header + "}";
  std::uint64_t const size = header.size();
  return std::string(reinterpret_cast<char const*>(&size), 8) + header + data;
}

TEST_CASE("all shards of a checkpoint are read together, and shared scales are pointed out") {
  Fixture f;
  std::string const line = R"({"id": "a", "prompt": "HELLO", "max_tokens": 5, "stop_ids": []})";
  auto const one = f.folder.file("1.safetensors");
  auto const two = f.folder.file("2.safetensors");
  testing::write_file(one, checkpoint_of({"model.layers.0.self_attn.kv_scale"}, 0.02F));
  testing::write_file(
      two, checkpoint_of({"model.layers.1.self_attn.kv_scale", "mtp.layers.0.self_attn.kv_scale"},
                         0.03F));
  auto const result = f.run(line, fmt::format("--kv-format fp8_e4m3 --scales '{}' '{}'", one, two));
  INFO(result.err);
  CHECK(result.status == 0);
  CHECK_THAT(result.err,
             contains_text("layer 1 V: 1 scale from model.layers.1.self_attn.kv_scale"));
  CHECK_THAT(result.err, contains_text("note, 2 times: layer N: "));
  CHECK_THAT(result.err, contains_text("feeds both K and V"));
  CHECK_THAT(result.err, contains_text("a scale of 'mtp.layers' was ignored"));
  auto const lacking = f.run(line, fmt::format("--kv-format fp8_e4m3 --scales '{}'", one));
  CHECK(lacking.status == 1);
  CHECK_THAT(lacking.err, contains_text("layer 1, K has no scale"));
}

TEST_CASE("files that can't be written, or would be written over, are refused before the run") {
  Fixture f;
  std::string const line = R"({"id": "a", "prompt": "HELLO", "max_tokens": 5})";
  auto const requests = f.folder.file("r.jsonl");
  auto const refuse = [&](std::string const& options, std::string const& message) {
    INFO(options);
    testing::write_file(requests, line);
    auto const result = kv::testing::run_program(
        "pagedkv-engine", fmt::format("--model '{}' --requests '{}' {}",
                                      f.folder.file("model.gguf"), requests, options));
    CHECK(result.status == 1);
    CHECK_THAT(result.err, contains_text(message));
    CHECK(kv::testing::read_file(requests) == line);
    CHECK(kv::testing::read_file(f.folder.file("o.jsonl")).empty());
  };
  refuse(fmt::format("--output '{}'", requests),
         "--output would write over the file of --requests");
  refuse(fmt::format("--output '{}'", f.folder.file("./r.jsonl")), "over the file of --requests");
  refuse(fmt::format("--output '{}'", f.folder.file("model.gguf")), "over the file of --model");
  refuse(fmt::format("--output '{0}' --metrics '{0}'", f.folder.file("o.jsonl")),
         "--metrics would write over the file of --output");
  refuse(fmt::format("--output '{}'", f.folder.file("no/o")), "can't be written (--output)");
  refuse(
      fmt::format("--output '{}' --metrics '{}'", f.folder.file("o.jsonl"), f.folder.file("no/m")),
      "can't be written (--metrics)");
}

TEST_CASE("streaming prints the text of an only request as it is") {
  Fixture f;
  auto const result =
      f.run(R"({"id": "a", "prompt": "HELLO", "max_tokens": 9, "stop_ids": []})", "--stream");
  CHECK(result.status == 0);
  CHECK_THAT(result.out, contains_text(f.answers().at("\"a\"")["text"].get<std::string>() + "\n"));
  // No bar where there is no terminal.
  CHECK(result.err.empty());
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "run_program.hpp"

using pagedkv::testing::contains_text;

namespace {

namespace testing = pagedkv::testing;

testing::ProgramResult quality(std::string const& arguments) {
  return testing::run_program("pagedkv-quality", arguments);
}

TEST_CASE("the attention needle writes its rows and its page") {
  testing::TemporaryFolder const folder;
  auto const json = folder.file("rows.json");
  auto const html = folder.file("map.html");
  auto const result =
      quality("--needle attention --lengths 256,1024 --formats f16,fp8_e4m3 --json " + json +
              " --html " + html);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  CHECK_THAT(result.out, contains_text("fp8_e4m3/per_block_head       11/11    11/11"));
  auto const rows = nlohmann::json::parse(testing::read_file(json));
  CHECK(rows.size() == 5 * 2 * 11);
  for (auto const& row : rows) CHECK(row["found"] == true);
  CHECK_THAT(testing::read_file(html), contains_text("f16: 22 of 22"));
}

TEST_CASE("nothing asked for, a wrong name, a missing file: refused with a reason") {
  CHECK_THAT(quality("").err, contains_text("--needle, or --model with --text"));
  CHECK_THAT(quality("--needle middle").err, contains_text("attention"));
  auto const unknown = quality("--needle attention --formats fp8");
  CHECK_THAT(unknown.err, contains_text("--formats: unknown KV element 'fp8'"));
  CHECK_THAT(unknown.err, contains_text("did you mean fp8_e4m3?"));
  CHECK(unknown.status == 105);
  CHECK_THAT(quality("--needle attention --lengths 10").err, contains_text("64"));
  CHECK_THAT(quality("--needle model").err, contains_text("--model"));
  CHECK_THAT(quality("--model /nonexistent --text /nonexistent").err,
             contains_text("/nonexistent"));
  CHECK_THAT(quality("--needle attention --calibrate").err, contains_text("--text"));
  CHECK(quality("--needle attention --lengths 64 --formats f16 --json /nonexistent/x").status == 1);
  CHECK_THAT(quality("--neddle attention").err, contains_text("did you mean --needle?"));
}

TEST_CASE("files that can't be written, or would be written over, are refused before the run") {
  testing::TemporaryFolder const folder;
  auto const json = folder.file("x.json");
  auto const twice = quality("--needle attention --json " + json + " --html " + json);
  CHECK(twice.status == 1);
  CHECK_THAT(twice.err, contains_text("--html would write over the file of --json"));
  auto const nowhere = quality("--needle attention --json " + folder.file("no/x.json"));
  CHECK(nowhere.status == 1);
  CHECK(nowhere.out.empty());
  CHECK_THAT(nowhere.err, contains_text("can't be written (--json)"));
  // --calibrate writes a file for each static format.
  auto const text = folder.file("s.fp8_e4m3.per_head.json");
  std::ofstream(text) << "a text";
  auto const scales = quality("--model m --calibrate --formats fp8_e4m3 --text " + text +
                              " --scales " + folder.file("s.json"));
  CHECK(scales.status == 1);
  CHECK_THAT(scales.err, contains_text("--scales would write over the file of --text"));
  CHECK(testing::read_file(text) == "a text");
  CHECK(testing::read_file(json).empty());
}

TEST_CASE("a vector level that isn't one is named, with those that are") {
  std::string const run = "--needle attention --lengths 256 --formats fp8_e4m3/per_token_head";
  ::setenv("PAGEDKV_VECTOR_LEVEL", "avx9", 1);
  auto const wrong = quality(run);
  ::setenv("PAGEDKV_VECTOR_LEVEL", "baseline", 1);
  auto const right = quality(run);
  ::unsetenv("PAGEDKV_VECTOR_LEVEL");
  CHECK(wrong.status == 0);
  CHECK_THAT(wrong.err, contains_text("PAGEDKV_VECTOR_LEVEL=avx9 isn't a level of this machine"));
  CHECK_THAT(wrong.err, contains_text(" baseline;"));
  CHECK(right.err.empty());
}

/// The trained model and its text, where they are at hand.
struct Stories {
  std::string folder = PAGEDKV_SOURCE_DIR "/../shared/data/";
  std::string arguments = "--model " + folder + "tinyllamas/stories260K.bin --tokenizer " + folder +
                          "tinyllamas/tok512.bin --text " + folder +
                          "tinystories/tinystories_sample.txt --tokens 300 ";
  bool missing = !std::ifstream(folder + "tinyllamas/stories260K.bin");
};

TEST_CASE("a model's rows, with calibrated scales in files that serve again") {
  Stories const stories;
  if (stories.missing) {
    WARN("skipped: there is no ../shared/data/tinyllamas");
    return;
  }
  testing::TemporaryFolder const folder;
  auto const json = folder.file("rows.json");
  auto const scales = folder.file("scales.json");
  auto const result =
      quality(stories.arguments + "--calibrate --scales " + scales + " --json " + json);
  INFO(result.err);
  REQUIRE(result.status == 0);
  auto const rows = nlohmann::json::parse(testing::read_file(json));
  REQUIRE(rows.size() == 16);
  CHECK(rows[0]["quality"] == "stories260K");
  CHECK(rows[0]["kl"] == 0.0);
  CHECK(rows[0]["top1"] == 1.0);
  CHECK(rows[0]["bytes_per_token"] == 1280);

  auto const unmade = folder.file("unmade.json");
  auto const wide = quality(stories.arguments + "--formats int8/per_head --calibrate --scales " +
                            unmade + " --window 513");
  CHECK(wide.status == 1);
  CHECK_THAT(wide.err, contains_text("--window 513: the model takes 512 tokens at most"));
  CHECK(testing::read_file(unmade).empty());

  auto const again = folder.file("again.json");
  auto const one = folder.file("scales.fp8_e4m3.per_tensor.json");
  auto const second = quality(stories.arguments + "--formats fp8_e4m3/per_tensor --scales " + one +
                              " --json " + again);
  INFO(second.err);
  CHECK(second.status == 0);
  CHECK_THAT(second.err, contains_text("5 layers, 0 to 4, K: 1 scale from layers[N].k of " + one));
}

TEST_CASE("a model's needle: a row for each depth, lengths beyond the model left out aloud") {
  Stories const stories;
  if (stories.missing) {
    WARN("skipped: there is no ../shared/data/tinyllamas");
    return;
  }
  testing::TemporaryFolder const folder;
  auto const json = folder.file("rows.json");
  auto const result =
      quality(stories.arguments + "--needle model --lengths 200,513 --formats f16 --json " + json);
  CHECK(result.status == 0);
  CHECK_THAT(result.err, contains_text("513 tokens left out: the model takes 512"));
  auto const rows = nlohmann::json::parse(testing::read_file(json));
  REQUIRE(rows.size() == 11 + 2);  // and f32's and f16's quality
  CHECK(rows[10]["needle"] == "model");
  CHECK(rows[10]["depth"] == 1.0);
  CHECK(rows[11]["format"] == "f32");
}

TEST_CASE("a model's needle: lengths of which the model takes none are an error") {
  Stories const stories;
  if (stories.missing) {
    WARN("skipped: there is no ../shared/data/tinyllamas");
    return;
  }
  auto const result =
      quality(stories.arguments + "--needle model --lengths 513,1024 --formats f16");
  CHECK(result.status == 1);
  CHECK_THAT(result.err, contains_text("takes contexts of 512 tokens at most, none of 513,1024"));
}

TEST_CASE("static formats: an error when named without scales, left out aloud when not named") {
  Stories const stories;
  if (stories.missing) {
    WARN("skipped: there is no ../shared/data/tinyllamas");
    return;
  }
  auto const named = quality(stories.arguments + "--formats int8/per_head");
  CHECK(named.status == 1);
  CHECK_THAT(named.err, contains_text("int8/per_head is static and needs calibrated scales"));
  testing::TemporaryFolder const folder;
  auto const json = folder.file("rows.json");
  auto const all = quality(stories.arguments + "--json " + json);
  CHECK(all.status == 0);
  CHECK_THAT(all.err, contains_text("fp8_e4m3/per_tensor left out"));
  CHECK(nlohmann::json::parse(testing::read_file(json)).size() == 10);
}

}  // namespace

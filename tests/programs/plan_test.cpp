// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <pagedkv/model/capacity_plan.hpp>

#include "catch.hpp"
#include "run_program.hpp"
#include "support/nearest.hpp"
#include "support/plan_options.hpp"

namespace kv = pagedkv;
using kv::testing::contains_text;

namespace {

/// What pagedkv-plan did with these arguments; `json` is null when it wrote no file.
struct Planned : kv::testing::ProgramResult {
  nlohmann::json json;
};

Planned plan(std::string const& arguments) {
  kv::testing::TemporaryFolder const folder;
  auto const path = folder.file("plan.json");
  Planned planned;
  static_cast<kv::testing::ProgramResult&>(planned) =
      kv::testing::run_program("pagedkv-plan", arguments + " --json '" + path + "'");
  auto const text = kv::testing::read_file(path);
  if (!text.empty()) planned.json = nlohmann::json::parse(text);
  return planned;
}

std::string const llama_70b = "--model llama-3.1-70b --device a100-80gb ";

TEST_CASE("every model preset takes the bytes per token that its architecture says") {
  auto const bytes = [](char const* name) {
    programs::PlanOptions options;
    options.model = name;
    options.num_blocks = 1;
    return programs::capacity_input(options).geometry.bytes_per_token().bytes;
  };
  CHECK(bytes("llama-3.1-8b") == 131'072);
  CHECK(bytes("llama-3.1-70b") == 327'680);
  CHECK(bytes("llama-3.1-405b") == 516'096);
  CHECK(bytes("mistral-large-2") == 360'448);
  CHECK(bytes("qwen2.5-72b") == 327'680);
  CHECK(bytes("qwen2.5-14b") == 196'608);
  CHECK(bytes("gemma-3-27b") == 507'904);
  CHECK(bytes("deepseek-v3") == 70'272);
  CHECK(programs::models.size() == 8);
}

TEST_CASE("every preset can be planned with, and every device holds the smallest model") {
  for (auto const& device : programs::devices) {
    auto const planned = plan(fmt::format("--model llama-3.1-8b --device {}", device.name));
    CHECK(planned.status == 0);
    CHECK(planned.json["device_bytes"] == device.memory_bytes);
  }
  for (auto const& model : programs::models) {
    auto const planned =
        plan(fmt::format("--model {} --device b200-180gb --tensor-parallel 8", model.name));
    CHECK(planned.status == 0);
    CHECK_THAT(planned.out, contains_text(std::string(model.name)));
    CHECK(planned.json["max_model_len"] == model.max_len);
  }
}

TEST_CASE("the JSON file holds every term, and they add up") {
  auto const planned = plan(llama_70b +
                            "--tensor-parallel 4 --kv-format fp8_e4m3 --utilization 0.95 "
                            "--activation-bytes 3GiB --other-bytes 512MiB");
  REQUIRE(planned.status == 0);
  CHECK(planned.err.empty());
  auto const& json = planned.json;
  auto const& rank = json["rank"];
  CHECK(json["problem"] == "none");
  CHECK(json["error"].is_null());
  CHECK(json["kv_format"] == "fp8_e4m3/per_tensor");
  CHECK(rank["usable_bytes"] == 81'604'378'624);
  CHECK(rank["weight_bytes"] == 35'276'853'248);
  CHECK(rank["activation_bytes"] == std::int64_t{3} << 30);
  CHECK(rank["other_bytes"] == 512 << 20);
  CHECK(rank["static_scale_bytes"] == 640);
  auto const available = 81'604'378'624 - 35'276'853'248 - (std::int64_t{7} << 29) - 640;
  CHECK(rank["available_bytes"] == available);
  CHECK(rank["bytes_per_block"] == 655'360);
  CHECK(json["num_blocks"] == available / 655'360);
  CHECK(rank["unused_bytes"] == available % 655'360);
  CHECK(json["bytes_per_token"] == 163'840);
  CHECK(json["recommended_format"]["kv_format"] == "int8/per_token_head");
}

TEST_CASE("the table agrees with a plan made for the format") {
  auto const table = plan(llama_70b + "--tensor-parallel 4").json["formats"];
  CHECK(table.size() == 7);
  for (auto const& row : table) {
    auto const alone =
        plan(llama_70b + "--tensor-parallel 4 --kv-format " + row["kv_format"].get<std::string>());
    CHECK(row["num_blocks"] == alone.json["num_blocks"]);
    CHECK(row["bytes_per_token"] == alone.json["bytes_per_token"]);
    CHECK(row["concurrency"].back() == alone.json["concurrency"]);
  }
}

TEST_CASE("a format that is not among the usual ones gets a row of its own") {
  auto const planned = plan(llama_70b +
                            "--tensor-parallel 4 --kv-format f32 --v-format int4 "
                            "--context-lengths 100,5000");
  REQUIRE(planned.status == 0);
  CHECK(planned.json["formats"].size() == 8);
  CHECK(planned.json["formats"][0]["kv_format"] == "f32");
  CHECK(planned.json["formats"][0]["v_format"] == "int4/per_token_head");
  CHECK(planned.json["context_lengths"] == nlohmann::json({100, 5000}));
  CHECK_THAT(planned.out, contains_text("* K f32, V int4/per_token_head"));
}

TEST_CASE("weights that don't fit: status 2, the reason on stderr, and what would work does") {
  auto const planned = plan(llama_70b);
  CHECK(planned.status == 2);
  CHECK(planned.err.rfind("No available memory for the cache blocks", 0) == 0);
  CHECK(planned.json["problem"] == "no_memory");
  CHECK(planned.json["error"] == planned.err.substr(0, planned.err.size() - 1));
  auto const& works = planned.json["would_work"];
  CHECK(works["utilization"].is_null());
  auto const tensor = works["tensor_parallel"].get<int>();
  CHECK(plan(llama_70b + fmt::format("--tensor-parallel {}", tensor)).status == 0);
  auto const weights = works["weight_bytes"].get<std::int64_t>();
  CHECK(plan(llama_70b + fmt::format("--weights-bytes {}", weights)).status == 0);
  CHECK(plan(llama_70b + fmt::format("--weights-bytes {}", weights + 1)).status == 2);
}

TEST_CASE("a length that doesn't fit: status 2, and the table shows what does") {
  std::string const llama_8b = "--model llama-3.1-8b --device l4-24gb --max-model-len ";
  auto const planned = plan(llama_8b + "60000");
  CHECK(planned.status == 2);
  CHECK(planned.err.rfind("One sequence of 60000 tokens does not fit", 0) == 0);
  CHECK_THAT(planned.out, contains_text("Formats by context length"));
  auto const& works = planned.json["would_work"];
  auto const length = works["max_model_len"].get<int>();
  CHECK(plan(llama_8b + std::to_string(length)).status == 0);
  CHECK(plan(llama_8b + std::to_string(length + 1)).status == 2);
  auto const format = works["kv_format"].get<std::string>();
  CHECK(plan(llama_8b + "60000 --kv-format " + format).status == 0);
  CHECK(works["utilization"].is_number());
  auto const utilization = works["utilization"].get<double>();
  CHECK(plan(llama_8b + fmt::format("60000 --utilization {}", utilization)).status == 0);
  CHECK(plan(llama_8b + fmt::format("60000 --utilization {:.6f}", utilization - 1e-6)).status == 2);
}

TEST_CASE("a wrong value names the nearest valid one") {
  auto const refused = [](std::string const& arguments) {
    auto const planned = plan(arguments);
    CHECK(planned.status != 0);
    CHECK(planned.status != 2);
    CHECK(planned.json.is_null());
    return planned.err;
  };
  CHECK_THAT(refused("--model lama-3.1-70b"), contains_text("did you mean llama-3.1-70b?"));
  CHECK_THAT(refused("--device h100"), contains_text("did you mean h100-80gb?"));
  CHECK_THAT(refused("--kv-format fp8_e4m4"), contains_text("did you mean fp8_e4m3?"));
  CHECK_THAT(refused("--kv-format int4/per_head"), contains_text("int4/per_token_head?"));
  CHECK_THAT(refused("--granularity per_block"), contains_text("did you mean per_block_head?"));
  CHECK_THAT(refused("--utilization 95"), contains_text("did you mean 0.95?"));
  CHECK_THAT(refused("--max-model-len 32k"), contains_text("did you mean 32768?"));
  CHECK_THAT(refused("--tensor-paralel 2"), contains_text("did you mean --tensor-parallel?"));
  CHECK_THAT(refused("--cache-bytes 5GX"), contains_text("1.5GiB"));
  CHECK_THAT(refused("--layer-format 5"), contains_text("0=bf16"));
  CHECK_THAT(refused(llama_70b + "--kv-format f16 --granularity per_head"),
             contains_text("f16 can't be scaled per_head"));
  CHECK_THAT(refused(llama_70b + "--kv-format fp8_e4m3/per_head --granularity per_tensor"),
             contains_text("contradicts"));
  CHECK_THAT(refused("--device h100-80gb"), contains_text("give --model"));
  CHECK_THAT(refused("--model llama-3.1-8b"), contains_text("give --device"));
}

TEST_CASE("heads that can't be dealt out are refused with the nearest that can") {
  auto const planned = plan(llama_70b + "--tensor-parallel 3");
  CHECK(planned.status == 1);
  CHECK_THAT(planned.err, contains_text("the nearest that work are 2 and 4"));
}

TEST_CASE("a file that can't be written is told") {
  auto const result = kv::testing::run_program(
      "pagedkv-plan", llama_70b + "--tensor-parallel 4 --json /nonexistent/plan.json");
  CHECK(result.status == 1);
  CHECK_THAT(result.err, contains_text("cannot write /nonexistent/plan.json"));
}

TEST_CASE("a model without a preset is described by its numbers") {
  auto const planned = plan(
      "--layers 36 --kv-heads 8 --head-dim 128 --params 8.2B --device-bytes 48GiB "
      "--layer-format 0=bf16 --layer-format 35=bf16 --kv-format fp8_e4m3 --block-tokens 32");
  REQUIRE(planned.status == 0);
  CHECK(planned.json["weight_bytes"] == 16'400'000'000);
  CHECK(planned.json["bytes_per_token"] == 34 * 2048 + 2 * 4096);
  CHECK(planned.json["block_tokens"] == 32);
  CHECK(planned.json["recommended_format"].is_null());
}

TEST_CASE("blocks given by number need no device") {
  auto const planned = plan("--model llama-3.1-8b --blocks 1000");
  REQUIRE(planned.status == 0);
  CHECK(planned.json["num_blocks"] == 1000);
  CHECK(planned.json["sized_by"] == "num_blocks");
  CHECK(planned.json["cache_bytes"] == 1000LL * 16 * 131'072);
  auto const none = plan("--model llama-3.1-8b --blocks 0");
  CHECK(none.status == 105);
  CHECK_THAT(none.err, contains_text("--blocks: 0 is less than 1\n"));
}

TEST_CASE("blocks that the device can't hold are planned and flagged") {
  auto const planned = plan("--model llama-3.1-8b --device l4-24gb --cache-bytes 20GiB");
  REQUIRE(planned.status == 0);
  CHECK(planned.json["rank"]["beyond_device_bytes"] ==
        (std::int64_t{20} << 30) + 2 * 8'030'261'248 - (std::int64_t{23'034} << 20));
  CHECK_THAT(planned.out, contains_text("more than the device has"));
}

TEST_CASE("byte counts are read exactly, or with a unit") {
  CHECK(programs::parse_bytes("9007199254740993") == 9'007'199'254'740'993);
  CHECK(programs::parse_bytes("0") == 0);
  CHECK(programs::parse_bytes("1.5GiB") == 1'610'612'736);
  CHECK(programs::parse_bytes("80 GB") == 80'000'000'000);
  CHECK(programs::parse_count("8.03B") == 8'030'000'000);
  CHECK(programs::parse_count("671e9") == 671'000'000'000);
  for (auto const* text : {"", "-1", "GiB", "5XB", "1e30", "5GiBs", "nan", "inf"}) {
    CHECK_THROWS_AS(programs::parse_bytes(text), CLI::ValidationError);
  }
}

TEST_CASE("the nearest name begins with the text, or has the fewest edits") {
  CHECK(programs::edit_distance("", "abc") == 3);
  CHECK(programs::edit_distance("kitten", "sitting") == 3);
  CHECK(programs::edit_distance("same", "same") == 0);
  CHECK(programs::nearest_name("b", {"aa", "cb", "b123"}) == "b123");
  CHECK(programs::nearest_name("ac", {"aa", "acb", "b"}) == "acb");
  CHECK(programs::nearest_name("xa", {"aab", "aa", "ya"}) == "aa");
}

}  // namespace

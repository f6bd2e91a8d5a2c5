// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the programs write, print and refuse.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "catch.hpp"
#include "human.hpp"
#include "run_program.hpp"
#include "svg_chart.hpp"

namespace {

using pagedkv::testing::contains_text;
using pagedkv::testing::read_file;
using pagedkv::testing::run_program;
using pagedkv::testing::TemporaryFolder;

struct Outcome {
  pagedkv::testing::ProgramResult result;
  nlohmann::json json;
  std::string html;
};

Outcome replayed(std::string const& trace, std::string const& options) {
  TemporaryFolder const folder;
  Outcome outcome;
  outcome.result =
      run_program("pagedkv-replay", fmt::format("--json '{}' --html '{}' {} '{}'", folder.file("j"),
                                                folder.file("h"), options, trace));
  INFO(outcome.result.err);
  REQUIRE(outcome.result.status == 0);
  outcome.json = nlohmann::json::parse(read_file(folder.file("j")));
  outcome.html = read_file(folder.file("h"));
  return outcome;
}

std::string make_workload(TemporaryFolder const& folder) {
  auto const path = folder.file("work<load>.jsonl");
  REQUIRE(run_program("pagedkv-workload", fmt::format("--requests 60 -o '{}'", path)).status == 0);
  return path;
}

}  // namespace

TEST_CASE("the JSON object has the promised names", "[report]") {
  TemporaryFolder const folder;
  auto const full = replayed(make_workload(folder), "--blocks 3000 --block-tokens 16").json;
  for (char const* name : {"requests",
                           "prompt_blocks",
                           "rejected",
                           "hit_blocks",
                           "prompt_tokens",
                           "hit_tokens",
                           "evicted_blocks",
                           "resident_blocks",
                           "preemptions",
                           "copies",
                           "twin_blocks",
                           "moved_blocks",
                           "peak_usage",
                           "mean_usage",
                           "internal_fragmentation",
                           "peak_sequences",
                           "contiguous_peak_sequences",
                           "ttft_ms_p99",
                           "itl_ms_p99",
                           "step_ns_p50",
                           "step_ns_p99",
                           "step_ns_max"}) {
    INFO(name);
    REQUIRE(full.contains(name));
    CHECK(full.at(name).is_number());
  }
  CHECK(full.at("requests") == 60);
  CHECK(full.at("hit_tokens") > 0);
  CHECK(full.at("hit_tokens") < full.at("prompt_tokens"));
  CHECK(full.at("step_ns_p50") > 0);
  CHECK(full.at("step_ns_p50") <= full.at("step_ns_p99"));
  CHECK(full.at("step_ns_p99") <= full.at("step_ns_max"));
}

TEST_CASE("without a clock there are no latencies", "[report]") {
  TemporaryFolder const folder;
  auto const json = replayed(make_workload(folder), "--blocks 3000 --prefix-only").json;
  CHECK(json.at("ttft_ms_p99").is_null());
  CHECK(json.at("itl_ms_p99").is_null());
  CHECK(json.at("peak_sequences") == 1);
}

TEST_CASE("the page needs nothing from elsewhere and shows what the table shows", "[report]") {
  TemporaryFolder const folder;
  auto const outcome = replayed(make_workload(folder), "--blocks 3000 --block-tokens 16");
  for (char const* outside : {"http:", "https:", "src=", "<link", "@import", "url("}) {
    INFO(outside);
    CHECK(outcome.html.find(outside) == std::string::npos);
  }
  CHECK_THAT(outcome.html, contains_text("work&lt;load&gt;.jsonl"));
  CHECK(outcome.html.find("work<load>") == std::string::npos);
  CHECK(outcome.html.find("nan") == std::string::npos);
  for (char const* part : {"Where the blocks are", "Prefix hit ratio", "Waste"}) {
    CHECK_THAT(outcome.html, contains_text(part));
  }
  auto const hits = replay::grouped(outcome.json.at("hit_tokens"));
  CHECK_THAT(outcome.html, contains_text(hits));
  CHECK_THAT(outcome.result.out, contains_text(hits));
}

TEST_CASE("no progress bar where there is no terminal", "[report]") {
  TemporaryFolder const folder;
  CHECK(replayed(make_workload(folder), "--blocks 3000").result.err.empty());
}

TEST_CASE("a trace of lengths reports no sharing", "[report]") {
  TemporaryFolder const folder;
  auto const path = folder.file("lengths.csv");
  std::ofstream(path) << "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                         "2023-11-16 18:17:03.97,100,10\n2023-11-16 18:17:03.99,100,10\n";
  auto const outcome = replayed(path, "--blocks 100");
  CHECK(outcome.json.at("sharing_known") == false);
  CHECK(outcome.json.at("hit_tokens") == 0);
  CHECK(outcome.json.at("block_tokens") == 16);
  CHECK_THAT(outcome.result.out, contains_text("lengths only"));
  CHECK(outcome.html.find("Prefix hit ratio") == std::string::npos);
}

TEST_CASE("without --blocks a plan sizes the pool", "[report]") {
  TemporaryFolder const folder;
  auto const path = make_workload(folder);
  auto const planned = replayed(
      path, "--model llama-3.1-8b --device l4-24gb --kv-format fp8_e4m3 --block-tokens 32");
  auto const plan = run_program(
      "pagedkv-plan",
      fmt::format("--model llama-3.1-8b --device l4-24gb --kv-format fp8_e4m3 --block-tokens 32 "
                  "--json '{}'",
                  folder.file("plan.json")));
  REQUIRE(plan.status == 0);
  auto const numbers = nlohmann::json::parse(read_file(folder.file("plan.json")));
  CHECK_THAT(numbers.dump(),
             contains_text(fmt::format("\"num_blocks\":{}", planned.json.at("num_blocks").dump())));

  auto const none = run_program("pagedkv-replay", fmt::format("--model llama-3.1-70b --device "
                                                              "l4-24gb '{}'",
                                                              path));
  CHECK(none.status == 2);
  CHECK_THAT(none.err, contains_text("No available memory for the cache blocks"));
}

TEST_CASE("what can't be read or meant ends with a message", "[report]") {
  TemporaryFolder const folder;
  auto const path = folder.file("bad.jsonl");
  std::ofstream(path) << R"({"timestamp": 0, "input_length": 5, "hash_ids": [3]})"
                      << "\n";
  auto const bad = run_program("pagedkv-replay", "'" + path + "'");
  CHECK(bad.status == 1);
  CHECK_THAT(bad.err, contains_text(path + ":1: field \"output_length\": is missing"));
  CHECK(run_program("pagedkv-replay", "/no/such/file").status == 1);
  CHECK(run_program("pagedkv-replay", "").status != 0);
  CHECK_THAT(run_program("pagedkv-replay", "--chunked-prefil on x").err,
             contains_text("--chunked-prefill"));
  CHECK(run_program("pagedkv-replay", "--partial-hits maybe x").status != 0);
  CHECK_THAT(run_program("pagedkv-workload", "--cancelled 2").err,
             contains_text("--cancelled must be 0 to 1"));
}

TEST_CASE("no program writes over what it reads, or over anything before its options make sense",
          "[report]") {
  TemporaryFolder const folder;
  auto const path = make_workload(folder);
  auto const before = read_file(path);
  auto const refuse = [&](char const* program, std::string const& options,
                          std::string const& message) {
    INFO(program << ' ' << options);
    auto const result = run_program(program, options);
    CHECK(result.status == 1);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, contains_text(message));
    CHECK(read_file(path) == before);
  };
  refuse("pagedkv-replay", fmt::format("'{0}' --no-html --json '{0}'", path),
         "--json would write over the file of TRACE");
  refuse("pagedkv-replay", fmt::format("'{0}' --html '{0}'", path),
         "--html would write over the file of TRACE");
  refuse("pagedkv-replay", fmt::format("'{0}' --html '{1}' --json '{1}'", path, folder.file("x")),
         "--html would write over the file of --json");
  refuse("pagedkv-replay", fmt::format("'{}' --no-html --json '{}'", path, folder.file("no/x")),
         "can't be written (--json)");
  refuse("pagedkv-workload", fmt::format("--requests 0 --output '{}'", path),
         "--requests must be at least 1");
  refuse("pagedkv-workload", fmt::format("--output '{}'", folder.file("no/x")),
         "can't be written (--output)");
  CHECK_THAT(run_program("pagedkv-workload", "--request 5").err,
             contains_text("did you mean --requests?"));
}

TEST_CASE("the same options make the same workload, another seed another", "[report]") {
  auto const make = [](char const* options) {
    return run_program("pagedkv-workload", options).out;
  };
  auto const one = make("--requests 200 --seed 1");
  CHECK(one == make("--requests 200 --seed 1"));
  CHECK(one != make("--requests 200 --seed 2"));
  CHECK(std::count(one.begin(), one.end(), '\n') == 200);
  CHECK_THAT(one, contains_text("cancel_after"));
}

TEST_CASE("a chart draws gaps as gaps and keeps text as text", "[report]") {
  replay::Chart chart;
  chart.title = "a < b";
  chart.x = {0, 1, 2, 3};
  chart.series = {{"s", "c1", {0.5, replay::no_value, 0.25, 0.5}}};
  auto const figure = replay::to_figure(chart);
  CHECK_THAT(figure, contains_text("a &lt; b"));
  CHECK_THAT(figure, contains_text("<circle"));  // the lone first point
  CHECK_THAT(figure, contains_text("[0.5,null,0.25,0.5]"));
  CHECK(figure.find("nan") == std::string::npos);
}

TEST_CASE("numbers read well", "[report]") {
  CHECK(replay::grouped(1234567) == "1,234,567");
  CHECK(replay::grouped(-1234) == "-1,234");
  CHECK(replay::grouped(999) == "999");
  CHECK(replay::percent(0.00057) == "0.057 %");
  CHECK(replay::percent(0.3652) == "36.5 %");
  CHECK(replay::duration(0.0031) == "3.1 ms");
  CHECK(replay::duration(3537) == "59 min");
}

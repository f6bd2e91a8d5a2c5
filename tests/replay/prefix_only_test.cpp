// SPDX-License-Identifier: Apache-2.0
/// \file
/// `pagedkv-replay --prefix-only --json` against a naive pool, to the last block.
#include <fmt/format.h>

#include <pagedkv/error.hpp>
#include <string>

#include "catch.hpp"
#include "naive_pool.hpp"
#include "run_program.hpp"
#include "trace_files.hpp"

namespace {

using pagedkv::testing::read_file;
using pagedkv::testing::run_program;
using pagedkv::testing::TemporaryFolder;

/// With full contract checks each verb counts the whole pool: then pools are small and few.
constexpr bool slow_checks = PAGEDKV_ASSERT_LEVEL >= 2;

nlohmann::json replay(std::string const& arguments) {
  TemporaryFolder const folder;
  auto const json = folder.file("out.json");
  auto const result = run_program(
      "pagedkv-replay", fmt::format("--prefix-only --no-html --json '{}' {}", json, arguments));
  INFO(arguments);
  INFO(result.err);
  REQUIRE(result.status == 0);
  return nlohmann::json::parse(read_file(json));
}

void check_equal(nlohmann::json const& seen, naive::Counts const& expected) {
  CHECK(seen.at("requests") == expected.requests);
  CHECK(seen.at("rejected") == expected.rejected);
  CHECK(seen.at("prompt_blocks") == expected.prompt_blocks);
  CHECK(seen.at("accepted_prompt_blocks") == expected.accepted_blocks);
  CHECK(seen.at("hit_blocks") == expected.hit_blocks);
  CHECK(seen.at("evicted_blocks") == expected.evicted_blocks);
  CHECK(seen.at("resident_blocks") == expected.resident_blocks);
  CHECK(expected.evicted_blocks + expected.resident_blocks ==
        expected.accepted_blocks - expected.hit_blocks);
}

std::string generated(TemporaryFolder const& folder, std::string const& arguments) {
  auto const path = folder.file("trace.jsonl");
  auto const result =
      run_program("pagedkv-workload", fmt::format("--output '{}' {}", path, arguments));
  REQUIRE(result.status == 0);
  return path;
}

}  // namespace

TEST_CASE("prefix-only on a generated trace agrees with a naive pool", "[prefix_only]") {
  TemporaryFolder const folder;
  auto const path =
      generated(folder, slow_checks ? "--requests 100 --seed 7" : "--requests 600 --seed 7");
  auto const prompts = naive::read_mooncake(path);
  REQUIRE(prompts.size() == (slow_checks ? 100 : 600));
  for (std::int64_t const block_tokens : {512, 64, 16}) {
    // In tokens: few prompts fit; some don't; nearly all of the trace fits.
    for (std::int64_t const tokens : {8'000, 40'000, 200'000, 1'000'000, 8'000'000}) {
      std::int64_t const blocks = tokens / block_tokens;
      if (slow_checks && blocks > 15'000) continue;
      auto const expected = naive::run(prompts, 512, block_tokens, blocks);
      INFO("block_tokens " << block_tokens << ", blocks " << blocks);
      check_equal(
          replay(fmt::format("--block-tokens {} --blocks {} '{}'", block_tokens, blocks, path)),
          expected);
    }
  }
}

TEST_CASE("neither late reclaim nor adopting twins changes what a lone request hits",
          "[prefix_only]") {
  TemporaryFolder const folder;
  auto const path =
      generated(folder, slow_checks ? "--requests 60 --seed 8" : "--requests 300 --seed 8");
  auto const expected = naive::run(naive::read_mooncake(path), 512, 16, 3000);
  for (char const* options : {"--reclaim deferred", "--twins adopt"}) {
    check_equal(replay(fmt::format("--block-tokens 16 --blocks 3000 {} '{}'", options, path)),
                expected);
  }
}

TEST_CASE("an unlimited pool evicts nothing", "[prefix_only]") {
  TemporaryFolder const folder;
  auto const path =
      generated(folder, slow_checks ? "--requests 60 --seed 9" : "--requests 300 --seed 9");
  auto const prompts = naive::read_mooncake(path);
  for (std::int64_t const block_tokens : {512, 128}) {
    auto const expected = naive::run(prompts, 512, block_tokens, 1'000'000'000);
    auto const seen =
        replay(fmt::format("--block-tokens {} --unlimited-blocks '{}'", block_tokens, path));
    check_equal(seen, expected);
    CHECK(seen.at("evicted_blocks") == 0);
    // Not much larger than what the prompts fill.
    CHECK(seen.at("num_blocks") < expected.resident_blocks * 5 / 4 + 1000);
  }
}

TEST_CASE("a recorded chat trace gives the known counts", "[prefix_only][recorded]") {
  auto const path = naive::recorded("mooncake/conversation_trace.jsonl");
  if (path.empty() || slow_checks) {
    WARN("skipped: " << (slow_checks ? "full contract checks take hours on pools of this size"
                                     : "the mooncake conversation trace isn't on this machine"));
    return;
  }
  auto const small = replay("--blocks 2000 --partial-hits off " + path);
  CHECK(small.at("prompt_blocks") == 276'491);
  CHECK(small.at("hit_blocks") == 15'942);
  CHECK(small.at("evicted_blocks") == 258'550);
  CHECK(replay("--unlimited-blocks --partial-hits off " + path).at("hit_blocks") == 105'592);
  auto const prompts = naive::read_mooncake(path);
  check_equal(replay("--blocks 200 " + path), naive::run(prompts, 512, 512, 200));
  check_equal(replay("--block-tokens 64 --blocks 30000 " + path),
              naive::run(prompts, 512, 64, 30000));
}

TEST_CASE("recorded agent sessions in closed loop agree with a naive pool",
          "[prefix_only][recorded]") {
  auto const path = naive::recorded("claude_code/sessions.jsonl");
  if (path.empty() || slow_checks) {
    WARN("skipped: " << (slow_checks ? "full contract checks take hours on pools of this size"
                                     : "the coding agents' sessions aren't on this machine"));
    return;
  }
  for (std::size_t const users : {1, 20}) {
    auto const prompts = naive::read_claude_code(path, users, 1500);
    for (std::int64_t const blocks : {1500, 20'000}) {
      INFO("users " << users << ", blocks " << blocks);
      check_equal(
          replay(fmt::format("--users {} --limit 1500 --blocks {} {}", users, blocks, path)),
          naive::run(prompts, 64, 64, blocks));
    }
  }
}

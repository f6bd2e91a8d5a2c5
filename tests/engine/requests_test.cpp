// SPDX-License-Identifier: Apache-2.0
/// \file
/// Lines of requests that nobody meant: refused with file, line and field, or taken as they stand.
#include "requests.hpp"

#include "engine_helpers.hpp"
#include "gguf_writer.hpp"
#include "run_program.hpp"

namespace {

using pagedkv::testing::contains_text;
using pagedkv::testing::TemporaryFolder;

constexpr std::int32_t vocab_size = 61;

/// What reading says; empty when it succeeds.
std::string error_of(std::string const& lines, std::vector<engine::Request>* read = nullptr) {
  TemporaryFolder const folder;
  testing::write_file(folder.file("r.jsonl"), lines);
  try {
    auto const requests = engine::read_requests(folder.file("r.jsonl"), {vocab_size, {0}, nullptr});
    if (read != nullptr) *read = requests;
  } catch (engine::RequestError const& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("values nested deeper than the stack are refused like others") {
  std::string const deep = std::string(400'000, '[') + std::string(400'000, ']');
  for (char const* field : {"id", "prompt", "prompt_ids", "max_tokens", "stop_ids", "temperature",
                            "n", "cancel_after", "unknown"}) {
    INFO(field);
    std::string line = std::string(R"({")") + field + R"(": )" + deep;
    for (char const* other : {"id", "prompt_ids"}) {
      if (std::string(field) == other || std::string(field) == "prompt") continue;
      line += std::string(R"(, ")") + other + R"(": )" + (other[0] == 'i' ? "1" : "[1]");
    }
    if (std::string(field) == "prompt") line += R"(, "id": 1)";
    auto const error = error_of(line + "}");
    CHECK_THAT(error, contains_text(std::string("r.jsonl:1: field '") + field));
    CHECK(error.size() < 1000);
  }
}

TEST_CASE("a number that no double holds, and text that isn't UTF-8, name file and line") {
  std::string const good = R"({"id": 1, "prompt_ids": [1]})";
  CHECK(error_of(good).empty());
  for (char const* line : {R"({"id": 2, "prompt_ids": [1], "temperature": 1e999})",
                           R"({"id": 2, "prompt_ids": [-1e999]})", "{\"id\": \"\xFF\"}",
                           R"({"id": "\ud800"})", "{\"id\": 2, \"prompt_ids\": [NaN]}", "\x01"}) {
    INFO(line);
    CHECK_THAT(error_of(good + "\n" + line), contains_text("r.jsonl:2: "));
  }
}

TEST_CASE("a line with any bytes changed is refused with its place, or read within all bounds") {
  std::string const good =
      R"({"id": "a", "prompt_ids": [1, 60, 7], "max_tokens": 12, "stop_ids": [4, 5], )"
      R"("temperature": 0.75, "n": 3, "cancel_after": 10})";
  constexpr std::string_view likely = "0123456789-+.eE\"{}[],: \n\\untrf\xC3";
  engine::Random random(1);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    auto line = good;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      line[random.below(line.size())] = likely[random.below(likely.size())];
    }
    INFO(line);
    std::vector<engine::Request> requests;
    auto const error = error_of(line, &requests);
    refused += !error.empty();
    if (!error.empty()) CHECK_THAT(error, contains_text("r.jsonl:"));
    for (auto const& r : requests) {
      bool const in_vocabulary = std::all_of(r.prompt.begin(), r.prompt.end(), [](auto const id) {
        return id >= 0 && id < vocab_size;
      });
      CHECK(in_vocabulary);
      CHECK_FALSE(r.prompt.empty());
      CHECK(r.n >= 1);
      CHECK(r.max_tokens >= 0);
      CHECK((r.temperature >= 0.0F && r.temperature <= 1e6F));
      CHECK(r.cancel_after.value_or(0) >= 0);
    }
  }
  CHECK(refused > 700);
  CHECK(refused < 1500);
}

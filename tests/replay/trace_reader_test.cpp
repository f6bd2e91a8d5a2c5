// SPDX-License-Identifier: Apache-2.0
#include "trace_reader.hpp"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "run_program.hpp"

namespace {

using pagedkv::TokenId;
using pagedkv::testing::contains_text;
using pagedkv::testing::TemporaryFolder;
using replay::Format;
using replay::read_trace;
using replay::Trace;

/// A trace of these lines, read.
Trace read(std::string const& text, replay::ReadOptions const& options = {}) {
  TemporaryFolder const folder;
  auto const path = folder.file("t");
  std::ofstream(path) << text;
  return read_trace(path, options);
}

/// What reading these lines complains about, without the folder.
std::string complaint(std::string const& text, replay::ReadOptions const& options = {}) {
  try {
    (void)read(text, options);
  } catch (replay::TraceError const& error) {
    std::string const what = error.what();
    return what.substr(what.rfind("/t") + 1);
  }
  return "none";
}

std::vector<TokenId> prompt(Trace const& trace, std::size_t request) {
  replay::UniqueTokens unique;
  std::vector<TokenId> tokens;
  trace.write_prompt(trace.requests.at(request), unique, tokens);
  return tokens;
}

constexpr char const* two_chats =
    R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [3, 4]}
{"timestamp": 27, "input_length": 8, "output_length": 1, "hash_ids": [3, 9], "cancel_after": 1}
)";

constexpr char const* session = R"({"session":"s","block_tokens":2,"models":["m"],"requests":[)"
                                R"({"t":0.0,"model":0,"input_length":5,"output_length":1,)"
                                R"("base":-1,"keep":0,"new":[7,2]},)"
                                R"({"t":1.5,"model":0,"input_length":6,"output_length":1,)"
                                R"("base":0,"keep":1,"new":[20,1,30,1]}]})";

}  // namespace

TEST_CASE("mooncake ids become tokens, equal ids equal tokens", "[trace_reader]") {
  auto const trace = read(two_chats, {.trace_block_tokens = 4});
  CHECK(trace.format == Format::mooncake);
  CHECK(trace.block_tokens == 4);
  REQUIRE(trace.requests.size() == 2);
  CHECK(prompt(trace, 0) == std::vector<TokenId>{12, 13, 14, 15, 16});
  CHECK(prompt(trace, 1) == std::vector<TokenId>{12, 13, 14, 15, 36, 37, 38, 39});
  CHECK(trace.requests[1].arrival_ns == 27'000'000);
  CHECK(trace.requests[0].cancel_after == -1);
  CHECK(trace.requests[1].cancel_after == 1);
}

TEST_CASE("requests are served by time, ties in file order", "[trace_reader]") {
  std::string text;
  int output = 0;
  for (char const* const at : {"5", "3", "5", "3.5"}) {
    text += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 1, \"output_length\": {}, \"hash_ids\": "
        "[0]}}\r\n\n",
        at, output++);
  }
  auto const trace = read(text);
  std::vector<std::int32_t> order;
  for (auto const& request : trace.requests) order.push_back(request.output_tokens);
  CHECK(order == std::vector<std::int32_t>{1, 3, 0, 2});
  CHECK(trace.requests[0].arrival_ns == 0);
  CHECK(trace.requests[1].arrival_ns == 500'000);
}

TEST_CASE("sessions keep ids of earlier requests; tokens without an id are unique",
          "[trace_reader]") {
  auto const trace = read(session);
  CHECK(trace.format == Format::claude_code);
  REQUIRE(trace.requests.size() == 2);
  CHECK(prompt(trace, 0) == std::vector<TokenId>{14, 15, 16, 17, -1});
  CHECK(prompt(trace, 1) == std::vector<TokenId>{14, 15, 40, 41, 60, 61});
  CHECK(trace.requests[1].arrival_ns == 1'500'000'000);
}

TEST_CASE("token ids and text are taken as they stand, outputs too", "[trace_reader]") {
  auto const ids = read(
      R"({"input_toks": 2, "output_toks": 1, "arrival_time_ns": 9, "input_tok_ids": [5, 127787], "output_tok_ids": [8]})");
  CHECK(ids.format == Format::token_ids);
  CHECK(prompt(ids, 0) == std::vector<TokenId>{5, 127787});
  replay::UniqueTokens unique;
  CHECK(ids.output_token(ids.requests[0], 0, unique) == 8);
  CHECK(ids.output_token(ids.requests[0], 1, unique) == -1);

  auto const text = read(
      R"({"timestamp": 1760428221546118, "input": "a\u00e9", "output": "", "session_id": "x"})");
  CHECK(text.format == Format::agent_text);
  CHECK(prompt(text, 0) == std::vector<TokenId>{'a', 0xc3, 0xa9});
  CHECK(text.requests[0].output_tokens == 0);
  CHECK(text.requests[0].arrival_ns == 0);
}

TEST_CASE("a trace of lengths has unique prompts and real times", "[trace_reader]") {
  auto const trace = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9000000,3,1\r\n"
      "2023-11-17 00:00:00.1000001,2,7\r\n");
  CHECK(trace.format == Format::azure);
  CHECK_FALSE(trace.knows_sharing());
  REQUIRE(trace.requests.size() == 2);
  CHECK(trace.requests[1].arrival_ns == 200'000'100);
  CHECK(trace.requests[1].output_tokens == 7);
  replay::UniqueTokens unique;
  std::vector<TokenId> tokens;
  trace.write_prompt(trace.requests[0], unique, tokens);
  CHECK(tokens == std::vector<TokenId>{-1, -2, -3});
  trace.write_prompt(trace.requests[1], unique, tokens);
  CHECK(tokens == std::vector<TokenId>{-4, -5});
}

TEST_CASE("a user takes the next session at the time of its last one's last request",
          "[trace_reader]") {
  // Sessions of 10 s, 4 s and 3 s and two users: the third starts at 4.
  auto const line = [](char const* t) {
    return std::string(R"({"session":"s","block_tokens":1,"models":[],"requests":[)") +
           R"({"t":0,"input_length":1,"output_length":1,"base":-1,"keep":0,"new":[1,1]},)" +
           R"({"t":)" + t +
           R"(,"input_length":1,"output_length":1,"base":-1,"keep":0,"new":[1,1]}]})" + "\n";
  };
  auto const trace = read(line("10") + line("4") + line("6"), {.users = 2});
  std::vector<std::pair<std::int64_t, std::int32_t>> order;
  for (auto const& r : trace.requests) order.emplace_back(r.arrival_ns / 1'000'000'000, r.session);
  std::vector<std::pair<std::int64_t, std::int32_t>> const expected{{0, 0}, {0, 1},  {4, 1},
                                                                    {4, 2}, {10, 0}, {10, 2}};
  CHECK(order == expected);
}

TEST_CASE("the limit keeps the first to arrive", "[trace_reader]") {
  CHECK(read(two_chats, {.trace_block_tokens = 4, .limit = 1}).requests.size() == 1);
  CHECK(read(two_chats, {.trace_block_tokens = 4, .limit = 5}).requests.size() == 2);
}

TEST_CASE("an unreadable line names file, line and field", "[trace_reader]") {
  std::string const good =
      R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [3]})"
      "\n";
  auto const bad = [&](std::string const& line) { return complaint(good + "\n" + line); };
  CHECK_THAT(bad(R"({"timestamp": 0, "output_length": 2, "hash_ids": [3]})"),
             contains_text("t:3: field \"input_length\": is missing"));
  CHECK_THAT(bad(R"({"timestamp": 0, "input_length": 0, "output_length": 2, "hash_ids": [3]})"),
             contains_text("t:3: field \"input_length\": expected an integer from 1"));
  CHECK_THAT(bad(R"({"timestamp": "x", "input_length": 5, "output_length": 2, "hash_ids": [3]})"),
             contains_text("t:3: field \"timestamp\": expected a number"));
  CHECK_THAT(bad(R"({"timestamp": 0, "input_length": 5, "output_length": 2.5, "hash_ids": [3]})"),
             contains_text("t:3: field \"output_length\": expected an integer"));
  CHECK_THAT(bad(R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [3, -1]})"),
             contains_text("t:3: field \"hash_ids[1]\": expected an integer from 0"));
  CHECK_THAT(bad(R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [3, 4]})"),
             contains_text("t:3: field \"hash_ids\": 2 ids for 5 tokens"));
  CHECK_THAT(
      bad(R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [4194303]})"),
      contains_text("t:3: field \"hash_ids[0]\""));  // its last token isn't an int32
  CHECK_THAT(bad(R"({"timestamp": 0, "input_le)"),
             contains_text("t:3: field \"(line)\": not JSON"));
  CHECK_THAT(bad("[1]"), contains_text("t:3: field \"(line)\": expected a JSON object"));
  CHECK_THAT(bad(R"({"timestamp": 1e999, "input_length": 5})"),
             contains_text("t:3: field \"(line)\": a number in it is too large"));
  std::string const deep = std::string(400'000, '[') + std::string(400'000, ']');
  CHECK_THAT(bad(R"({"timestamp": )" + deep + "}"),
             contains_text("t:3: field \"timestamp\": expected a number"));
}

TEST_CASE("an unreadable session names the request and its field", "[trace_reader]") {
  auto const with = [&](std::string const& from, std::string const& to) {
    std::string text = session;
    text.replace(text.rfind(from), from.size(), to);
    return complaint(text);
  };
  CHECK_THAT(with("\"base\":0", "\"base\":1"),
             contains_text("t:1: field \"requests[1].base\": expected an integer from -1 to 0"));
  CHECK_THAT(with("\"keep\":1", "\"keep\":3"),
             contains_text("t:1: field \"requests[1].keep\": is 1 ids more than request 0 has"));
  CHECK_THAT(with("[20,1,30,1]", "[20,1,30]"),
             contains_text("t:1: field \"requests[1].new\": must hold pairs"));
  CHECK_THAT(with("[20,1,30,1]", "[20,2,30,1]"),
             contains_text("t:1: field \"requests[1].new\": 4 ids for 6 tokens"));
  CHECK_THAT(with("[20,1,30,1]", "[20,1,1073741823,1]"),
             contains_text("t:1: field \"requests[1].new[2]\""));
  CHECK_THAT(with("[20,1,30,1]", "[1073741822,2]"),
             contains_text("t:1: field \"requests[1].new\": a run ends behind the largest id"));
  CHECK_THAT(with("\"t\":1.5", "\"t\":-1"), contains_text("t:1: field \"requests[1].t\""));
  CHECK_THAT(complaint(session + std::string("\n") +
                       R"({"session":"s","block_tokens":4,"models":[],"requests":[]})"),
             contains_text("t:2: field \"block_tokens\": is 4, the lines before have 2"));
  CHECK_THAT(complaint(R"({"session":"s","block_tokens":4,"models":[],"requests":[3]})"),
             contains_text("t:1: field \"requests[0]\": expected an object"));
}

TEST_CASE("an unreadable row of lengths names the column", "[trace_reader]") {
  std::string const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  CHECK_THAT(complaint(header + "2023-11-16 18:17:03.97,x,10\n"),
             contains_text("t:2: field \"ContextTokens\": expected an integer from 1"));
  CHECK_THAT(complaint(header + "2023-11-16 18:17:03.97,5\n"),
             contains_text("t:2: field \"GeneratedTokens\""));
  CHECK_THAT(complaint(header + "2023-13-16 18:17:03.97,5,1\n"),
             contains_text("t:2: field \"TIMESTAMP\""));
  CHECK_THAT(complaint(header + "2023-11-16 18:17:03.97,5,1,9\n"),
             contains_text("t:2: field \"(line)\": expected three fields"));
}

TEST_CASE("texts and token lists are checked too", "[trace_reader]") {
  CHECK_THAT(complaint(R"({"timestamp": 1, "input": "", "output": "x"})"),
             contains_text("t:1: field \"input\": is empty"));
  CHECK_THAT(complaint(R"({"timestamp": 1, "input": 4, "output": "x"})"),
             contains_text("t:1: field \"input\": expected a string"));
  CHECK_THAT(
      complaint(
          R"({"input_toks": 3, "arrival_time_ns": 9, "input_tok_ids": [5], "output_tok_ids": []})"),
      contains_text("t:1: field \"input_toks\""));
  CHECK_THAT(complaint(R"({"arrival_time_ns": 9, "input_tok_ids": [5, -1], "output_tok_ids": []})"),
             contains_text("t:1: field \"input_tok_ids[1]\""));
}

TEST_CASE("what is no trace is refused by name", "[trace_reader]") {
  CHECK_THAT(complaint("hello\n"), contains_text("t:1: field \"(line)\": no known trace"));
  CHECK_THAT(complaint("{\"a\": 1}\n"), contains_text("\"hash_ids\""));
  CHECK_THAT(complaint("\n"), contains_text("t: holds no request"));
  CHECK_THROWS_AS(read_trace("/no/such/file"), replay::TraceError);
}

// SPDX-License-Identifier: Apache-2.0
#include "requests.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "support/json_text.hpp"
#include "support/nearest.hpp"

namespace engine {

namespace {

using Json = nlohmann::json;

constexpr std::array<char const*, 8> fields = {
    "id", "prompt", "prompt_ids", "max_tokens", "stop_ids", "temperature", "n", "cancel_after"};
constexpr std::int64_t most_samples = 1024;

class LineReader {
 public:
  LineReader(std::string const& path, std::int64_t line, RequestDefaults const& defaults)
      : path_(path), line_(line), defaults_(defaults) {}

  Request read(std::string const& text) {
    try {
      json_ = parse(text);
    } catch (Json::parse_error const& error) {
      throw RequestError(fmt::format("{}isn't JSON from column {} on", place(), error.byte));
    } catch (Json::out_of_range const&) {
      throw RequestError(place() + "a number in it is too large");
    }
    if (!json_.is_object()) throw RequestError(place() + "expected an object in braces");
    check_names();
    Request request;
    request.id = id();
    request.prompt = prompt();
    request.max_tokens = integer("max_tokens", 256, 0, INT32_MAX);
    request.stop_ids =
        has("stop_ids") ? ids("stop_ids", INT32_MIN + 1, INT32_MAX) : defaults_.stop_ids;
    request.temperature = temperature();
    request.n = integer("n", 1, 1, most_samples);
    if (has("cancel_after")) request.cancel_after = integer("cancel_after", 0, 0, INT32_MAX);
    request.seed = seed_of(request.id);
    return request;
  }

 private:
  [[nodiscard]] std::string place() const { return fmt::format("{}:{}: ", path_, line_); }
  [[noreturn]] void fail(std::string_view field, std::string const& problem) const {
    throw RequestError(fmt::format("{}field '{}': {}", place(), field, problem));
  }
  /// nlohmann_json would silently take the last of equal names.
  [[nodiscard]] Json parse(std::string const& text) const {
    std::set<std::string> names;
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      bool const is_name = event == Json::parse_event_t::key && depth == 1;
      if (is_name && !names.insert(value.get<std::string>()).second) {
        fail(value.get<std::string>(), "is there twice; expected once");
      }
      return true;
    });
  }
  /// null is as good as nothing.
  [[nodiscard]] bool has(char const* field) const {
    return json_.contains(field) && !json_[field].is_null();
  }

  void check_names() const {
    std::vector<std::string> const known(fields.begin(), fields.end());
    for (auto const& [name, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      fail(name,
           fmt::format("isn't known; did you mean '{}'?", programs::nearest_name(name, known)));
    }
  }
  [[nodiscard]] std::string id() const {
    if (!has("id")) fail("id", "is missing");
    if (!json_["id"].is_string() && !json_["id"].is_number_integer()) {
      fail("id", "expected a string or an integer");
    }
    return json_["id"].dump();
  }
  [[nodiscard]] std::vector<kv::TokenId> prompt() const {
    if (has("prompt") == has("prompt_ids")) {
      fail("prompt", has("prompt") ? "expected either prompt or prompt_ids, both are there"
                                   : "is missing; expected prompt or prompt_ids");
    }
    char const* const field = has("prompt") ? "prompt" : "prompt_ids";
    auto tokens = has("prompt") ? encoded() : ids(field, 0, defaults_.vocab_size - 1);
    if (tokens.empty()) fail(field, "has no tokens; expected at least one");
    return tokens;
  }
  [[nodiscard]] std::vector<kv::TokenId> encoded() const {
    if (!json_["prompt"].is_string()) fail("prompt", "expected a string");
    if (defaults_.tokenizer == nullptr) {
      fail("prompt", "needs a tokenizer (--tokenizer); without one only prompt_ids are taken");
    }
    return defaults_.tokenizer->encode(json_["prompt"].get_ref<std::string const&>());
  }
  [[nodiscard]] std::vector<kv::TokenId> ids(char const* field, std::int64_t low,
                                             std::int64_t high) const {
    Json const& values = json_[field];
    if (!values.is_array()) fail(field, "expected an array of token ids");
    std::vector<kv::TokenId> tokens;
    tokens.reserve(values.size());
    for (Json const& value : values) {
      tokens.push_back(in_range(field, value, low, high));
    }
    return tokens;
  }
  [[nodiscard]] std::int32_t integer(char const* field, std::int32_t fallback, std::int64_t low,
                                     std::int64_t high) const {
    return has(field) ? in_range(field, json_[field], low, high) : fallback;
  }
  [[nodiscard]] std::int32_t in_range(char const* field, Json const& value, std::int64_t low,
                                      std::int64_t high) const {
    bool const fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT32_MAX) &&
                      value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
    if (!fits) {
      fail(field, fmt::format("expected an integer from {} to {}, is {}", low, high,
                              programs::shown(value)));
    }
    return value.get<std::int32_t>();
  }
  [[nodiscard]] float temperature() const {
    if (!has("temperature")) return 0.0F;
    Json const& value = json_["temperature"];
    double const number = value.is_number() ? value.get<double>() : -1.0;
    if (!(number >= 0.0) || number > 1e6) {
      fail("temperature", "expected a number from 0 to 1e6, is " + programs::shown(value));
    }
    return static_cast<float>(number);
  }
  /// FNV-1a of the id: the same request draws the same numbers in any company.
  static std::uint64_t seed_of(std::string_view id) {
    std::uint64_t hash = 0xCBF29CE484222325ULL;
    for (char const c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    return hash;
  }

  std::string const& path_;
  std::int64_t line_;
  RequestDefaults const& defaults_;
  Json json_;
};

}  // namespace

std::vector<Request> read_requests(std::string const& path, RequestDefaults const& defaults) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw RequestError(path + ": can't be opened");
  std::vector<Request> requests;
  std::set<std::string> ids;
  std::string text;
  for (std::int64_t line = 1; std::getline(file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto request = LineReader(path, line, defaults).read(text);
    if (!ids.insert(request.id).second) {
      throw RequestError(
          fmt::format("{}:{}: field 'id': {} stands in an earlier line", path, line, request.id));
    }
    requests.push_back(std::move(request));
  }
  if (file.bad()) throw RequestError(path + ": can't be read");
  return requests;
}

std::string answer_line(Answer const& answer, Tokenizer const* tokenizer) {
  Request const& request = *answer.request;
  nlohmann::ordered_json line;
  line["id"] = Json::parse(request.id);
  if (request.n > 1) line["index"] = answer.index;
  if (answer.finish == Finish::refused) {
    line["error"] = "the prompt and one token are more than the pool holds";
    return line.dump();
  }
  line["prompt_ids"] = request.prompt;
  line["output_ids"] = answer.output;
  line["text"] = tokenizer != nullptr ? tokenizer->decode(answer.output, request.prompt.back())
                                      : std::string();
  line["cached_tokens"] = answer.cached_tokens;
  line["preempted"] = answer.preempted;
  // A cut answer may end in the middle of a character.
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace engine

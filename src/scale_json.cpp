// SPDX-License-Identifier: Apache-2.0
/// \file
/// JSON of scale files, with errors that say where and what it looks like.
#include "scale_json.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>

#include <fmt/format.h>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {
namespace {

using detail::Json;

/// Walks over JSON until it ends or goes wrong; knows where it is.
class Walk : public Json::json_sax_t {
 public:
  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] bool is_out_of_range() const { return is_out_of_range_; }

  /// "layers[0].k[1]"; numbers as keys look like indices.
  [[nodiscard]] std::string place() const {
    std::string text;
    for (auto const& level : levels_) {
      auto const step = level.is_array ? std::to_string(level.index) : level.key;
      if (step.empty()) continue;
      bool const number = step.find_first_not_of("0123456789") == std::string::npos;
      text += number ? "[" + step + "]" : (text.empty() ? "" : ".") + step;
    }
    return text;
  }

  bool null() override { return next(); }
  bool boolean(bool) override { return next(); }
  bool number_integer(number_integer_t) override { return next(); }
  bool number_unsigned(number_unsigned_t) override { return next(); }
  bool number_float(number_float_t, string_t const&) override { return next(); }
  bool string(string_t&) override { return next(); }
  bool binary(binary_t&) override { return next(); }
  bool start_object(std::size_t) override { return enter(false); }
  bool start_array(std::size_t) override { return enter(true); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    levels_.back().key = name;
    return true;
  }
  bool parse_error(std::size_t position, std::string const&,
                   nlohmann::detail::exception const& error) override {
    position_ = position;
    is_out_of_range_ = error.id == 406;
    return false;
  }

 private:
  struct Level {
    bool is_array;
    std::size_t index = 0;
    std::string key{};
  };

  bool next() {
    if (!levels_.empty()) ++levels_.back().index;
    return true;
  }
  bool enter(bool is_array) {
    levels_.push_back({is_array});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return next();
  }

  std::vector<Level> levels_;
  std::size_t position_ = 0;  // bytes read when it went wrong
  bool is_out_of_range_ = false;
};

/// Letters, digits and signs around the last byte read.
std::string word_at(std::string_view text, std::size_t position) {
  auto const is_in_word = [&](std::size_t at) {
    return std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '+' ||
           text[at] == '-' || text[at] == '.';
  };
  auto begin = std::min(position, text.size());
  auto end = begin;
  while (begin > 0 && is_in_word(begin - 1)) --begin;
  while (end < text.size() && is_in_word(end)) ++end;
  return std::string(text.substr(begin, std::min<std::size_t>(end - begin, 40)));
}

bool is_no_finite_number(std::string word) {
  if (!word.empty() && (word.front() == '-' || word.front() == '+')) word.erase(0, 1);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word == "nan" || word == "inf" || word == "infinity";
}

/// Why this isn't JSON.
std::string json_problem(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return "is empty; expected an object in braces";
  }
  Walk walk;
  Json::sax_parse(text.begin(), text.end(), &walk);
  auto const read = std::min(walk.position(), text.size());
  auto const line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(read), '\n');
  auto const place = walk.place();
  auto const where =
      fmt::format("line {}{}", line, place.empty() ? std::string() : ", at " + place);
  auto const word = word_at(text, read);
  if (walk.is_out_of_range() || is_no_finite_number(word)) {
    return fmt::format(
        "isn't JSON in {}: '{}' is no finite number; expected scales that are "
        "finite and larger than 0 (NaN and Infinity aren't JSON)",
        where, word);
  }
  if (walk.position() > text.size()) {
    return fmt::format("is cut short: its JSON goes on behind the last byte ({})", where);
  }
  return fmt::format("isn't JSON in {}{}", where, word.empty() ? "" : ", near '" + word + "'");
}

}  // namespace

detail::Json detail::parse_json(std::string const& file, std::string_view text,
                                std::string const& what) {
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  auto const look = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      auto const* const key = value.get_ptr<Json::string_t const*>();
      if (!keys.back().insert(*key).second) duplicate = *key;
    }
    return true;
  };
  auto json = Json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail(file, what + json_problem(text));
  if (!duplicate.empty()) fail(file, "'" + duplicate + "' is there twice; expected once");
  return json;
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
#include "trace_line.hpp"

#include <fmt/format.h>

#include <limits>

#include "support/json_text.hpp"

namespace replay {

namespace {

constexpr std::size_t no_index = std::numeric_limits<std::size_t>::max();

using programs::shown;

}  // namespace

void Line::fail(std::string_view field, std::string_view what) const {
  throw TraceError(fmt::format("{}:{}: field \"{}\": {}", file, number, field, what));
}

Fields::Fields(Line const& line, Json const& object, std::string_view of, std::size_t index)
    : line_(&line), object_(&object), of_(of), index_(index) {
  if (!object.is_object()) {
    line.fail(fmt::format("{}[{}]", of, index), "expected an object, got " + shown(object));
  }
}

void Fields::fail(std::string_view name, std::string_view what) const {
  if (of_.empty()) line_->fail(name, what);
  line_->fail(fmt::format("{}[{}].{}", of_, index_, name), what);
}

Json const& Fields::member(char const* name) const {
  auto const found = object_->find(name);
  if (found == object_->end()) fail(name, "is missing");
  return *found;
}

std::int64_t Fields::integer_in(Json const& value, char const* name, std::size_t index,
                                std::int64_t least, std::int64_t most) const {
  bool const too_big =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (value.is_number_integer() && !too_big) {
    auto const number = value.get<std::int64_t>();
    if (number >= least && number <= most) return number;
  }
  auto const what =
      fmt::format("expected an integer from {} to {}, got {}", least, most, shown(value));
  fail(index == no_index ? std::string(name) : fmt::format("{}[{}]", name, index), what);
}

std::int64_t Fields::integer(char const* name, std::int64_t least, std::int64_t most) const {
  return integer_in(member(name), name, no_index, least, most);
}

std::int32_t Fields::count(char const* name, std::int32_t least) const {
  return static_cast<std::int32_t>(integer(name, least, std::numeric_limits<std::int32_t>::max()));
}

double Fields::number(char const* name, double least, double most) const {
  Json const& value = member(name);
  if (value.is_number()) {
    auto const number = value.get<double>();
    if (number >= least && number <= most) return number;
  }
  fail(name, fmt::format("expected a number from {} to {}, got {}", least, most, shown(value)));
}

std::string const& Fields::text(char const* name) const {
  Json const& value = member(name);
  if (!value.is_string()) fail(name, "expected a string, got " + shown(value));
  return value.get_ref<std::string const&>();
}

Json const& Fields::array(char const* name) const {
  Json const& value = member(name);
  if (!value.is_array()) fail(name, "expected an array, got " + shown(value));
  return value;
}

Json parse_object(Line const& line) {
  try {
    Json value = Json::parse(line.text);
    if (value.is_object()) return value;
  } catch (Json::parse_error const& error) {
    throw TraceError(fmt::format("{}:{}: field \"(line)\": not JSON from column {} on", line.file,
                                 line.number, error.byte));
  } catch (Json::out_of_range const&) {
    line.fail("(line)", "a number in it is too large");
  }
  throw TraceError(
      fmt::format("{}:{}: field \"(line)\": expected a JSON object", line.file, line.number));
}

}  // namespace replay

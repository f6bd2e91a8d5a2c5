// SPDX-License-Identifier: Apache-2.0
/// \file
/// One line of a trace file while it is read. Whatever is wrong with it is said with the file, the
/// line and the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace replay {

/// The trace can't be read. The message names the file, and the line and field where they exist.
class TraceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Line {
  std::string_view file;
  std::int64_t number = 0;  ///< 1 is the first
  std::string_view text;

  /// Throws TraceError `file:number: field "field": what`.
  [[noreturn]] void fail(std::string_view field, std::string_view what) const;
};

using Json = nlohmann::json;

/// A JSON object of the line. Each getter throws TraceError when the field is missing, of another
/// type or out of range.
class Fields {
 public:
  /// `of` names the array this object is element `index` of; empty: it is the line itself.
  Fields(Line const& line, Json const& object, std::string_view of = {}, std::size_t index = 0);

  [[nodiscard]] bool has(char const* name) const { return object_->contains(name); }
  [[nodiscard]] std::int64_t integer(char const* name, std::int64_t least, std::int64_t most) const;
  /// An integer of 0 to 2^31 - 1.
  [[nodiscard]] std::int32_t count(char const* name, std::int32_t least = 0) const;
  [[nodiscard]] double number(char const* name, double least, double most) const;
  [[nodiscard]] std::string const& text(char const* name) const;
  [[nodiscard]] Json const& array(char const* name) const;
  /// The elements of an array as integers of `least` to `most`, appended to `out`.
  template <class T>
  void integers(char const* name, std::int64_t least, std::int64_t most,
                std::vector<T>& out) const {
    Json const& values = array(name);
    out.reserve(out.size() + values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      out.push_back(static_cast<T>(integer_in(values[i], name, i, least, most)));
    }
  }
  [[noreturn]] void fail(std::string_view name, std::string_view what) const;

 private:
  [[nodiscard]] Json const& member(char const* name) const;
  [[nodiscard]] std::int64_t integer_in(Json const& value, char const* name, std::size_t index,
                                        std::int64_t least, std::int64_t most) const;

  Line const* line_;
  Json const* object_;
  std::string_view of_;
  std::size_t index_;
};

/// The line as a JSON object; throws TraceError with the column when it isn't one.
[[nodiscard]] Json parse_object(Line const& line);

}  // namespace replay

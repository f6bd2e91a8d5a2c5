// SPDX-License-Identifier: Apache-2.0
/// \file
/// JSON values in messages.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace programs {

/// The value as it stands in the file, cut where it gets long. Of arrays and objects only what they
/// are: a line may nest them deeper than the stack is.
[[nodiscard]] inline std::string shown(nlohmann::json const& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace programs

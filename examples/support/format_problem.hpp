// SPDX-License-Identifier: Apache-2.0
/// \file
/// A mistyped KV format, and the one that was probably meant.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include <pagedkv/model/kv_format.hpp>

#include "support/nearest.hpp"

namespace programs {
namespace detail {

/// What could have been meant: of an element that exists its formats; else elements, with a
/// granularity if the text has one.
[[nodiscard]] inline std::vector<std::string> formats_like(std::string const& text) {
  auto const slash = text.find('/');
  auto const known = pagedkv::parse_element(text.substr(0, slash));
  std::vector<std::string> names;
  for (auto const element : pagedkv::all_elements) {
    if (known && *known != element) continue;
    if (slash == std::string::npos) {
      names.emplace_back(pagedkv::to_string(element));
      continue;
    }
    for (auto const granularity : pagedkv::granularities_of(element)) {
      names.push_back(pagedkv::to_string(pagedkv::KvFormat{element, granularity}));
    }
  }
  return names;
}

}  // namespace detail

/// Why the text is no KV format, and which was probably meant; empty when it is one.
[[nodiscard]] inline std::string format_problem(std::string const& text) {
  auto const problem = pagedkv::kv_format_error(text);
  if (problem.empty()) return {};
  return fmt::format("{} (did you mean {}?)", problem,
                     nearest_name(text, detail::formats_like(text)));
}

}  // namespace programs

// SPDX-License-Identifier: Apache-2.0
/// \file
/// "Did you mean": the name most like a mistyped one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace programs {

/// Insertions, deletions and replacements from one text to the other.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      auto const replaced = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

/// A name that begins with the text if there is one, else the one with the fewest edits; of several
/// the first. Requires at least one name.
[[nodiscard]] inline std::string nearest_name(std::string_view text,
                                              std::vector<std::string> const& names) {
  auto least = std::numeric_limits<std::size_t>::max();
  std::string nearest;
  for (auto const& name : names) {
    if (!text.empty() && name.rfind(text, 0) == 0) return name;
    if (auto const distance = edit_distance(text, name); distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace programs

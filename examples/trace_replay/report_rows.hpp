// SPDX-License-Identifier: Apache-2.0
/// \file
/// A report in words: what the table in the terminal and the one in the HTML page both show.
#pragma once

#include <string>
#include <vector>

#include "report.hpp"

namespace replay {

struct Row {
  std::string name;
  std::string value;
  std::string meaning;
};

struct Section {
  std::string title;
  std::vector<Row> rows;
};

[[nodiscard]] std::vector<Section> sections(Report const& report);

/// One sentence: what was replayed, on what pool.
[[nodiscard]] std::string headline(Report const& report);

/// What a reader should know before he believes a number; may be empty.
[[nodiscard]] std::vector<std::string> remarks(Report const& report);

}  // namespace replay

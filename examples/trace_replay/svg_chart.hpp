// SPDX-License-Identifier: Apache-2.0
/// \file
/// A time series as an inline SVG: readable without a script, and with the page's small script each
/// point says its values.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace replay {

/// Stands where a series has no value.
inline constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

struct Series {
  std::string name;
  std::string color;      ///< a CSS class of the page: c1, c2, c3
  std::vector<double> y;  ///< one per x, `no_value` for a gap
  bool area = false;      ///< filled down to the series before it (stacked), or to 0
};

struct Chart {
  std::string title;
  std::string note;       ///< one line under the title
  std::vector<double> x;  ///< seconds, ascending
  std::vector<Series> series;
  bool is_share = true;    ///< y is shown in percent; else a count
  bool log_scale = false;  ///< y below `log_floor` is drawn at the floor
  double log_floor = 1e-4;
  std::optional<double> y_max;      ///< else the largest value, rounded up
  std::optional<double> reference;  ///< a dashed line across
  std::string reference_name;
};

/// A <figure> with its heading, legend, drawing and data.
[[nodiscard]] std::string to_figure(Chart const& chart);

/// `text` with &, <, > and " as entities.
[[nodiscard]] std::string html_text(std::string const& text);

}  // namespace replay

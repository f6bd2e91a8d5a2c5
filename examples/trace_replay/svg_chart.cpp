// SPDX-License-Identifier: Apache-2.0
#include "svg_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "human.hpp"

namespace replay {

namespace {

constexpr double width = 960;
constexpr double height = 230;
constexpr double left = 56;
constexpr double right = 12;
constexpr double top = 10;
constexpr double bottom = 28;

/// 1, 2 or 5 times a power of ten, at least `value`.
double round_up(double value) {
  double const power = std::pow(10, std::floor(std::log10(value)));
  for (double const factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// A step that people count time in, so that about six of them make `span`.
double time_step(double span) {
  for (double const step : {1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0,
                            1800.0, 3600.0, 7200.0, 14400.0, 21600.0, 43200.0, 86400.0}) {
    if (span / step <= 8) return step;
  }
  return round_up(span / 8 / 86400) * 86400;
}

std::string time_label(double seconds, double step) {
  if (step < 60) return fmt::format("{:.0f} s", seconds);
  if (step < 3600) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:g} h", seconds / 3600);
}

/// Where things are in the drawing.
class Axes {
 public:
  explicit Axes(Chart const& chart) : chart_(chart) {
    x_max_ = std::max(chart.x.empty() ? 1.0 : chart.x.back(), 1e-9);
    double largest = chart.reference.value_or(0);
    for (Series const& s : chart.series) {
      for (double const y : s.y) {
        if (!std::isnan(y)) largest = std::max(largest, y);
      }
    }
    y_max_ = chart.y_max.value_or(largest > 0 ? round_up(largest) : 1.0);
  }

  [[nodiscard]] double x(double seconds) const {
    return left + seconds / x_max_ * (width - left - right);
  }
  [[nodiscard]] double y(double value) const {
    double share = value / y_max_;
    if (chart_.log_scale) {
      double const floor = chart_.log_floor;
      share = std::log(std::max(value, floor) / floor) / std::log(y_max_ / floor);
    }
    return height - bottom - std::clamp(share, 0.0, 1.0) * (height - top - bottom);
  }
  [[nodiscard]] std::vector<double> y_ticks() const {
    std::vector<double> ticks;
    if (chart_.log_scale) {
      auto const decades = static_cast<int>(std::log10(y_max_ * 1.0001 / chart_.log_floor));
      for (int i = 0; i <= decades; ++i) ticks.push_back(chart_.log_floor * std::pow(10, i));
      return ticks;
    }
    return multiples(round_up(y_max_ / 5), y_max_ * 1.0001);
  }
  [[nodiscard]] std::vector<double> x_ticks() const { return multiples(x_step(), x_max_); }
  [[nodiscard]] double x_step() const { return time_step(x_max_); }

 private:
  /// 0, step, 2 step, ... up to `last`.
  static std::vector<double> multiples(double step, double last) {
    std::vector<double> values;
    for (int i = 0; i * step <= last; ++i) values.push_back(i * step);
    return values;
  }

  Chart const& chart_;
  double x_max_;
  double y_max_;
};

std::string y_label(Chart const& chart, double value) {
  if (!chart.is_share) return grouped(std::llround(value));
  return fmt::format("{:g} %", value * 100);
}

using Out = std::back_insert_iterator<fmt::memory_buffer>;

void draw_grid(Out out, Chart const& chart, Axes const& axes) {
  for (double const tick : axes.y_ticks()) {
    double const y = axes.y(tick);
    fmt::format_to(out,
                   "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
                   "y2=\"{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
                   "</text>\n",
                   left, width - right, y, y, left - 7, y + 4, y_label(chart, tick));
  }
  for (double const tick : axes.x_ticks()) {
    fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                   axes.x(tick), height - 9, time_label(tick, axes.x_step()));
  }
}

/// The points of `series` from `begin` to `end` as a path, forwards.
void line_to(Out out, Axes const& axes, Chart const& chart, Series const& series, std::size_t begin,
             std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    fmt::format_to(out, "{}{:.1f},{:.1f}", i == begin ? "M" : "L", axes.x(chart.x[i]),
                   axes.y(series.y[i]));
  }
}

void draw_series(Out out, Chart const& chart, Axes const& axes, std::size_t index) {
  Series const& series = chart.series[index];
  std::size_t const size = std::min(series.y.size(), chart.x.size());
  for (std::size_t begin = 0; begin < size;) {
    if (std::isnan(series.y[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < size && !std::isnan(series.y[end])) ++end;
    if (series.area) {
      fmt::format_to(out, "<path class=\"area {}\" d=\"", series.color);
      line_to(out, axes, chart, series, begin, end);
      for (std::size_t i = end; i > begin; --i) {
        double const base =
            index > 0 && chart.series[index - 1].area ? chart.series[index - 1].y[i - 1] : 0.0;
        fmt::format_to(out, "L{:.1f},{:.1f}", axes.x(chart.x[i - 1]), axes.y(base));
      }
      fmt::format_to(out, "Z\"/>\n");
    } else if (end == begin + 1) {
      fmt::format_to(out, "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"1.5\"/>\n",
                     series.color, axes.x(chart.x[begin]), axes.y(series.y[begin]));
    } else {
      fmt::format_to(out, "<path class=\"line {}\" d=\"", series.color);
      line_to(out, axes, chart, series, begin, end);
      fmt::format_to(out, "\"/>\n");
    }
    begin = end;
  }
}

void draw_reference(Out out, Chart const& chart, Axes const& axes) {
  if (!chart.reference) return;
  double const y = axes.y(*chart.reference);
  fmt::format_to(out,
                 "<line class=\"reference\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" "
                 "y2=\"{:.1f}\"/>\n",
                 left, width - right, y, y);
}

void write_legend(Out out, Chart const& chart) {
  fmt::format_to(out, "<p class=\"legend\">");
  for (Series const& series : chart.series) {
    fmt::format_to(out, "<span><i class=\"{} {}\"></i>{}</span>", series.area ? "box" : "rule",
                   series.color, html_text(series.name));
  }
  if (chart.reference) {
    fmt::format_to(out, "<span><i class=\"dashed\"></i>{}</span>", html_text(chart.reference_name));
  }
  fmt::format_to(out, "</p>\n");
}

/// What the script reads: pixel positions and, per series, the values as they are shown.
void write_data(Out out, Chart const& chart, Axes const& axes) {
  fmt::format_to(out, "<script type=\"application/json\">{{\"x\":[");
  for (std::size_t i = 0; i < chart.x.size(); ++i) {
    fmt::format_to(out, "{}{:.1f}", i == 0 ? "" : ",", axes.x(chart.x[i]));
  }
  fmt::format_to(out, "],\"t\":[");
  for (std::size_t i = 0; i < chart.x.size(); ++i) {
    fmt::format_to(out, "{}{:.6g}", i == 0 ? "" : ",", chart.x[i]);
  }
  fmt::format_to(out, "],\"share\":{},\"series\":[", chart.is_share);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    Series const& series = chart.series[s];
    fmt::format_to(out, "{}{{\"name\":\"{}\",\"y\":[", s == 0 ? "" : ",", series.name);
    bool const stacked = series.area && s > 0;
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      double const value = stacked ? series.y[i] - chart.series[s - 1].y[i] : series.y[i];
      if (i > 0) fmt::format_to(out, ",");
      if (std::isnan(value)) {
        fmt::format_to(out, "null");
      } else {
        fmt::format_to(out, "{:.4g}", value);
      }
    }
    fmt::format_to(out, "]}}");
  }
  fmt::format_to(out, "]}}</script>\n");
}

}  // namespace

std::string html_text(std::string const& text) {
  std::string out;
  for (char const c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string to_figure(Chart const& chart) {
  Axes const axes(chart);
  fmt::memory_buffer text;
  Out const out(text);
  fmt::format_to(out, "<figure>\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n", html_text(chart.title),
                 html_text(chart.note));
  if (chart.series.size() > 1 || chart.reference) write_legend(out, chart);
  fmt::format_to(out, "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", width,
                 height, html_text(chart.title));
  draw_grid(out, chart, axes);
  for (std::size_t i = 0; i < chart.series.size(); ++i) draw_series(out, chart, axes, i);
  draw_reference(out, chart, axes);
  fmt::format_to(out, "<line class=\"cursor\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n</svg>\n", top,
                 height - bottom);
  write_data(out, chart, axes);
  fmt::format_to(out, "</figure>\n");
  return fmt::to_string(text);
}

}  // namespace replay

// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

namespace quality {

namespace kv = pagedkv;

namespace {

using Json = nlohmann::ordered_json;

template <class T>
void add_once(std::vector<T>& all, T const& value) {
  if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
}

/// JSON has no NaN and no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

void add_format(Json& row, kv::KvFormat format) {
  row["format"] = kv::to_string(format.element);
  row["granularity"] = kv::to_string(format.granularity);
}

void print_needles(fmt::memory_buffer& text, Rows const& rows, std::string const& needle) {
  auto const axes = axes_of(rows, needle);
  if (axes.formats.empty()) return;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "Needles found ({} needle, {} depths)\n{:<26}", needle, axes.depths.size(),
                 "tokens");
  for (auto const length : axes.lengths) fmt::format_to(out, "{:>9}", length);
  fmt::format_to(out, "\n");
  for (auto const format : axes.formats) {
    fmt::format_to(out, "{:<26}", kv::to_string(format));
    for (auto const length : axes.lengths) {
      auto const [found, asked] = count_found(rows, needle, format, length);
      fmt::format_to(out, "{:>9}", fmt::format("{}/{}", found, asked));
    }
    fmt::format_to(out, "\n");
  }
  fmt::format_to(out, "\n");
}

void print_qualities(fmt::memory_buffer& text, Rows const& rows) {
  if (rows.qualities.empty()) return;
  auto out = std::back_inserter(text);
  double const base = rows.qualities.front().perplexity;
  fmt::format_to(out, "Quality of {}\n{:<26}{:>13}{:>12}{:>18}{:>12}{:>9}\n",
                 rows.qualities.front().quality, "format", "bytes/token", "perplexity", "change",
                 "KL, nats", "top 1");
  for (auto const& row : rows.qualities) {
    fmt::format_to(out, "{:<26}{:>13.6g} {:>11.4f}{:>+9.3f}% ± {:.3f}%{:>12.3g}{:>8.2f}%\n",
                   kv::to_string(row.format), row.bytes_per_token, row.perplexity,
                   100 * (row.perplexity / base - 1), 100 * row.error, row.kl, 100 * row.top1);
  }
}

}  // namespace

std::string to_json(Rows const& rows) {
  Json all = Json::array();
  for (auto const& needle : rows.needles) {
    Json row{{"needle", needle.needle}};
    add_format(row, needle.format);
    row["length"] = needle.length;
    row["depth"] = needle.depth;
    row["found"] = needle.found;
    all.push_back(std::move(row));
  }
  for (auto const& quality : rows.qualities) {
    Json row{{"quality", quality.quality}};
    add_format(row, quality.format);
    row["bytes_per_token"] = number(quality.bytes_per_token);
    row["perplexity"] = number(quality.perplexity);
    row["kl"] = number(quality.kl);
    row["top1"] = number(quality.top1);
    all.push_back(std::move(row));
  }
  std::string text = "[";
  for (std::size_t i = 0; i < all.size(); ++i) text += (i == 0 ? "\n " : ",\n ") + all[i].dump();
  return text + "\n]\n";
}

std::string to_table(Rows const& rows) {
  fmt::memory_buffer text;
  for (char const* needle : {"attention", "model"}) print_needles(text, rows, needle);
  print_qualities(text, rows);
  return fmt::to_string(text);
}

Found count_found(Rows const& rows, std::string const& needle, kv::KvFormat format,
                  std::int32_t length) {
  Found count;
  for (auto const& row : rows.needles) {
    if (row.needle != needle || row.format != format || row.length != length) continue;
    ++count.asked;
    count.found += row.found ? 1 : 0;
  }
  return count;
}

NeedleAxes axes_of(Rows const& rows, std::string const& needle) {
  NeedleAxes axes;
  for (auto const& row : rows.needles) {
    if (row.needle != needle) continue;
    add_once(axes.formats, row.format);
    add_once(axes.lengths, row.length);
    add_once(axes.depths, row.depth);
  }
  return axes;
}

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
#include "heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr char const* style = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #16181d;
  --soft: #5c6370; --line: #e3e4e8; --found: #2563c9; --lost: #f0c9a4; }
@media (prefers-color-scheme: dark) { :root { --page: #15171a; --card: #1d2024; --ink: #eceef1;
  --soft: #a0a7b4; --line: #33373e; --found: #6aa1f2; --lost: #7a4a22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 1040px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 28px 0 4px; }
h3 { font-size: 14px; margin: 0 0 6px; }
p { margin: 0 0 10px; color: var(--soft); }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(235px, 1fr)); gap: 12px; }
figure, .card { margin: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 12px 14px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.map { border-collapse: separate; border-spacing: 2px; table-layout: fixed; }
.map td { height: 13px; padding: 0; border-radius: 2px; }
.map th { font: 11px system-ui, sans-serif; color: var(--soft); padding: 0; }
.map th.depth { text-align: right; padding-right: 4px; line-height: 13px; width: 34px; }
.found, .legend i.found { background: var(--found); }
.lost, .legend i.lost { background: var(--lost); }
.legend i { display: inline-block; width: 14px; height: 10px; margin: 0 6px 0 12px;
  border-radius: 2px; }
.numbers td, .numbers th { text-align: right; padding: 4px 0 4px 14px;
  border-top: 1px solid var(--line); }
.numbers th { border: 0; color: var(--soft); font-weight: normal; }
.numbers td:first-child, .numbers th:first-child { text-align: left; padding-left: 0; }
)";

using Out = std::back_insert_iterator<fmt::memory_buffer>;

std::string escaped(std::string const& text) {
  std::string safe;
  for (char const c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

std::string short_length(std::int32_t length) {
  return length >= 1024 && length % 1024 == 0 ? fmt::format("{}k", length / 1024)
                                              : std::to_string(length);
}

NeedleRow const* find_row(Rows const& rows, std::string const& needle, kv::KvFormat format,
                          std::int32_t length, double depth) {
  auto const found = std::find_if(rows.needles.begin(), rows.needles.end(), [&](auto const& row) {
    return row.needle == needle && row.format == format && row.length == length &&
           row.depth == depth;
  });
  return found == rows.needles.end() ? nullptr : &*found;
}

void write_map(Out out, Rows const& rows, std::string const& needle, NeedleAxes const& axes,
               kv::KvFormat format) {
  Found total;
  for (auto const length : axes.lengths) {
    auto const count = count_found(rows, needle, format, length);
    total.found += count.found;
    total.asked += count.asked;
  }
  fmt::format_to(out,
                 "<figure><h3>{}: {} of {}</h3>\n<table class=\"map\"><tr><th class=\"depth\">",
                 kv::to_string(format), total.found, total.asked);
  fmt::format_to(out, "</th>");
  for (auto const length : axes.lengths) fmt::format_to(out, "<th>{}</th>", short_length(length));
  fmt::format_to(out, "</tr>\n");
  for (double const depth : axes.depths) {
    fmt::format_to(out, "<tr><th class=\"depth\">{:.0f} %</th>", 100 * depth);
    for (auto const length : axes.lengths) {
      auto const* const row = find_row(rows, needle, format, length, depth);
      if (row == nullptr) {
        fmt::format_to(out, "<td></td>");
        continue;
      }
      char const* const what = row->found ? "found" : "lost";
      fmt::format_to(out, "<td class=\"{}\" title=\"{} tokens, depth {:.0f} %: {}\"></td>", what,
                     length, 100 * depth, what);
    }
    fmt::format_to(out, "</tr>\n");
  }
  fmt::format_to(out, "</table></figure>\n");
}

void write_needles(Out out, Rows const& rows, std::string const& needle) {
  auto const axes = axes_of(rows, needle);
  if (axes.formats.empty()) return;
  fmt::format_to(
      out,
      "<h2>Needle in a haystack: {}</h2>\n<p class=\"legend\">Depth of the needle by "
      "tokens of the context.<i class=\"found\"></i>found<i class=\"lost\"></i>lost</p>\n"
      "<div class=\"maps\">\n",
      needle == "attention" ? "at the level of attention" : "a model answers");
  for (auto const format : axes.formats) write_map(out, rows, needle, axes, format);
  fmt::format_to(out, "</div>\n");
}

void write_qualities(Out out, Rows const& rows) {
  if (rows.qualities.empty()) return;
  auto const& base = rows.qualities.front();
  fmt::format_to(out,
                 "<h2>Quality of {}</h2>\n<p>Perplexity on the text; divergence (nats) and "
                 "agreement of the most likely token, both against the f32 cache.</p>\n"
                 "<div class=\"card\"><table class=\"numbers\"><tr><th>format</th>"
                 "<th>bytes per token</th><th>perplexity</th><th>change</th><th>KL</th>"
                 "<th>top 1</th></tr>\n",
                 escaped(base.quality));
  for (auto const& row : rows.qualities) {
    fmt::format_to(out,
                   "<tr><td>{}</td><td>{:.6g}</td><td>{:.4f}</td><td>{:+.3f} ± {:.3f} %</td>"
                   "<td>{:.3g}</td><td>{:.2f} %</td></tr>\n",
                   kv::to_string(row.format), row.bytes_per_token, row.perplexity,
                   100 * (row.perplexity / base.perplexity - 1), 100 * row.error, row.kl,
                   100 * row.top1);
  }
  fmt::format_to(out, "</table></div>\n");
}

}  // namespace

std::string to_html(Rows const& rows) {
  fmt::memory_buffer text;
  Out out(text);
  fmt::format_to(out,
                 "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                 "<title>pagedkv-quality</title><style>{}</style></head><body>\n"
                 "<h1>What each KV format costs in quality</h1>\n",
                 style);
  for (char const* needle : {"attention", "model"}) write_needles(out, rows, needle);
  write_qualities(out, rows);
  fmt::format_to(out, "</body></html>\n");
  return fmt::to_string(text);
}

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "human.hpp"
#include "report_rows.hpp"
#include "svg_chart.hpp"

namespace replay {

namespace {

constexpr char const* style = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #16181d;
  --soft: #5c6370; --line: #e3e4e8; --c1: #2563c9; --c2: #9dbdec; --c3: #c8620e; }
@media (prefers-color-scheme: dark) { :root { --page: #15171a; --card: #1d2024; --ink: #eceef1;
  --soft: #a0a7b4; --line: #33373e; --c1: #6aa1f2; --c2: #33507d; --c3: #ef9a52; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 1040px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 0; }
p { margin: 0; }
.note, .lead { color: var(--soft); }
.remark { margin-top: 12px; padding: 10px 14px; border-left: 3px solid var(--c3);
  background: var(--card); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile, figure, .table { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 14px 16px; }
.tile b { display: block; font-size: 28px; line-height: 1.2; font-weight: 600; }
.tile span { color: var(--soft); font-size: 13px; display: block; }
.tile .name { color: var(--ink); font-size: 14px; }
figure, .table { margin: 0 0 14px; position: relative; }
svg { display: block; width: 100%; height: auto; margin-top: 6px; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .cursor { stroke: var(--soft); visibility: hidden; }
.reference { stroke: var(--ink); stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); }
.area.c1, .dot.c1 { fill: var(--c1); } .area.c2, .dot.c2 { fill: var(--c2); }
.area.c3, .dot.c3 { fill: var(--c3); }
.legend { color: var(--soft); font-size: 13px; margin-top: 6px; }
.legend span { margin-right: 18px; white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 10px; margin-right: 6px;
  border-radius: 2px; }
.legend i.rule { height: 3px; vertical-align: middle; }
.legend i.dashed { height: 0; border-top: 2px dashed var(--ink); border-radius: 0;
  vertical-align: middle; }
i.c1 { background: var(--c1); } i.c2 { background: var(--c2); } i.c3 { background: var(--c3); }
.tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--page);
  font-size: 12px; line-height: 1.45; padding: 6px 9px; border-radius: 5px; display: none;
  white-space: pre; }
table { border-collapse: collapse; width: 100%; margin-top: 6px; }
td { padding: 4px 14px 4px 0; border-top: 1px solid var(--line); vertical-align: top; }
td:nth-child(2) { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.settings td:nth-child(2) { text-align: left; white-space: normal; }
td:nth-child(3) { color: var(--soft); width: 55%; }
)";

constexpr char const* script = R"(
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip";
  const time = s => s < 120 ? s.toFixed(1) + " s"
    : s < 7200 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(2) + " h";
  const shown = v => v === null ? "-"
    : data.share ? +(100 * v).toPrecision(3) + " %" : v.toFixed(v < 100 ? 1 : 0);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    let at = 0;
    data.x.forEach((value, i) => {
      if (Math.abs(value - x) < Math.abs(data.x[at] - x)) at = i;
    });
    cursor.setAttribute("x1", data.x[at]);
    cursor.setAttribute("x2", data.x[at]);
    cursor.style.visibility = "visible";
    tip.textContent = [time(data.t[at]),
      ...data.series.map(s => s.name + ": " + shown(s.y[at]))].join("\n");
    tip.style.display = "block";
    const outer = figure.getBoundingClientRect();
    const place = event.clientX - outer.left;
    tip.style.left = (place > outer.width / 2 ? place - tip.offsetWidth - 12 : place + 14) + "px";
    tip.style.top = (event.clientY - outer.top + 10) + "px";
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    tip.style.display = "none";
  });
}
)";

/// The bins joined until there are at most `most`, and the middle of each in seconds.
struct Coarse {
  std::vector<Bin> bins;
  std::vector<double> x;
};

Coarse coarse(Timeline const& timeline, std::size_t most) {
  std::vector<Bin> const& fine = timeline.bins();
  std::size_t const join = std::max<std::size_t>((fine.size() + most - 1) / most, 1);
  Coarse all;
  for (std::size_t i = 0; i < fine.size(); ++i) {
    if (i % join == 0) {
      all.bins.push_back(fine[i]);
      all.x.push_back((static_cast<double>(i) + static_cast<double>(join) / 2) * timeline.width());
    } else {
      all.bins.back().join(fine[i]);
    }
  }
  return all;
}

/// `value(bin)` for each bin, a gap where `of(bin)` is 0.
template <class Value, class Whole>
std::vector<double> values(Coarse const& all, Whole of, Value value) {
  std::vector<double> y;
  for (Bin const& bin : all.bins) y.push_back(of(bin) > 0 ? value(bin) : no_value);
  return y;
}

double weight(Bin const& bin) { return bin.weight; }
double owned(Bin const& bin) { return bin.sum.owned_slots; }

Chart usage_chart(Report const& r) {
  Coarse const all = coarse(r.timeline, 256);
  double const blocks = r.num_blocks;
  Chart chart;
  chart.title = "Where the blocks are";
  chart.note = r.prefix_only
                   ? "Share of the pool, while the request of that time runs."
                   : "Share of the pool. What is cached is free to be had: a request that "
                     "needs blocks takes the ones unused longest.";
  chart.x = all.x;
  chart.y_max = 1;
  chart.series = {
      {"held by running requests", "c1",
       values(all, weight, [&](Bin const& b) { return b.sum.used / b.weight / blocks; }), true},
      {"cached for later prompts", "c2",
       values(all, weight,
              [&](Bin const& b) { return (b.sum.used + b.sum.idle) / b.weight / blocks; }),
       true}};
  return chart;
}

Chart hit_chart(Report const& r) {
  Coarse const all = coarse(r.timeline, 128);
  Chart chart;
  chart.title = "Prefix hit ratio";
  chart.note = "Share of the prompt tokens admitted at that time that were cached already.";
  chart.x = all.x;
  double query = 0;
  double hit = 0;
  auto const queried = [](Bin const& b) { return b.query_tokens; };
  chart.series = {
      {"at that time", "c2",
       values(all, queried, [](Bin const& b) { return b.hit_tokens / b.query_tokens; })},
      {"since the start", "c1", values(all, queried, [&](Bin const& b) {
         query += b.query_tokens;
         hit += b.hit_tokens;
         return hit / query;
       })}};
  return chart;
}

Chart waste_chart(Report const& r) {
  Coarse const all = coarse(r.timeline, 256);
  Chart chart;
  chart.title = "Waste";
  chart.note = "Share of the slots reserved for running requests that hold no token (log scale).";
  chart.x = all.x;
  chart.log_scale = true;
  chart.y_max = 1;
  chart.series = {{"paged, as replayed", "c1", values(all, owned, [](Bin const& b) {
                     return b.sum.wasted_slots / b.sum.owned_slots;
                   })}};
  if (!r.prefix_only && r.contiguous_tokens > 0) {
    double const reserved = r.contiguous_tokens;
    chart.series.push_back(
        {fmt::format("{} tokens in one piece for each", grouped(r.contiguous_tokens)), "c3",
         values(all, owned,
                [&](Bin const& b) { return 1 - b.sum.held_tokens / (b.sum.running * reserved); })});
  }
  return chart;
}

Chart running_chart(Report const& r) {
  Coarse const all = coarse(r.timeline, 256);
  Chart chart;
  chart.title = "Requests running at once";
  chart.note = "Mean over that time.";
  chart.is_share = false;
  chart.x = all.x;
  chart.series = {{"running", "c1",
                   values(all, weight, [](Bin const& b) { return b.sum.running / b.weight; })}};
  chart.reference = static_cast<double>(r.contiguous_peak_sequences);
  chart.reference_name =
      fmt::format("most that would fit with {} tokens in one piece for each: {}",
                  grouped(r.contiguous_tokens), grouped(r.contiguous_peak_sequences));
  return chart;
}

Chart waiting_chart(Report const& r) {
  Coarse const all = coarse(r.timeline, 256);
  Chart chart;
  chart.title = "Requests waiting";
  chart.note = "Arrived, and not yet admitted (or preempted).";
  chart.is_share = false;
  chart.x = all.x;
  chart.series = {{"waiting", "c3",
                   values(all, weight, [](Bin const& b) { return b.sum.waiting / b.weight; })}};
  return chart;
}

using Out = std::back_insert_iterator<fmt::memory_buffer>;

void write_tile(Out out, std::string const& name, std::string const& value,
                std::string const& meaning) {
  fmt::format_to(out,
                 "<div class=\"tile\"><span class=\"name\">{}</span><b>{}</b><span>{}</span></div>"
                 "\n",
                 html_text(name), html_text(value), html_text(meaning));
}

void write_tiles(Out out, Report const& r) {
  fmt::format_to(out, "<div class=\"tiles\">\n");
  if (r.knows_sharing) {
    write_tile(
        out, "Prompt tokens not computed again", percent(r.hit_ratio()),
        fmt::format("{} of {} were cached", grouped(r.hit_tokens), grouped(r.prompt_tokens)));
  }
  write_tile(out, "Internal fragmentation", percent(r.internal_fragmentation),
             "slots of running requests' blocks that hold no token");
  if (r.prefix_only) {
    write_tile(out, "Evicted blocks", grouped(r.evicted_blocks),
               fmt::format("{} were cached when all was over", grouped(r.resident_blocks)));
  } else {
    write_tile(out, "Requests at once", grouped(r.peak_sequences),
               fmt::format("{} would fit in one piece each", grouped(r.contiguous_peak_sequences)));
    if (r.usable_utilization) {
      write_tile(out, "Pool filled under pressure", percent(*r.usable_utilization),
                 "slots that hold a running request's token, while another waits for blocks");
    } else {
      write_tile(out, "Pool held at most", percent(r.peak_usage),
                 "of the blocks; no request ever waited for blocks");
    }
    if (r.itl_ms) {
      write_tile(out, "Time between tokens, p99", duration(r.itl_ms->p99 / 1e3),
                 "simulated; half are below " + duration(r.itl_ms->p50 / 1e3));
    }
  }
  write_tile(out, "Manager time a step", duration(static_cast<double>(r.step_ns_p50) * 1e-9),
             fmt::format("median of {} steps on this machine; p99 {}", grouped(r.steps),
                         duration(static_cast<double>(r.step_ns_p99) * 1e-9)));
  fmt::format_to(out, "</div>\n");
}

void write_tables(Out out, Report const& r) {
  for (Section const& section : sections(r)) {
    fmt::format_to(out, "<div class=\"table{}\"><h2>{}</h2><table>\n",
                   section.title == "Settings" ? " settings" : "", html_text(section.title));
    for (Row const& row : section.rows) {
      fmt::format_to(out, "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", html_text(row.name),
                     html_text(row.value), html_text(row.meaning));
    }
    fmt::format_to(out, "</table></div>\n");
  }
}

}  // namespace

std::string to_html(Report const& r) {
  fmt::memory_buffer text;
  Out const out(text);
  fmt::format_to(out,
                 "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<title>pagedkv replay: {}</title>\n<style>{}</style></head><body>\n",
                 html_text(r.trace), style);
  fmt::format_to(out, "<h1>Replay of {}</h1>\n<p class=\"lead\">{}</p>\n", html_text(r.trace),
                 html_text(headline(r)));
  for (std::string const& remark : remarks(r)) {
    fmt::format_to(out, "<p class=\"remark\">{}</p>\n", html_text(remark));
  }
  write_tiles(out, r);
  std::vector<Chart> charts{usage_chart(r)};
  if (r.knows_sharing) charts.push_back(hit_chart(r));
  charts.push_back(waste_chart(r));
  if (!r.prefix_only) {
    charts.push_back(running_chart(r));
    charts.push_back(waiting_chart(r));
  }
  for (Chart const& chart : charts) fmt::format_to(out, "{}", to_figure(chart));
  write_tables(out, r);
  fmt::format_to(out, "<script>{}</script>\n</body></html>\n", script);
  return fmt::to_string(text);
}

}  // namespace replay

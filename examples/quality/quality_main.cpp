// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-quality: what each KV format costs in quality.
///
/// Exit status: 0; 1 for a file that can't be read or written, or formats without the scales they
/// need; what CLI11 gives for a wrong option.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "formats.hpp"
#include "heat_map.hpp"
#include "needle_search.hpp"
#include "rows.hpp"
#include "support/cli_errors.hpp"
#include "support/progress.hpp"

namespace {

namespace kv = pagedkv;

constexpr int failed = 1;

constexpr char const* description =
    "Says what each KV format and granularity costs in quality.\n"
    "\n"
    "  pagedkv-quality --needle attention --json rows.json --html map.html\n"
    "\n"
    "--needle attention needs no model: a made-up layer looks one token up in contexts of up to\n"
    "131,072, through the paged cache (docs/quality.md).\n";

struct Arguments {
  std::vector<std::string> needles;
  std::vector<std::string> formats;
  std::vector<std::int32_t> lengths;
  std::string json_path;
  std::string html_path;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--needle", a.needles, "look needles up")
      ->check(CLI::IsMember({"attention"}))
      ->delimiter(',')
      ->option_text("attention");
  app.add_option("--formats", a.formats,
                 "only these, e.g. fp8_e4m3,int8/per_token_head; an element means all its "
                 "granularities [all]")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--lengths", a.lengths,
                 "needle: tokens of the contexts [1024,4096,16384,65536,131072]")
      ->delimiter(',')
      ->check(CLI::Range(quality::min_needle_length, 1 << 24))
      ->type_name("N,...");
  app.add_option("--json", a.json_path, "write all rows to this file, one array")
      ->type_name("FILE");
  app.add_option("--html", a.html_path, "write heat maps to this file")->type_name("FILE");
}

void write_file(std::string const& path, std::string const& text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::vector<kv::KvFormat> formats_of(Arguments const& a) {
  return a.formats.empty() ? quality::all_formats() : quality::parse_formats(a.formats);
}

std::vector<quality::NeedleRow> attention_needles(Arguments const& a) {
  quality::NeedleSearch search;
  search.formats = formats_of(a);
  if (!a.lengths.empty()) search.lengths = a.lengths;
  auto const count = search.formats.size() * search.lengths.size() * quality::num_needles;
  programs::Progress progress(static_cast<std::int64_t>(count), true, "needles");
  return quality::search_needles(search, [&](std::int64_t done) { progress.update(done); });
}

int run(Arguments const& a) {
  if (a.needles.empty()) throw CLI::RequiredError("--needle attention");
  quality::Rows rows;
  rows.needles = attention_needles(a);
  fmt::print("{}", quality::to_table(rows));
  write_file(a.json_path, quality::to_json(rows));
  write_file(a.html_path, quality::to_html(rows));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{description, "pagedkv-quality"};
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
    return run(arguments);
  } catch (CLI::ParseError const& error) {
    return programs::exit_with(app, error);
  } catch (std::exception const& error) {
    fmt::print(stderr, "pagedkv-quality: {}\n", error.what());
    return failed;
  }
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-plan: how many blocks, tokens and sequences a deployment holds.
///
/// Exit status: 0 with a plan; 2 when nothing fits (the reason on stderr); 1 for an input that
/// can't be meant or a file that can't be written; what CLI11 gives for a wrong option.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "plan_report.hpp"
#include "support/cli_errors.hpp"
#include "support/plan_options.hpp"

namespace {

constexpr int bad_input = 1;
constexpr int nothing_fits = 2;

constexpr char const* description =
    "Sizes a paged KV cache: from a model, devices and a storage format to the number of\n"
    "blocks, how many sequences run at once, and what to change when too little fits.\n"
    "\n"
    "  pagedkv-plan --model llama-3.1-70b --device a100-80gb --tensor-parallel 4\n"
    "  pagedkv-plan --model llama-3.1-8b --device l4-24gb --kv-format fp8_e4m3 --max-model-len "
    "32768\n"
    "  pagedkv-plan --layers 36 --kv-heads 8 --head-dim 128 --params 8e9 --device-bytes 48GiB\n";

bool write_json(std::string const& path, planner::Report const& report) {
  std::ofstream file(path);
  file << planner::to_json(report).dump(2) << '\n';
  return static_cast<bool>(file.flush());
}

int print_report(planner::Report const& report, std::string const& json_path) {
  auto const& outcome = report.outcome;
  bool const meant = outcome.problem != pagedkv::PlanProblem::invalid_input;
  if (meant) fmt::print("{}", planner::to_text(report));
  if (meant && !outcome) fmt::print("\n");
  std::fflush(stdout);
  if (!json_path.empty() && !write_json(json_path, report)) {
    fmt::print(stderr, "pagedkv-plan: cannot write {}\n", json_path);
    return bad_input;
  }
  if (outcome) return 0;
  fmt::print(stderr, "{}{}\n", meant ? "" : "pagedkv-plan: ", outcome.message);
  return meant ? nothing_fits : bad_input;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{description, "pagedkv-plan"};
  programs::PlanOptions options;
  std::vector<std::int32_t> lengths;
  std::string json_path;
  app.add_option("--context-lengths", lengths, "columns of the table, e.g. 4096,32768")
      ->delimiter(',')
      ->check(programs::at_least(1))
      ->type_name("N,N,...");
  app.add_option("--json", json_path, "write the plan with all its terms to this file")
      ->type_name("FILE");
  programs::add_plan_options(app, options);
  try {
    app.parse(argc, argv);
    auto const input = programs::capacity_input(options);
    return print_report(planner::make_report(options, input, lengths), json_path);
  } catch (CLI::ParseError const& error) {
    return programs::exit_with(app, error);
  }
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-workload: writes a made-up request trace that pagedkv-replay reads.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "support/cli_errors.hpp"
#include "support/output_files.hpp"
#include "workload.hpp"

namespace {

int run(replay::WorkloadOptions const& options, std::string const& path) {
  if (path.empty()) {
    replay::write_workload(options, std::cout);
    return std::cout.flush() ? 0 : 1;
  }
  // An earlier trace ends when there is a new one.
  replay::require_sense(options);
  programs::check_outputs({{"--output", path}}, {});
  std::ofstream file(path);
  replay::write_workload(options, file);
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Writes a made-up request trace (mooncake format): chats under shared system prompts,\n"
      "questions about documents, agents that branch, clients that leave early.\n"
      "The same options give the same bytes.",
      "pagedkv-workload"};
  replay::WorkloadOptions options;
  std::string path;
  app.add_option("-o,--output", path, "file to write; without it the trace goes to stdout");
  app.add_option("--requests", options.requests, "requests to write")->capture_default_str();
  app.add_option("--seed", options.seed, "another seed, another workload")->capture_default_str();
  app.add_option("--rate", options.requests_per_second, "requests a second")->capture_default_str();
  app.add_option("--block-tokens", options.block_tokens, "tokens a block id stands for")
      ->capture_default_str();
  app.add_option("--max-tokens", options.max_tokens, "longest prompt with its output")
      ->capture_default_str();
  app.add_option("--chats", options.chats, "share of chat requests")->capture_default_str();
  app.add_option("--documents", options.documents, "share of questions about documents")
      ->capture_default_str();
  app.add_option("--agents", options.agents, "share of agents' requests")->capture_default_str();
  app.add_option("--cancelled", options.cancelled, "share of requests whose client leaves early")
      ->capture_default_str();
  app.add_option("--system-prompts", options.system_prompts, "system prompts that chats share")
      ->capture_default_str();
  app.add_option("--num-documents", options.num_documents, "documents that are asked about")
      ->capture_default_str();
  return programs::parse_and_run(app, argc, argv, [&] { return run(options, path); });
}

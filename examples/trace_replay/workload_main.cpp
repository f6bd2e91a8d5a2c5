// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-workload: writes a made-up request trace that pagedkv-replay reads.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "workload.hpp"

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
  CLI11_PARSE(app, argc, argv);

  try {
    if (path.empty()) {
      replay::write_workload(options, std::cout);
      return std::cout.flush() ? 0 : 1;
    }
    std::ofstream file(path);
    if (file) replay::write_workload(options, file);
    if (!file.flush()) {
      fmt::print(stderr, "pagedkv-workload: cannot write {}\n", path);
      return 1;
    }
  } catch (std::exception const& error) {
    fmt::print(stderr, "pagedkv-workload: {}\n", error.what());
    return 1;
  }
  return 0;
}

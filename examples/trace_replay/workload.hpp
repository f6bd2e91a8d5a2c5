// SPDX-License-Identifier: Apache-2.0
/// \file
/// A made-up workload in the mooncake format, for who has no trace at hand: chats of several turns
/// under shared system prompts, questions about long documents, agents that call tools and branch
/// into sub-agents, and clients that leave early (`cancel_after`). The same options give the same
/// bytes.
#pragma once

#include <cstdint>
#include <ostream>

namespace replay {

struct WorkloadOptions {
  std::int32_t requests = 2000;
  std::uint64_t seed = 1;
  double requests_per_second = 2.0;
  std::int32_t block_tokens = 512;   ///< tokens an id stands for
  std::int32_t max_tokens = 32'768;  ///< of a prompt and its output; a dialogue ends there
  double chats = 0.5;                ///< shares of the requests; they are scaled to sum 1
  double documents = 0.2;
  double agents = 0.3;
  double cancelled = 0.05;          ///< share of requests whose client leaves early
  std::int32_t system_prompts = 8;  ///< shared by all chats, the first most often
  std::int32_t num_documents = 24;
};

/// Throws std::invalid_argument naming an option out of range.
void require_sense(WorkloadOptions const& options);

/// Writes one JSON line a request, in arrival order. Throws as `require_sense`, before anything is
/// written.
void write_workload(WorkloadOptions const& options, std::ostream& out);

}  // namespace replay

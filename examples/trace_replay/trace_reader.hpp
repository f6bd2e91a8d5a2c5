// SPDX-License-Identifier: Apache-2.0
/// \file
/// Reads request traces. The format is told from the file's first line:
///
/// | format | first line | a prompt is |
/// |---|---|---|
/// | mooncake | JSON with `hash_ids` | an id for each `trace_block_tokens` tokens, the last for the
/// rest | | claude_code | JSON with `session` and `requests` | ids of 64 tokens, full ones only; a
/// session a line | | token_ids | JSON with `input_tok_ids` | token ids | | agent_text | JSON with
/// `input` and `output` | text; a byte is a token | | azure |
/// `TIMESTAMP,ContextTokens,GeneratedTokens` | a length |
///
/// Unknown JSON fields are skipped. One field is ours: `cancel_after` in a mooncake line, the
/// number of generated tokens after which the client leaves.
#pragma once

#include <cstdint>
#include <string>

#include "trace.hpp"
#include "trace_line.hpp"

namespace replay {

struct ReadOptions {
  std::int32_t trace_block_tokens = 512;  ///< of a mooncake trace
  double timestamp_seconds = 1e-3;        ///< what 1 in a mooncake `timestamp` means
  std::int32_t users = 16;                ///< of a trace of sessions without start times
  std::int64_t limit = 0;                 ///< keep the first so many requests; 0: all
};

/// Throws TraceError naming file, line and field.
[[nodiscard]] Trace read_trace(std::string const& path, ReadOptions const& options = {});

/// The format that `first_line` starts. Throws TraceError when it is none of them.
[[nodiscard]] Format detect_format(Line const& first_line);

}  // namespace replay

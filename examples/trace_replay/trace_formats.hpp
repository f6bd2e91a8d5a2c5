// SPDX-License-Identifier: Apache-2.0
/// \file
/// One function a trace format: checks a line and appends its requests to the trace.
/// All throw TraceError naming file, line and field.
#pragma once

#include "trace_reader.hpp"

namespace replay {

void read_mooncake(Line const& line, ReadOptions const& options, Trace& trace);
void read_claude_code(Line const& line, Trace& trace);
void read_token_ids(Line const& line, Trace& trace);
void read_agent_text(Line const& line, Trace& trace);
void read_azure(Line const& line, Trace& trace);

}  // namespace replay

// SPDX-License-Identifier: Apache-2.0
#include "trace_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "trace_formats.hpp"

namespace replay {

namespace {

constexpr std::string_view azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Counts times from the trace's first, which may be a date: nanoseconds of one fit, of a
/// difference too.
void start_at_zero(Trace& trace) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (Request const& r : trace.requests) first = std::min(first, r.arrival_ns);
  for (Request& r : trace.requests) r.arrival_ns -= first;
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](Request const& a, Request const& b) { return a.arrival_ns < b.arrival_ns; });
}

void read_line(Format format, Line const& line, ReadOptions const& options, Trace& trace) {
  switch (format) {
    case Format::mooncake: return read_mooncake(line, options, trace);
    case Format::claude_code: return read_claude_code(line, trace);
    case Format::token_ids: return read_token_ids(line, trace);
    case Format::agent_text: return read_agent_text(line, trace);
    case Format::azure: return read_azure(line, trace);
  }
}

std::string_view without_end(std::string const& text) {
  std::string_view view = text;
  while (!view.empty() && (view.back() == '\r' || view.back() == ' ')) view.remove_suffix(1);
  return view;
}

}  // namespace

Format detect_format(Line const& first_line) {
  if (first_line.text == azure_header) return Format::azure;
  if (first_line.text.starts_with('{')) {
    Json const object = parse_object(first_line);
    if (object.contains("hash_ids")) return Format::mooncake;
    if (object.contains("requests") && object.contains("session")) return Format::claude_code;
    if (object.contains("input_tok_ids")) return Format::token_ids;
    if (object.contains("input") && object.contains("output")) return Format::agent_text;
    first_line.fail("(line)",
                    "no known trace has these fields: mooncake has \"hash_ids\", claude_code "
                    "\"session\" and \"requests\", token ids \"input_tok_ids\", agent text "
                    "\"input\" and \"output\"");
  }
  first_line.fail(
      "(line)",
      fmt::format("no known trace starts so: expected a JSON object or \"{}\"", azure_header));
}

Trace read_trace(std::string const& path, ReadOptions const& options) {
  std::ifstream file(path);
  if (!file) throw TraceError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  Trace trace;
  trace.path = path;
  std::string text;
  bool known = false;
  for (std::int64_t number = 1; std::getline(file, text); ++number) {
    Line const line{path, number, without_end(text)};
    if (line.text.empty()) continue;
    if (!known) {
      trace.format = detect_format(line);
      known = true;
      if (trace.format == Format::azure) continue;
    }
    read_line(trace.format, line, options, trace);
  }
  if (file.bad()) throw TraceError(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
  if (trace.requests.empty()) throw TraceError(fmt::format("{}: holds no request", path));

  if (trace.format == Format::claude_code) {
    arrange_closed_loop(trace, options.users);
  } else {
    start_at_zero(trace);
  }
  if (options.limit > 0 && trace.requests.size() > static_cast<std::size_t>(options.limit)) {
    trace.requests.resize(static_cast<std::size_t>(options.limit));
  }
  return trace;
}

}  // namespace replay

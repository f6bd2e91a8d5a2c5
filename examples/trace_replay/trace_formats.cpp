// SPDX-License-Identifier: Apache-2.0
#include "trace_formats.hpp"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

namespace replay {

namespace {

constexpr std::int32_t int32_max = std::numeric_limits<std::int32_t>::max();
constexpr double century_seconds = 3.2e9;

std::int64_t to_ns(double seconds) { return std::llround(seconds * 1e9); }

/// The largest id whose tokens are still int32.
std::int32_t largest_id(std::int32_t block_tokens) { return int32_max / block_tokens - 1; }

/// Appends ids as runs, joined to the run before where they follow on. `request_first` is where
/// the request's runs start: an earlier request's run is never extended.
void append_run(std::vector<IdRun>& runs, std::size_t request_first, IdRun run) {
  if (run.count == 0) return;
  if (runs.size() > request_first && runs.back().first + runs.back().count == run.first) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

Slice slice_of(std::size_t first, std::size_t end) {
  return {first, static_cast<std::int32_t>(end - first)};
}

std::int32_t checked_length(Fields const& fields, char const* name, std::size_t size,
                            std::size_t least) {
  if (size < least) fields.fail(name, "is empty; a prompt needs a token");
  if (size > std::size_t{int32_max}) fields.fail(name, "is longer than 2^31 - 1 tokens");
  return static_cast<std::int32_t>(size);
}

/// What an engine keeps of a request must fit int32: prompt and output together.
void check_total(Fields const& fields, char const* name, Request const& request) {
  if (request.output_tokens > int32_max - request.prompt_tokens) {
    fields.fail(name, "prompt and output together are longer than 2^31 - 1 tokens");
  }
}

}  // namespace

void read_mooncake(Line const& line, ReadOptions const& options, Trace& trace) {
  Json const object = parse_object(line);
  Fields const fields(line, object);
  trace.block_tokens = options.trace_block_tokens;
  Request request;
  double const timestamp =
      fields.number("timestamp", 0, century_seconds / options.timestamp_seconds);
  request.arrival_ns = to_ns(timestamp * options.timestamp_seconds);
  request.prompt_tokens = fields.count("input_length", 1);
  request.output_tokens = fields.count("output_length");
  check_total(fields, "output_length", request);
  if (fields.has("cancel_after")) request.cancel_after = fields.count("cancel_after");

  std::vector<std::int32_t> ids;
  fields.integers("hash_ids", 0, largest_id(trace.block_tokens), ids);
  auto const expected =
      static_cast<std::size_t>(pagedkv::blocks_for(request.prompt_tokens, trace.block_tokens));
  if (ids.size() != expected) {
    fields.fail("hash_ids",
                fmt::format("{} ids for {} tokens; at {} tokens an id there must be {} (is "
                            "--trace-block-tokens right?)",
                            ids.size(), request.prompt_tokens, trace.block_tokens, expected));
  }
  std::size_t const first = trace.runs.size();
  for (std::int32_t const id : ids) append_run(trace.runs, first, {id, 1});
  request.prompt = slice_of(first, trace.runs.size());
  trace.requests.push_back(request);
}

namespace {

/// Appends the first `keep` ids of `base`, then the runs of "new".
void append_claude_ids(Fields const& fields, Trace& trace, std::size_t session_first,
                       Request& request) {
  std::size_t const first = trace.runs.size();
  auto const index = static_cast<std::int64_t>(trace.requests.size() - session_first);
  std::int64_t const base = fields.integer("base", -1, index - 1);
  std::int32_t keep = fields.count("keep");
  std::int64_t num_ids = keep;
  if (base >= 0) {
    Slice const from = trace.requests[session_first + static_cast<std::size_t>(base)].prompt;
    for (std::int32_t i = 0; i < from.count && keep > 0; ++i) {
      IdRun run = trace.runs[from.first + static_cast<std::size_t>(i)];
      run.count = std::min(run.count, keep);
      keep -= run.count;
      append_run(trace.runs, first, run);
    }
  }
  if (keep > 0) {
    fields.fail("keep", base < 0 ? "must be 0 where \"base\" is -1"
                                 : fmt::format("is {} ids more than request {} has", keep, base));
  }
  std::vector<std::int32_t> added;
  fields.integers("new", 0, largest_id(trace.block_tokens), added);
  if (added.size() % 2 != 0) fields.fail("new", "must hold pairs of start and count");
  for (std::size_t i = 0; i < added.size(); i += 2) {
    if (added[i + 1] > largest_id(trace.block_tokens) - added[i] + 1) {
      fields.fail("new", "a run ends behind the largest id whose tokens fit 32 bits");
    }
    num_ids += added[i + 1];
    append_run(trace.runs, first, {added[i], added[i + 1]});
  }
  if (num_ids != request.prompt_tokens / trace.block_tokens) {
    fields.fail("new", fmt::format("{} ids for {} tokens; there must be {}, one for each full "
                                   "block of {}",
                                   num_ids, request.prompt_tokens,
                                   request.prompt_tokens / trace.block_tokens, trace.block_tokens));
  }
  request.prompt = slice_of(first, trace.runs.size());
}

}  // namespace

void read_claude_code(Line const& line, Trace& trace) {
  Json const object = parse_object(line);
  Fields const fields(line, object);
  std::int32_t const block_tokens = fields.count("block_tokens", 1);
  if (trace.block_tokens != 0 && trace.block_tokens != block_tokens) {
    fields.fail("block_tokens",
                fmt::format("is {}, the lines before have {}", block_tokens, trace.block_tokens));
  }
  trace.block_tokens = block_tokens;
  std::int32_t const session = trace.requests.empty() ? 0 : trace.requests.back().session + 1;
  std::size_t const session_first = trace.requests.size();
  Json const& requests = fields.array("requests");
  std::int64_t before = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Fields const entry(line, requests[i], "requests", i);
    Request request;
    request.session = session;
    request.arrival_ns = to_ns(entry.number("t", 0, century_seconds));
    if (request.arrival_ns < before) entry.fail("t", "lies before the request in front of it");
    before = request.arrival_ns;
    request.prompt_tokens = entry.count("input_length", 1);
    request.output_tokens = entry.count("output_length");
    check_total(entry, "output_length", request);
    append_claude_ids(entry, trace, session_first, request);
    trace.requests.push_back(request);
  }
}

void read_token_ids(Line const& line, Trace& trace) {
  Json const object = parse_object(line);
  Fields const fields(line, object);
  Request request;
  request.arrival_ns = fields.integer("arrival_time_ns", 0, std::int64_t{1} << 62);
  auto const append = [&](char const* name, std::size_t least) {
    std::size_t const first = trace.tokens.size();
    fields.integers(name, 0, int32_max, trace.tokens);
    checked_length(fields, name, trace.tokens.size() - first, least);
    return slice_of(first, trace.tokens.size());
  };
  request.prompt = append("input_tok_ids", 1);
  request.output = append("output_tok_ids", 0);
  request.prompt_tokens = request.prompt.count;
  request.output_tokens = request.output.count;
  check_total(fields, "output_tok_ids", request);
  if (fields.has("input_toks") && fields.count("input_toks") != request.prompt_tokens) {
    fields.fail("input_toks", fmt::format("is not the number of ids in \"input_tok_ids\", {}",
                                          request.prompt_tokens));
  }
  trace.requests.push_back(request);
}

void read_agent_text(Line const& line, Trace& trace) {
  Json const object = parse_object(line);
  Fields const fields(line, object);
  Request request;
  request.arrival_ns =
      fields.integer("timestamp", 0, std::numeric_limits<std::int64_t>::max() / 1000) * 1000;
  auto const append = [&](char const* name, std::size_t least) {
    std::string const& text = fields.text(name);
    std::size_t const first = trace.bytes.size();
    trace.bytes += text;
    return Slice{first, checked_length(fields, name, text.size(), least)};
  };
  request.prompt = append("input", 1);
  request.output = append("output", 0);
  request.prompt_tokens = request.prompt.count;
  request.output_tokens = request.output.count;
  check_total(fields, "output", request);
  trace.requests.push_back(request);
}

namespace {

/// A whole number of exactly the digits in `text`.
std::optional<std::int32_t> whole(std::string_view text) {
  std::int32_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.starts_with('-')) return {};
  return value;
}

/// Nanoseconds since 1970 of "YYYY-MM-DD hh:mm:ss[.fraction][+00:00]".
std::optional<std::int64_t> utc_ns(std::string_view text) {
  if (text.ends_with("+00:00")) text.remove_suffix(6);
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[10] != ' ' || text[13] != ':' ||
      text[16] != ':') {
    return {};
  }
  auto const year = whole(text.substr(0, 4));
  auto const month = whole(text.substr(5, 2));
  auto const day = whole(text.substr(8, 2));
  auto const hour = whole(text.substr(11, 2));
  auto const minute = whole(text.substr(14, 2));
  auto const second = whole(text.substr(17, 2));
  if (!year || !month || !day || !hour || !minute || !second) return {};
  std::chrono::year_month_day const date{std::chrono::year{*year},
                                         std::chrono::month{static_cast<unsigned>(*month)},
                                         std::chrono::day{static_cast<unsigned>(*day)}};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return {};
  std::int64_t fraction_ns = 0;
  if (text.size() > 19) {
    std::string digits(text.substr(20));
    if (text[19] != '.' || digits.empty() || digits.size() > 9) return {};
    digits.resize(9, '0');
    auto const parsed = whole(digits);
    if (!parsed) return {};
    fraction_ns = *parsed;
  }
  std::int64_t const days = std::chrono::sys_days{date}.time_since_epoch().count();
  std::int64_t const seconds = ((days * 24 + *hour) * 60 + *minute) * 60 + *second;
  return seconds * 1'000'000'000 + fraction_ns;
}

}  // namespace

void read_azure(Line const& line, Trace& trace) {
  std::string_view rest = line.text;
  auto const next = [&] {
    std::size_t const comma = std::min(rest.find(','), rest.size());
    std::string_view const field = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    return field;
  };
  std::string_view const timestamp = next();
  std::string_view const context = next();
  std::string_view const generated = next();
  Request request;
  auto const arrival = utc_ns(timestamp);
  if (!arrival) {
    line.fail("TIMESTAMP",
              fmt::format("expected YYYY-MM-DD hh:mm:ss.fraction, got \"{}\"", timestamp));
  }
  request.arrival_ns = *arrival;
  auto const length = [&](char const* name, std::string_view text, std::int32_t least) {
    auto const value = whole(text);
    if (!value || *value < least) {
      line.fail(name, fmt::format("expected an integer from {} to {}, got \"{}\"", least, int32_max,
                                  text));
    }
    return *value;
  };
  request.prompt_tokens = length("ContextTokens", context, 1);
  request.output_tokens = length("GeneratedTokens", generated, 0);
  if (request.output_tokens > int32_max - request.prompt_tokens) {
    line.fail("GeneratedTokens", "prompt and output together are longer than 2^31 - 1 tokens");
  }
  if (!rest.empty()) line.fail("(line)", "expected three fields");
  trace.requests.push_back(request);
}

}  // namespace replay

// SPDX-License-Identifier: Apache-2.0
#include "report_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "human.hpp"

namespace replay {

namespace {

Row count(char const* name, std::int64_t value, std::string meaning) {
  return {name, grouped(value), std::move(meaning)};
}

Section requests_section(Report const& r) {
  Section s{"Requests", {}};
  s.rows.push_back(count("requests", r.requests, "in the trace"));
  s.rows.push_back(count("rejected", r.rejected,
                         "need more blocks than the pool has, or are longer than --max-model-len"));
  if (!r.prefix_only) {
    s.rows.push_back(count("finished", r.finished, "got all their output"));
    s.rows.push_back(count("cancelled", r.cancelled, "the client left early; blocks back at once"));
    s.rows.push_back(count("preempted", r.preemptions,
                           "times a running request gave its blocks back, to be resumed later"));
    s.rows.push_back(count("generated tokens", r.generated_tokens, ""));
  }
  return s;
}

Section prefix_section(Report const& r) {
  Section s{"Prefix reuse", {}};
  s.rows.push_back(count("prompt tokens", r.prompt_tokens, "of admitted requests"));
  if (!r.knows_sharing) {
    s.rows.push_back({"hit ratio", "unknown", "the trace holds lengths only"});
    s.rows.push_back(count("prompt blocks", r.prompt_blocks, "full ones, of all requests"));
  } else {
    s.rows.push_back({"hit tokens", grouped(r.hit_tokens),
                      percent(r.hit_ratio()) + " of them were cached already"});
    s.rows.push_back(count("prompt blocks", r.prompt_blocks, "full ones, of all requests"));
    s.rows.push_back(
        {"hit blocks", grouped(r.hit_blocks),
         share_of(static_cast<double>(r.hit_blocks), static_cast<double>(r.prompt_blocks)) +
             " of them"});
  }
  s.rows.push_back(count("evicted blocks", r.evicted_blocks, "cached content dropped for new"));
  s.rows.push_back(count("resident blocks", r.resident_blocks, "cached when all was over"));
  s.rows.push_back(count("copies", r.copies, "block copies planned (partial hits, shared tails)"));
  if (r.twin_blocks > 0) {
    s.rows.push_back(count("twin blocks", r.twin_blocks,
                           "computed although an equal block appeared in the meantime"));
  }
  if (r.moved_blocks > 0) {
    s.rows.push_back(
        count("moved blocks", r.moved_blocks, "whose content an equal block bears since"));
  }
  if (r.resumed_query_tokens > 0) {
    s.rows.push_back({"recovered after preemption", grouped(r.resumed_hit_tokens),
                      share_of(static_cast<double>(r.resumed_hit_tokens),
                               static_cast<double>(r.resumed_query_tokens)) +
                          " of what resumed requests had held was still cached"});
  }
  return s;
}

Section pool_section(Report const& r) {
  std::string const over = r.prefix_only ? "mean over the requests" : "mean over simulated time";
  Section s{"Pool", {}};
  s.rows.push_back({"peak usage", percent(r.peak_usage), "blocks that running requests hold"});
  s.rows.push_back({"mean usage", percent(r.mean_usage), over});
  if (r.usable_utilization) {
    s.rows.push_back({"usable utilisation", percent(*r.usable_utilization),
                      "slots that hold a running request's token, while a request waited for "
                      "blocks (" +
                          percent(r.pressure_share.value_or(0)) + " of the time)"});
  }
  s.rows.push_back({"internal fragmentation", percent(r.internal_fragmentation),
                    "slots in the last block of each request that hold no token"});
  if (r.prefix_only) return s;
  s.rows.push_back(count("peak sequences", r.peak_sequences, "running at once"));
  s.rows.push_back({"mean sequences", fmt::format("{:.1f}", r.mean_sequences), over});
  std::string in_one_piece = fmt::format(
      "would fit at once if each reserved {} tokens in one piece", grouped(r.contiguous_tokens));
  if (r.contiguous_peak_sequences > 0 && r.peak_sequences > r.contiguous_peak_sequences) {
    in_one_piece += fmt::format(
        "; {:.1f} times as many ran",
        static_cast<double>(r.peak_sequences) / static_cast<double>(r.contiguous_peak_sequences));
  }
  s.rows.push_back(
      count("contiguous peak sequences", r.contiguous_peak_sequences, std::move(in_one_piece)));
  s.rows.push_back({"contiguous waste", percent(r.contiguous_waste),
                    "of what the same running requests would have reserved so"});
  return s;
}

Section time_section(Report const& r) {
  Section s{r.prefix_only ? "Time" : "Latency (simulated)", {}};
  auto const latency = [&](char const* name, Report::Latency const& l, char const* meaning) {
    s.rows.push_back({name,
                      fmt::format("{} / {} / {}", duration(l.p50 / 1e3), duration(l.p99 / 1e3),
                                  duration(l.max / 1e3)),
                      meaning});
  };
  if (r.ttft_ms) latency("time to first token", *r.ttft_ms, "p50 / p99 / max, from arrival");
  if (r.itl_ms) latency("time between tokens", *r.itl_ms, "p50 / p99 / max, preemptions included");
  if (!r.prefix_only) {
    s.rows.push_back({"simulated time", duration(r.simulated_seconds),
                      "arrivals took " + duration(r.trace_seconds)});
  }
  s.rows.push_back(count("steps", r.steps, r.prefix_only ? "one a request" : ""));
  s.rows.push_back({"manager time a step",
                    fmt::format("{} / {} / {}", duration(static_cast<double>(r.step_ns_p50) * 1e-9),
                                duration(static_cast<double>(r.step_ns_p99) * 1e-9),
                                duration(static_cast<double>(r.step_ns_max) * 1e-9)),
                    "p50 / p99 / max, measured on this machine"});
  s.rows.push_back({"replay took", duration(r.wall_seconds), "on this machine"});
  return s;
}

}  // namespace

std::vector<Section> sections(Report const& r) {
  std::vector<Section> all{requests_section(r), prefix_section(r), pool_section(r),
                           time_section(r)};
  Section settings{"Settings", {}};
  for (auto const& [name, value] : r.settings) settings.rows.push_back({name, value, ""});
  all.push_back(std::move(settings));
  return all;
}

std::string headline(Report const& r) {
  return fmt::format("{} ({}): {} requests on a pool of {} blocks of {} tokens ({} tokens){}",
                     r.trace, r.format, grouped(r.requests), grouped(r.num_blocks), r.block_tokens,
                     grouped(std::int64_t{r.num_blocks} * r.block_tokens),
                     r.prefix_only ? ", one request at a time" : "");
}

std::vector<std::string> remarks(Report const& r) {
  std::vector<std::string> all;
  if (!r.knows_sharing) {
    all.emplace_back(
        "The trace holds lengths only: nothing is known about shared prefixes, so every prompt was "
        "taken as unique.");
  }
  if (!r.prefix_only && r.simulated_seconds > 1.2 * r.trace_seconds) {
    all.push_back(fmt::format(
        "Requests arrive faster than this engine serves them: {} of arrivals take {}. Times to "
        "first token are mostly queueing; --time-scale stretches the arrivals.",
        duration(r.trace_seconds), duration(r.simulated_seconds)));
  }
  return all;
}

std::string to_table(Report const& r) {
  fmt::memory_buffer text;
  auto const at = std::back_inserter(text);
  fmt::format_to(at, "{}\n", headline(r));
  auto const all = sections(r);
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (Section const& section : all) {
    for (Row const& row : section.rows) {
      name_width = std::max(name_width, row.name.size());
      if (!row.meaning.empty()) value_width = std::max(value_width, row.value.size());
    }
  }
  for (Section const& section : all) {
    fmt::format_to(at, "\n{}\n", section.title);
    for (Row const& row : section.rows) {
      if (row.meaning.empty() && row.value.size() > value_width) {
        fmt::format_to(at, "  {:<{}}  {}\n", row.name, name_width, row.value);
      } else {
        fmt::format_to(at, "  {:<{}}  {:>{}}{}{}\n", row.name, name_width, row.value, value_width,
                       row.meaning.empty() ? "" : "  ", row.meaning);
      }
    }
  }
  for (std::string const& remark : remarks(r)) fmt::format_to(at, "\nNote: {}\n", remark);
  return fmt::to_string(text);
}

}  // namespace replay

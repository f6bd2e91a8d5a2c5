// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-replay: recorded LLM traffic through the real cache manager.
///
/// Exit status: 0; 1 for a trace that can't be read or a file that can't be written; 2 when the
/// planned pool has no room (the reason on stderr); 3 when something leaked; what CLI11 gives for a
/// wrong option.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <string>

#include "human.hpp"
#include "replay.hpp"
#include "support/cli_errors.hpp"
#include "support/output_files.hpp"
#include "support/plan_options.hpp"
#include "trace_reader.hpp"

namespace {

namespace kv = pagedkv;

constexpr int failed = 1;
constexpr int nothing_fits = 2;
constexpr int leaked = 3;
constexpr std::int32_t default_block_tokens = 16;

constexpr char const* description =
    "Replays a recorded request trace through the cache manager and says what it did: how much of\n"
    "the prompts was cached, how full the pool was, what was wasted, how many requests ran at "
    "once.\n"
    "The trace's format is detected: mooncake, claude_code sessions, token ids, agent text, "
    "azure.\n"
    "\n"
    "  pagedkv-replay conversation_trace.jsonl --block-tokens 16\n"
    "  pagedkv-replay conversation_trace.jsonl --prefix-only --blocks 2000 --json out.json\n"
    "  pagedkv-replay sessions.jsonl --users 32 --model llama-3.1-70b --device h200-141gb \\\n"
    "                 --tensor-parallel 4 --kv-format fp8_e4m3\n"
    "\n"
    "The pool's size comes from --blocks or from a plan (--model, --device, ...); without either "
    "it\n"
    "is what Llama 3.1 70B leaves on four A100 80 GB.\n";

struct Arguments {
  std::string trace;
  bool prefix_only = false;
  bool unlimited_blocks = false;
  bool partial_hits = false;
  std::string json_path;
  std::string html_path = "pagedkv-replay.html";
  bool no_html = false;
  double step_overhead_ms = 2;
  replay::ReadOptions read;
  replay::ReplayOptions replay;
  programs::PlanOptions plan;
};

std::map<std::string, bool> const on_off{{"on", true}, {"off", false}};

void add_switch(CLI::App& app, std::string const& name, bool& value, std::string const& help) {
  app.add_option(name, value, fmt::format("{} [{}]", help, value ? "on" : "off"))
      ->transform(CLI::CheckedTransformer(on_off))
      ->option_text("on|off");
}

/// CLI11's own checks of numbers let NaN and infinity through.
CLI::Validator number_from(double least) {
  return {[least](std::string& text) {
            double value = 0;
            bool const ok =
                CLI::detail::lexical_cast(text, value) && value >= least && value <= 1e15;
            return ok ? std::string{} : fmt::format("'{}' must be from {:g} to 1e15", text, least);
          },
          "NUMBER"};
}

template <class T>
CLI::Option* add(CLI::App& app, std::string const& name, T& value, std::string const& help) {
  return app.add_option(name, value, help)->capture_default_str();
}

void add_output_options(CLI::App& app, Arguments& a) {
  app.add_option("TRACE", a.trace, "the trace")->required()->type_name("FILE");
  app.add_flag("--prefix-only", a.prefix_only,
               "one request at a time, no clock: for comparison with cache studies");
  app.add_option("--json", a.json_path, "write all numbers to this file")->type_name("FILE");
  add(app, "--html", a.html_path, "write the report with plots to this file")->type_name("FILE");
  app.add_flag("--no-html", a.no_html, "write no report");
}

void add_trace_options(CLI::App& app, Arguments& a) {
  add(app, "--limit", a.read.limit, "replay the first so many requests; 0: all")
      ->check(programs::at_least(0));
  add(app, "--users", a.read.users,
      "claude_code: users, each takes the next session when its last one ends")
      ->check(CLI::Range(1, 1'000'000));
  add(app, "--trace-block-tokens", a.read.trace_block_tokens,
      "mooncake: tokens that an id stands for")
      ->check(CLI::Range(1, 1 << 20));
  add(app, "--timestamp-seconds", a.read.timestamp_seconds,
      "mooncake: what 1 in a timestamp means (0.001: milliseconds)")
      ->check(number_from(1e-9));
  add(app, "--time-scale", a.replay.time_scale,
      "multiplies arrival times: above 1 requests come more slowly")
      ->check(number_from(1e-9));
}

void add_manager_options(CLI::App& app, Arguments& a) {
  app.add_flag("--unlimited-blocks", a.unlimited_blocks,
               "a pool that holds all prompts of the trace: nothing is evicted")
      ->excludes("--blocks");
  add_switch(app, "--partial-hits", a.replay.partial_hits,
             "share the leading part of one more block, by a copy");
  app.add_option(
         "--reclaim", a.replay.reclaim,
         "deferred: the device is a step behind, and blocks come back when it has ended the "
         "last step that used them [stream_ordered]")
      ->transform(CLI::CheckedTransformer(std::map<std::string, kv::Reclaim>{
          {"stream_ordered", kv::Reclaim::stream_ordered}, {"deferred", kv::Reclaim::deferred}}))
      ->option_text("stream_ordered|deferred");
  app.add_option("--twins", a.replay.twins,
                 "adopt: a block whose content is cached already is replaced by it [keep]")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, kv::Twins>{{"keep", kv::Twins::keep}, {"adopt", kv::Twins::adopt}}))
      ->option_text("keep|adopt");
}

void add_planner_options(CLI::App& app, Arguments& a) {
  kv::PlannerLimits& limits = a.replay.limits;
  limits.max_num_seqs = 256;
  add_switch(app, "--chunked-prefill", limits.chunked_prefill,
             "off: a prompt is computed in one step");
  add(app, "--max-num-seqs", limits.max_num_seqs, "requests running at once");
  add(app, "--max-num-batched-tokens", limits.max_num_batched_tokens,
      "tokens computed in one step");
  add(app, "--max-prefill-tokens", limits.max_prefill_tokens,
      "prompt tokens of one request in a step; 0: as many as the step has");
  add(app, "--watermark", limits.watermark, "share of the pool that admissions leave free");
}

void add_cost_options(CLI::App& app, Arguments& a) {
  replay::CostModel& cost = a.replay.cost;
  add(app, "--prefill-rate", cost.prefill_tokens_per_second, "tokens computed per second")
      ->check(number_from(1e-9));
  add(app, "--decode-rate", cost.decode_tokens_per_second,
      "tokens per second of one sequence alone: one pass over the weights each")
      ->check(number_from(1e-9));
  add(app, "--context-rate", cost.context_tokens_per_second,
      "cached tokens that attention reads per second; 0: reading costs nothing")
      ->check(number_from(0));
  add(app, "--step-overhead-ms", a.step_overhead_ms, "added to each step")->check(number_from(0));
}

void add_options(CLI::App& app, Arguments& a) {
  add_output_options(app, a);
  programs::add_plan_options(app, a.plan);
  auto const in_group = [&](char const* name, auto const& add_group) {
    app.option_defaults()->group(name);
    add_group(app, a);
  };
  in_group("Trace", add_trace_options);
  in_group("Cache", add_manager_options);
  in_group("Scheduling (full replay)", add_planner_options);
  in_group("Cost model of the simulated clock (full replay; defaults: a 70B model on 4 x A100)",
           add_cost_options);
}

struct Pool {
  std::int32_t num_blocks = 0;
  std::string origin;  ///< how that number came about
};

/// Thrown when the plan has no room; the message is the plan's.
struct NothingFits {
  std::string message;
};

Pool planned_pool(programs::PlanOptions plan, std::int32_t block_tokens) {
  if (!plan.describes_model() && plan.device.empty()) {
    plan.model = "llama-3.1-70b";
    plan.device = "a100-80gb";
    if (plan.tensor_parallel == 1) plan.tensor_parallel = 4;
  }
  plan.block_tokens = block_tokens;
  auto const outcome = kv::try_capacity_plan(programs::capacity_input(plan));
  if (!outcome) throw NothingFits{outcome.message};
  return {outcome.plan.num_blocks,
          fmt::format("{} in {} on {} x {}, {:.0f} % of each device used",
                      plan.model.empty() ? "the model described" : plan.model, plan.kv_format,
                      plan.tensor_parallel * plan.pipeline_parallel,
                      plan.device.empty() ? "a device" : plan.device, plan.utilization * 100)};
}

Pool unlimited_pool(replay::Trace const& trace, std::int32_t block_tokens, bool prefix_only) {
  std::int64_t blocks = trace.distinct_prompt_blocks(block_tokens) +
                        kv::blocks_for(trace.longest_request(), block_tokens) + 1;
  if (!prefix_only) {
    for (auto const& request : trace.requests) blocks += request.output_tokens / block_tokens + 2;
  }
  if (blocks > INT32_MAX - 2) {
    throw std::runtime_error(
        "--unlimited-blocks needs more than 2^31 blocks; use larger blocks or --limit");
  }
  return {static_cast<std::int32_t>(blocks), "as many as the trace's prompts fill"};
}

Pool pool_of(Arguments const& a, replay::Trace const& trace, std::int32_t block_tokens) {
  if (a.unlimited_blocks) return unlimited_pool(trace, block_tokens, a.prefix_only);
  if (a.plan.num_blocks) return {*a.plan.num_blocks, "as given"};
  return planned_pool(a.plan, block_tokens);
}

/// What else decides the outcome, in words.
std::vector<std::pair<std::string, std::string>> settings(Arguments const& a, Pool const& pool,
                                                          replay::Trace const& trace) {
  std::vector<std::pair<std::string, std::string>> all;
  replay::ReplayOptions const& o = a.replay;
  all.emplace_back("pool",
                   fmt::format("{} blocks of {} tokens: {}", replay::grouped(pool.num_blocks),
                               o.block_tokens, pool.origin));
  if (trace.block_tokens > 0) {
    all.emplace_back("trace", fmt::format("{} tokens an id", trace.block_tokens));
  }
  if (trace.format == replay::Format::claude_code) {
    all.emplace_back("users", std::to_string(a.read.users));
  }
  all.emplace_back("partial hits", o.partial_hits ? "on" : "off");
  if (a.prefix_only) return all;
  all.emplace_back("reclaim", o.reclaim == kv::Reclaim::deferred
                                  ? "deferred, the device a step behind"
                                  : "stream ordered");
  all.emplace_back("twins", o.twins == kv::Twins::adopt ? "adopted" : "kept");
  all.emplace_back(
      "scheduling",
      fmt::format("chunked prefill {}, at most {} requests and {} tokens a step, watermark {}",
                  o.limits.chunked_prefill ? "on" : "off", o.limits.max_num_seqs,
                  replay::grouped(o.limits.max_num_batched_tokens),
                  replay::percent(o.limits.watermark)));
  all.emplace_back(
      "cost model",
      fmt::format("a step takes {:g} ms + the longer of 1/{:g} s and its tokens / {:g} s + the "
                  "tokens its sequences attend to / {:.10g} s",
                  o.cost.step_overhead_seconds * 1e3, o.cost.decode_tokens_per_second,
                  o.cost.prefill_tokens_per_second, o.cost.context_tokens_per_second));
  if (o.time_scale != 1) all.emplace_back("time scale", fmt::format("{:g}", o.time_scale));
  return all;
}

void write_file(std::string const& path, std::string const& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

int run(Arguments& a) {
  programs::check_outputs({{"--json", a.json_path}, {"--html", a.no_html ? "" : a.html_path}},
                          {{"TRACE", a.trace}});
  replay::Trace const trace = replay::read_trace(a.trace, a.read);
  replay::ReplayOptions& options = a.replay;
  std::int32_t const own = trace.block_tokens > 0 ? trace.block_tokens : default_block_tokens;
  options.block_tokens = a.plan.block_tokens.value_or(own);
  Pool const pool = pool_of(a, trace, options.block_tokens);
  options.num_blocks = pool.num_blocks;
  options.cost.step_overhead_seconds = a.step_overhead_ms / 1e3;
  if (a.plan.max_model_len != kv::auto_max_model_len) {
    options.max_model_len = a.plan.max_model_len;
  }

  replay::Report report;
  {
    replay::Progress progress(static_cast<std::int64_t>(trace.requests.size()));
    report = a.prefix_only ? replay::replay_prefix_only(trace, options, progress)
                           : replay::replay_full(trace, options, progress);
  }
  report.settings = settings(a, pool, trace);
  fmt::print("{}", replay::to_table(report));
  if (!a.json_path.empty()) write_file(a.json_path, replay::to_json(report));
  if (!a.no_html) {
    write_file(a.html_path, replay::to_html(report));
    fmt::print("\nThe report with plots: {}\n", a.html_path);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{description, "pagedkv-replay"};
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
    return run(arguments);
  } catch (CLI::ParseError const& error) {
    return programs::exit_with(app, error);
  } catch (NothingFits const& error) {
    fmt::print(stderr, "{}\n", error.message);
    return nothing_fits;
  } catch (replay::LeakError const& error) {
    fmt::print(stderr, "pagedkv-replay: {}\n", error.what());
    return leaked;
  } catch (std::exception const& error) {
    fmt::print(stderr, "pagedkv-replay: {}\n", error.what());
    return failed;
  }
}

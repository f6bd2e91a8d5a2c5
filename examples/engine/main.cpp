// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-engine: a file of requests through a real model and a paged cache.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <pagedkv/observe/prometheus.hpp>
#include <pagedkv/quant/scale_file.hpp>

#include "engine.hpp"
#include "load_model.hpp"
#include "requests.hpp"
#include "support/cli_errors.hpp"
#include "support/format_problem.hpp"
#include "support/output_files.hpp"
#include "support/progress.hpp"
#include "support/scale_report.hpp"

namespace {

namespace kv = pagedkv;

constexpr int some_refused = 3;

constexpr char const* description =
    R"(Serves the requests of a file with a real model whose KV cache is pagedkv's.

A request is a line of JSON: {"id": "a", "prompt": "Once upon a time"}, or "prompt_ids" instead of
"prompt"; and if wanted "max_tokens" (256), "stop_ids" (the model's own), "temperature" (0: greedy),
"n" (1), "cancel_after" (tokens; not at all). An answer is a line of {"id", "prompt_ids",
"output_ids", "text", "cached_tokens", "preempted"}, with "index" when n is above 1.

Exit status: 0; 1 when something is wrong with files, or with options that don't fit the model; 3
when a request was refused, since its prompt and one token can't fit the pool (the others are
answered); above 100, as CLI11 numbers its errors, for an option that is unknown, missing or
malformed (105 a value that can't be, 106 one that is missing, 109 an unknown option).)";

struct Arguments {
  std::string model;
  std::string tokenizer;
  std::string kv_format = "f32";
  std::string granularity;
  std::vector<std::string> scales;
  std::string requests;
  std::string output;
  std::string metrics;
  std::optional<std::int32_t> blocks;
  std::int32_t block_tokens = 16;
  std::optional<std::int32_t> max_num_seqs;
  std::optional<std::int32_t> max_num_batched_tokens;
  int threads = 1;
  bool stream = false;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--model", a.model, "GGUF file, or llama2.c checkpoint")->required();
  app.add_option("--tokenizer", a.tokenizer, "tokenizer file of a llama2.c checkpoint");
  app.add_option("--requests", a.requests, "requests, a line of JSON each")->required();
  app.add_option("--output", a.output, "where answers go, a line each, as they end")->required();
  app.add_option("--metrics", a.metrics, "where the cache's counters go, as Prometheus text");
  app.add_flag("--stream", a.stream, "print text as it is generated");

  auto const cache = "Cache";
  app.add_option("--kv-format", a.kv_format,
                 "f32 (default), f16, bf16, fp8_e4m3, fp8_e5m2, int8, int8_asym, int4")
      ->group(cache);
  app.add_option("--granularity", a.granularity,
                 "how far a scale reaches: per_token_head (default), per_block_head; with --scales "
                 "per_tensor (then default), per_head")
      ->group(cache);
  app.add_option("--scales", a.scales,
                 "scale file of a static granularity, or all files of a checkpoint")
      ->type_name("FILE ...")
      ->group(cache);
  app.add_option("--blocks", a.blocks,
                 "blocks of the pool (default: 1 GiB, or what all requests that run can fill)")
      ->check(CLI::Range(1, INT32_MAX - 1))
      ->group(cache);
  app.add_option("--block-tokens", a.block_tokens, "tokens of a block")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536))
      ->group(cache);

  auto const scheduling = "Scheduling";
  app.add_option("--max-num-seqs", a.max_num_seqs, "samples that run at once (default: 32)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(scheduling);
  app.add_option("--max-num-batched-tokens", a.max_num_batched_tokens,
                 "tokens of a step (default: 512)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(scheduling);
  app.add_option("--threads", a.threads, "threads of matrix products and of attention")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->group(scheduling);
}

kv::KvFormat format_of(Arguments const& a) {
  std::string text = a.kv_format;
  bool const names_both = text.find('/') != std::string::npos;
  if (!a.granularity.empty()) {
    if (names_both) {
      throw CLI::ValidationError("--granularity", "--kv-format " + text + " names one already");
    }
    text += "/" + a.granularity;
  }
  auto format = kv::parse_kv_format(text);
  if (!format) throw CLI::ValidationError("--kv-format", programs::format_problem(text));
  bool const free_choice = a.granularity.empty() && !names_both;
  bool const takes_scales = format->granularity != kv::Granularity::none;
  // The element alone: what needs no calibration.
  if (free_choice && takes_scales && a.scales.empty()) {
    format->granularity = kv::Granularity::per_token_head;
  }
  return *format;
}

bool is_static(kv::KvFormat format) {
  return format.granularity == kv::Granularity::per_tensor ||
         format.granularity == kv::Granularity::per_head;
}

/// The scales of a static granularity; nothing of another.
void read_scales(Arguments const& a, kv::KvFormat format, kv::Geometry const& geometry,
                 engine::EngineOptions& options) {
  if (!is_static(format)) return;
  auto const loaded = kv::quant::load_scales(a.scales, geometry);
  fmt::print(stderr, "{}", programs::summary(loaded.report));
  bool const a_head = format.granularity == kv::Granularity::per_head;
  auto const heads = static_cast<std::size_t>(geometry.num_kv_heads);
  // One number of a layer serves all of its heads.
  auto const spread = [&](std::vector<float> scales) {
    if (a_head && scales.size() == 1) scales.resize(heads, scales.front());
    return scales;
  };
  for (auto const& layer : loaded.scales.layers) {
    options.static_scales.push_back({spread(layer.k), spread(layer.v)});
  }
}

void check_scales(Arguments const& a, kv::KvFormat format) {
  if (is_static(format) && a.scales.empty()) {
    throw CLI::ValidationError(
        "--scales", kv::to_string(format) +
                        " is static: it needs calibrated scales (--scales FILE), or take "
                        "--granularity per_token_head");
  }
  if (is_static(format) || a.scales.empty()) return;
  auto const all = kv::granularities_of(format.element);
  bool const can_be_static =
      std::find(all.begin(), all.end(), kv::Granularity::per_tensor) != all.end();
  char const* const with_scales = can_be_static ? "--granularity per_tensor or per_head"
                                                : "--kv-format fp8_e4m3, fp8_e5m2 or int8";
  throw CLI::ValidationError(
      "--scales", fmt::format("{} takes no scales from files; leave --scales out, or take {}",
                              kv::to_string(format), with_scales));
}

/// Before anything is written, and before a model is loaded.
void check_files(Arguments const& a) {
  std::vector<programs::NamedFile> read = {
      {"--requests", a.requests}, {"--model", a.model}, {"--tokenizer", a.tokenizer}};
  for (auto const& path : a.scales) read.push_back({"--scales", path});
  programs::check_outputs({{"--output", a.output}, {"--metrics", a.metrics}}, read);
}

/// A GiB, but not more than all that can run could fill, and not less than one request could. No
/// prompt is refused for it.
std::int32_t default_blocks(engine::ModelConfig const& config, kv::Geometry const& geometry,
                            kv::PlannerLimits const& limits, std::int32_t longest_prompt) {
  std::int64_t const one =
      kv::blocks_for(std::max(config.max_positions, longest_prompt + 1), geometry.block_tokens);
  std::int64_t const gib = (std::int64_t{1} << 30) / geometry.bytes_per_block();
  return static_cast<std::int32_t>(std::max(one, std::min(gib, one * limits.max_num_seqs)));
}

engine::EngineOptions engine_options(Arguments const& a, engine::ModelConfig const& config,
                                     std::int32_t longest_prompt) {
  engine::EngineOptions options;
  kv::KvFormat const format = format_of(a);
  options.format = format;
  options.block_tokens = a.block_tokens;
  std::int32_t const seqs = a.max_num_seqs.value_or(32);
  std::int32_t const tokens = a.max_num_batched_tokens.value_or(std::max(512, seqs));
  options.limits.max_num_batched_tokens = tokens;
  options.limits.max_num_seqs = a.max_num_seqs ? seqs : std::min(seqs, tokens);
  auto const geometry = engine::geometry_of(config, options.format, options.block_tokens);
  options.threads = a.threads;
  read_scales(a, format, geometry, options);
  options.num_blocks =
      a.blocks.value_or(default_blocks(config, geometry, options.limits, longest_prompt));
  return options;
}

/// Writes answers as they end, and if wanted text as it is generated.
class Output : public engine::Listener {
 public:
  Output(Arguments const& a, engine::EngineOptions const& options,
         engine::Tokenizer const* tokenizer, std::int64_t num_answers)
      : path_(a.output),
        num_blocks_(options.num_blocks),
        block_tokens_(options.block_tokens),
        tokenizer_(a.stream ? tokenizer : nullptr),
        text_tokenizer_(tokenizer),
        one_at_a_time_(num_answers == 1),
        progress_(num_answers, !a.stream) {}

  /// Not before all else that can be wrong has been looked at: earlier answers end here.
  void open() {
    file_.open(path_, std::ios::binary);
    if (!file_) throw std::runtime_error(path_ + ": can't be written");
  }

  void on_token(engine::Request const& request, std::int32_t index, kv::TokenId token) override {
    if (tokenizer_ == nullptr) return;
    auto const [place, added] = streams_.try_emplace(
        {request.id, index}, engine::StreamedText(*tokenizer_, request.prompt.back()));
    auto const text = place->second.push(token);
    if (text.empty()) return;
    if (one_at_a_time_) {
      fmt::print("{}", text);
    } else {
      fmt::print("{}{}: {}\n", request.id, request.n > 1 ? fmt::format(" {}", index) : "", text);
    }
    std::fflush(stdout);
  }
  void on_answer(engine::Answer const& answer) override {
    if (tokenizer_ != nullptr && one_at_a_time_) fmt::print("\n");
    if (answer.finish == engine::Finish::refused && answer.index == 0) refused(*answer.request);
    streams_.erase({answer.request->id, answer.index});
    file_ << engine::answer_line(answer, text_tokenizer_) << '\n';
    if (!file_.flush()) throw std::runtime_error(path_ + ": can't be written");
    progress_.update(++num_answers_);
  }
  void end() { progress_.clear(); }

 private:
  void refused(engine::Request const& request) {
    progress_.clear();
    auto const tokens = static_cast<std::int32_t>(request.prompt.size());
    fmt::print(stderr,
               "pagedkv-engine: request {} is refused: its prompt of {} tokens and one more don't "
               "fit {} blocks of {}; --blocks {} would do\n",
               request.id, tokens, num_blocks_, block_tokens_,
               kv::blocks_for(tokens + 1, block_tokens_));
  }

  std::string path_;
  std::ofstream file_;
  std::int32_t num_blocks_;
  std::int32_t block_tokens_;
  engine::Tokenizer const* tokenizer_;  // null: nothing is streamed
  engine::Tokenizer const* text_tokenizer_;
  bool one_at_a_time_;
  std::int64_t num_answers_ = 0;
  std::map<std::pair<std::string, std::int32_t>, engine::StreamedText> streams_;
  programs::Progress progress_;
};

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}
double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

void print_summary(engine::Engine const& engine, engine::ModelConfig const& config,
                   kv::KvFormat format) {
  auto const& n = engine.numbers();
  auto const stats = engine.cache().stats();
  auto const bytes = engine.geometry().bytes_per_token().value();
  auto const f16 = engine::geometry_of(config, kv::default_format(kv::Element::f16), 1);
  double const total = seconds(n.total);
  double const rate = total > 0 ? 1 / total : 0;
  fmt::print("requests         {} answers ({} refused, {} cancelled), {} forks, {} preemptions\n",
             n.answers, n.refused, n.cancelled, stats.forks, stats.preemptions);
  fmt::print(
      "tokens           {} generated in {:.2f} s: {:.1f} tokens/s; {} computed in {} steps: "
      "{:.1f} tokens/s\n",
      n.generated_tokens, total, static_cast<double>(n.generated_tokens) * rate, n.computed_tokens,
      n.steps, static_cast<double>(n.computed_tokens) * rate);
  fmt::print("prefix hits      {} of {} prompt tokens ({:.1f} %)\n", stats.prefix_hit_tokens,
             stats.prefix_query_tokens,
             share(static_cast<double>(stats.prefix_hit_tokens),
                   static_cast<double>(stats.prefix_query_tokens)));
  fmt::print(
      "cache            {} blocks of {} tokens, {}; usage at most {:.1f} %, on average "
      "{:.1f} %\n",
      stats.num_blocks, engine.geometry().block_tokens, kv::to_string(format), 100 * n.peak_usage,
      share(n.usage_sum, static_cast<double>(n.steps)));
  fmt::print("KV bytes/token   {:g} ({:.1f} % of f16)\n", bytes,
             share(bytes, f16.bytes_per_token().value()));
  fmt::print(
      "time in pagedkv  {:.3f} s of {:.2f} s ({:.1f} %): manager {:.3f} s, K and V {:.3f} s\n",
      seconds(n.manager + n.data), total, share(seconds(n.manager + n.data), total),
      seconds(n.manager), seconds(n.data));
}

void write_metrics(std::string const& path, engine::Engine const& engine, kv::KvFormat format) {
  auto const& config = engine.cache().config();
  auto const name = kv::to_string(format);
  kv::CapacityInfo const capacity{.block_tokens = config.block_tokens,
                                  .max_sequences = config.max_sequences,
                                  .max_sequence_tokens = config.max_sequence_tokens,
                                  .bytes_per_block = engine.geometry().bytes_per_block(),
                                  .kv_format = name};
  std::string text;
  kv::write_prometheus(engine.cache().stats(), capacity, {}, text);
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
}

int run(Arguments const& a) {
  // What can be wrong with options is told before a model is loaded.
  kv::KvFormat const format = format_of(a);
  check_scales(a, format);
  check_files(a);
  engine::set_matrix_threads(a.threads);
  auto const loaded = engine::load_model(a.model, a.tokenizer);
  auto const& config = loaded.model.config;
  auto requests = engine::read_requests(
      a.requests, {config.vocab_size, loaded.end_ids, loaded.tokenizer.get()});
  std::int64_t num_answers = 0;
  std::size_t longest_prompt = 0;
  for (auto const& request : requests) {
    num_answers += request.n;
    longest_prompt = std::max(longest_prompt, request.prompt.size());
  }
  auto const options = engine_options(a, config, static_cast<std::int32_t>(longest_prompt));

  Output output(a, options, loaded.tokenizer.get(), num_answers);
  engine::Engine engine(loaded.model, options, output);
  output.open();
  for (auto& request : requests) engine.submit(std::move(request));
  engine.run();
  output.end();
  print_summary(engine, config, format);
  if (!a.metrics.empty()) write_metrics(a.metrics, engine, format);
  return engine.numbers().refused > 0 ? some_refused : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{description, "pagedkv-engine"};
  Arguments arguments;
  add_options(app, arguments);
  return programs::parse_and_run(app, argc, argv, [&] { return run(arguments); });
}

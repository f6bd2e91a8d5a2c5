// SPDX-License-Identifier: Apache-2.0
/// \file
/// pagedkv-quality: what each KV format costs in quality.
///
/// Exit status: what the description says.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pagedkv/quant/scale_file.hpp>

#include "calibration.hpp"
#include "formats.hpp"
#include "forward.hpp"
#include "heat_map.hpp"
#include "load_model.hpp"
#include "model_needle.hpp"
#include "model_quality.hpp"
#include "needle_search.hpp"
#include "rows.hpp"
#include "support/cli_errors.hpp"
#include "support/output_files.hpp"
#include "support/progress.hpp"
#include "support/scale_report.hpp"

namespace {

namespace kv = pagedkv;

constexpr char const* description =
    R"(Says what each KV format and granularity costs in quality (docs/quality.md).

  pagedkv-quality --needle attention --json rows.json --html map.html
  pagedkv-quality --model M --text T --calibrate --json rows.json
  pagedkv-quality --model M --needle model

--needle attention needs no model: a made-up layer looks one token up in contexts of up to 131,072,
through the paged cache. With --model and --text: bytes per token, perplexity, and divergence from
an f32 cache. --needle model: a sentence in a text that the model has to remember.

Exit status: 0; 1 for a file that can't be read or written, formats without the scales they need, or
lengths of which the model takes none; above 100, as CLI11 numbers its errors, for an option that is
unknown, missing or malformed (105 a value that can't be, 106 one that is missing, 109 an unknown
option).)";

struct Arguments {
  std::vector<std::string> needles;
  std::vector<std::string> formats;
  std::vector<std::int32_t> lengths;
  std::uint64_t seed = 1;
  std::string json_path;
  std::string html_path;
  std::string model;
  std::string tokenizer;
  std::string text;
  std::int64_t tokens = 16384;
  std::optional<std::int32_t> window;
  bool calibrate = false;
  std::int64_t calibration_tokens = 2048;
  std::vector<std::string> scales;
  int threads = 1;

  [[nodiscard]] bool asks(char const* needle) const {
    return std::find(needles.begin(), needles.end(), needle) != needles.end();
  }
};

void add_needle_options(CLI::App& app, Arguments& a) {
  app.add_option("--needle", a.needles, "look needles up: in a made-up layer, or with the model")
      ->check(CLI::IsMember({"attention", "model"}))
      ->delimiter(',')
      ->option_text("attention|model");
  app.add_option("--lengths", a.lengths,
                 "tokens of the contexts [attention: 1024,4096,16384,65536,131072; model: those of "
                 "256,512,1024,2048 that it can]")
      ->delimiter(',')
      ->check(CLI::Range(quality::min_needle_length, 1 << 24))
      ->type_name("N,...");
  app.add_option("--seed", a.seed, "attention: of the made-up tokens")->capture_default_str();
}

void add_model_options(CLI::App& app, Arguments& a) {
  app.add_option("--model", a.model, "GGUF file, or llama2.c checkpoint")->type_name("FILE");
  app.add_option("--tokenizer", a.tokenizer, "tokenizer file of a llama2.c checkpoint")
      ->type_name("FILE");
  app.add_option("--text", a.text, "what the model reads")->type_name("FILE");
  app.add_option("--tokens", a.tokens,
                 "read so many tokens of the text at most, in windows all over it")
      ->check(programs::at_least(1))
      ->capture_default_str();
  app.add_option("--window", a.window,
                 "tokens that the model sees at once [512, or its context if that is shorter]")
      ->check(programs::at_least(1));
  app.add_option("--threads", a.threads, "threads of matrix products")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
}

void add_scale_options(CLI::App& app, Arguments& a) {
  auto* const calibrate = app.add_flag(
      "--calibrate", a.calibrate,
      "make static scales from the first quarter of the text and write them to --scales "
      "[kv_cache_scales.json; one file a format: x.<element>.<granularity>.json]; the rest is "
      "read");
  app.add_option("--calibration-tokens", a.calibration_tokens,
                 "at most so many tokens make the scales")
      ->check(programs::at_least(1))
      ->capture_default_str()
      ->needs(calibrate);
  app.add_option("--scales", a.scales,
                 "files with static scales; those of a checkpoint are read as one")
      ->type_name("FILE ...");
}

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--formats", a.formats,
                 "only these, e.g. fp8_e4m3,int8/per_token_head; an element means all its "
                 "granularities [all; with a model, static ones only if they have scales]")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--json", a.json_path, "write all rows to this file, one array")
      ->type_name("FILE");
  app.add_option("--html", a.html_path, "write heat maps to this file")->type_name("FILE");
  auto const in_group = [&](char const* name, auto const& add_group) {
    app.option_defaults()->group(name);
    add_group(app, a);
  };
  in_group("Needle", add_needle_options);
  in_group("Model", add_model_options);
  in_group("Static scales", add_scale_options);
}

std::vector<kv::KvFormat> formats_of(Arguments const& a) try {
  return a.formats.empty() ? quality::all_formats() : quality::parse_formats(a.formats);
} catch (std::invalid_argument const& error) {
  throw CLI::ValidationError("--formats", error.what());
}

/// Those of `formats_of` that need scales, and the file that --calibrate writes for each.
std::vector<kv::KvFormat> static_formats(Arguments const& a) {
  auto formats = formats_of(a);
  std::erase_if(formats, [](auto format) { return !quality::is_static(format); });
  return formats;
}
std::vector<std::string> calibrated_files(Arguments const& a) {
  auto const formats = static_formats(a);
  auto const path = a.scales.empty() ? "kv_cache_scales.json" : a.scales.front();
  std::vector<std::string> files;
  files.reserve(formats.size());
  for (auto const format : formats) {
    files.push_back(quality::scale_path(path, format, formats.size() == 1));
  }
  return files;
}

void require_sense(Arguments const& a) {
  (void)formats_of(a);
  if (a.needles.empty() && (a.model.empty() || a.text.empty())) {
    throw CLI::RequiredError("--needle, or --model with --text,");
  }
  if (a.asks("model") && a.model.empty()) throw CLI::RequiredError("--needle model: --model");
  if (a.calibrate && a.text.empty()) throw CLI::RequiredError("--calibrate: --text");
  if (a.calibrate && a.scales.size() > 1) {
    throw CLI::ValidationError("--scales", "with --calibrate it names the one file to write");
  }
}

std::string read_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty()) throw std::runtime_error(path + ": can't be read, or is empty");
  return text;
}

void write_file(std::string const& path, std::string const& text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
}

std::vector<quality::NeedleRow> attention_needles(Arguments const& a) {
  quality::NeedleSearch search;
  search.formats = formats_of(a);
  search.seed = a.seed;
  if (!a.lengths.empty()) search.lengths = a.lengths;
  auto const count = search.formats.size() * search.lengths.size() * quality::num_needles;
  programs::Progress progress(static_cast<std::int64_t>(count), true, "needles");
  return quality::search_needles(search, [&](std::int64_t done) { progress.update(done); });
}

/// A model, and what there is to read.
class ModelRun {
 public:
  explicit ModelRun(Arguments const& a)
      : a_(a), loaded_(engine::load_model(a.model, a.tokenizer)), name_(name_of(a.model)) {
    engine::set_matrix_threads(a.threads);
    if (loaded_.tokenizer == nullptr) {
      throw std::runtime_error(a.model + ": a llama2.c model needs its --tokenizer");
    }
    first_tokens_ = loaded_.tokenizer->encode("");
    if (!a.text.empty()) {
      text_ = without_first(loaded_.tokenizer->encode(read_file(a.text)));
    }
    calibration_ = a.calibrate ? calibration_length() : 0;
    formats_ = scaled_formats();
  }

  std::vector<quality::QualityRow> measure() const {
    quality::QualityRun run{name_, formats_, first_tokens_, window(), a_.tokens};
    // What all are compared with is always the first row.
    kv::KvFormat const f32{kv::Element::f32, kv::Granularity::none};
    if (formats_.empty() || formats_.front().format != f32) {
      run.formats.insert(run.formats.begin(), {f32});
    }
    auto const rest = std::span(text_).subspan(calibration_);
    auto const count = std::min(static_cast<std::int64_t>(rest.size()), a_.tokens);
    programs::Progress progress(count, true, "tokens");
    return quality::measure_quality(loaded_.model, run, rest,
                                    [&](std::int64_t done) { progress.update(done); });
  }

  std::vector<quality::NeedleRow> needles() const {
    quality::ModelNeedle search;
    search.formats = formats_;
    if (!a_.lengths.empty()) search.lengths = a_.lengths;
    search.first_tokens = first_tokens_;
    search.haystack =
        text_.empty() ? without_first(loaded_.tokenizer->encode(quality::plain_haystack())) : text_;
    auto const positions = loaded_.model.config.max_positions;
    auto const lengths = quality::lengths_within(loaded_.model.config, search.lengths);
    for (auto const length : a_.lengths) {
      if (length <= positions) continue;
      fmt::print(stderr, "{} tokens left out: the model takes {}\n", length, positions);
    }
    if (lengths.empty()) {
      throw std::runtime_error(
          fmt::format("--lengths: the model takes contexts of {} tokens at most, none of {} fits",
                      positions, fmt::join(search.lengths, ",")));
    }
    auto const count = formats_.size() * lengths.size() * quality::num_needles;
    programs::Progress progress(static_cast<std::int64_t>(count), true, "needles");
    return quality::search_model_needles(loaded_.model, *loaded_.tokenizer, search,
                                         [&](std::int64_t done) { progress.update(done); });
  }

 private:
  static std::string name_of(std::string const& path) {
    return std::filesystem::path(path).stem().string();
  }
  std::vector<std::int32_t> without_first(std::vector<std::int32_t> tokens) const {
    auto const count = static_cast<std::ptrdiff_t>(first_tokens_.size());
    tokens.erase(tokens.begin(), tokens.begin() + count);
    return tokens;
  }
  std::int32_t window() const {
    auto const positions = loaded_.model.config.max_positions;
    auto const window = a_.window.value_or(std::min(512, positions));
    if (window <= positions) return window;  // else scales would be of positions that there aren't
    throw std::runtime_error(
        fmt::format("--window {}: the model takes {} tokens at most", window, positions));
  }
  std::size_t calibration_length() const {
    return std::min(text_.size() / 4, static_cast<std::size_t>(a_.calibration_tokens));
  }

  std::vector<quality::ScaledFormat> scaled_formats() const {
    auto const formats = formats_of(a_);
    if (a_.calibrate) write_scales();
    auto const files = a_.calibrate ? calibrated_files(a_) : a_.scales;
    auto const& config = loaded_.model.config;
    std::vector<quality::ScaledFormat> scaled;
    for (auto const format : formats) {
      if (!quality::is_static(format)) {
        scaled.push_back({format});
      } else if (!files.empty() || !a_.formats.empty()) {
        auto const [set, report] = quality::find_scales(files, config, format);
        scaled.push_back({format, quality::storage_scales(set, format, config.num_kv_heads)});
        if (!a_.calibrate) {
          fmt::print(stderr, "Scales of {}:\n{}", kv::to_string(format), programs::summary(report));
        }
      } else {
        fmt::print(stderr, "{} left out: it needs scales (--calibrate or --scales)\n",
                   kv::to_string(format));
      }
    }
    return scaled;
  }

  void write_scales() const {
    auto const formats = static_formats(a_);
    if (formats.empty()) return;
    auto const part = std::span(text_).first(calibration_);
    auto const sets = quality::calibrate(loaded_.model, name_, part, window(), formats);
    auto const files = calibrated_files(a_);
    for (std::size_t i = 0; i < files.size(); ++i) {
      kv::quant::write_scale_file(files[i], sets[i]);
      fmt::print("Scales of {} ({}): {}\n", kv::to_string(sets[i].format), sets[i].made, files[i]);
    }
    fmt::print("\n");
  }

  Arguments const& a_;
  engine::LoadedModel loaded_;
  std::string name_;
  std::vector<std::int32_t> first_tokens_;
  std::vector<std::int32_t> text_;
  std::size_t calibration_ = 0;  // so many tokens of the text made scales
  std::vector<quality::ScaledFormat> formats_;
};

/// Before a run that may take long.
void check_files(Arguments const& a) {
  std::vector<programs::NamedFile> written = {{"--json", a.json_path}, {"--html", a.html_path}};
  std::vector<programs::NamedFile> read = {
      {"--model", a.model}, {"--tokenizer", a.tokenizer}, {"--text", a.text}};
  auto const scales = a.calibrate ? calibrated_files(a) : a.scales;
  for (auto const& path : scales) (a.calibrate ? written : read).push_back({"--scales", path});
  programs::check_outputs(written, read);
}

int run(Arguments const& a) {
  require_sense(a);
  check_files(a);
  quality::Rows rows;
  std::optional<ModelRun> model;
  if (!a.model.empty()) model.emplace(a);
  if (a.asks("attention")) rows.needles = attention_needles(a);
  if (a.asks("model")) {
    auto const found = model->needles();
    rows.needles.insert(rows.needles.end(), found.begin(), found.end());
  }
  if (model && !a.text.empty()) rows.qualities = model->measure();
  fmt::print("{}", quality::to_table(rows));
  write_file(a.json_path, quality::to_json(rows));
  write_file(a.html_path, quality::to_html(rows));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{description, "pagedkv-quality"};
  Arguments arguments;
  add_options(app, arguments);
  return programs::parse_and_run(app, argc, argv, [&] { return run(arguments); });
}

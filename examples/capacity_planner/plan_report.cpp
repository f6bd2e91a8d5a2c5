// SPDX-License-Identifier: Apache-2.0
#include "plan_report.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>

namespace planner {
namespace {

namespace kv = pagedkv;

constexpr std::array<char const*, 7> compared_formats = {"f16",
                                                         "fp8_e4m3/per_token_head",
                                                         "fp8_e4m3/per_tensor",
                                                         "int8/per_token_head",
                                                         "int8/per_tensor",
                                                         "int8_asym/per_token_head",
                                                         "int4/per_token_head"};

FormatRow size_format(kv::CapacityInput input, kv::LayerFormat format,
                      std::vector<std::int32_t> const& lengths) {
  input.geometry.format = format;
  input.max_model_len = kv::auto_max_model_len;
  auto const plan = kv::try_capacity_plan(input).plan;
  FormatRow row{format,
                false,
                plan.bytes_per_token,
                plan.num_blocks,
                plan.total_tokens,
                plan.rank.cache_bytes,
                {}};
  for (auto const length : lengths) {
    auto const blocks = kv::blocks_for(length, input.geometry.block_tokens);
    row.concurrency.push_back(static_cast<double>(plan.num_blocks) / blocks);
  }
  return row;
}

std::vector<FormatRow> size_formats(kv::CapacityInput const& input,
                                    std::vector<std::int32_t> const& lengths) {
  std::vector<FormatRow> rows;
  auto const chosen = input.geometry.format;
  bool found = false;
  for (auto const* text : compared_formats) {
    rows.push_back(size_format(input, *kv::parse_kv_format(text), lengths));
    rows.back().chosen = rows.back().format == chosen;
    found = found || rows.back().chosen;
  }
  if (!found) {
    rows.insert(rows.begin(), size_format(input, chosen, lengths));
    rows.front().chosen = true;
  }
  return rows;
}

/// Powers of four up to what the model knows, that itself, and what was asked for.
std::vector<std::int32_t> usual_lengths(kv::CapacityInput const& input) {
  auto const most = input.model_max_len > 0 ? input.model_max_len : 131'072;
  std::vector<std::int32_t> lengths;
  for (std::int32_t length = 2048; length < most && length <= 131'072; length *= 4) {
    lengths.push_back(length);
  }
  lengths.push_back(most);
  if (input.max_model_len != kv::auto_max_model_len) lengths.push_back(input.max_model_len);
  return lengths;
}

/// 1234567 -> "1,234,567".
std::string grouped(std::int64_t value) {
  auto text = std::to_string(value);
  auto const first = text.front() == '-' ? 1U : 0U;
  for (auto at = text.size(); at > first + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

/// Nothing more than it needs: "327,680", "2,052.5".
std::string grouped(kv::BytesPerToken bytes) {
  if (bytes.tokens == 1) return grouped(bytes.bytes);
  auto const fraction = fmt::format("{:.2f}", bytes.value());
  auto const dot = fraction.find('.');
  return grouped(std::stoll(fraction.substr(0, dot))) + fraction.substr(dot);
}

/// In the unit that leaves at least one digit before the point.
std::string binary(std::int64_t bytes) {
  auto value = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  for (auto const* unit : {"KiB", "MiB"}) {
    value /= 1024;
    if (value < 1024) return fmt::format("{:.2f} {}", value, unit);
  }
  return fmt::format("{:.2f} GiB", value / 1024);
}

std::string format_name(kv::LayerFormat format, bool has_v) {
  if (!has_v || format.k == format.v) return kv::to_string(format.k);
  return "K " + kv::to_string(format.k) + ", V " + kv::to_string(format.v);
}

class Text {
 public:
  template <class... Values>
  void line(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    text_ += '\n';
  }
  void blank() { text_ += '\n'; }

  /// `- weights   35,276,853,248   32.85 GiB   of what`
  void term(char sign, char const* name, std::int64_t bytes, std::string const& what = {}) {
    text_ += fmt::format("  {} {:<17}{:>19}{:>13}", sign, name, grouped(bytes), binary(bytes));
    if (!what.empty()) text_ += "   " + what;
    text_ += '\n';
  }

  void fact(char const* name, std::string const& what) { line("  {:<21}{}", name, what); }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string title(Report const& report) {
  auto const& options = report.options;
  auto const& geometry = report.input.geometry;
  auto const model = options.model.empty() ? std::string("model") : options.model;
  auto const device = options.device.empty() ? std::string("device") : options.device;
  auto const ranks = report.input.parallel.tensor * report.input.parallel.pipeline;
  auto text = fmt::format("{} on {} x {}, K and V as {}", model, ranks, device,
                          format_name(geometry.format, geometry.head_dim_v != 0));
  if (!options.layer_formats.empty()) {
    text += fmt::format(" ({})", fmt::join(options.layer_formats, ", "));
  }
  return text + fmt::format(", blocks of {} tokens", geometry.block_tokens);
}

std::string layers_and_heads(Report const& report) {
  auto const& plan = report.outcome.plan;
  auto const& geometry = report.input.geometry;
  auto text = fmt::format("layers {} to {}, {} of {} KV heads", plan.rank.layers.first,
                          plan.rank.layers.end() - 1, plan.rank.kv_heads, geometry.num_kv_heads);
  if (plan.kv_head_copies > 1) {
    text += fmt::format(", {} copies of each head", plan.kv_head_copies);
  }
  return text;
}

std::string weights_note(Report const& report) {
  auto const& input = report.input;
  if (input.weight_scope == kv::WeightScope::per_rank) return "as given for a device";
  auto text = fmt::format("a share of {}", grouped(input.weight_bytes));
  if (input.weight_bytes == 0) return "none counted: --params or --weights-bytes";
  if (!report.options.weight_bytes) {
    auto const* const model = programs::find_model(report.options.model);
    auto const bits =
        report.options.weight_bits.value_or(model != nullptr ? model->weight_bits : 16);
    text += fmt::format(" ({} bits a weight)", bits);
  }
  return text;
}

void write_memory(Text& text, Report const& report) {
  auto const& input = report.input;
  auto const& plan = report.outcome.plan;
  auto const& rank = plan.rank;
  text.line("Memory of the fullest device ({}), bytes", layers_and_heads(report));
  if (input.device_bytes > 0) text.term(' ', "device", input.device_bytes);
  if (plan.sized_by == kv::SizedBy::utilization) {
    text.term(' ', "usable", rank.usable_bytes, fmt::format("x {}", input.utilization));
    text.term('-', "weights", rank.weight_bytes, weights_note(report));
    text.term('-', "activation peak", rank.activation_bytes,
              report.options.activation_bytes ? "" : "not given: measure it (--activation-bytes)");
    text.term('-', "other use", rank.other_bytes);
    text.term('-', "static scales", rank.static_scale_bytes);
    text.term('=', "for the blocks", rank.available_bytes);
  } else {
    text.term(' ', "for the blocks", rank.available_bytes,
              plan.sized_by == kv::SizedBy::cache_bytes ? "as given (--cache-bytes)"
                                                        : "from the number of blocks (--blocks)");
  }
  text.term(' ', "the blocks", rank.cache_bytes,
            fmt::format("{} x {}", grouped(plan.num_blocks), grouped(rank.bytes_per_block)));
  text.term(' ', "left over", rank.unused_bytes, "less than one more block needs");
  if (rank.beyond_device_bytes > 0) {
    text.term('!', "too much", rank.beyond_device_bytes,
              "blocks, weights and the rest need this much more than the device has");
  }
}

std::string length_note(Report const& report) {
  auto const& input = report.input;
  auto const length = report.outcome.plan.max_model_len;
  if (input.max_model_len != kv::auto_max_model_len) {
    if (input.model_max_len > 0 && length > input.model_max_len) {
      return fmt::format("as given, but the model knows {} positions",
                         grouped(input.model_max_len));
    }
    return "as given";
  }
  return length == input.model_max_len ? "all that the model knows" : "the longest that fits";
}

void write_cache(Text& text, Report const& report) {
  auto const& plan = report.outcome.plan;
  text.line("Cache");
  text.fact("blocks", fmt::format("{} of {} tokens: {} tokens in all", grouped(plan.num_blocks),
                                  plan.block_tokens, grouped(plan.total_tokens)));
  text.fact("bytes per token",
            fmt::format("{} for the whole model, {} on the device above",
                        grouped(plan.bytes_per_token), grouped(plan.rank.bytes_per_token)));
  text.fact("whole model",
            fmt::format("{} bytes ({}); on all devices together {}", grouped(plan.cache_bytes),
                        binary(plan.cache_bytes), binary(plan.cache_bytes_all_ranks)));
  auto const longest = plan.blocks_per_sequence * plan.bytes_per_block;
  text.fact("longest sequence", fmt::format("{} tokens ({}): {} blocks, {} for the whole model",
                                            grouped(plan.max_model_len), length_note(report),
                                            grouped(plan.blocks_per_sequence), binary(longest)));
  text.fact(
      "at once",
      fmt::format("{} sequence{} of that length ({:.2f}), more when shorter or sharing a prefix",
                  grouped(plan.sequences_at_max_len), plan.sequences_at_max_len == 1 ? "" : "s",
                  plan.concurrency));
  text.fact(
      "waste",
      fmt::format("the last block of a sequence: {} tokens on average ({}), {} at the "
                  "longest",
                  plan.tail_tokens_mean, binary(static_cast<std::int64_t>(plan.tail_bytes_mean)),
                  plan.tail_tokens_at_max_len));
}

void write_table(Text& text, Report const& report) {
  auto const has_v = report.input.geometry.head_dim_v != 0;
  auto const name = [&](FormatRow const& row) { return format_name(row.format, has_v); };
  std::size_t width = 6;
  for (auto const& row : report.rows) width = std::max(width, name(row).size());
  auto header = fmt::format("    {:<{}} {:>12} {:>12} {:>15}", "format", width, "bytes/token",
                            "blocks", "tokens");
  for (auto const length : report.context_lengths) {
    header += fmt::format(" {:>11}", grouped(length));
  }
  text.line(
      "Formats by context length: how many sequences of that many tokens fit at once (-: none)");
  text.line("{}", header);
  for (auto const& row : report.rows) {
    auto line = fmt::format("  {} {:<{}} {:>12} {:>12} {:>15}", row.chosen ? '*' : ' ', name(row),
                            width, grouped(row.bytes_per_token), grouped(row.num_blocks),
                            grouped(row.total_tokens));
    for (auto const concurrency : row.concurrency) {
      line +=
          concurrency < 1 ? fmt::format(" {:>11}", "-") : fmt::format(" {:>11.1f}", concurrency);
    }
    text.line("{}", line);
  }
  text.line("  * as asked for");
}

void write_advice(Text& text, Report const& report) {
  auto const& capability = report.input.capability;
  if (capability) {
    auto const advice = kv::recommend_format(*capability);
    text.line("Recommended for {} (compute capability {}.{}): {}", report.options.device,
              capability->major, capability->minor, kv::to_string(advice.format));
    text.line("  {}", advice.reason);
  }
  auto const* const model = programs::find_model(report.options.model);
  if (model != nullptr && *model->note != '\0') text.line("About {}: {}", model->name, model->note);
}

}  // namespace

Report make_report(programs::PlanOptions const& options, kv::CapacityInput const& input,
                   std::vector<std::int32_t> context_lengths) {
  Report report{options, input, kv::try_capacity_plan(input), std::move(context_lengths), {}};
  if (report.outcome.problem == kv::PlanProblem::invalid_input) return report;
  auto& lengths = report.context_lengths;
  if (lengths.empty()) lengths = usual_lengths(input);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  report.rows = size_formats(input, lengths);
  return report;
}

std::string to_text(Report const& report) {
  Text text;
  text.line("{}", title(report));
  text.blank();
  if (report.outcome) {
    write_memory(text, report);
    text.blank();
    write_cache(text, report);
    text.blank();
  }
  auto const has_blocks = [](FormatRow const& row) { return row.num_blocks > 0; };
  if (std::any_of(report.rows.begin(), report.rows.end(), has_blocks)) {
    write_table(text, report);
    text.blank();
  }
  write_advice(text, report);
  return text.take();
}

}  // namespace planner

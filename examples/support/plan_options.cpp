// SPDX-License-Identifier: Apache-2.0
#include "support/plan_options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "support/cli_errors.hpp"
#include "support/format_problem.hpp"
#include "support/nearest.hpp"

namespace programs {
namespace {

namespace kv = pagedkv;

[[noreturn]] void fail(std::string const& message) { throw CLI::ValidationError(message); }

template <class Presets>
std::vector<std::string> names_of(Presets const& presets) {
  std::vector<std::string> names;
  names.reserve(presets.size());
  for (auto const& preset : presets) names.emplace_back(preset.name);
  return names;
}

/// The empty text passes: a preset is never required.
CLI::Validator one_of(char const* what, std::vector<std::string> const& names) {
  auto const check = [what, names](std::string const& text) -> std::string {
    if (text.empty() || std::find(names.begin(), names.end(), text) != names.end()) return {};
    return fmt::format("unknown {} '{}', did you mean {}? There are: {}", what, text,
                       nearest_name(text, names), fmt::join(names, ", "));
  };
  return CLI::Validator(check, "NAME");
}

CLI::Validator kv_format_name() { return CLI::Validator(&format_problem, "FORMAT"); }

std::string granularity_problem(std::string const& text) {
  if (kv::parse_granularity(text)) return {};
  std::vector<std::string> names;
  names.reserve(kv::all_granularities.size());
  for (auto const granularity : kv::all_granularities)
    names.emplace_back(kv::to_string(granularity));
  return fmt::format("unknown granularity '{}', did you mean {}? There are: {}", text,
                     nearest_name(text, names), fmt::join(names, ", "));
}

kv::KvFormat parse_format(std::string const& text) {
  auto const format = kv::parse_kv_format(text);
  if (!format) fail(format_problem(text));
  return *format;
}

std::optional<std::int32_t> parse_int(std::string_view text) {
  std::int32_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "0=bf16", "0-3=fp8_e4m3/per_head".
kv::FormatOverride parse_layer_format(std::string const& text) {
  auto const equals = text.find('=');
  auto const layers = std::string_view(text).substr(0, equals);
  auto const dash = layers.find('-');
  auto const first = parse_int(layers.substr(0, dash));
  auto const last = dash == std::string_view::npos ? first : parse_int(layers.substr(dash + 1));
  if (equals == std::string::npos || !first || !last || *last < *first || *last >= kv::max_layers) {
    fail(fmt::format("'{}' is not LAYER=FORMAT or FIRST-LAST=FORMAT, e.g. 0=bf16", text));
  }
  return {{*first, *last - *first + 1}, parse_format(text.substr(equals + 1))};
}

kv::LayerFormat layer_format(PlanOptions const& options) {
  auto k = parse_format(options.kv_format);
  if (!options.granularity.empty()) {
    k.granularity = *kv::parse_granularity(options.granularity);
    auto const with_slash = options.kv_format.find('/') != std::string::npos;
    if (with_slash && k != parse_format(options.kv_format)) {
      fail(fmt::format("--granularity {} contradicts --kv-format {}", options.granularity,
                       options.kv_format));
    }
    if (auto const problem = kv::kv_format_error(k); !problem.empty()) {
      fail("--granularity: " + problem);
    }
  }
  return options.v_format.empty() ? kv::LayerFormat(k)
                                  : kv::LayerFormat(k, parse_format(options.v_format));
}

kv::Geometry geometry_of(PlanOptions const& options, ModelPreset const* model,
                         std::int32_t default_block_tokens) {
  bool const complete = options.num_layers && options.num_kv_heads && options.head_dim;
  if (model == nullptr && !complete) {
    fail(fmt::format("give --model ({}), or --layers, --kv-heads and --head-dim",
                     fmt::join(names_of(models), ", ")));
  }
  auto const preset = model != nullptr ? *model : ModelPreset{};
  kv::Geometry geometry;
  geometry.num_layers = options.num_layers.value_or(preset.num_layers);
  geometry.num_kv_heads = options.num_kv_heads.value_or(preset.num_kv_heads);
  geometry.head_dim_k = options.head_dim.value_or(preset.head_dim_k);
  geometry.head_dim_v = options.v_head_dim.value_or(options.head_dim.value_or(preset.head_dim_v));
  geometry.block_tokens = options.block_tokens.value_or(default_block_tokens);
  geometry.format = layer_format(options);
  for (auto const& text : options.layer_formats) {
    geometry.overrides.push_back(parse_layer_format(text));
  }
  return geometry;
}

/// Rounded up to whole bytes, as for all weights together.
std::int64_t weight_bytes_of(PlanOptions const& options, ModelPreset const* model) {
  if (options.weight_bytes) return *options.weight_bytes;
  auto const params = options.num_params.value_or(model != nullptr ? model->num_params : 0);
  auto const bits = options.weight_bits.value_or(model != nullptr ? model->weight_bits : 16);
  return params / 8 * bits + (params % 8 * bits + 7) / 8;
}

struct Unit {
  std::string_view name;
  double factor;
};

/// A whole number exactly, else a number and a unit, to the nearest whole number.
std::optional<std::int64_t> parse_with_unit(std::string const& text, std::span<Unit const> units,
                                            double most) {
  std::int64_t whole = 0;
  auto const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc{} && stop == end) {
    bool const counts = whole >= 0 && static_cast<double>(whole) <= most;
    return counts ? std::optional(whole) : std::nullopt;
  }
  char* unit = nullptr;
  auto const value = std::strtod(text.c_str(), &unit);
  if (unit == text.c_str()) return std::nullopt;
  while (*unit == ' ') ++unit;
  for (auto const& [name, factor] : units) {
    if (name != unit) continue;
    if (auto const number = value * factor; number >= 0 && number <= most) {
      return std::llround(number);
    }
  }
  return std::nullopt;
}

/// "auto" or at least one token; "32k" is taken for a slip, since it may mean 32,000 or 32,768.
std::int32_t parse_length(std::string const& text) {
  if (text == "auto") return kv::auto_max_model_len;
  if (auto const length = parse_int(text); length && *length > 0) return *length;
  std::int64_t thousands = 0;
  auto const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, thousands);
  bool const slip = error == std::errc{} && stop + 1 == end && (*stop == 'k' || *stop == 'K') &&
                    thousands > 0 && thousands < 1 << 20;
  fail(fmt::format("'{}' is neither a number of tokens nor auto; did you mean {}?", text,
                   slip ? std::to_string(thousands * 1024) : "auto"));
}

/// What the parser throws, as a validator's answer: so that CLI11 puts the option's name before it.
template <class Parse>
CLI::Validator parsed_by(Parse const& parse) {
  auto const check = [parse](std::string const& text) -> std::string {
    try {
      static_cast<void>(parse(text));
    } catch (CLI::ValidationError const& error) {
      return error.what();
    }
    return {};
  };
  return CLI::Validator(check, "");
}

void add_bytes(CLI::App& app, std::string const& name, std::optional<std::int64_t>& bytes,
               std::string const& help) {
  app.add_option_function<std::string>(
         name, [&bytes](std::string const& text) { bytes = parse_bytes(text); }, help)
      ->check(parsed_by(&parse_bytes))
      ->type_name("BYTES");
}

void add_model_options(CLI::App& app, PlanOptions& options) {
  app.add_option("--model", options.model,
                 fmt::format("one of: {}", fmt::join(names_of(models), ", ")))
      ->check(one_of("model", names_of(models)));
  auto const count = [&app](char const* name, auto& value, char const* help) {
    app.add_option(name, value, help)->check(at_least(1))->type_name("N");
  };
  count("--layers", options.num_layers, "layers of a model without a preset, or changed");
  count("--kv-heads", options.num_kv_heads, "KV heads of the whole model");
  count("--head-dim", options.head_dim, "elements of a K vector, and of a V vector");
  app.add_option("--v-head-dim", options.v_head_dim,
                 "elements of a V vector where they differ; 0: no V (latent attention)")
      ->check(at_least(0))
      ->type_name("N");
  app.add_option_function<std::string>(
         "--params",
         [&options](std::string const& text) { options.num_params = parse_count(text); },
         "number of weights: 8030261248, 8.03e9, 8.03B")
      ->check(parsed_by(&parse_count))
      ->type_name("N");
}

void add_device_options(CLI::App& app, PlanOptions& options) {
  app.add_option("--device", options.device,
                 fmt::format("one of: {}", fmt::join(names_of(devices), ", ")))
      ->check(one_of("device", names_of(devices)));
  add_bytes(app, "--device-bytes", options.device_bytes,
            "memory of a device without a preset, or changed");
  app.add_option("--tensor-parallel", options.tensor_parallel, "devices that share each layer")
      ->check(at_least(1))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--pipeline-parallel", options.pipeline_parallel, "stages of consecutive layers")
      ->check(at_least(1))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--utilization", options.utilization,
                 "share of each device that may be used, above 0 and at most 1")
      ->check([](std::string const& text) {
        auto const value = std::strtod(text.c_str(), nullptr);
        if (value > 0 && value <= 1) return std::string();
        auto const nearest = value > 1 && value <= 100 ? value / 100 : value > 100 ? 1.0 : 0.92;
        return fmt::format("{} is not above 0 and at most 1; did you mean {}?", text, nearest);
      })
      ->capture_default_str()
      ->type_name("SHARE");
}

void add_format_options(CLI::App& app, PlanOptions& options) {
  app.add_option("--kv-format", options.kv_format,
                 "how K and V are stored: f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int8_asym or "
                 "int4, then /granularity where it isn't the element's first")
      ->check(kv_format_name())
      ->capture_default_str();
  app.add_option("--v-format", options.v_format, "the same for V alone, where it differs")
      ->check(kv_format_name());
  app.add_option("--granularity", options.granularity,
                 "how far a scale reaches: per_tensor, per_head, per_token_head, per_block_head")
      ->check(CLI::Validator(&granularity_problem, "GRANULARITY"));
  app.add_option("--layer-format", options.layer_formats,
                 "another format for some layers: 0=bf16, 0-3=f16; may be repeated")
      ->type_name("LAYERS=FORMAT")
      ->check(parsed_by(&parse_layer_format));
}

void add_memory_options(CLI::App& app, PlanOptions& options) {
  app.add_option("--weight-bits", options.weight_bits,
                 "bits of a weight; without it as published (16, deepseek-v3: 8)")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  add_bytes(app, "--weights-bytes", options.weight_bytes, "weights of the whole model");
  add_bytes(app, "--rank-weights-bytes", options.rank_weight_bytes,
            "weights as one device holds them, where that is measured");
  app.get_option("--rank-weights-bytes")->excludes("--weights-bytes");
  add_bytes(app, "--activation-bytes", options.activation_bytes,
            "peak of activations on a device; without it none is counted");
  add_bytes(app, "--other-bytes", options.other_bytes,
            "other use of a device: contexts, captured graphs, other processes");
}

void add_cache_options(CLI::App& app, PlanOptions& options) {
  app.add_option_function<std::string>(
         "--max-model-len",
         [&options](std::string const& text) { options.max_model_len = parse_length(text); },
         "longest sequence in tokens, or auto: the longest that fits and the model knows [auto]")
      ->check(parsed_by(&parse_length))
      ->type_name("N|auto");
  app.add_option("--block-tokens", options.block_tokens, "tokens of a block")
      ->check(at_least(1))
      ->type_name("N");
  app.add_option("--blocks", options.num_blocks,
                 "number of blocks, whatever the memory would allow")
      ->check(at_least(1))
      ->type_name("N");
  add_bytes(app, "--cache-bytes", options.cache_bytes,
            "bytes of the blocks on a device, whatever the rest takes");
}

}  // namespace

std::int64_t parse_bytes(std::string const& text) {
  static constexpr Unit units[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  if (auto const bytes = parse_with_unit(text, units, 0x1p60)) return *bytes;
  fail(fmt::format("'{}' is not a number of bytes; write e.g. 1610612736, 1.5GiB or 80GB", text));
}

std::int64_t parse_count(std::string const& text) {
  static constexpr Unit units[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  if (auto const count = parse_with_unit(text, units, 0x1p55)) return *count;
  fail(
      fmt::format("'{}' is not a number of weights; write e.g. 8030261248, 8.03e9 or 8.03B", text));
}

ModelPreset const* find_model(std::string_view name) {
  auto const* const found = std::find_if(models.begin(), models.end(),
                                         [=](auto const& preset) { return preset.name == name; });
  return found != models.end() ? found : nullptr;
}

DevicePreset const* find_device(std::string_view name) {
  auto const* const found = std::find_if(devices.begin(), devices.end(),
                                         [=](auto const& preset) { return preset.name == name; });
  return found != devices.end() ? found : nullptr;
}

void add_plan_options(CLI::App& app, PlanOptions& options) {
  auto const before = app.option_defaults()->get_group();
  auto const in_group = [&](char const* name, auto const& add) {
    app.option_defaults()->group(name);
    add(app, options);
  };
  in_group("Model", add_model_options);
  in_group("Devices", add_device_options);
  in_group("Storage of K and V", add_format_options);
  in_group("Memory of a device (BYTES: 1536, 1.5GiB, 80GB)", add_memory_options);
  in_group("Cache", add_cache_options);
  app.option_defaults()->group(before);
}

kv::CapacityInput capacity_input(PlanOptions const& options, std::int32_t default_block_tokens) {
  auto const* const model = find_model(options.model);
  auto const* const device = find_device(options.device);
  bool const sized = options.num_blocks || options.cache_bytes;
  if (device == nullptr && !options.device_bytes && !sized) {
    fail(fmt::format("give --device ({}), or --device-bytes, --cache-bytes or --blocks",
                     fmt::join(names_of(devices), ", ")));
  }
  kv::CapacityInput input;
  input.geometry = geometry_of(options, model, default_block_tokens);
  input.parallel = {options.tensor_parallel, options.pipeline_parallel};
  input.device_bytes = options.device_bytes.value_or(device != nullptr ? device->memory_bytes : 0);
  input.utilization = options.utilization;
  input.weight_bytes = weight_bytes_of(options, model);
  if (options.rank_weight_bytes) {
    input.weight_scope = kv::WeightScope::per_rank;
    input.weight_bytes = *options.rank_weight_bytes;
  }
  input.activation_bytes = options.activation_bytes.value_or(0);
  input.other_bytes = options.other_bytes.value_or(0);
  input.cache_bytes = options.cache_bytes;
  input.num_blocks = options.num_blocks;
  input.max_model_len = options.max_model_len;
  input.model_max_len = model != nullptr ? model->max_len : 0;
  if (device != nullptr) input.capability = device->capability;
  return input;
}

}  // namespace programs

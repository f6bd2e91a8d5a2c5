// SPDX-License-Identifier: Apache-2.0
/// \file
/// JSON files of scales: ours and vLLM's.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <pagedkv/quant/scale_file.hpp>

#include "scale_json.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

using detail::fail;
using detail::Json;
using detail::layer_name;

namespace {

constexpr char const* format_name = "pagedkv.kv_cache_scales";
constexpr int format_version = 1;
constexpr std::uint64_t max_json_bytes = std::uint64_t{64} << 20;

std::string quoted(std::string const& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Nine digits tell any two floats apart, also when they are read as doubles first.
std::string number_list(std::vector<float> const& numbers) {
  std::string text;
  for (float const number : numbers) {
    text += (text.empty() ? "" : ", ") + fmt::format("{:.9g}", number);
  }
  return "[" + text + "]";
}

std::string to_json(ScaleSet const& set) {
  std::string layers;
  for (auto const& layer : set.layers) {
    layers +=
        (layers.empty() ? "" : ",\n") +
        fmt::format("    {{\"k\": {}, \"v\": {}}}", number_list(layer.k), number_list(layer.v));
  }
  return fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"model\": {},\n  \"made\": {},\n"
      "  \"element\": \"{}\",\n  \"granularity\": \"{}\",\n  \"layers\": [\n{}\n  ]\n}}\n",
      format_name, format_version, quoted(set.model), quoted(set.made),
      pagedkv::to_string(set.format.element), pagedkv::to_string(set.format.granularity), layers);
}

/// One tensor's numbers against themselves: there may be none.
std::string own_problem(ScaleSet const& set, std::vector<float> const& scales, std::size_t heads) {
  if (scales.empty()) return {};
  bool const per_tensor = set.format.granularity == Granularity::per_tensor;
  return detail::scales_problem(scales, per_tensor ? 1 : heads);
}

std::string set_problem(ScaleSet const& set) {
  if (!is_valid(set.format) || !detail::is_static(set.format.granularity)) {
    return "scales for " + pagedkv::to_string(set.format) +
           "; static ones are per_tensor or per_head";
  }
  std::size_t heads = 0;
  for (auto const& layer : set.layers) heads = std::max({heads, layer.k.size(), layer.v.size()});
  if (heads == 0) return "a set without any scale";
  for (std::size_t layer = 0; layer < set.layers.size(); ++layer) {
    auto problem = own_problem(set, set.layers[layer].k, heads);
    if (!problem.empty()) return layer_name(layer, "K") + " " + problem;
    problem = own_problem(set, set.layers[layer].v, heads);
    if (!problem.empty()) return layer_name(layer, "V") + " " + problem;
  }
  return {};
}

/// A JSON file that is being read.
struct Source {
  std::string const& path;
  Geometry const& geometry;
};

float number_at(Source const& source, Json const& value, std::string const& where) {
  if (!value.is_number()) {
    fail(source.path, where + " is " + value.type_name() + "; expected a number");
  }
  auto const scale = static_cast<float>(value.get<double>());
  auto const problem = scale_error(scale);
  if (!problem.empty()) fail(source.path, where + " " + problem);
  return scale;
}

std::string const& string_at(Source const& source, Json const& object, char const* name) {
  auto const* const text = detail::string_member(object, name);
  if (text == nullptr) {
    fail(source.path, std::string("'") + name + "' is missing; expected a string");
  }
  return *text;
}

KvFormat format_at(Source const& source, Json const& file) {
  auto const text =
      string_at(source, file, "element") + "/" + string_at(source, file, "granularity");
  auto const format = parse_kv_format(text);
  if (!format) fail(source.path, kv_format_error(text));
  if (!detail::is_static(format->granularity)) {
    fail(source.path, text + " has no static scales; expected per_tensor or per_head");
  }
  return *format;
}

std::vector<float> tensor_at(Source const& source, Json const& layer, std::size_t index,
                             char const* name, char tensor, ScaleReport& report) {
  auto const where = fmt::format("layers[{}].{}", index, name);
  auto const* const list = detail::member(layer, name);
  if (list == nullptr || !list->is_array()) {
    fail(source.path, where + " is missing; expected a list of numbers");
  }
  std::vector<float> scales;
  for (auto const& value : *list) {
    scales.push_back(number_at(source, value, fmt::format("{}[{}]", where, scales.size())));
  }
  if (!scales.empty()) {
    report.set.push_back({static_cast<std::int32_t>(index), tensor,
                          static_cast<std::int32_t>(scales.size()), source.path, where});
  }
  return scales;
}

void refuse_unknown_fields(Source const& source, Json const& object, std::string const& where,
                           std::vector<std::string_view> const& known) {
  for (auto const& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(source.path, "unknown field '" + key + "' in " + where + "; expected only " +
                          fmt::format("{}", fmt::join(known, ", ")));
  }
}

void read_layers(Source const& source, Json const& file, LoadedScales& loaded) {
  auto const* const layers = detail::member(file, "layers");
  if (layers == nullptr || !layers->is_array()) {
    fail(source.path, "'layers' is missing; expected a list of {\"k\": [...], \"v\": [...]}");
  }
  for (auto const& layer : *layers) {
    auto const index = loaded.scales.layers.size();
    if (!layer.is_object()) {
      fail(source.path, fmt::format("layers[{}] isn't an object; expected k and v", index));
    }
    refuse_unknown_fields(source, layer, fmt::format("layers[{}]", index), {"k", "v"});
    LayerScales scales;
    scales.k = tensor_at(source, layer, index, "k", 'K', loaded.report);
    scales.v = tensor_at(source, layer, index, "v", 'V', loaded.report);
    loaded.scales.layers.push_back(std::move(scales));
  }
}

LoadedScales read_own(Source const& source, Json const& file) {
  auto const& name = string_at(source, file, "format");
  if (name != format_name) {
    fail(source.path, "the format is '" + name + "'; expected '" + format_name + "'");
  }
  auto const* const version = detail::member(file, "version");
  if (version == nullptr || *version != format_version) {
    // Lists and objects by their kind: they may be nested deeper than the stack is.
    auto const text = version == nullptr         ? "missing"
                      : version->is_structured() ? std::string(version->type_name())
                                                 : version->dump();
    fail(source.path, fmt::format("the version is {}; expected {}", text, format_version));
  }
  refuse_unknown_fields(source, file, "the file",
                        {"format", "version", "model", "made", "element", "granularity", "layers"});
  LoadedScales loaded;
  loaded.scales.format = format_at(source, file);
  loaded.scales.model = string_at(source, file, "model");
  loaded.scales.made = string_at(source, file, "made");
  read_layers(source, file, loaded);
  return loaded;
}

/// A member that isn't called "0" to "<count - 1>". Requires: there is one.
std::string unknown_member(Json const& object, std::size_t count) {
  for (auto const& [key, value] : object.items()) {
    bool known = false;
    for (std::size_t i = 0; i < count && !known; ++i) known = key == std::to_string(i);
    if (!known) return key;
  }
  return {};
}

/// Members "0", "1", ... of an object, exactly `count` of them; 0: as many as there are.
std::vector<Json const*> numbered(Source const& source, Json const& object,
                                  std::string const& where, std::size_t count, char const* what) {
  if (!object.is_object() || object.empty()) {
    fail(source.path, where + " isn't an object; expected a member for each " + what);
  }
  if (count == 0) count = object.size();
  auto const expected = fmt::format("; expected 0 to {}", count - 1);
  std::vector<Json const*> members;
  for (std::size_t i = 0; i < count; ++i) {
    auto const* const value = detail::member(object, std::to_string(i).c_str());
    if (value == nullptr) {
      fail(source.path, fmt::format("{} has no {} {}{}", where, what, i, expected));
    }
    members.push_back(value);
  }
  if (object.size() > count) {
    fail(source.path, fmt::format("{} has an unknown {} '{}'{}", where, what,
                                  unknown_member(object, count), expected));
  }
  return members;
}

/// One number for each head from one for each rank.
std::vector<float> by_head(Source const& source, std::vector<float> const& of_rank,
                           std::size_t layer) {
  auto const ranks = static_cast<std::int32_t>(of_rank.size());
  auto const heads = source.geometry.num_kv_heads;
  auto const each = kv_heads_per_rank(heads, ranks);
  auto const copies = kv_head_copies(heads, ranks);
  std::vector<float> scales(static_cast<std::size_t>(heads));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    for (std::int32_t head = 0; head < each; ++head) {
      auto& scale = scales[static_cast<std::size_t>(rank / copies * each + head)];
      float const value = of_rank[static_cast<std::size_t>(rank)];
      if (scale != 0.0F && scale != value) {
        fail(source.path, fmt::format("layer {}: rank {} holds a copy of a head with another scale "
                                      "({}) than the rank before ({}); expected the same",
                                      layer, rank, value, scale));
      }
      scale = value;
    }
  }
  return scales;
}

/// scaling_factor as [rank][layer].
std::vector<std::vector<float>> rank_scales(Source const& source, Json const& factors) {
  std::vector<std::vector<float>> scales;
  auto const layers = static_cast<std::size_t>(source.geometry.num_layers);
  for (auto const* const rank : numbered(source, factors, "kv_cache.scaling_factor", 0, "rank")) {
    auto const where = fmt::format("kv_cache.scaling_factor[{}]", scales.size());
    std::vector<float> of_rank;
    for (auto const* const value : numbered(source, *rank, where, layers, "layer")) {
      of_rank.push_back(number_at(source, *value, fmt::format("{}[{}]", where, of_rank.size())));
    }
    scales.push_back(std::move(of_rank));
  }
  auto const ranks = static_cast<std::int32_t>(scales.size());
  if (!can_shard(source.geometry.num_kv_heads, ranks)) {
    fail(source.path, fmt::format("has scales of {} ranks, which neither divide nor are a multiple "
                                  "of the model's {} KV heads",
                                  ranks, source.geometry.num_kv_heads));
  }
  return scales;
}

void set_vllm_layer(Source const& source, std::size_t layer, std::vector<float> const& of_rank,
                    LoadedScales& loaded) {
  bool const one = of_rank.size() == 1;
  LayerScales scales;
  scales.k = one ? of_rank : by_head(source, of_rank, layer);
  auto const name = fmt::format("kv_cache.scaling_factor[{}][{}]", one ? "0" : "*", layer);
  ScaleOrigin origin{static_cast<std::int32_t>(layer), 'K',
                     static_cast<std::int32_t>(scales.k.size()), source.path, name};
  loaded.report.set.push_back(origin);
  if (source.geometry.head_dim_v > 0) {
    scales.v = scales.k;
    origin.tensor = 'V';
    loaded.report.set.push_back(origin);
  }
  loaded.scales.layers.push_back(std::move(scales));
}

/// {"model_type", "kv_cache": {"dtype", "scaling_factor": {rank: {layer: number}}}}
LoadedScales read_vllm(Source const& source, Json const& file) {
  auto const* const cache = detail::member(file, "kv_cache");
  if (!cache->is_object()) fail(source.path, "'kv_cache' isn't an object");
  refuse_unknown_fields(source, *cache, "kv_cache", {"dtype", "scaling_factor"});
  auto const* const dtype = detail::string_member(*cache, "dtype");
  if (dtype == nullptr || *dtype != "float8_e4m3fn") {
    fail(source.path, "kv_cache.dtype is " + (dtype == nullptr ? "missing" : "'" + *dtype + "'") +
                          "; expected 'float8_e4m3fn'");
  }
  auto const* const factors = detail::member(*cache, "scaling_factor");
  if (factors == nullptr) fail(source.path, "kv_cache.scaling_factor is missing");

  LoadedScales loaded;
  auto const scales = rank_scales(source, *factors);
  bool const one = scales.size() == 1;
  loaded.scales.format = {Element::fp8_e4m3, one ? Granularity::per_tensor : Granularity::per_head};
  if (auto const* const model = detail::string_member(file, "model_type")) {
    loaded.scales.model = *model;
  }
  loaded.scales.made = "read from vLLM's JSON";
  for (std::size_t layer = 0; layer < scales.front().size(); ++layer) {
    std::vector<float> of_rank;
    for (auto const& rank : scales) of_rank.push_back(rank[layer]);
    set_vllm_layer(source, layer, of_rank, loaded);
  }
  loaded.report.notes.push_back(source.path + ": one scale of each layer" +
                                (one ? "" : " and rank") + " feeds both K and V");
  return loaded;
}

/// Exporters that clamp, and readers that give up, leave ones: worth a look.
void note_ones(std::string const& file, LoadedScales& loaded) {
  int ones = 0, all = 0;
  for (auto const& layer : loaded.scales.layers) {
    for (auto const* const scales : {&layer.k, &layer.v}) {
      for (float const scale : *scales) ones += scale == 1.0F;
      all += static_cast<int>(scales->size());
    }
  }
  if (ones == 0) return;
  loaded.report.notes.push_back(
      fmt::format("{}: {} of {} scales are exactly 1 in the file", file, ones, all));
}

/// Whether any tensor of the model is stored with static scales.
bool any_static(Geometry const& geometry) {
  for (std::int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    auto const format = geometry.format_of(layer);
    if (detail::is_static(format.k.granularity)) return true;
    if (geometry.head_dim_v > 0 && detail::is_static(format.v.granularity)) return true;
  }
  return false;
}

}  // namespace

void detail::check_loaded(std::string const& file, LoadedScales& loaded, Geometry const& geometry) {
  if (!any_static(geometry)) {
    fail(file, "has scales for " + pagedkv::to_string(loaded.scales.format) +
                   ", but the cache's format is " + pagedkv::to_string(geometry.format.k) +
                   ", which has no static scales: nothing would use them");
  }
  auto const problem = scale_set_error(loaded.scales, geometry);
  if (!problem.empty()) fail(file, problem);
  note_ones(file, loaded);
}

std::string to_string(ScaleReport const& report) {
  std::string text;
  for (auto const& origin : report.set) {
    text += fmt::format("layer {} {}: {} scale{} from {} of {}\n", origin.layer, origin.tensor,
                        origin.count, origin.count == 1 ? "" : "s", origin.name, origin.file);
  }
  for (auto const& note : report.notes) text += "note: " + note + "\n";
  return text;
}

void write_scale_file(std::string const& path, ScaleSet const& set) {
  auto const problem = set_problem(set);
  if (!problem.empty()) fail(path, "not written: " + problem);
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << to_json(set);
  stream.close();
  if (!stream) fail(path, "can't be written");
}

LoadedScales read_scale_file(std::string const& path, Geometry const& geometry) {
  auto const wrong = geometry_error(geometry);
  if (!wrong.empty()) fail(path, "can't be checked against the geometry: " + wrong);
  std::ifstream stream;
  auto const size = detail::open_file(path, stream);
  if (size > max_json_bytes) fail(path, "has more than 64 MiB; that is no file of scales");
  auto const json = detail::parse_json(path, detail::read_bytes(path, stream, 0, size));
  Source const source{path, geometry};
  bool const vllm = detail::member(json, "kv_cache") != nullptr;
  auto loaded = vllm ? read_vllm(source, json) : read_own(source, json);
  detail::check_loaded(path, loaded, geometry);
  return loaded;
}

LoadedScales load_scales(std::span<std::string const> paths, Geometry const& geometry) {
  if (paths.empty()) raise("load_scales: no file was given; expected at least one");
  if (paths.size() == 1 && !is_safetensors(paths.front())) {
    return read_scale_file(paths.front(), geometry);
  }
  for (auto const& path : paths) {
    if (is_safetensors(path)) continue;
    fail(path, fmt::format("isn't a safetensors file, but one of {} files; expected the shards of "
                           "one checkpoint, or a single JSON file",
                           paths.size()));
  }
  return read_checkpoint_scales(paths, geometry);
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Scales of K and V in safetensors checkpoints: 8 bytes of header length (little endian), a JSON
/// header {name: {dtype, shape, data_offsets}}, then the data.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <pagedkv/quant/half.hpp>
#include <pagedkv/quant/scale_file.hpp>

#include "scale_json.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

using detail::fail;
using detail::Json;

namespace {

constexpr std::uint64_t max_header_bytes = 100'000'000;  // what the format's own readers allow

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

/// What a tensor of a checkpoint is to us.
enum class Kind { other, k, v, both, query, zero_point, unknown };

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t dot = 0; dot != std::string_view::npos;) {
    dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
  }
  return parts;
}

template <std::size_t n>
bool is_one_of(std::string_view text, std::array<std::string_view, n> const& texts) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}
bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Scales of weights and activations, and norms whose weights are called scale.
bool is_not_of_the_cache(std::string_view parent, std::string_view last) {
  constexpr std::array<std::string_view, 3> names = {"scales", "pre_quant_scale", "smooth_scale"};
  return last.starts_with("weight") || last.starts_with("input_") ||
         last.starts_with("activation_") || is_one_of(last, names) || contains(parent, "norm");
}

/// A scale of K or V by its looks: must be one that we know.
bool is_about_k_or_v(std::string_view parent, std::string_view last) {
  constexpr std::array<std::string_view, 6> parents = {"k_proj",  "v_proj",   "k_cache",
                                                       "v_cache", "kv_cache", "kv_proj"};
  constexpr std::array<std::string_view, 5> fused = {"qkv_proj", "qkqkv_proj", "k", "v", "kv"};
  bool const named = last.starts_with("k_") || last.starts_with("v_") || last.starts_with("kv_") ||
                     last.starts_with("key_") || last.starts_with("value_");
  return named || is_one_of(parent, parents) || is_one_of(parent, fused);
}

Kind kind_of_known(std::string_view parent, std::string_view last) {
  constexpr std::array<std::string_view, 3> query = {"q_scale", "prob_scale", "prob_output_scale"};
  if (is_one_of(last, query)) return Kind::query;
  if ((parent == "q_proj" && last == "output_scale") || (parent == "q" && last == "scale")) {
    return Kind::query;
  }
  if (last == "k_scale" && parent != "v_proj") return Kind::k;
  if (last == "v_scale" && parent != "k_proj") return Kind::v;
  if (last == "kv_scale") return Kind::both;
  if (last == "output_scale" && parent == "k_proj") return Kind::k;
  if (last == "output_scale" && parent == "v_proj") return Kind::v;
  if (last == "scale" && parent == "k_cache") return Kind::k;
  if (last == "scale" && parent == "v_cache") return Kind::v;
  return Kind::unknown;
}

Kind kind_of(std::vector<std::string_view> const& parts) {
  auto const last = parts.back();
  auto const parent = parts.size() > 1 ? parts[parts.size() - 2] : std::string_view();
  constexpr std::array<std::string_view, 3> zeros = {"k_zero_point", "v_zero_point",
                                                     "kv_zero_point"};
  if (is_one_of(last, zeros)) return Kind::zero_point;
  bool const scale = contains(last, "scale") || contains(last, "scaling");
  if (!scale || is_not_of_the_cache(parent, last)) return Kind::other;
  auto const kind = kind_of_known(parent, last);
  if (kind != Kind::unknown) return kind;
  return is_about_k_or_v(parent, last) ? Kind::unknown : Kind::other;
}

/// Where a tensor stands.
struct Place {
  bool is_of_decoder = true;
  std::optional<std::int32_t> layer{};
  std::string module{};  // what stands before the layer's number
};

/// What may stand before the list of a decoder's layers. All else is another module: an encoder, a
/// vision tower, a head that predicts further tokens.
bool is_decoder(std::vector<std::string_view> const& path) {
  constexpr std::array<std::string_view, 10> parts = {
      "model",      "language_model", "transformer", "backbone",   "decoder",
      "text_model", "gpt_neox",       "llm",         "base_model", "module"};
  auto const known = [&](std::string_view part) { return is_one_of(part, parts); };
  // ChatGLM calls its decoder so.
  if (path.size() == 2 && path[0] == "transformer" && path[1] == "encoder") return true;
  return std::all_of(path.begin(), path.end(), known);
}

/// The first number in the name is the layer's, if "layers" or what else the models call them
/// stands before it, and the decoder before that.
Place place_of(std::vector<std::string_view> const& parts) {
  constexpr std::array<std::string_view, 5> lists = {"layers", "layer", "h", "blocks", "block"};
  auto const is_number = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  auto const number = std::find_if(parts.begin(), parts.end(), is_number);
  if (number == parts.end()) return {};
  std::vector<std::string_view> path(parts.begin(), number);
  Place place;
  place.module = fmt::format("{}", fmt::join(path, "."));
  bool const is_list = !path.empty() && is_one_of(path.back(), lists);
  if (is_list) path.pop_back();
  place.is_of_decoder = is_list && is_decoder(path);
  constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
  place.layer = number->size() > 8 ? none : std::stoi(std::string(*number));
  return place;
}

/// A tensor of a file that is being read.
struct Tensor {
  std::string const& file;
  std::string const& name;
  Json const& header;
  std::uint64_t data_begin;  // in the file
  std::uint64_t data_bytes;
};

[[noreturn]] void fail_at(Tensor const& tensor, std::string const& message) {
  fail(tensor.file, "tensor '" + tensor.name + "' " + message);
}

std::vector<std::uint64_t> numbers_at(Tensor const& tensor, char const* field) {
  auto const* const list = detail::member(tensor.header, field);
  if (list == nullptr || !list->is_array()) {
    fail_at(tensor, std::string("has no ") + field + "; expected a list of numbers");
  }
  if (list->size() > 8) {
    fail_at(tensor, fmt::format("has {} numbers as its {}; expected a few", list->size(), field));
  }
  std::vector<std::uint64_t> numbers;
  for (auto const& value : *list) {
    if (!value.is_number_unsigned()) {
      fail_at(tensor, fmt::format("has a {} in its {}; expected numbers that aren't negative",
                                  value.type_name(), field));
    }
    numbers.push_back(value.get<std::uint64_t>());
  }
  return numbers;
}

/// Bytes begin .. end - 1 of the data.
struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Raises where they don't lie in the file.
Range range_of(Tensor const& tensor) {
  auto const offsets = numbers_at(tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > tensor.data_bytes) {
    bool const beyond = offsets.size() == 2 && offsets[0] <= offsets[1];
    fail_at(tensor,
            fmt::format("lies at [{}]; expected begin and end within the file's {} bytes of "
                        "data{}",
                        fmt::join(offsets, ", "), tensor.data_bytes,
                        beyond ? ": the file is cut short" : ""));
  }
  return {offsets[0], offsets[1]};
}

std::string bytes_of(Tensor const& tensor, std::ifstream& stream) {
  auto const range = range_of(tensor);
  constexpr std::uint64_t most = 1 << 20;
  if (range.end - range.begin > most) {
    fail_at(tensor, fmt::format("has {} bytes; expected a scale, or one for each head",
                                range.end - range.begin));
  }
  return detail::read_bytes(tensor.file, stream, tensor.data_begin + range.begin,
                            range.end - range.begin);
}

/// Raises unless all tensors of a file, in whatever order, fill its data without hole and overlap.
void check_layout(std::vector<Tensor> const& tensors, std::string const& file,
                  std::uint64_t data_bytes) {
  std::vector<std::pair<Range, Tensor const*>> ordered;
  for (auto const& tensor : tensors) ordered.emplace_back(range_of(tensor), &tensor);
  std::sort(ordered.begin(), ordered.end(), [](auto const& a, auto const& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  std::uint64_t end = 0;
  for (auto const& [range, tensor] : ordered) {
    if (range.begin != end) {
      fail_at(*tensor, fmt::format("lies at [{}, {}]; expected to begin at {}, where the tensors "
                                   "before it end ({})",
                                   range.begin, range.end, end,
                                   range.begin < end ? "they overlap" : "there is a hole"));
    }
    end = range.end;
  }
  if (end == data_bytes) return;
  auto const last = ordered.empty() ? "none" : "'" + ordered.back().second->name + "'";
  fail(file, fmt::format("has {} bytes of data, but the last tensor, {}, ends at {}; expected "
                         "nothing behind it",
                         data_bytes, last, end));
}

/// 1 or num_kv_heads.
std::size_t count_of(Tensor const& tensor, Geometry const& geometry) {
  auto const shape = numbers_at(tensor, "shape");
  auto const heads = static_cast<std::uint64_t>(geometry.num_kv_heads);
  bool const one = shape.empty() || shape == std::vector<std::uint64_t>{1};
  bool const each = shape == std::vector<std::uint64_t>{heads} ||
                    shape == std::vector<std::uint64_t>{heads, 1, 1};
  if (!one && !each) {
    fail_at(tensor, fmt::format("has shape [{}]; expected [], [1], [{}] or [{}, 1, 1]",
                                fmt::join(shape, ", "), heads, heads));
  }
  return one ? 1 : static_cast<std::size_t>(heads);
}

float number_of(std::string_view bytes, bool is_bf16) {
  auto const bits = little_endian(bytes);
  if (bytes.size() == 4) return detail::float_of(static_cast<std::uint32_t>(bits));
  auto const half = static_cast<std::uint16_t>(bits);
  return is_bf16 ? decode_bf16(half) : decode_f16(half);
}

std::vector<float> numbers_of(Tensor const& tensor, std::ifstream& stream,
                              Geometry const& geometry) {
  auto const* const dtype = detail::string_member(tensor.header, "dtype");
  bool const f32 = dtype != nullptr && *dtype == "F32";
  bool const bf16 = dtype != nullptr && *dtype == "BF16";
  if (!f32 && !bf16 && (dtype == nullptr || *dtype != "F16")) {
    fail_at(tensor,
            "has dtype " + (dtype == nullptr ? "none" : *dtype) + "; expected F32, F16 or BF16");
  }
  auto const count = count_of(tensor, geometry);
  auto const bytes = bytes_of(tensor, stream);
  std::size_t const width = f32 ? 4 : 2;
  if (bytes.size() != count * width) {
    fail_at(tensor,
            fmt::format("has {} bytes; expected {} of {}", bytes.size(), count * width, *dtype));
  }
  std::vector<float> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    numbers.push_back(number_of(std::string_view(bytes).substr(i * width, width), bf16));
  }
  return numbers;
}

/// One tensor of scales, as found.
struct Found {
  std::vector<float> scales;
  std::string file;
  std::string name;
};

/// All files of a checkpoint, one after the other.
class Checkpoint {
 public:
  explicit Checkpoint(Geometry const& geometry) : geometry_(geometry) {}

  void read(std::string const& path) {
    std::ifstream stream;
    auto const size = detail::open_file(path, stream);
    auto const header_bytes = header_length(path, stream, size);
    auto const text = detail::read_bytes(path, stream, 8, header_bytes);
    if (!text.starts_with('{')) {
      fail(path, "isn't a safetensors file: its header doesn't begin with '{'");
    }
    auto const header = detail::parse_json(path, text, "its header ");
    std::vector<Tensor> tensors;
    for (auto const& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      if (!entry.is_object()) fail(path, "tensor '" + name + "' isn't described by an object");
      tensors.push_back({path, name, entry, 8 + header_bytes, size - 8 - header_bytes});
    }
    check_layout(tensors, path, size - 8 - header_bytes);
    for (auto const& tensor : tensors) take(tensor, stream);
  }

  [[nodiscard]] LoadedScales scales() && {
    if (queries_ > 0) {
      notes_.push_back(
          fmt::format("{} scales of queries and probabilities were ignored: only K and "
                      "V are stored",
                      queries_));
    }
    for (auto& line : ignored()) notes_.push_back(std::move(line));
    bool const per_head = widest() > 1;
    loaded_.scales.format = {Element::fp8_e4m3,
                             per_head ? Granularity::per_head : Granularity::per_tensor};
    loaded_.scales.made = "read from a checkpoint";
    for (std::int32_t layer = 0; layer < geometry_.num_layers; ++layer) set_layer(layer);
    loaded_.report.notes = std::move(notes_);
    return std::move(loaded_);
  }

 private:
  using Key = std::pair<std::int32_t, Kind>;

  static std::uint64_t header_length(std::string const& path, std::ifstream& stream,
                                     std::uint64_t size) {
    if (size < 8) {
      fail(path, fmt::format(
                     "{}; a safetensors file begins with 8 bytes that say how long its "
                     "header is",
                     size == 0 ? "is empty" : fmt::format("is cut short: it has {} bytes", size)));
    }
    auto const bytes = little_endian(detail::read_bytes(path, stream, 0, 8));
    if (bytes > max_header_bytes) {
      fail(path, fmt::format("isn't a safetensors file: its first 8 bytes say that its header has "
                             "{} bytes; expected at most {}",
                             bytes, max_header_bytes));
    }
    if (bytes > size - 8) {
      fail(path, fmt::format("is cut short: it says that its header has {} bytes, the file has {}",
                             bytes, size));
    }
    return bytes;
  }

  void take(Tensor const& tensor, std::ifstream& stream) {
    auto const parts = split(tensor.name);
    auto const kind = kind_of(parts);
    if (kind == Kind::other) return;
    auto const place = place_of(parts);
    if (!place.is_of_decoder) return ignore(place.module, tensor.name);
    if (kind == Kind::query) return void(++queries_);
    if (kind == Kind::unknown) {
      fail_at(tensor,
              "looks like a scale of K or V, but isn't a known one; expected k_scale, v_scale, "
              "kv_scale, {k,v}_proj.output_scale or {k,v}_cache.scale");
    }
    if (kind == Kind::zero_point) return check_zero_point(tensor, stream);
    auto const layer = place.layer;
    if (!layer) fail_at(tensor, "has no layer in its name; expected '...layers.N...'");
    if (*layer >= geometry_.num_layers) {
      fail_at(tensor, fmt::format("is of layer {}; the model has layers 0 to {}", *layer,
                                  geometry_.num_layers - 1));
    }
    add(*layer, kind, tensor, numbers_of(tensor, stream, geometry_));
  }

  static std::size_t elements_of(Tensor const& tensor) {
    std::size_t count = 1;
    for (auto const n : numbers_at(tensor, "shape")) count *= static_cast<std::size_t>(n);
    return count;
  }
  static void check_zero_point(Tensor const& tensor, std::ifstream& stream) {
    auto const* const dtype = detail::string_member(tensor.header, "dtype");
    bool const is_float = dtype != nullptr && (dtype->starts_with('F') || *dtype == "BF16");
    auto const count = std::max<std::size_t>(1, elements_of(tensor));
    auto const bytes = bytes_of(tensor, stream);
    auto const width = std::max<std::size_t>(1, bytes.size() / count);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      // -0.0 is 0, too.
      bool const has_sign = is_float && i % width == width - 1;
      if ((static_cast<unsigned char>(bytes[i]) & (has_sign ? 0x7F : 0xFF)) != 0) {
        fail_at(tensor, "isn't 0; expected symmetric scales");
      }
    }
  }

  void ignore(std::string const& module, std::string const& name) {
    auto& [count, first] = ignored_[module];
    if (count++ == 0) first = name;
  }
  /// What was ignored, for notes and errors.
  [[nodiscard]] std::vector<std::string> ignored() const {
    std::vector<std::string> lines;
    for (auto const& [module, what] : ignored_) {
      bool const one = what.first == 1;
      lines.push_back(fmt::format("{} of '{}' {} ignored: not a layer of the decoder (first: '{}')",
                                  one ? "a scale" : fmt::format("{} scales", what.first), module,
                                  one ? "was" : "were", what.second));
    }
    return lines;
  }
  [[nodiscard]] std::string ignored_as_hint() const {
    std::string text;
    for (auto const& line : ignored()) text += "; " + line;
    return text;
  }

  void add(std::int32_t layer, Kind kind, Tensor const& tensor, std::vector<float> numbers) {
    auto const absent = [](float number) { return number == -1.0F; };
    if (std::all_of(numbers.begin(), numbers.end(), absent)) {
      notes_.push_back("tensor '" + tensor.name + "' is -1: taken as absent");
      return;
    }
    for (float const number : numbers) {
      if (auto const problem = scale_error(number); !problem.empty()) fail_at(tensor, problem);
    }
    if (kind == Kind::v && geometry_.head_dim_v == 0) {
      notes_.push_back("tensor '" + tensor.name + "' was ignored: the model has no V");
      return;
    }
    auto const [it, is_new] =
        found_.try_emplace(Key(layer, kind), Found{std::move(numbers), tensor.file, tensor.name});
    if (!is_new) fail_twice(layer, it->second, tensor.file, tensor.name);
  }

  [[noreturn]] static void fail_twice(std::int32_t layer, Found const& first,
                                      std::string const& file, std::string const& name) {
    fail(file, fmt::format("tensor '{}' is a second scale of layer {} beside '{}' of {}; expected "
                           "one for K and one for V",
                           name, layer, first.name, first.file));
  }

  [[nodiscard]] std::size_t widest() const {
    std::size_t most = 1;
    for (auto const& [key, found] : found_) most = std::max(most, found.scales.size());
    return most;
  }
  [[nodiscard]] Found const* find(std::int32_t layer, Kind kind) const {
    auto const it = found_.find(Key(layer, kind));
    return it == found_.end() ? nullptr : &it->second;
  }

  void set_layer(std::int32_t layer) {
    auto const* const both = find(layer, Kind::both);
    auto const* const k = find(layer, Kind::k);
    auto const* const v = find(layer, Kind::v);
    if (both != nullptr && (k != nullptr || v != nullptr)) {
      auto const& other = k != nullptr ? *k : *v;
      fail_twice(layer, *both, other.file, other.name);
    }
    if (both != nullptr && geometry_.head_dim_v > 0) {
      notes_.push_back(fmt::format("layer {}: '{}' feeds both K and V", layer, both->name));
    }
    auto const format = geometry_.format_of(layer);
    LayerScales scales;
    scales.k = scales_of(layer, 'K', format.k, both != nullptr ? both : k);
    if (geometry_.head_dim_v > 0) {
      scales.v = scales_of(layer, 'V', format.v, both != nullptr ? both : v);
    }
    loaded_.scales.layers.push_back(std::move(scales));
  }

  std::vector<float> scales_of(std::int32_t layer, char tensor, KvFormat format,
                               Found const* found) {
    if (found == nullptr) {
      if (!detail::is_static(format.granularity)) return {};
      raise(
          fmt::format("checkpoint: layer {}, {} has no scale; expected a tensor like "
                      "'model.layers.{}.self_attn.{}_scale' in one of the files{}",
                      layer, tensor, layer, tensor == 'K' ? 'k' : 'v', ignored_as_hint()));
    }
    loaded_.report.set.push_back(
        {layer, tensor, static_cast<std::int32_t>(found->scales.size()), found->file, found->name});
    bool const spread =
        found->scales.size() == 1 && loaded_.scales.format.granularity == Granularity::per_head;
    if (!spread) return found->scales;
    return std::vector<float>(static_cast<std::size_t>(geometry_.num_kv_heads),
                              found->scales.front());
  }

  Geometry const& geometry_;
  std::map<Key, Found> found_;
  std::map<std::string, std::pair<int, std::string>> ignored_;  // by module: how many, the first
  std::vector<std::string> notes_;
  LoadedScales loaded_;
  int queries_ = 0;
};

}  // namespace

bool is_safetensors(std::string const& path) {
  std::ifstream stream;
  auto const size = detail::open_file(path, stream);
  if (path.ends_with(".safetensors")) return true;
  if (size < 9) return false;
  auto const start = detail::read_bytes(path, stream, 0, 9);
  return little_endian(std::string_view(start).substr(0, 8)) <= max_header_bytes && start[8] == '{';
}

LoadedScales read_checkpoint_scales(std::span<std::string const> paths, Geometry const& geometry) {
  if (paths.empty()) raise("read_checkpoint_scales: no file was given; expected at least one");
  auto const wrong = geometry_error(geometry);
  if (!wrong.empty()) fail(paths.front(), "can't be checked against the geometry: " + wrong);
  Checkpoint checkpoint(geometry);
  for (auto const& path : paths) checkpoint.read(path);
  auto loaded = std::move(checkpoint).scales();
  detail::check_loaded(paths.size() == 1 ? paths.front() : "checkpoint", loaded, geometry);
  return loaded;
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
#include "gguf.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace engine {

namespace {

constexpr std::uint64_t max_name_bytes = 65535;

/// Metadata types as numbered in the files.
enum class ValueType : std::uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64,
};

class ValueReader {
 public:
  ValueReader(ByteReader& in, std::string_view key) : in_(in), key_(key) {}

  GgufFile::Value value() {
    auto const type = in_.read<std::uint32_t>(key_);
    if (type == static_cast<std::uint32_t>(ValueType::array)) return array();
    return scalar(type);
  }
  std::string text() {
    auto const length = in_.read<std::uint64_t>(key_);
    auto const bytes = in_.take(length, key_);
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }

 private:
  GgufFile::Value scalar(std::uint32_t type) {
    switch (static_cast<ValueType>(type)) {
      case ValueType::uint8: return integer<std::uint8_t>();
      case ValueType::int8: return integer<std::int8_t>();
      case ValueType::uint16: return integer<std::uint16_t>();
      case ValueType::int16: return integer<std::int16_t>();
      case ValueType::uint32: return integer<std::uint32_t>();
      case ValueType::int32: return integer<std::int32_t>();
      case ValueType::uint64: return integer<std::uint64_t>();
      case ValueType::int64: return integer<std::int64_t>();
      case ValueType::float32: return static_cast<double>(in_.read<float>(key_));
      case ValueType::float64: return in_.read<double>(key_);
      case ValueType::boolean: return in_.read<std::uint8_t>(key_) != 0;
      case ValueType::string: return text();
      case ValueType::array: break;
    }
    in_.fail(key_, "unknown value type " + std::to_string(type));
  }
  template <class T>
  std::int64_t integer() {
    T const number = in_.read<T>(key_);
    if (!std::in_range<std::int64_t>(number)) in_.fail(key_, "the number is above 2^63");
    return static_cast<std::int64_t>(number);
  }
  GgufFile::Value array() {
    auto const type = in_.read<std::uint32_t>(key_);
    auto const count = in_.read<std::uint64_t>(key_);
    if (count > in_.left()) {
      in_.fail(key_, "an array of " + std::to_string(count) + " values can't lie in the " +
                         std::to_string(in_.left()) + " bytes that are left");
    }
    if (type == static_cast<std::uint32_t>(ValueType::array)) {
      in_.fail(key_, "arrays of arrays aren't read");
    }
    GgufFile::Strings texts;
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    for (std::uint64_t i = 0; i < count; ++i) {
      GgufFile::Value element = scalar(type);
      if (auto* string = std::get_if<std::string>(&element)) {
        texts.push_back(std::move(*string));
      } else if (auto const* real = std::get_if<double>(&element)) {
        reals.push_back(*real);
      } else if (auto const* truth = std::get_if<bool>(&element)) {
        integers.push_back(*truth ? 1 : 0);
      } else {
        integers.push_back(std::get<std::int64_t>(element));
      }
    }
    if (type == static_cast<std::uint32_t>(ValueType::string)) return texts;
    bool const real = type == static_cast<std::uint32_t>(ValueType::float32) ||
                      type == static_cast<std::uint32_t>(ValueType::float64);
    if (real) return reals;
    return integers;
  }

  ByteReader& in_;
  std::string_view key_;
};

std::string read_name(ByteReader& in, std::string_view what) {
  auto const length = in.read<std::uint64_t>(what);
  if (length > max_name_bytes) {
    in.fail(what, "a name of " + std::to_string(length) + " bytes; expected at most " +
                      std::to_string(max_name_bytes));
  }
  auto const bytes = in.take(length, what);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

std::string shape_text(std::vector<std::int64_t> const& shape) {
  std::string text = "[";
  for (std::size_t i = shape.size(); i-- > 0;) {
    text += std::to_string(shape[i]);
    if (i > 0) text += ", ";
  }
  return text + "]";
}

}  // namespace

GgufFile::GgufFile(std::string const& path) : file_(path) {
  ByteReader in(file_);
  auto const magic = in.take(4, "magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) in.fail("magic", "expected GGUF");
  auto const version = in.read<std::uint32_t>("version");
  if (version != 2 && version != 3) {
    in.fail("version", "expected 2 or 3, is " + std::to_string(version));
  }
  auto const num_tensors = in.read<std::uint64_t>("number of tensors");
  auto const num_values = in.read<std::uint64_t>("number of keys");
  read_metadata(in, num_values);
  read_directory(in, num_tensors);
  place_tensors(in);
}

void GgufFile::read_metadata(ByteReader& in, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    auto key = read_name(in, "key " + std::to_string(i));
    Value value = ValueReader(in, key).value();
    if (!values_.emplace(key, std::move(value)).second) in.fail(key, "the key stands there twice");
  }
}

void GgufFile::read_directory(ByteReader& in, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const name = read_name(in, "tensor " + std::to_string(i));
    auto const dims = in.read<std::uint32_t>(name);
    if (dims < 1 || dims > 4) {
      in.fail(name, "expected 1 to 4 dimensions, has " + std::to_string(dims));
    }
    Tensor tensor;
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      auto const length = in.read<std::uint64_t>(name);
      if (length < 1 || length > (std::uint64_t{1} << 40) / elements) {
        in.fail(name, "dimension " + std::to_string(d) + " is " + std::to_string(length) +
                          "; expected at least 1 and at most 2^40 elements in all");
      }
      elements *= length;
      tensor.shape.push_back(static_cast<std::int64_t>(length));
    }
    auto const type = in.read<std::uint32_t>(name);
    auto const layout = layout_of(type);
    if (!layout) {
      in.fail(name,
              "type " + std::to_string(type) + " isn't read; expected one of " + tensor_type_names);
    }
    if (static_cast<std::uint64_t>(tensor.shape[0]) % layout->block_elements != 0) {
      in.fail(name, "rows of " + std::to_string(tensor.shape[0]) +
                        " elements; expected a multiple of " +
                        std::to_string(layout->block_elements));
    }
    tensor.type = static_cast<TensorType>(type);
    tensor.bytes = elements / layout->block_elements * layout->block_bytes;
    tensor.offset = in.read<std::uint64_t>(name);
    if (!tensors_.emplace(name, std::move(tensor)).second) {
      in.fail(name, "the tensor stands there twice");
    }
  }
}

void GgufFile::place_tensors(ByteReader const& in) {
  auto const alignment = get_or<std::int64_t>("general.alignment", 32);
  if (alignment < 1 || alignment > (1 << 20) ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    in.fail("general.alignment",
            "expected a power of two up to 2^20, is " + std::to_string(alignment));
  }
  auto const step = static_cast<std::size_t>(alignment);
  data_ = (in.position() + step - 1) / step * step;
  std::uint64_t const size = file_.bytes().size();
  std::uint64_t const room = size > data_ ? size - data_ : 0;
  for (auto const& [name, tensor] : tensors_) {
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      in.fail(name, "expected " + std::to_string(tensor.bytes) + " bytes at byte " +
                        std::to_string(tensor.offset) + " of the data, which has " +
                        std::to_string(room));
    }
  }
}

GgufFile::Tensor const& GgufFile::tensor_of(std::string const& name, std::int64_t rows,
                                            std::int64_t columns) const {
  auto const found = tensors_.find(name);
  if (found == tensors_.end()) fail(name, "the tensor is missing");
  std::vector<std::int64_t> expected = {columns};
  if (rows != 1) expected.push_back(rows);
  if (found->second.shape != expected) {
    fail(name,
         "expected shape " + shape_text(expected) + ", is " + shape_text(found->second.shape));
  }
  return found->second;
}

void GgufFile::read(std::string const& name, std::int64_t rows, std::int64_t columns,
                    std::span<float> out) {
  Tensor const& tensor = tensor_of(name, rows, columns);
  read_.insert(name);
  auto const from = data_ + static_cast<std::size_t>(tensor.offset);
  dequantize(tensor.type, file_.bytes().subspan(from, static_cast<std::size_t>(tensor.bytes)), out);
  if (auto const problem = weights_error(out); !problem.empty()) fail(name, problem);
}

void GgufFile::require_all_read() const {
  for (auto const& [name, tensor] : tensors_) {
    if (!read_.contains(name)) {
      fail(name, "the model has a tensor that isn't understood; it would be wrong without it");
    }
  }
}

namespace {

class GgufModelReader {
 public:
  explicit GgufModelReader(GgufFile& file) : file_(file) {}

  Model read() {
    ModelConfig const c = config();
    // A file that can't hold these numbers fails here, before memory is taken for them.
    Model model = empty_checked(c);
    file_.read("token_embd.weight", c.vocab_size, c.dim, model.embedding);
    file_.read("output_norm.weight", 1, c.dim, model.final_norm);
    if (!model.classifier.empty()) {
      file_.read("output.weight", c.vocab_size, c.dim, model.classifier);
    }
    for (std::int32_t i = 0; i < c.num_layers; ++i) read_layer(model, i);
    file_.require_all_read();
    return model;
  }

 private:
  std::int32_t count(std::string const& key) const { return checked(key, file_.get<Int>(key)); }
  std::int32_t count_or(std::string const& key, std::int32_t fallback) const {
    return file_.has(key) ? count(key) : fallback;
  }
  std::int32_t checked(std::string const& key, std::int64_t value) const {
    if (value < 1 || value > (1 << 24)) {
      file_.fail(key, "expected 1 to 2^24, is " + std::to_string(value));
    }
    return static_cast<std::int32_t>(value);
  }

  ModelConfig config() const {
    auto const& architecture = file_.get<std::string>("general.architecture");
    if (architecture != "llama") {
      file_.fail("general.architecture", "expected llama, is " + architecture);
    }
    if (file_.get_or<std::string>("llama.rope.scaling.type", "none") != "none") {
      file_.fail("llama.rope.scaling.type", "scaled rotary positions aren't understood");
    }
    ModelConfig c;
    c.num_layers = count("llama.block_count");
    c.max_positions = count("llama.context_length");
    c.dim = count("llama.embedding_length");
    c.hidden_dim = count("llama.feed_forward_length");
    c.num_heads = count("llama.attention.head_count");
    c.num_kv_heads = count_or("llama.attention.head_count_kv", c.num_heads);
    c.head_dim = count_or("llama.attention.key_length", c.dim / c.num_heads);
    if (count_or("llama.attention.value_length", c.head_dim) != c.head_dim ||
        count_or("llama.rope.dimension_count", c.head_dim) != c.head_dim) {
      file_.fail("llama.rope.dimension_count",
                 "expected keys, values and rotary positions of one length, " +
                     std::to_string(c.head_dim));
    }
    c.rope_base = static_cast<float>(file_.get_or<double>("llama.rope.freq_base", 10000.0));
    c.norm_epsilon =
        static_cast<float>(file_.get<double>("llama.attention.layer_norm_rms_epsilon"));
    c.vocab_size = vocab_size();
    if (auto const problem = model_config_error(c); !problem.empty()) {
      file_.fail("metadata", problem);
    }
    return c;
  }
  std::int32_t vocab_size() const {
    if (file_.has("llama.vocab_size")) return count("llama.vocab_size");
    auto const tokens = file_.get<GgufFile::Strings>("tokenizer.ggml.tokens").size();
    return checked("tokenizer.ggml.tokens", static_cast<std::int64_t>(tokens));
  }

  Model empty_checked(ModelConfig const& c) {
    for (std::int32_t i = 0; i < c.num_layers; ++i) {
      file_.require_shape(name(i, "attn_q"), c.q_dim(), c.dim);
      file_.require_shape(name(i, "ffn_gate"), c.hidden_dim, c.dim);
    }
    file_.require_shape("token_embd.weight", c.vocab_size, c.dim);
    return empty_model(c, !file_.has_tensor("output.weight"));
  }

  static std::string name(std::int32_t layer, char const* part) {
    return "blk." + std::to_string(layer) + "." + part + ".weight";
  }
  void read_layer(Model& model, std::int32_t i) {
    auto const& c = model.config;
    auto& w = model.layers[static_cast<std::size_t>(i)];
    auto const rows = [](std::vector<float>& matrix, std::int32_t first, std::int32_t count,
                         std::int32_t columns) {
      auto const width = static_cast<std::size_t>(columns);
      return std::span(matrix).subspan(static_cast<std::size_t>(first) * width,
                                       static_cast<std::size_t>(count) * width);
    };
    file_.read(name(i, "attn_norm"), 1, c.dim, w.attention_norm);
    file_.read(name(i, "attn_q"), c.q_dim(), c.dim, rows(w.qkv, 0, c.q_dim(), c.dim));
    file_.read(name(i, "attn_k"), c.kv_dim(), c.dim, rows(w.qkv, c.q_dim(), c.kv_dim(), c.dim));
    file_.read(name(i, "attn_v"), c.kv_dim(), c.dim,
               rows(w.qkv, c.q_dim() + c.kv_dim(), c.kv_dim(), c.dim));
    file_.read(name(i, "attn_output"), c.dim, c.q_dim(), w.wo);
    file_.read(name(i, "ffn_norm"), 1, c.dim, w.ffn_norm);
    file_.read(name(i, "ffn_gate"), c.hidden_dim, c.dim, rows(w.gate_up, 0, c.hidden_dim, c.dim));
    file_.read(name(i, "ffn_up"), c.hidden_dim, c.dim,
               rows(w.gate_up, c.hidden_dim, c.hidden_dim, c.dim));
    file_.read(name(i, "ffn_down"), c.dim, c.hidden_dim, w.down);
  }

  using Int = std::int64_t;
  GgufFile& file_;
};

}  // namespace

Model load_gguf_model(GgufFile& file) { return GgufModelReader(file).read(); }

}  // namespace engine

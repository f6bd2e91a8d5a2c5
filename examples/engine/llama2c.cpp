// SPDX-License-Identifier: Apache-2.0
#include "llama2c.hpp"

#include <span>

#include "mapped_file.hpp"

namespace engine {

namespace {

class Llama2cReader {
 public:
  explicit Llama2cReader(std::string const& path) : file_(path), in_(file_) {}

  Model read() {
    Model model = header();
    auto const& c = model.config;
    take("token_embedding", model.embedding);
    // Arrays come kind by kind, each for all layers.
    each(model, "rms_att", [](LayerWeights& w) { return std::span(w.attention_norm); });
    auto const rows = [&c](LayerWeights& w, std::int32_t first, std::int32_t count) {
      return std::span(w.qkv).subspan(size(first, c.dim), size(count, c.dim));
    };
    each(model, "wq", [&](LayerWeights& w) { return rows(w, 0, c.q_dim()); });
    each(model, "wk", [&](LayerWeights& w) { return rows(w, c.q_dim(), c.kv_dim()); });
    each(model, "wv", [&](LayerWeights& w) { return rows(w, c.q_dim() + c.kv_dim(), c.kv_dim()); });
    each(model, "wo", [](LayerWeights& w) { return std::span(w.wo); });
    each(model, "rms_ffn", [](LayerWeights& w) { return std::span(w.ffn_norm); });
    auto const half = size(c.hidden_dim, c.dim);
    each(model, "w1", [&](LayerWeights& w) { return std::span(w.gate_up).first(half); });
    each(model, "w2", [](LayerWeights& w) { return std::span(w.down); });
    each(model, "w3", [&](LayerWeights& w) { return std::span(w.gate_up).subspan(half); });
    take("rms_final", model.final_norm);
    // Two rotary tables that the engine computes itself.
    in_.take(4 * size(c.max_positions, c.head_dim), "rotary tables");
    take("classifier", model.classifier);
    if (in_.left() > 0) in_.fail("end", std::to_string(in_.left()) + " bytes more than expected");
    return model;
  }

 private:
  static std::size_t size(std::int32_t rows, std::int32_t columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }

  Model header() {
    ModelConfig c;
    c.dim = in_.read<std::int32_t>("dim");
    c.hidden_dim = in_.read<std::int32_t>("hidden_dim");
    c.num_layers = in_.read<std::int32_t>("n_layers");
    c.num_heads = in_.read<std::int32_t>("n_heads");
    c.num_kv_heads = in_.read<std::int32_t>("n_kv_heads");
    auto const vocab_size = in_.read<std::int32_t>("vocab_size");
    c.max_positions = in_.read<std::int32_t>("seq_len");
    // Below zero: the classifier has weights of its own.
    bool const tied = vocab_size > 0;
    c.vocab_size = vocab_size == INT32_MIN ? 0 : (tied ? vocab_size : -vocab_size);
    if (c.num_heads > 0 && c.dim > 0 && c.dim % c.num_heads != 0) {
      in_.fail("n_heads", "expected a divisor of dim " + std::to_string(c.dim) + ", is " +
                              std::to_string(c.num_heads));
    }
    if (c.num_heads > 0) c.head_dim = c.dim / c.num_heads;
    if (auto const problem = model_config_error(c); !problem.empty()) in_.fail("header", problem);
    check_size(c, tied);
    return empty_model(c, tied);
  }
  /// Before memory is taken for numbers that the file can't hold.
  void check_size(ModelConfig const& c, bool tied) const {
    double const dim = c.dim;
    double const layer = dim * 2 + dim * c.qkv_dim() + dim * c.q_dim() + 3 * dim * c.hidden_dim;
    double const table = dim * c.vocab_size * (tied ? 1 : 2);
    double const floats = table + layer * c.num_layers + dim + 1.0 * c.max_positions * c.head_dim;
    if (4 * floats > static_cast<double>(in_.left())) {
      in_.fail("weights", "the header asks for " +
                              std::to_string(static_cast<std::uint64_t>(4 * floats)) + " bytes, " +
                              std::to_string(in_.left()) + " are left");
    }
  }
  void take(std::string_view what, std::span<float> to) {
    if (to.empty()) return;
    std::memcpy(to.data(), in_.take(to.size_bytes(), what).data(), to.size_bytes());
    if (auto const problem = weights_error(to); !problem.empty()) in_.fail(what, problem);
  }
  template <class Part>
  void each(Model& model, std::string_view what, Part&& part) {
    for (auto& layer : model.layers) take(what, part(layer));
  }

  MappedFile file_;
  ByteReader in_;
};

}  // namespace

Model load_llama2c(std::string const& path) { return Llama2cReader(path).read(); }

}  // namespace engine

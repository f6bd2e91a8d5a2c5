// SPDX-License-Identifier: Apache-2.0
/// \file
/// A model of the Llama family: its numbers and its weights, all in f32.
///
/// A layer: x += wo * attention(rotated q, k, v of norm(x)); x += down * (silu(gate * norm(x)) *
/// (up * norm(x))). Logits: classifier * norm(x). Matrices are row-major, [out, in].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace engine {

/// A file that isn't what it should be. The message names the file, the place in it and what was
/// expected there.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Which two elements of a head turn together in rotary positions.
enum class RopePairs : std::uint8_t {
  neighbours,  ///< 2 i and 2 i + 1: llama2.c, GGUF files of `llama`
  halves,      ///< i and i + head_dim / 2: checkpoints as most are published
};

struct ModelConfig {
  std::int32_t dim = 0;
  std::int32_t hidden_dim = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_heads = 0;     ///< of queries
  std::int32_t num_kv_heads = 0;  ///< divides num_heads
  std::int32_t head_dim = 0;      ///< elements, even
  std::int32_t vocab_size = 0;
  std::int32_t max_positions = 0;  ///< prompt and output together
  float rope_base = 10000.0F;
  float norm_epsilon = 1e-5F;
  RopePairs rope_pairs = RopePairs::neighbours;

  [[nodiscard]] std::int32_t q_dim() const noexcept { return num_heads * head_dim; }
  [[nodiscard]] std::int32_t kv_dim() const noexcept { return num_kv_heads * head_dim; }
  /// Rows of the matrix that makes q, k and v.
  [[nodiscard]] std::int32_t qkv_dim() const noexcept { return q_dim() + 2 * kv_dim(); }

  friend bool operator==(ModelConfig const&, ModelConfig const&) = default;
};

/// What is wrong with the numbers, naming the field; empty if nothing is.
[[nodiscard]] std::string model_config_error(ModelConfig const& config);

/// Matrices that read the same vector stand below one another, so that one product makes all.
struct LayerWeights {
  std::vector<float> attention_norm;  ///< [dim]
  std::vector<float> qkv;             ///< [q_dim + kv_dim + kv_dim, dim]
  std::vector<float> wo;              ///< [dim, q_dim]
  std::vector<float> ffn_norm;        ///< [dim]
  std::vector<float> gate_up;         ///< [hidden_dim + hidden_dim, dim]
  std::vector<float> down;            ///< [dim, hidden_dim]
};

/// Weights are large: moved, never copied.
struct Model {
  ModelConfig config;
  std::vector<float> embedding;  ///< [vocab_size, dim]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  ///< [dim]
  std::vector<float> classifier;  ///< [vocab_size, dim]; empty: the embedding serves as both

  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;
  Model(Model const&) = delete;
  Model& operator=(Model const&) = delete;
  ~Model() = default;

  [[nodiscard]] float const* classifier_data() const noexcept {
    return classifier.empty() ? embedding.data() : classifier.data();
  }
};

/// What is wrong with a tensor's numbers: the first that isn't finite; empty if all are. O(n).
[[nodiscard]] std::string weights_error(std::span<float const> weights);

/// A model with all arrays of the right size, zero. Throws `std::invalid_argument` for a config
/// that can't be.
[[nodiscard]] Model empty_model(ModelConfig const& config, bool tied_classifier);

/// Random weights from a seed, the same on every platform: for tests that need no download. Scaled
/// so that activations keep their size from layer to layer and logits are a few units apart.
[[nodiscard]] Model random_model(ModelConfig const& config, std::uint64_t seed,
                                 bool tied_classifier = true);

/// Rotary positions of a step's tokens: cos and sin of position * base^(-2 i / head_dim).
class Rope {
 public:
  explicit Rope(ModelConfig const& config);

  /// Tokens 0, 1, ... of the step stand at these positions. O(tokens * head_dim).
  void prepare(std::span<std::int32_t const> positions);
  /// Turns a head of token `token`, [head_dim], in place. O(head_dim). Requires: prepared.
  void rotate(float* head, std::size_t token) const noexcept;

 private:
  RopePairs pairs_;
  std::vector<double> frequencies_;  // [head_dim / 2]
  std::vector<float> cos_;           // [tokens, head_dim / 2]
  std::vector<float> sin_;
};

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The forward pass over a batch of tokens of any sequences. Where K and V of earlier tokens lie is
/// the attention's business: the pass hands it q, k and v of a layer and takes what it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model.hpp"

namespace engine {

/// q, k and v of a layer for the step's tokens, rotated. Each is [num_tokens, heads, head_dim], the
/// last two contiguous; rows of all three are `token_stride` floats apart.
struct LayerQkv {
  float const* q = nullptr;
  float const* k = nullptr;
  float const* v = nullptr;
  std::int64_t token_stride = 0;
};

/// Keeps k and v, and attends.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Stores k and v of the step's tokens, then writes out, [num_tokens, num_heads, head_dim],
  /// contiguous: what each token sees, itself included.
  virtual void attend(std::int32_t layer, LayerQkv const& qkv, float* out) = 0;
};

/// Runs a model. Holds scratch memory that grows to the largest step. One thread at a time.
class Forward {
 public:
  /// `model` must outlive it.
  explicit Forward(Model const& model);

  /// Computes the step's tokens: `tokens` and `positions`, [num_tokens]. Returns the logits of the
  /// tokens that `output_rows` names, [output_rows, vocab_size], valid until the next call.
  /// Requires: ids below vocab_size, positions below max_positions.
  std::span<float const> run(std::span<std::int32_t const> tokens,
                             std::span<std::int32_t const> positions, Attention& attention,
                             std::span<std::int32_t const> output_rows);

 private:
  void embed(std::span<std::int32_t const> tokens);
  void attention_block(std::int32_t layer, Attention& attention);
  void feed_forward_block(std::int32_t layer);
  void resize(std::size_t num_tokens, std::size_t num_outputs);

  Model const& model_;
  Rope rope_;
  std::size_t num_tokens_ = 0;
  std::vector<float> x_;       // [num_tokens, dim]
  std::vector<float> normed_;  // [num_tokens, dim]
  std::vector<float> qkv_;     // [num_tokens, qkv_dim]
  std::vector<float> mixed_;   // [num_tokens, q_dim]
  std::vector<float> hidden_;  // [num_tokens, 2 * hidden_dim]
  std::vector<float> logits_;  // [num_outputs, vocab_size]
};

/// Threads of the matrix products; 1 unless told otherwise.
void set_matrix_threads(int threads);

}  // namespace engine

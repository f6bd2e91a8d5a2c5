// SPDX-License-Identifier: Apache-2.0
/// \file
/// The oracle: one sequence, one token after the other, K and V in plain contiguous arrays, loops
/// and nothing else. It shares no code with the engine but the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace engine {

/// A sequence with a contiguous f32 cache of its own. Copying it is forking it.
class Reference {
 public:
  /// `model` must outlive it.
  explicit Reference(Model const& model);

  /// Computes the next position and returns its logits, [vocab_size]; valid until the next call.
  std::vector<float> const& next(std::int32_t token);

  [[nodiscard]] std::int32_t position() const noexcept { return position_; }

 private:
  void attend(std::size_t layer, std::vector<float>& q, std::vector<float>& mixed);

  Model const* model_;
  std::int32_t position_ = 0;
  std::vector<std::vector<float>> k_;  // a layer: [positions, num_kv_heads, head_dim]
  std::vector<std::vector<float>> v_;
  std::vector<float> logits_;
};

/// Greedy continuation: at most `max_tokens` ids, up to and without `stop`.
[[nodiscard]] std::vector<std::int32_t> greedy_reference(Model const& model,
                                                         std::vector<std::int32_t> const& prompt,
                                                         std::int32_t max_tokens,
                                                         std::vector<std::int32_t> const& stop);

/// The first of the largest.
[[nodiscard]] std::int32_t argmax(float const* logits, std::int32_t n);

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A model reading one sequence through a paged cache of some format. Everything but the cache is
/// f32, so what differs between formats is the cache's doing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/types.hpp>

#include "forward.hpp"
#include "model.hpp"

namespace quality {

/// Sees k and v of each layer before they are stored: [num_tokens, num_kv_heads, head_dim],
/// contiguous.
using ObserveKv =
    std::function<void(std::int32_t layer, std::span<float const> k, std::span<float const> v)>;

class PagedSequence final : private engine::Attention {
 public:
  /// Room for `max_tokens`. `scales`: [num_layers] for static formats, else empty. `forward` runs
  /// the model of this `config`; both must outlive it.
  PagedSequence(engine::ModelConfig const& config, engine::Forward& forward,
                std::int32_t max_tokens, pagedkv::KvFormat format,
                std::span<pagedkv::StaticScales const> scales = {});

  /// Computes the next tokens and returns the logits of those that `output_rows` names,
  /// [output_rows, vocab_size], valid until `forward` runs again. Requires: room for them.
  std::span<float const> run(std::span<std::int32_t const> tokens,
                             std::span<std::int32_t const> output_rows);

  /// Forgets what is at and after this position, rounded down to a block's beginning; returns where
  /// the sequence now ends. Requires: position <= length().
  std::int32_t rewind(std::int32_t position);

  [[nodiscard]] std::int32_t length() const noexcept { return length_; }
  [[nodiscard]] pagedkv::Geometry const& geometry() const noexcept { return geometry_; }
  void observe(ObserveKv observer) { observe_ = std::move(observer); }

 private:
  void attend(std::int32_t layer, engine::LayerQkv const& qkv, float* out) override;
  void show_observer(std::int32_t layer, engine::LayerQkv const& qkv);

  engine::ModelConfig const& config_;
  engine::Forward& forward_;
  pagedkv::Geometry geometry_;
  pagedkv::KvStorage storage_;
  std::vector<std::int32_t> table_;
  std::int32_t length_ = 0;
  ObserveKv observe_;
  // Of the step that runs.
  std::vector<pagedkv::Slot> slots_;
  std::vector<std::int32_t> positions_;
  std::vector<float> rows_;  // k, then v, for the observer
};

}  // namespace quality

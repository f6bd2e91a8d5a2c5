// SPDX-License-Identifier: Apache-2.0
#include "paged_attention.hpp"

#include <algorithm>
#include <cmath>

namespace engine {

namespace {

std::size_t at(std::int32_t n) { return static_cast<std::size_t>(n); }

template <class T>
std::span<T const> leading(std::vector<T> const& all, std::int32_t count) {
  return std::span(all).first(at(count));
}

}  // namespace

StepArrays::StepArrays(std::int32_t max_sequences, std::int32_t max_tokens, std::int32_t width,
                       std::int32_t num_blocks)
    : slots_(at(max_tokens)),
      query_offsets_(at(max_sequences) + 1),
      lengths_(at(max_sequences)),
      indptr_(at(max_sequences) + 1),
      indices_(at(max_sequences) * at(width)),
      new_blocks_(at(num_blocks)),
      copies_(at(num_blocks)) {}

kv::BatchBuffers StepArrays::buffers() {
  kv::BatchBuffers b;
  b.slot_mapping = slots_;
  b.query_offsets = query_offsets_;
  b.sequence_lengths = lengths_;
  b.indptr = indptr_;
  b.indices = indices_;
  b.new_blocks = new_blocks_;
  b.copies = copies_;
  return b;
}

std::span<kv::Slot const> StepArrays::slots(kv::BatchStep const& step) const {
  return leading(slots_, step.num_tokens);
}
std::span<kv::BlockId const> StepArrays::new_blocks(kv::BatchStep const& step) const {
  return leading(new_blocks_, step.num_new_blocks);
}
std::span<kv::BlockCopy const> StepArrays::copies(kv::BatchStep const& step) const {
  return leading(copies_, step.num_copies);
}
kv::cpu::AttentionBatch StepArrays::attention(kv::BatchStep const& step) const {
  return {.indptr = leading(indptr_, step.num_sequences + 1),
          .indices = leading(indices_, step.num_indices),
          .sequence_lengths = leading(lengths_, step.num_sequences),
          .query_offsets = leading(query_offsets_, step.num_sequences + 1)};
}

PagedAttention::PagedAttention(ModelConfig const& config, kv::KvView const& view,
                               StepArrays const& arrays, kv::BatchStep const& step,
                               kv::cpu::Workers* workers)
    : config_(config), view_(view), arrays_(arrays), step_(step), workers_(workers) {
  auto const offsets = arrays.attention(step).query_offsets;
  // One query each: 0, 1, 2, ...
  only_decodes_ = std::adjacent_find(offsets.begin(), offsets.end(),
                                     [](auto a, auto b) { return b - a != 1; }) == offsets.end();
}

void PagedAttention::prepare() {
  Timed const timed(time_);
  kv::cpu::zero_blocks(view_, arrays_.new_blocks(step_));
  kv::cpu::copy_blocks(view_, arrays_.copies(step_));
}

void PagedAttention::attend(std::int32_t layer, LayerQkv const& qkv, float* out) {
  Timed const timed(time_);
  auto const rows = [&](float const* data) {
    return kv::KvRows{data, kv::Element::f32, qkv.token_stride, config_.head_dim};
  };
  kv::cpu::write_kv(view_, layer, rows(qkv.k), rows(qkv.v), arrays_.slots(step_));
  kv::cpu::Queries const queries{.q = qkv.q,
                                 .out = out,
                                 .num_q_heads = config_.num_heads,
                                 .q_token_stride = qkv.token_stride,
                                 .out_token_stride = config_.q_dim()};
  kv::cpu::AttentionOptions options;
  options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  options.workers = workers_;
  auto const batch = arrays_.attention(step_);
  if (only_decodes_) {
    kv::cpu::decode_attention(view_, layer, batch, queries, options);
  } else {
    kv::cpu::prefill_attention(view_, layer, batch, queries, options);
  }
}

}  // namespace engine

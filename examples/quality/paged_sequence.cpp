// SPDX-License-Identifier: Apache-2.0
#include "paged_sequence.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <pagedkv/data/cpu/operations.hpp>

#include "engine.hpp"
#include "shuffled.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {
constexpr std::int32_t block_tokens = 16;
}

PagedSequence::PagedSequence(engine::ModelConfig const& config, engine::Forward& forward,
                             std::int32_t max_tokens, kv::KvFormat format,
                             std::span<kv::StaticScales const> scales)
    : config_(config),
      forward_(forward),
      geometry_(engine::geometry_of(config, format, block_tokens)),
      storage_(geometry_, kv::blocks_for(max_tokens, block_tokens), {}, scales),
      table_(shuffled(storage_.num_blocks())) {
  std::vector<kv::BlockId> blocks;
  for (std::int32_t const block : table_) blocks.emplace_back(block);
  kv::cpu::zero_blocks(storage_.view(), blocks);
}

std::span<float const> PagedSequence::run(std::span<std::int32_t const> tokens,
                                          std::span<std::int32_t const> output_rows) {
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), length_);
  slots_.clear();
  for (std::int32_t const position : positions_) {
    auto const block = table_[static_cast<std::size_t>(position / block_tokens)];
    slots_.push_back(kv::Slot{block} * block_tokens + position % block_tokens);
  }
  length_ += static_cast<std::int32_t>(tokens.size());
  return forward_.run(tokens, positions_, *this, output_rows);
}

std::int32_t PagedSequence::rewind(std::int32_t position) {
  // A block's scale remembers tokens that are forgotten: blocks begin anew.
  length_ = position / block_tokens * block_tokens;
  return length_;
}

void PagedSequence::attend(std::int32_t layer, engine::LayerQkv const& qkv, float* out) {
  if (observe_) show_observer(layer, qkv);
  auto const rows = [&](float const* data) {
    return kv::KvRows{data, kv::Element::f32, qkv.token_stride, config_.head_dim};
  };
  kv::cpu::write_kv(storage_.view(), layer, rows(qkv.k), rows(qkv.v), slots_);
  auto const num_tokens = static_cast<std::int32_t>(slots_.size());
  std::array const indptr = {std::int32_t{0}, kv::blocks_for(length_, block_tokens)};
  std::array const lengths = {length_};
  std::array const offsets = {std::int32_t{0}, num_tokens};
  auto const indices = std::span(table_).first(static_cast<std::size_t>(indptr[1]));
  kv::cpu::Queries const queries{.q = qkv.q,
                                 .out = out,
                                 .num_q_heads = config_.num_heads,
                                 .q_token_stride = qkv.token_stride,
                                 .out_token_stride = config_.q_dim()};
  kv::cpu::AttentionOptions options;
  options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  kv::cpu::prefill_attention(storage_.view(), layer, {indptr, indices, lengths, offsets}, queries,
                             options);
}

void PagedSequence::show_observer(std::int32_t layer, engine::LayerQkv const& qkv) {
  auto const dim = static_cast<std::size_t>(config_.kv_dim());
  auto const stride = static_cast<std::size_t>(qkv.token_stride);
  std::size_t const n = slots_.size();
  rows_.resize(2 * n * dim);
  for (std::size_t t = 0; t < n; ++t) {
    std::copy_n(qkv.k + t * stride, dim, &rows_[t * dim]);
    std::copy_n(qkv.v + t * stride, dim, &rows_[(n + t) * dim]);
  }
  std::span<float const> const all(rows_);
  observe_(layer, all.first(n * dim), all.subspan(n * dim));
}

}  // namespace quality

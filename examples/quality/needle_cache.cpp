// SPDX-License-Identifier: Apache-2.0
#include "needle_cache.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/model/geometry.hpp>

#include "shuffled.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr std::size_t dim = needle_head_dim;
constexpr std::size_t row = needle_heads * dim;
constexpr std::int32_t block_tokens = 16;

/// Sixteen sums side by side: compilers make vectors of them.
float dot(float const* a, float const* b) {
  std::array<float, 16> sums{};
  for (std::size_t i = 0; i < dim; i += 16) {
    for (std::size_t j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

}  // namespace

kv::Geometry needle_geometry(kv::KvFormat format) {
  kv::Geometry geometry;
  geometry.num_layers = 1;
  geometry.num_kv_heads = needle_heads;
  geometry.head_dim_k = needle_head_dim;
  geometry.head_dim_v = needle_head_dim;
  geometry.block_tokens = block_tokens;
  geometry.format = format;
  return geometry;
}

NeedleCache::NeedleCache(NeedleContext const& context, kv::KvFormat format,
                         std::span<kv::StaticScales const> scales, WriteKv write)
    : context_(context),
      write_(std::move(write)),
      storage_(needle_geometry(format), kv::blocks_for(context.length, block_tokens),
               {kv::BlockOrder::hnd, kv::PoolOrder::layer_major}, scales),
      table_(shuffled(storage_.num_blocks())) {
  std::vector<kv::BlockId> blocks;
  for (std::int32_t const block : table_) blocks.emplace_back(block);
  kv::cpu::zero_blocks(storage_.view(), blocks);
  for (std::int32_t t = 0; t < context_.length; ++t) {
    auto const at = static_cast<std::size_t>(t) * row;
    this->write(t, &context_.k[at], &context_.v[at]);
  }
  v_squares_.resize(static_cast<std::size_t>(context_.length) * needle_heads);
  for (std::size_t i = 0; i < v_squares_.size(); ++i) {
    v_squares_[i] = dot(&context_.v[i * dim], &context_.v[i * dim]);
  }
}

void NeedleCache::write(std::int32_t position, float const* k, float const* v) {
  auto const block = table_[static_cast<std::size_t>(position / block_tokens)];
  std::array<kv::Slot, 1> const slots = {kv::Slot{block} * block_tokens + position % block_tokens};
  write_(storage_.view(), 0, {k, kv::Element::f32, row, dim}, {v, kv::Element::f32, row, dim},
         slots);
}

bool NeedleCache::finds(Needle const& needle) {
  write_block_of(needle.position, &needle);
  auto const out = ask();
  write_block_of(needle.position, nullptr);
  for (std::size_t h = 0; h < needle_heads; ++h) {
    if (!is_needle(&out[h * dim], h, needle)) return false;
  }
  return true;
}

void NeedleCache::write_block_of(std::int32_t position, Needle const* needle) {
  std::int32_t const first = position / block_tokens * block_tokens;
  std::int32_t const end = std::min(first + block_tokens, context_.length);
  for (std::int32_t t = first; t < end; ++t) {
    auto const at = static_cast<std::size_t>(t) * row;
    bool const here = needle != nullptr && t == position;
    write(t, here ? needle->k.data() : &context_.k[at], here ? needle->v.data() : &context_.v[at]);
  }
}

std::vector<float> NeedleCache::ask() const {
  std::vector<float> out(row);
  std::array const indptr = {std::int32_t{0}, static_cast<std::int32_t>(table_.size())};
  std::array const lengths = {context_.length};
  kv::cpu::Queries queries;
  queries.q = context_.query.data();
  queries.out = out.data();
  queries.num_q_heads = needle_heads;
  queries.q_token_stride = row;
  queries.out_token_stride = row;
  kv::cpu::AttentionOptions options;
  options.softmax_scale = NeedleContext::softmax_scale();
  kv::cpu::decode_attention(storage_.view(), 0, {indptr, table_, lengths}, queries, options);
  return out;
}

bool NeedleCache::is_needle(float const* out, std::size_t head, Needle const& needle) const {
  float const* const value = &needle.v[head * dim];
  // Squared distances, less what all have in common. NaN is nearer to nothing.
  float const to_needle = dot(value, value) - 2 * dot(out, value);
  if (!std::isfinite(to_needle)) return false;
  for (std::int32_t t = 0; t < context_.length; ++t) {
    if (t == needle.position) continue;
    std::size_t const i = static_cast<std::size_t>(t) * needle_heads + head;
    if (v_squares_[i] - 2 * dot(out, &context_.v[i * dim]) <= to_needle) return false;
  }
  return true;
}

}  // namespace quality

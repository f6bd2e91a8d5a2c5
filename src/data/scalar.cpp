// SPDX-License-Identifier: Apache-2.0
/// \file
/// The oracle: what each operation means, as plainly as it can be said.
#include <algorithm>
#include <array>
#include <cstring>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/cpu/softmax_exp.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "attention_order.hpp"
#include "guards.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {
namespace scalar {
namespace {

using quant::AffineScale;
using Vector = std::array<float, max_head_dim>;

/// Row vectors may lie anywhere, aligned or not.
void load_row(KvRows const& rows, std::int64_t token, std::int64_t head, std::int32_t dim,
              float* x) {
  std::int64_t const bytes = bits_per_element(rows.element) / 8;
  auto const* const row = static_cast<std::byte const*>(rows.data) +
                          (token * rows.token_stride + head * rows.head_stride) * bytes;
  quant::decode_vector(rows.element, {1.0F, 0.0F}, row, dim, x);
}
void store_row(MutableKvRows const& rows, std::int64_t token, std::int64_t head, std::int32_t dim,
               float const* x) {
  std::int64_t const bytes = bits_per_element(rows.element) / 8;
  auto* const row = static_cast<std::byte*>(rows.data) +
                    (token * rows.token_stride + head * rows.head_stride) * bytes;
  quant::encode_vector(rows.element, {1.0F, 0.0F}, x, dim, row);
}

AffineScale scale_at(KvTensor const& t, std::int64_t block, std::int64_t offset,
                     std::int64_t head) {
  if (t.scales == nullptr) return {1.0F, 0.0F};
  float const* const entry = t.scale(block, offset, head);
  return {entry[0], quant::has_zero(t.format.element) ? entry[1] : 0.0F};
}

void read_vector(KvTensor const& t, std::int64_t block, std::int64_t offset, std::int64_t head,
                 float* x) {
  quant::decode_vector(t.format.element, scale_at(t, block, offset, head),
                       t.vector(block, offset, head), t.head_dim, x);
}

/// Tokens first .. first + count - 1 of a step go to neighbouring slots of one block. Runs decide
/// the bytes of `per_block_head`, so they are found here a second time: what the fast version
/// shared with its oracle, no comparison could find wrong.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t block = 0;
  std::int64_t offset = 0;
};

/// One vector of the run, whose scale stands or is made here.
void write_vector(KvTensor const& t, KvRows const& rows, Run const& run, std::int64_t i,
                  std::int64_t head) {
  Vector x;
  load_row(rows, run.first + i, head, t.head_dim, x.data());
  std::int64_t const offset = run.offset + i;
  if (t.format.granularity == Granularity::per_token_head) {
    AffineScale const made = quant::vector_scale(t.format.element, x.data(), t.head_dim);
    float* const entry = t.scale(run.block, offset, head);
    entry[0] = made.scale;
    if (quant::has_zero(t.format.element)) entry[1] = made.zero;
  }
  quant::encode_vector(t.format.element, scale_at(t, run.block, offset, head), x.data(), t.head_dim,
                       t.vector(run.block, offset, head));
}

/// `per_block_head`: raises the scale of the block's head to what the run needs.
void grow_scale(KvTensor const& t, KvRows const& rows, Run const& run, std::int64_t head) {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < run.count; ++i) {
    Vector x;
    load_row(rows, run.first + i, head, t.head_dim, x.data());
    largest = std::max(largest, quant::amax(x.data(), t.head_dim));
  }
  float* const scale = t.scale(run.block, 0, head);
  quant::Scale const before{run.offset == 0 ? 0.0F : *scale};
  quant::Scale const needed = quant::power_of_two_scale(t.format.element, largest);
  *scale = std::max(before.value, needed.value);
  if (*scale == before.value) return;
  for (std::int64_t offset = 0; offset < run.offset; ++offset) {
    quant::requantize_vector(t.format.element, before, {*scale}, t.head_dim,
                             t.vector(run.block, offset, head));
  }
}

void write_run(KvView const& view, KvTensor const& t, KvRows const& rows, Run const& run) {
  if (t.head_dim == 0) return;
  for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
    if (t.format.granularity == Granularity::per_block_head) grow_scale(t, rows, run, head);
    for (std::int64_t i = 0; i < run.count; ++i) write_vector(t, rows, run, i, head);
  }
}

void copy_tensor(KvView const& view, KvTensor const& t, BlockCopy const& copy) {
  if (t.head_dim == 0) return;
  auto const bytes = static_cast<std::size_t>(bytes_per_vector(t.format.element, t.head_dim));
  bool const is_dynamic = scale_bytes_per_vector(t.format) + scale_bytes_per_block_head(t.format);
  auto const entry = static_cast<std::size_t>(bytes_per_scale_entry(t.format.element));
  for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
    for (std::int64_t offset = 0; offset < copy.num_tokens; ++offset) {
      std::memcpy(t.vector(copy.dst.value(), offset, head),
                  t.vector(copy.src.value(), offset, head), bytes);
      if (!is_dynamic) continue;
      std::memcpy(t.scale(copy.dst.value(), offset, head), t.scale(copy.src.value(), offset, head),
                  entry);
    }
  }
}

void zero_tensor(KvView const& view, KvTensor const& t, BlockId block) {
  if (t.head_dim == 0) return;
  auto const bytes = static_cast<std::size_t>(bytes_per_vector(t.format.element, t.head_dim));
  bool const is_dynamic = scale_bytes_per_vector(t.format) + scale_bytes_per_block_head(t.format);
  auto const entry = static_cast<std::size_t>(bytes_per_scale_entry(t.format.element));
  for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
    for (std::int64_t offset = 0; offset < view.block_tokens; ++offset) {
      std::memset(t.vector(block.value(), offset, head), 0, bytes);
      if (is_dynamic) std::memset(t.scale(block.value(), offset, head), 0, entry);
    }
  }
}

void gather_tensor(KvView const& view, KvTensor const& t, std::span<std::int32_t const> table,
                   TokenRange range, MutableKvRows const& rows) {
  if (t.head_dim == 0) return;
  for (std::int64_t i = 0; i < range.count; ++i) {
    std::int64_t const position = range.first + i;
    std::int64_t const block = detail::block_at(view, table, position);
    if (block < 0) continue;
    for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
      Vector x;
      read_vector(t, block, position % view.block_tokens, head, x.data());
      store_row(rows, i, head, t.head_dim, x.data());
    }
  }
}

// ---- attention ----------------------------------------------------------------------------------

using PartialSums = std::array<float, num_partial_sums>;

float folded(PartialSums sums) {
  for (std::size_t half = num_partial_sums / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

float dot(float const* a, float const* b, std::int32_t dim) {
  PartialSums sums{};
  for (std::int32_t i = 0; i < dim; ++i) {
    sums[static_cast<std::size_t>(i % num_partial_sums)] += quant::detail::product(a[i], b[i]);
  }
  return folded(sums);
}

/// What is known of the visible positions up to some tile.
struct Partial {
  float max = 0.0F;
  float sum = 0.0F;
  Vector acc{};
};

/// One query head and where its sequence lies.
struct Reader {
  KvView const& view;
  KvLayer const& layer;
  std::span<std::int32_t const> table;
  std::int64_t kv_head = 0;
  float const* q = nullptr;
  float softmax_scale = 1.0F;

  void read(KvTensor const& t, std::int64_t position, float* x) const {
    auto const column = static_cast<std::size_t>(position / view.block_tokens);
    read_vector(t, table[column], position % view.block_tokens, kv_head, x);
  }

  /// Positions begin .. end - 1, all of one tile.
  void attend(std::int64_t begin, std::int64_t end, Partial& p) const {
    std::array<float, tile_tokens> weights;
    Vector x;
    for (std::int64_t t = begin; t < end; ++t) {
      read(layer.k, t, x.data());
      float const score = quant::detail::product(dot(q, x.data(), layer.k.head_dim), softmax_scale);
      p.max = t == begin || score > p.max ? score : p.max;
      weights[static_cast<std::size_t>(t - begin)] = score;
    }
    PartialSums sums{};
    p.acc.fill(0.0F);
    for (std::int64_t t = begin; t < end; ++t) {
      float const weight = softmax_exp(weights[static_cast<std::size_t>(t - begin)] - p.max);
      sums[static_cast<std::size_t>(t % num_partial_sums)] += weight;
      read(layer.v, t, x.data());
      for (std::size_t d = 0; d < static_cast<std::size_t>(layer.v.head_dim); ++d) {
        p.acc[d] += quant::detail::product(weight, x[d]);
      }
    }
    p.sum = folded(sums);
  }
};

void merge(Partial& into, Partial const& p, std::int32_t dim) {
  using quant::detail::product;
  float const max = p.max > into.max ? p.max : into.max;
  float const a = softmax_exp(into.max - max);
  float const b = softmax_exp(p.max - max);
  into.max = max;
  into.sum = product(into.sum, a) + product(p.sum, b);
  for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
    into.acc[d] = product(into.acc[d], a) + product(p.acc[d], b);
  }
}

void attend_query(Reader const& reader, std::int64_t begin, std::int64_t end, float* out) {
  std::int32_t const dim = reader.layer.v.head_dim;
  Partial all;
  Partial tile;
  for (std::int64_t first = begin; first < end;) {
    std::int64_t const next = std::min(end, (first / tile_tokens + 1) * tile_tokens);
    reader.attend(first, next, first == begin ? all : tile);
    if (first != begin) merge(all, tile, dim);
    first = next;
  }
  float const inverse = 1.0F / all.sum;
  for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) out[d] = all.acc[d] * inverse;
}

void attention(KvView const& view, std::int32_t layer_index, AttentionBatch const& batch,
               Queries const& queries, AttentionOptions const& options, bool decode) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "attention");
  detail::check_attention(view, layer, batch, queries, options, decode);
  std::int64_t const group = queries.num_q_heads / view.num_kv_heads;
  for (std::size_t s = 0; s < batch.sequence_lengths.size(); ++s) {
    auto const range = detail::queries_of(batch, s, decode);
    for (std::int64_t i = 0; i < range.count; ++i) {
      std::int64_t const position = batch.sequence_lengths[s] - range.count + i;
      std::int64_t const begin = detail::window_begin(position, options.window);
      std::int64_t const row = range.first + i;
      for (std::int64_t head = 0; head < queries.num_q_heads; ++head) {
        float const* const q = queries.q + row * queries.q_token_stride + head * layer.k.head_dim;
        float* const out = queries.out + row * queries.out_token_stride + head * layer.v.head_dim;
        Reader const reader{view,         layer, detail::table_of(batch, s),
                            head / group, q,     options.softmax_scale};
        attend_query(reader, begin, position + 1, out);
      }
    }
  }
}

}  // namespace

void write_kv(KvView const& view, std::int32_t layer_index, KvRows const& k, KvRows const& v,
              std::span<Slot const> slots) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "write_kv");
  if (slots.empty()) return;
  detail::check_rows(layer.k, k.element, k.data, "write_kv: K");
  detail::check_rows(layer.v, v.element, v.data, "write_kv: V");
  detail::check_slots(view, slots);
  auto const num_tokens = static_cast<std::int64_t>(slots.size());
  for (std::int64_t i = 0; i < num_tokens;) {
    Slot const slot = slots[static_cast<std::size_t>(i)];
    if (slot < 0) {
      ++i;
      continue;
    }
    Run run{i, 1, slot / view.block_tokens, slot % view.block_tokens};
    while (i + run.count < num_tokens && run.offset + run.count < view.block_tokens &&
           slots[static_cast<std::size_t>(i + run.count)] == slot + run.count) {
      ++run.count;
    }
    write_run(view, layer.k, k, run);
    write_run(view, layer.v, v, run);
    i += run.count;
  }
}

void copy_blocks(KvView const& view, std::span<BlockCopy const> copies) {
  detail::check_copies(view, copies);
  for (KvLayer const& layer : view.layers) {
    for (BlockCopy const& copy : copies) {
      copy_tensor(view, layer.k, copy);
      copy_tensor(view, layer.v, copy);
    }
  }
}

void zero_blocks(KvView const& view, std::span<BlockId const> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    detail::check_block(view, blocks[i].value(), "zero_blocks", i);
  }
  for (KvLayer const& layer : view.layers) {
    for (BlockId const block : blocks) {
      zero_tensor(view, layer.k, block);
      zero_tensor(view, layer.v, block);
    }
  }
}

void gather_kv(KvView const& view, std::int32_t layer_index, std::span<std::int32_t const> table,
               TokenRange range, MutableKvRows const& k, MutableKvRows const& v) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "gather_kv");
  detail::check_gather(view, table, range);
  if (range.count == 0) return;
  detail::check_rows(layer.k, k.element, k.data, "gather_kv: K");
  detail::check_rows(layer.v, v.element, v.data, "gather_kv: V");
  gather_tensor(view, layer.k, table, range, k);
  gather_tensor(view, layer.v, table, range, v);
}

void decode_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                      Queries const& queries, AttentionOptions const& options) {
  attention(view, layer, batch, queries, options, true);
}

void prefill_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                       Queries const& queries, AttentionOptions const& options) {
  attention(view, layer, batch, queries, options, false);
}

}  // namespace scalar
}  // namespace cpu
PAGEDKV_NAMESPACE_END

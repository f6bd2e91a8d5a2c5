// SPDX-License-Identifier: Apache-2.0
/// \file
/// Attention, split into units and tiles. A unit is up to `max_lanes` query heads that read the
/// same KV head of one sequence. Tiles of a unit are merged in their order, whoever computed them.
#include <algorithm>
#include <cstring>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/cpu/softmax_exp.hpp>
#include <pagedkv/data/cpu/workers.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "attention_order.hpp"
#include "guards.hpp"
#include "kernels.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {
namespace {

constexpr std::int64_t padded(std::int64_t dim) noexcept { return (dim + 15) / 16 * 16; }

/// All that a call is about.
struct Call {
  KvView const& view;
  KvLayer const& layer;
  AttentionBatch const& batch;
  Queries const& queries;
  AttentionOptions const& options;
  bool decode = true;
  Kernels const& kernel;

  [[nodiscard]] std::int64_t group() const { return queries.num_q_heads / view.num_kv_heads; }
  /// Query heads of one KV head of a sequence.
  [[nodiscard]] std::int64_t lanes_of(std::size_t sequence) const {
    return detail::queries_of(batch, sequence, decode).count * group();
  }
  [[nodiscard]] std::int64_t units_of(std::size_t sequence) const {
    return (lanes_of(sequence) + max_lanes - 1) / max_lanes;
  }
  [[nodiscard]] HeadTensor head_of(KvTensor const& t, std::int64_t head) const {
    auto const bytes = [&](std::int64_t elements) {
      return elements * bits_per_element(t.format.element) / 8;
    };
    HeadTensor h{};
    h.data = t.vector(0, 0, head);
    if (t.scales != nullptr) {
      h.scales = t.scale(0, 0, head);
      h.scale_block_stride = t.scale_block_stride;
      h.scale_token_stride = t.scale_token_stride;
    }
    h.block_stride = bytes(t.block_stride);
    h.token_stride = bytes(t.token_stride);
    h.dim = t.head_dim;
    h.element = static_cast<std::int32_t>(t.format.element);
    return h;
  }
};

/// Some query heads that read one KV head, with their queries copied and padded.
class Unit {
 public:
  Unit(Call const& call, std::size_t sequence, std::int64_t kv_head, std::int64_t unit)
      : call_(call) {
    auto const range = detail::queries_of(call.batch, sequence, call.decode);
    std::int64_t const first_lane = unit * max_lanes;
    num_lanes_ = static_cast<std::int32_t>(
        std::min<std::int64_t>(max_lanes, call.lanes_of(sequence) - first_lane));
    k_width_ = padded(call.layer.k.head_dim);
    v_width_ = padded(call.layer.v.head_dim);
    std::int64_t const length = call.batch.sequence_lengths[sequence];
    for (std::int32_t lane = 0; lane < num_lanes_; ++lane) {
      std::int64_t const i = (first_lane + lane) / call.group();
      std::int64_t const head = kv_head * call.group() + (first_lane + lane) % call.group();
      std::int64_t const position = length - range.count + i;
      begin_[lane] = detail::window_begin(position, call.options.window);
      end_[lane] = position + 1;
      std::int64_t const row = range.first + i;
      out_[lane] =
          call.queries.out + row * call.queries.out_token_stride + head * call.layer.v.head_dim;
      load_query(lane,
                 call.queries.q + row * call.queries.q_token_stride + head * call.layer.k.head_dim);
    }
    tile_.k = call.head_of(call.layer.k, kv_head);
    tile_.v = call.head_of(call.layer.v, kv_head);
    tile_.table = detail::table_of(call.batch, sequence).data();
    tile_.block_tokens = call.view.block_tokens;
    tile_.sequence_end = length;
    tile_.num_lanes = num_lanes_;
    tile_.q = q_;
    tile_.q_stride = k_width_;
    tile_.acc_stride = v_width_;
    tile_.softmax_scale = call.options.softmax_scale;
  }

  Unit(Unit const&) = delete;  // the tile points to its queries
  Unit& operator=(Unit const&) = delete;

  /// Tiles first .. end - 1 hold everything that a lane sees.
  [[nodiscard]] std::int64_t first_tile() const {
    return *std::min_element(begin_, begin_ + num_lanes_) / tile_tokens;
  }
  [[nodiscard]] std::int64_t end_tile() const {
    return (*std::max_element(end_, end_ + num_lanes_) + tile_tokens - 1) / tile_tokens;
  }

  /// acc: [max_lanes][v_width]; state: [2][max_lanes], largest score and sum of weights.
  void attend(std::int64_t index, float* acc, float* state) const {
    TileArgs tile = tile_;
    tile.tile_begin = index * tile_tokens;
    for (std::int32_t lane = 0; lane < num_lanes_; ++lane) {
      tile.begin[lane] = std::max(begin_[lane], tile.tile_begin);
      tile.end[lane] = std::min(end_[lane], tile.tile_begin + tile_tokens);
    }
    tile.acc = acc;
    call_.kernel.attend_tile(tile);
    std::copy_n(tile.max, max_lanes, state);
    std::copy_n(tile.sum, max_lanes, state + max_lanes);
  }

  /// Takes a tile's result in. Tiles must come in order.
  void merge(std::int64_t index, float const* acc, float const* state) {
    for (std::int32_t lane = 0; lane < num_lanes_; ++lane) {
      std::int64_t const tile_begin = index * tile_tokens;
      bool const sees = begin_[lane] < tile_begin + tile_tokens && end_[lane] > tile_begin;
      if (sees) merge_lane(lane, acc + lane * v_width_, state[lane], state[max_lanes + lane]);
    }
  }
  void finish() {
    for (std::int32_t lane = 0; lane < num_lanes_; ++lane) {
      float const inverse = 1.0F / sum_[lane];
      for (std::int64_t d = 0; d < call_.layer.v.head_dim; ++d) out_[lane][d] *= inverse;
    }
  }

  /// All of it on this thread.
  void run() {
    alignas(64) float acc[max_lanes * max_head_dim];
    float state[2 * max_lanes];
    for (std::int64_t index = first_tile(); index < end_tile(); ++index) {
      attend(index, acc, state);
      merge(index, acc, state);
    }
    finish();
  }

 private:
  void load_query(std::int32_t lane, float const* q) {
    float* const to = q_ + lane * k_width_;
    std::memcpy(to, q, static_cast<std::size_t>(call_.layer.k.head_dim) * sizeof(float));
    std::fill(to + call_.layer.k.head_dim, to + k_width_, 0.0F);
  }
  /// What is known so far of a lane stands in its `out`.
  void merge_lane(std::int32_t lane, float const* __restrict acc, float max, float sum) {
    float* const __restrict out = out_[lane];
    std::int64_t const dim = call_.layer.v.head_dim;
    if (!has_any_[lane]) {
      has_any_[lane] = true;
      max_[lane] = max;
      sum_[lane] = sum;
      std::memcpy(out, acc, static_cast<std::size_t>(dim) * sizeof(float));
      return;
    }
    float const larger = max > max_[lane] ? max : max_[lane];
    float const a = softmax_exp(max_[lane] - larger);
    float const b = softmax_exp(max - larger);
    max_[lane] = larger;
    sum_[lane] = sum_[lane] * a + sum * b;
    for (std::int64_t d = 0; d < dim; ++d) out[d] = out[d] * a + acc[d] * b;
  }

  Call const& call_;
  TileArgs tile_{};
  std::int32_t num_lanes_ = 0;
  std::int64_t k_width_ = 0;
  std::int64_t v_width_ = 0;
  std::int64_t begin_[max_lanes];
  std::int64_t end_[max_lanes];
  float* out_[max_lanes];
  float max_[max_lanes];
  float sum_[max_lanes];
  bool has_any_[max_lanes] = {};
  alignas(64) float q_[max_lanes * max_head_dim];
};

/// Few units and long contexts: the tiles of a sequence's units are dealt out, then merged in
/// order. False if the workers' scratch doesn't hold a tile of each.
bool attend_split(Call const& call, Workers& workers, std::size_t sequence) {
  std::int64_t const per_head = call.units_of(sequence);
  std::int64_t const units = per_head * call.view.num_kv_heads;
  std::int64_t const width = padded(call.layer.v.head_dim);
  std::int64_t const result = max_lanes * width + 2 * max_lanes;
  auto const unit_of = [&](std::int64_t u) {
    return Unit(call, sequence, u / per_head, u % per_head);
  };
  std::int64_t first = INT64_MAX;
  std::int64_t end = 0;
  for (std::int64_t u = 0; u < per_head; ++u) {
    Unit const unit = unit_of(u);
    first = std::min(first, unit.first_tile());
    end = std::max(end, unit.end_tile());
  }
  // One result a tile and unit; besides, what each unit knows between rounds.
  std::span<float> const scratch = workers.scratch();
  std::int64_t const state_floats = (static_cast<std::int64_t>(sizeof(Unit)) + 63) / 64 * 16;
  std::int64_t const left = static_cast<std::int64_t>(scratch.size()) - units * state_floats;
  std::int64_t const at_once = left / (units * result);
  if (at_once < 1) return false;
  auto const known = [&](std::int64_t u) {
    return reinterpret_cast<Unit*>(scratch.data() + u * state_floats);
  };
  for (std::int64_t u = 0; u < units; ++u) new (known(u)) Unit(unit_of(u));
  float* const results = scratch.data() + units * state_floats;
  for (std::int64_t from = first; from < end; from += at_once) {
    std::int64_t const count = std::min(at_once, end - from);
    workers.parallel_for(units * count, [&](std::int64_t i) {
      float* const to = results + i * result;
      known(i / count)->attend(from + i % count, to, to + max_lanes * width);
    });
    workers.parallel_for(units, [&](std::int64_t u) {
      for (std::int64_t i = 0; i < count; ++i) {
        float const* const with = results + (u * count + i) * result;
        known(u)->merge(from + i, with, with + max_lanes * width);
      }
    });
  }
  for (std::int64_t u = 0; u < units; ++u) known(u)->finish();
  return true;
}

void attention(KvView const& view, std::int32_t layer_index, AttentionBatch const& batch,
               Queries const& queries, AttentionOptions const& options, bool decode) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "attention");
  detail::check_attention(view, layer, batch, queries, options, decode);
  Call const call{view, layer, batch, queries, options, decode, kernels()};
  auto const num_sequences = static_cast<std::int64_t>(batch.sequence_lengths.size());
  auto const run_head = [&](std::int64_t i) {
    auto const sequence = static_cast<std::size_t>(i / view.num_kv_heads);
    for (std::int64_t u = 0; u < call.units_of(sequence); ++u) {
      Unit(call, sequence, i % view.num_kv_heads, u).run();
    }
  };
  std::int64_t const heads = num_sequences * view.num_kv_heads;
  if (options.workers == nullptr || options.workers->num_threads() == 1) {
    for (std::int64_t i = 0; i < heads; ++i) run_head(i);
    return;
  }
  Workers& workers = *options.workers;
  std::int64_t const enough = 4 * std::int64_t{workers.num_threads()};
  if (heads >= enough) return workers.parallel_for(heads, run_head);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    auto const sequence = static_cast<std::size_t>(s);
    std::int64_t const per_head = call.units_of(sequence);
    if (per_head == 0) continue;
    std::int64_t const units = per_head * view.num_kv_heads;
    if (units < enough && attend_split(call, workers, sequence)) continue;
    workers.parallel_for(
        units, [&](std::int64_t u) { Unit(call, sequence, u / per_head, u % per_head).run(); });
  }
}

}  // namespace

void decode_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                      Queries const& queries, AttentionOptions const& options) {
  attention(view, layer, batch, queries, options, true);
}

void prefill_attention(KvView const& view, std::int32_t layer, AttentionBatch const& batch,
                       Queries const& queries, AttentionOptions const& options) {
  attention(view, layer, batch, queries, options, false);
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

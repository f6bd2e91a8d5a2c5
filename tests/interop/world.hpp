// SPDX-License-Identifier: Apache-2.0
/// \file
/// A cache that serves random requests, with what K and V of each sequence must be, known from its
/// tokens alone: the readers of the other files start from nothing but a consumer's arguments.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/interop/step.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "catch.hpp"

namespace pagedkv::testing {

using Floats = std::vector<float>;
using Numbers = std::vector<std::int32_t>;

/// Where the pool's numbers lie: those of `KvStorage`, and one that an engine might own, in which a
/// block's K and V are neighbours.
struct Placement {
  char const* name;
  KvLayout layout;
  bool engine_owned = false;
};
inline constexpr Placement placements[] = {
    {"nhd, layer-major", {BlockOrder::nhd, PoolOrder::layer_major}},
    {"hnd, layer-major", {BlockOrder::hnd, PoolOrder::layer_major}},
    {"nhd, block-major", {BlockOrder::nhd, PoolOrder::block_major}},
    {"hnd, block-major", {BlockOrder::hnd, PoolOrder::block_major}},
    {"nhd, K and V of a block together", {BlockOrder::nhd, PoolOrder::layer_major}, true},
};

/// Scales of static formats, all different and none a power of two.
inline std::vector<StaticScales> scales_of(Geometry const& g) {
  std::vector<StaticScales> scales(static_cast<std::size_t>(g.num_layers));
  float next = 0.013F;
  auto const fill = [&](Floats& out, KvFormat format) {
    std::int64_t const n = static_scale_bytes(format, g.num_kv_heads) / bytes_per_scale;
    for (std::int64_t i = 0; i < n; ++i) out.push_back(next *= 1.09F);
  };
  for (std::int32_t layer = 0; layer < g.num_layers; ++layer) {
    auto const format = g.format_of(layer);
    fill(scales[static_cast<std::size_t>(layer)].k, format.k);
    fill(scales[static_cast<std::size_t>(layer)].v, format.v);
  }
  return scales;
}

/// The memory of a pool.
class Pool {
 public:
  Pool(Geometry const& g, std::int32_t num_blocks, Placement const& placement)
      : scales_(scales_of(g)), storage_(g, num_blocks, placement.layout, scales_) {
    auto const view = storage_.view();
    layers_.assign(view.layers.begin(), view.layers.end());
    if (placement.engine_owned) place_together(g, num_blocks);
  }
  [[nodiscard]] KvView view() const {
    KvView view = storage_.view();
    view.layers = layers_;
    return view;
  }
  [[nodiscard]] StaticScales const& scales(std::int32_t layer) const {
    return scales_[static_cast<std::size_t>(layer)];
  }

 private:
  /// [layer, block, K or V, token, head, dim] of this class's own bytes.
  void place_together(Geometry const& g, std::int32_t num_blocks) {
    std::int64_t const dim = g.head_dim_k;
    std::int64_t const half = std::int64_t{g.block_tokens} * g.num_kv_heads * dim;
    std::int64_t const bytes = bits_per_element(g.format.k.element) / 8;
    std::int64_t const per_layer = num_blocks * 2 * half * bytes;
    bytes_.resize(static_cast<std::size_t>(per_layer * g.num_layers) + 64);
    void* first = bytes_.data();
    std::size_t room = bytes_.size();
    auto* at = static_cast<std::byte*>(std::align(64, 1, first, room));
    for (auto& layer : layers_) {
      for (auto* t : {&layer.k, &layer.v}) {
        t->data = at + (t == &layer.v ? half * bytes : 0);
        t->block_stride = 2 * half;
        t->token_stride = g.num_kv_heads * dim;
        t->head_stride = dim;
      }
      at += per_layer;
    }
  }

  std::vector<StaticScales> scales_;
  KvStorage storage_;
  std::vector<std::byte> bytes_;
  std::vector<KvLayer> layers_;
};

/// Arrays of a step.
struct Arrays {
  explicit Arrays(BatchLimits const& limits)
      : slot_mapping(static_cast<std::size_t>(limits.max_tokens)),
        query_offsets(rows(limits) + 1),
        sequence_lengths(rows(limits)),
        indptr(rows(limits) + 1),
        indices(rows(limits) * columns(limits)),
        last_block_len(rows(limits)),
        new_blocks(rows(limits) * columns(limits)),
        copies(rows(limits)) {}
  static std::size_t rows(BatchLimits const& l) {
    return static_cast<std::size_t>(l.max_sequences);
  }
  static std::size_t columns(BatchLimits const& l) {
    return static_cast<std::size_t>(l.max_blocks_per_sequence);
  }
  [[nodiscard]] BatchBuffers buffers() {
    return {.slot_mapping = slot_mapping,
            .query_offsets = query_offsets,
            .sequence_lengths = sequence_lengths,
            .indptr = indptr,
            .indices = indices,
            .last_block_len = last_block_len,
            .new_blocks = new_blocks,
            .copies = copies};
  }

  std::vector<Slot> slot_mapping;
  Numbers query_offsets;
  Numbers sequence_lengths;
  Numbers indptr;
  Numbers indices;
  Numbers last_block_len;
  std::vector<BlockId> new_blocks;
  std::vector<BlockCopy> copies;
};

struct Request {
  Sequence seq;
  std::vector<TokenId> tokens;   ///< all of it, those to come too
  std::int32_t prompt_size = 0;  ///< of them, computed in pieces
  TokenRange query{};            ///< this step's
};

/// What a step's consumer sees: `arrays` and `table` are copies ("on the device"), and the host's
/// own are gone when a reader looks.
struct StepSeen {
  BatchStep step;
  BatchBuffers arrays;
  BlockTable table;
  interop::StepMaxima maxima;
  Numbers cumulated;                           ///< of sequence_lengths
  std::vector<Request const*> request_of_row;  ///< [num_sequences]
};

/// Requests that share prompts, fork, grow by pieces and by one, and end.
class World {
 public:
  World(Geometry const& g, Placement const& placement, std::uint32_t seed)
      : geometry_(g),
        pool_(g, num_blocks, placement),
        cache_({.block_tokens = g.block_tokens,
                .num_blocks = num_blocks,
                .max_sequences = 8,
                .max_sequence_tokens = 5 * g.block_tokens}),
        limits_{6, 24 * g.block_tokens, 5},
        batch_(cache_, limits_),
        host_(limits_),
        device_(limits_),
        random_(seed) {}

  [[nodiscard]] Geometry const& geometry() const { return geometry_; }
  [[nodiscard]] Pool const& pool() const { return pool_; }

  /// One step, up to the point where K and V are written; then `look(seen)`.
  template <class Look>
  void step(Look&& look) {
    batch_.begin_step();
    admit_or_end();
    for (auto& request : requests_) grow(*request);
    if (chance(3)) batch_.pad_to(batch_.num_tokens() + 3, 6);
    auto const step = batch_.build(host_.buffers());
    REQUIRE(step.has_value());
    write(*step);
    StepSeen seen = hand_over(*step);
    look(std::as_const(seen));
    batch_.commit();
    cache_.end_step();
  }

  /// K or V of a position, read back as the format's definition says.
  [[nodiscard]] Floats expected(Request const& request, std::int32_t position, std::int32_t layer,
                                bool is_v, std::int32_t head) const {
    KvLayer const& l = pool_.view().layers[static_cast<std::size_t>(layer)];
    KvTensor const& t = is_v ? l.v : l.k;
    Floats x = original(prefix_hash(request, position), layer, is_v, head, t.head_dim);
    quant::AffineScale scale{1.0F, 0.0F};
    Floats const& scales = is_v ? pool_.scales(layer).v : pool_.scales(layer).k;
    if (scales.size() == 1) scale.scale = scales.front();
    if (scales.size() > 1) scale.scale = scales[static_cast<std::size_t>(head)];
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(bytes_per_vector(t.format.element, t.head_dim)));
    quant::encode_vector(t.format.element, scale, x.data(), t.head_dim, bytes.data());
    quant::decode_vector(t.format.element, scale, bytes.data(), t.head_dim, x.data());
    return x;
  }

 private:
  static constexpr std::int32_t num_blocks = 24;

  bool chance(std::uint32_t one_in) { return random_() % one_in == 0; }

  /// Exact in every 16-bit format, so that a 16-bit pool holds the original bits.
  static Floats original(std::uint64_t prefix, std::int32_t layer, bool is_v, std::int32_t head,
                         std::int32_t dim) {
    std::uint64_t state = prefix * 31 + static_cast<std::uint64_t>(layer * 64 + head * 2 + is_v);
    Floats x(static_cast<std::size_t>(dim));
    for (float& number : x) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      number = static_cast<float>(static_cast<std::int32_t>(state >> 33) % 255 - 127) / 32.0F;
    }
    return x;
  }
  /// What a token's K and V depend on.
  static std::uint64_t prefix_hash(Request const& request, std::int32_t position) {
    std::uint64_t hash = 1;
    for (std::int32_t p = 0; p <= position; ++p) {
      auto const token = request.tokens[static_cast<std::size_t>(p)];
      hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }

  void admit_or_end() {
    if (quiet_steps_ > 0) {  // empty steps, now and then
      --quiet_steps_;
      return;
    }
    if (!requests_.empty() && chance(4)) {
      requests_.erase(requests_.begin() +
                      static_cast<std::ptrdiff_t>(random_() % requests_.size()));
    }
    if (chance(12)) {
      requests_.clear();
      quiet_steps_ = 2;
      return;
    }
    if (requests_.size() < 5 && chance(2)) fork_one();
    if (requests_.size() < 5) admit();
  }
  void admit() {
    std::int32_t const block = geometry_.block_tokens;
    // Prompts of few families share their beginning; many end at a block's last token.
    auto const family = static_cast<TokenId>(random_() % 3);
    std::int32_t const shared = block * static_cast<std::int32_t>(random_() % 3);
    std::int32_t const own = chance(3) ? block : 1 + static_cast<std::int32_t>(random_()) % 7 + 7;
    std::vector<TokenId> prompt;
    for (std::int32_t i = 0; i < shared; ++i) prompt.push_back(family * 1000 + i);
    for (std::int32_t i = 0; i < std::min(own, block); ++i) {
      prompt.push_back(static_cast<TokenId>(random_() % 100'000));
    }
    if (auto seq = cache_.open(SequenceId{next_id_++}, prompt)) {
      auto const size = static_cast<std::int32_t>(prompt.size());
      enter({*std::move(seq), std::move(prompt), size});
    }
  }
  void fork_one() {
    for (auto& parent : requests_) {
      if (parent->seq.size() == 0 || parent->seq.size() < parent->prompt_size) continue;
      auto seq = parent->seq.fork(SequenceId{next_id_++});
      if (seq) enter({*std::move(seq), parent->tokens, parent->prompt_size});
      return;
    }
  }
  void enter(Request request) {
    requests_.push_back(std::make_unique<Request>(std::move(request)));
  }
  /// A piece of the prompt, or a token more, or nothing.
  void grow(Request& r) {
    std::int32_t const size = r.seq.size();
    std::int32_t const left = r.prompt_size - size;
    std::int32_t n = 0;
    if (left > 0) {
      n = chance(2) ? left : 1 + static_cast<std::int32_t>(random_() % static_cast<unsigned>(left));
    } else if (!chance(5) && size < 4 * geometry_.block_tokens) {
      r.tokens.push_back(static_cast<TokenId>(random_() % 100'000));
      n = 1;
    }
    auto const first = r.tokens.begin() + size;
    auto const range = r.seq.append(std::vector<TokenId>(first, first + n));
    if (!range) r.tokens.resize(static_cast<std::size_t>(std::max(size, r.prompt_size)));
    r.query = range ? *range : TokenRange{size, 0};
    REQUIRE(batch_.add(r.seq, r.query).has_value());
  }

  [[nodiscard]] StepSeen hand_over(BatchStep const& step) {
    StepSeen seen{step, {}, {}, interop::maxima_of(step, host_.buffers()), {}, {}};
    auto const n = static_cast<std::size_t>(step.padded_sequences);
    std::int32_t sum = 0;
    seen.cumulated.push_back(0);
    for (std::size_t i = 0; i < n; ++i) {
      seen.cumulated.push_back(sum += host_.sequence_lengths[i]);
    }
    // Rows further apart than a row is long, and nothing useful between them.
    auto const width = static_cast<std::size_t>(batch_.table_width());
    Numbers tight(6 * width);
    batch_.copy_table(tight);
    device_table_.assign(6 * (width + 3), -1);
    for (std::size_t row = 0; row < 6; ++row) {
      std::copy_n(&tight[row * width], width, &device_table_[row * (width + 3)]);
    }
    seen.table = {device_table_.data(), static_cast<std::int64_t>(width + 3), 6,
                  batch_.table_width()};
    device_ = host_;
    host_ = Arrays(limits_);
    std::fill(host_.indptr.begin(), host_.indptr.end(), -9);
    seen.arrays = device_.buffers();
    seen.request_of_row.assign(static_cast<std::size_t>(step.num_sequences), nullptr);
    for (auto const& r : requests_) {
      seen.request_of_row[static_cast<std::size_t>(batch_.row_of(r->seq))] = r.get();
    }
    return seen;
  }

  void write(BatchStep const& step) {
    auto const view = pool_.view();
    auto const count = [](std::int32_t n) { return static_cast<std::size_t>(n); };
    cpu::zero_blocks(view, std::span(host_.new_blocks).first(count(step.num_new_blocks)));
    cpu::copy_blocks(view, std::span(host_.copies).first(count(step.num_copies)));
    for (std::int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      Floats const k = rows(step, layer, false);
      Floats const v = rows(step, layer, true);
      cpu::write_kv(view, layer, described(k, geometry_.head_dim_k),
                    described(v, geometry_.head_dim_v),
                    std::span(host_.slot_mapping).first(count(step.padded_tokens)));
    }
  }
  [[nodiscard]] KvRows described(Floats const& rows, std::int32_t dim) const {
    return {rows.data(), Element::f32, std::int64_t{geometry_.num_kv_heads} * dim, dim};
  }
  /// [padded tokens, heads, dim]; padding: numbers that must not be stored.
  [[nodiscard]] Floats rows(BatchStep const& step, std::int32_t layer, bool is_v) const {
    std::int32_t const dim = is_v ? geometry_.head_dim_v : geometry_.head_dim_k;
    std::int64_t const per_token = std::int64_t{geometry_.num_kv_heads} * dim;
    Floats out(static_cast<std::size_t>(step.padded_tokens * per_token), 1234.0F);
    for (auto const& r : requests_) {
      std::int32_t const row = batch_.row_of(r->seq);
      std::int64_t token = host_.query_offsets[static_cast<std::size_t>(row)];
      for (std::int32_t p = r->query.first; p < r->query.end(); ++p, ++token) {
        std::uint64_t const prefix = prefix_hash(*r, p);
        for (std::int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
          Floats const x = original(prefix, layer, is_v, head, dim);
          std::copy(x.begin(), x.end(), out.begin() + token * per_token + head * dim);
        }
      }
    }
    return out;
  }

  Geometry geometry_;
  Pool pool_;
  KvCache cache_;
  BatchLimits limits_;
  Batch batch_;
  Arrays host_;
  Arrays device_;
  Numbers device_table_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::mt19937 random_;
  std::uint64_t next_id_ = 1;
  std::int32_t quiet_steps_ = 0;
};

// ---- a consumer's eyes --------------------------------------------------------------------------

/// The number that a type's bytes stand for, by the type's own rules and none of the library's
/// code.
[[nodiscard]] inline float number_at(std::byte const* at, interop::Dtype dtype) {
  auto const bits = [&](auto whole) {
    std::memcpy(&whole, at, sizeof whole);
    return whole;
  };
  auto const small = [](std::uint32_t code, int exponent_bits, int mantissa_bits) {
    int const bias = (1 << (exponent_bits - 1)) - 1;
    auto const mantissa = static_cast<int>(code & ((1U << mantissa_bits) - 1));
    auto const exponent = static_cast<int>((code >> mantissa_bits) & ((1U << exponent_bits) - 1));
    float const magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                                             exponent - bias - mantissa_bits);
    return (code >> (exponent_bits + mantissa_bits)) != 0 ? -magnitude : magnitude;
  };
  switch (dtype) {
    case interop::Dtype::f16: return small(bits(std::uint16_t{}), 5, 10);
    case interop::Dtype::bf16: return small(bits(std::uint16_t{}), 8, 7);
    case interop::Dtype::e4m3fn: return small(bits(std::uint8_t{}), 4, 3);
    case interop::Dtype::e5m2: return small(bits(std::uint8_t{}), 5, 2);
    case interop::Dtype::f32: return bits(float{});
    default: FAIL("no consumer reads " << to_string(dtype));
  }
  return 0.0F;
}

/// Element [index...] of a tensor, as its shape, strides and type say.
[[nodiscard]] inline std::byte const* at(interop::Tensor const& t,
                                         std::initializer_list<std::int64_t> index) {
  // Not REQUIRE: it would count each of a hundred million reads.
  if (static_cast<std::size_t>(t.rank) != index.size()) FAIL("a tensor of rank " << t.rank);
  std::int64_t offset = 0;
  std::size_t d = 0;
  for (std::int64_t const i : index) {
    if (i < 0 || i >= t.shape[d]) FAIL("index " << i << " of dimension " << d);
    offset += i * t.strides[d++];
  }
  return static_cast<std::byte const*>(t.data) + offset * interop::bytes_per_item(t.dtype);
}
[[nodiscard]] inline float number(interop::Tensor const& t,
                                  std::initializer_list<std::int64_t> index) {
  return number_at(at(t, index), t.dtype);
}
[[nodiscard]] inline std::int64_t whole(interop::Tensor const& t,
                                        std::initializer_list<std::int64_t> index) {
  if (t.dtype == interop::Dtype::i64) {
    std::int64_t n = 0;
    std::memcpy(&n, at(t, index), sizeof n);
    return n;
  }
  if (t.dtype != interop::Dtype::i32) FAIL("not an array of whole numbers");
  std::int32_t n = 0;
  std::memcpy(&n, at(t, index), sizeof n);
  return n;
}

/// `read(row, position, is_v, head, i)` is what a consumer makes of its arguments: each number of
/// each sequence must be the one that its tokens call for.
template <class Read>
void check_all(World const& world, StepSeen const& seen, std::int32_t layer, Read&& read) {
  Geometry const& g = world.geometry();
  for (std::size_t row = 0; row < seen.request_of_row.size(); ++row) {
    Request const& r = *seen.request_of_row[row];
    for (std::int32_t p = 0; p < r.seq.size(); ++p) {
      for (std::int32_t head = 0; head < g.num_kv_heads; ++head) {
        for (bool const is_v : {false, true}) {
          Floats const expected = world.expected(r, p, layer, is_v, head);
          Floats found(expected.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            found[i] =
                read(static_cast<std::int64_t>(row), p, is_v, head, static_cast<std::int64_t>(i));
          }
          if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0) {
            continue;
          }
          INFO("row " << row << ", position " << p << (is_v ? ", V" : ", K") << " of head "
                      << head);
          REQUIRE(found == expected);
        }
      }
    }
  }
}

}  // namespace pagedkv::testing

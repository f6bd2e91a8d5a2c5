// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the tests of the data plane share: random rows, a pool with known content, and the
/// operations in each version.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/quant/vector_codec.hpp>

namespace pagedkv::testing {

/// One version of the operations.
struct Operations {
  char const* name;
  decltype(&cpu::write_kv) write_kv;
  decltype(&cpu::copy_blocks) copy_blocks;
  decltype(&cpu::zero_blocks) zero_blocks;
  decltype(&cpu::gather_kv) gather_kv;
  decltype(&cpu::decode_attention) decode_attention;
  decltype(&cpu::prefill_attention) prefill_attention;
};
inline constexpr Operations scalar_operations = {
    "scalar",
    &cpu::scalar::write_kv,
    &cpu::scalar::copy_blocks,
    &cpu::scalar::zero_blocks,
    &cpu::scalar::gather_kv,
    &cpu::scalar::decode_attention,
    &cpu::scalar::prefill_attention,
};
inline constexpr Operations fast_operations = {
    "fast",          &cpu::write_kv,         &cpu::copy_blocks,       &cpu::zero_blocks,
    &cpu::gather_kv, &cpu::decode_attention, &cpu::prefill_attention,
};
inline constexpr Operations both_operations[] = {scalar_operations, fast_operations};

/// Every element with every granularity it takes.
inline std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (Element const element : all_elements) {
    for (Granularity const g : granularities_of(element)) formats.push_back({element, g});
  }
  return formats;
}

inline bool is_static(KvFormat format) {
  return format.granularity == Granularity::per_tensor ||
         format.granularity == Granularity::per_head;
}

/// Scales for every static tensor of the geometry, all different.
inline std::vector<StaticScales> scales_for(Geometry const& g) {
  std::vector<StaticScales> scales(static_cast<std::size_t>(g.num_layers));
  float next = 0.011F;
  auto const fill = [&](std::vector<float>& out, KvFormat format) {
    std::int64_t const bytes = static_scale_bytes(format, g.num_kv_heads);
    for (std::int64_t i = 0; i < bytes / bytes_per_scale; ++i) out.push_back(next *= 1.07F);
  };
  for (std::int32_t layer = 0; layer < g.num_layers; ++layer) {
    auto const format = g.format_of(layer);
    fill(scales[static_cast<std::size_t>(layer)].k, format.k);
    if (g.head_dim_v > 0) fill(scales[static_cast<std::size_t>(layer)].v, format.v);
  }
  return scales;
}

/// Rows of a step, at an address and with strides of the caller's choice.
class Rows {
 public:
  struct Shape {
    std::int64_t num_tokens = 0;
    std::int64_t num_heads = 0;
    std::int64_t dim = 0;
    Element element = Element::f32;
    std::int64_t head_gap = 0;   ///< elements between neighbouring heads
    std::int64_t token_gap = 0;  ///< and tokens
    std::size_t misaligned = 0;  ///< bytes
  };

  explicit Rows(Shape shape) : shape_(shape) {
    head_stride_ = shape.dim + shape.head_gap;
    token_stride_ = shape.num_heads * head_stride_ + shape.token_gap;
    bytes_.assign(static_cast<std::size_t>(shape.num_tokens * token_stride_ * element_bytes()) +
                      shape.misaligned + 1,
                  std::byte{0xA5});
  }
  /// Normal numbers with outliers.
  Rows(Shape shape, std::uint32_t seed) : Rows(shape) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
      for (std::int64_t h = 0; h < shape.num_heads; ++h) {
        for (std::int64_t i = 0; i < shape.dim; ++i) {
          float const x = normal(random) * (random() % 16 == 0 ? 12.0F : 1.0F);
          set(t, h, i, x);
        }
      }
    }
  }

  [[nodiscard]] std::byte* vector(std::int64_t t, std::int64_t h) {
    return bytes_.data() + shape_.misaligned +
           (t * token_stride_ + h * head_stride_) * element_bytes();
  }
  void set(std::int64_t t, std::int64_t h, std::int64_t i, float x) {
    std::byte one[16] = {};
    quant::encode_vector(shape_.element, {}, &x, 1, one);
    std::memcpy(vector(t, h) + i * element_bytes(), one, static_cast<std::size_t>(element_bytes()));
  }
  [[nodiscard]] std::vector<float> floats(std::int64_t t, std::int64_t h) {
    std::vector<float> x(static_cast<std::size_t>(shape_.dim));
    quant::decode_vector(shape_.element, {}, vector(t, h), static_cast<std::int32_t>(shape_.dim),
                         x.data());
    return x;
  }
  [[nodiscard]] KvRows rows() {
    return {bytes_.data() + shape_.misaligned, shape_.element, token_stride_, head_stride_};
  }
  [[nodiscard]] MutableKvRows mutable_rows() {
    return {bytes_.data() + shape_.misaligned, shape_.element, token_stride_, head_stride_};
  }
  [[nodiscard]] std::vector<std::byte> const& bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::int64_t element_bytes() const { return bits_per_element(shape_.element) / 8; }

  Shape shape_;
  std::int64_t head_stride_ = 0;
  std::int64_t token_stride_ = 0;
  std::vector<std::byte> bytes_;
};

inline std::vector<std::byte> bytes_of(KvStorage& storage) {
  auto const memory = storage.memory();
  return {memory.begin(), memory.end()};
}

/// What the definition stores for a vector. Not inlined: g++ 12 sees writes of other elements.
[[gnu::noinline]] inline std::vector<std::byte> encoded(Element element, quant::AffineScale scale,
                                                        std::vector<float> const& x) {
  auto const dim = static_cast<std::int32_t>(x.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_per_vector(element, dim)));
  quant::encode_vector(element, scale, x.data(), dim, bytes.data());
  return bytes;
}

/// One stored vector as its bytes.
inline std::vector<std::byte> stored(KvTensor const& t, std::int64_t block, std::int64_t offset,
                                     std::int64_t head) {
  auto const* const first = t.vector(block, offset, head);
  return {first, first + bytes_per_vector(t.format.element, t.head_dim)};
}

inline quant::AffineScale scale_of(KvTensor const& t, std::int64_t block, std::int64_t offset,
                                   std::int64_t head) {
  if (t.scales == nullptr) return {1.0F, 0.0F};
  float const* const s = t.scale(block, offset, head);
  return {s[0], quant::has_zero(t.format.element) ? s[1] : 0.0F};
}

inline std::vector<float> read(KvTensor const& t, std::int64_t block, std::int64_t offset,
                               std::int64_t head) {
  std::vector<float> x(static_cast<std::size_t>(t.head_dim));
  quant::decode_vector(t.format.element, scale_of(t, block, offset, head),
                       t.vector(block, offset, head), t.head_dim, x.data());
  return x;
}

/// Equal bit for bit, all NaN being one.
inline bool same_floats(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}
inline bool same_floats(std::span<float const> a, std::span<float const> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_floats(a[i], b[i])) return false;
  }
  return true;
}

/// `count` slots of the pool, in order of one random order of its blocks.
inline std::vector<std::int32_t> random_blocks(std::int32_t num_blocks, std::mt19937& random) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random() % i]);
  return blocks;
}
inline std::vector<Slot> slots_of(std::span<std::int32_t const> table, std::int32_t block_tokens,
                                  std::int64_t first, std::int64_t count) {
  std::vector<Slot> slots;
  for (std::int64_t p = first; p < first + count; ++p) {
    slots.push_back(Slot{table[static_cast<std::size_t>(p / block_tokens)]} * block_tokens +
                    p % block_tokens);
  }
  return slots;
}

}  // namespace pagedkv::testing

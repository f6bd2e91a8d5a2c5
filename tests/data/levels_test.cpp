// SPDX-License-Identifier: Apache-2.0
// Every vector width gives the oracle's bits.
#include "../../src/data/kernels.hpp"
#include "catch.hpp"
#include "data_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::KvStorage;
using pagedkv::Slot;
using pagedkv::cpu::VectorLevel;

namespace {

/// Runs `body` at each level that this machine has, and goes back to the widest.
template <class Body>
void at_each_level(Body&& body) {
  for (auto const level : {VectorLevel::baseline, VectorLevel::avx2, VectorLevel::avx512}) {
    if (kv::cpu::set_vector_level(level)) body(kv::cpu::kernels().name);
  }
}

std::int64_t pick(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(high - low + 1));
}

/// Any bits: all kinds of NaN, infinities, subnormals and huge numbers among normal ones.
void fill_wildly(Rows& rows, std::int64_t tokens, std::int64_t heads, std::int64_t dim,
                 Element element, std::mt19937& random) {
  std::int64_t const bytes = kv::bits_per_element(element) / 8;
  bool const wild_bits = random() % 2 == 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < dim; ++i) {
        if (wild_bits && random() % 24 == 0) {
          std::uint32_t bits = static_cast<std::uint32_t>(random());
          if (random() % 3 == 0) bits |= element == Element::f16 ? 0x7C00'7C00U : 0x7F80'7F80U;
          std::memcpy(rows.vector(t, h) + i * bytes, &bits, static_cast<std::size_t>(bytes));
        } else if (random() % 64 == 0) {
          rows.set(t, h, i, 0.0F);
        }
      }
    }
  }
}

struct Trial {
  Geometry geometry;
  kv::KvLayout layout;
  std::vector<kv::StaticScales> scales;
  std::vector<std::vector<Slot>> steps;
  std::vector<Rows> k;
  std::vector<Rows> v;
};

/// Whether writers stream, whatever the machine and the size of a call.
class Streaming {
 public:
  explicit Streaming(bool streams) { kv::cpu::set_streaming_bytes(streams ? 0 : INT64_MAX); }
  Streaming(Streaming const&) = delete;
  Streaming& operator=(Streaming const&) = delete;
  ~Streaming() { kv::cpu::set_streaming_bytes(before_); }

 private:
  std::int64_t before_ = kv::cpu::streaming_bytes();
};

/// Steps that write blocks in order, as sequences do.
Trial random_trial(KvFormat format, std::mt19937& random) {
  constexpr std::int32_t dims[] = {1, 8, 16, 20, 31, 32, 64, 80, 96, 128, 192, 256, 300};
  constexpr Element inputs[] = {Element::f32, Element::f16, Element::bf16};
  Trial trial;
  trial.geometry = {.num_layers = 1,
                    .num_kv_heads = static_cast<std::int32_t>(pick(random, 1, 5)),
                    .head_dim_k = dims[random() % std::size(dims)],
                    .head_dim_v = dims[random() % std::size(dims)],
                    .block_tokens = static_cast<std::int32_t>(pick(random, 1, 9)),
                    .format = format};
  Geometry const& g = trial.geometry;
  trial.layout = {random() % 2 == 0 ? kv::BlockOrder::nhd : kv::BlockOrder::hnd,
                  random() % 2 == 0 ? kv::PoolOrder::layer_major : kv::PoolOrder::block_major};
  trial.scales = scales_for(g);
  constexpr float factors[] = {1.0F, 1e-30F, 1e30F, 0x1p120F, 0x1p-140F, 77.0F};
  for (auto& layer : trial.scales) {
    float const factor = factors[random() % std::size(factors)];
    for (float& s : layer.k) s *= factor;
    for (float& s : layer.v) s = s * factor > 0.0F ? s * factor : 1.0F;
    for (float& s : layer.k) s = s > 0.0F && s < 3e38F ? s : 1.0F;
    for (float& s : layer.v) s = s < 3e38F ? s : 1.0F;
  }
  std::int32_t const table[] = {2, 0, 3, 1};
  std::int64_t const capacity = 4 * std::int64_t{g.block_tokens};
  for (std::int64_t p = 0; p < capacity;) {
    std::int64_t const n = std::min(pick(random, 1, 7), capacity - p);
    auto slots = slots_of(table, g.block_tokens, p, n);
    if (random() % 4 == 0) slots.insert(slots.begin() + static_cast<std::ptrdiff_t>(n / 2), -1);
    auto const tokens = static_cast<std::int64_t>(slots.size());
    Element const input = inputs[random() % 3];
    Rows::Shape shape{tokens,      g.num_kv_heads,         g.head_dim_k,
                      input,       pick(random, 0, 1) * 3, pick(random, 0, 1) * 5,
                      random() % 3};
    trial.k.emplace_back(shape, static_cast<std::uint32_t>(random()));
    fill_wildly(trial.k.back(), tokens, g.num_kv_heads, g.head_dim_k, input, random);
    shape.dim = g.head_dim_v;
    trial.v.emplace_back(shape, static_cast<std::uint32_t>(random()));
    fill_wildly(trial.v.back(), tokens, g.num_kv_heads, g.head_dim_v, input, random);
    trial.steps.push_back(std::move(slots));
    p += n;
  }
  return trial;
}

KvStorage written(Operations const& ops, Trial& trial) {
  KvStorage storage(trial.geometry, 4, trial.layout, trial.scales);
  kv::BlockId const all[] = {kv::BlockId{0}, kv::BlockId{1}, kv::BlockId{2}, kv::BlockId{3}};
  std::span<kv::BlockId const> const blocks(all, 4);
  kv::cpu::scalar::zero_blocks(storage.view(), blocks);
  for (std::size_t i = 0; i < trial.steps.size(); ++i) {
    ops.write_kv(storage.view(), 0, trial.k[i].rows(), trial.v[i].rows(), trial.steps[i]);
  }
  return storage;
}

}  // namespace

TEST_CASE("writers of every level store the oracle's bytes and scales, whatever the input") {
  std::mt19937 random(2024);
  for (KvFormat const format : all_formats()) {
    for (int round = 0; round < 30; ++round) {
      Trial trial = random_trial(format, random);
      KvStorage expected = written(scalar_operations, trial);
      at_each_level([&](char const* level) {
        for (bool const streams : {false, true}) {
          Streaming const streaming(streams);
          KvStorage got = written(fast_operations, trial);
          INFO(level << " " << to_string(format) << " round " << round << " streams " << streams
                     << " dims " << trial.geometry.head_dim_k << " " << trial.geometry.head_dim_v);
          CHECK(bytes_of(got) == bytes_of(expected));
        }
      });
    }
  }
}

TEST_CASE("gathers of every level read the oracle's numbers") {
  std::mt19937 random(11);
  for (KvFormat const format : all_formats()) {
    for (int round = 0; round < 10; ++round) {
      Trial trial = random_trial(format, random);
      KvStorage const storage = written(scalar_operations, trial);
      Geometry const& g = trial.geometry;
      auto const table = std::vector<std::int32_t>{2, 0, 3, 1};
      std::int32_t const first = static_cast<std::int32_t>(pick(random, 0, 3));
      kv::TokenRange const range{first, 4 * g.block_tokens - first};
      for (Element const output : {Element::f32, Element::f16, Element::bf16}) {
        Rows::Shape const k_shape{range.count, g.num_kv_heads, g.head_dim_k, output, 1, 0, 1};
        Rows::Shape const v_shape{range.count, g.num_kv_heads, g.head_dim_v, output, 0, 0, 0};
        Rows k(k_shape);
        Rows v(v_shape);
        kv::cpu::scalar::gather_kv(storage.view(), 0, table, range, k.mutable_rows(),
                                   v.mutable_rows());
        at_each_level([&](char const* level) {
          Rows got_k(k_shape);
          Rows got_v(v_shape);
          kv::cpu::gather_kv(storage.view(), 0, table, range, got_k.mutable_rows(),
                             got_v.mutable_rows());
          INFO(level << " " << to_string(format) << " to " << to_string(output));
          bool same = true;
          for (std::int64_t t = 0; t < range.count; ++t) {
            for (std::int64_t h = 0; h < g.num_kv_heads; ++h) {
              same = same && same_floats(k.floats(t, h), got_k.floats(t, h)) &&
                     same_floats(v.floats(t, h), got_v.floats(t, h));
            }
          }
          CHECK(same);
        });
      }
    }
  }
}

TEST_CASE("attention of every level gives the oracle's bits") {
  std::mt19937 random(5);
  for (KvFormat const format : all_formats()) {
    for (int round = 0; round < 6; ++round) {
      Trial trial = random_trial(format, random);
      Geometry& g = trial.geometry;
      g.block_tokens = round % 2 == 0 ? 16 : 100;
      trial.steps.clear();
      trial.k.clear();
      trial.v.clear();
      std::int32_t const length = static_cast<std::int32_t>(pick(random, 1, 4 * g.block_tokens));
      auto const table = std::vector<std::int32_t>{2, 0, 3, 1};
      trial.steps.push_back(slots_of(table, g.block_tokens, 0, length));
      trial.k.emplace_back(Rows::Shape{length, g.num_kv_heads, g.head_dim_k, Element::f32},
                           static_cast<std::uint32_t>(random()));
      trial.v.emplace_back(Rows::Shape{length, g.num_kv_heads, g.head_dim_v, Element::f32},
                           static_cast<std::uint32_t>(random()));
      if (round == 5) {
        fill_wildly(trial.k[0], length, g.num_kv_heads, g.head_dim_k, Element::f32, random);
      }
      KvStorage const storage = written(scalar_operations, trial);

      std::int32_t const group = static_cast<std::int32_t>(pick(random, 1, 5));
      std::int32_t const num_queries =
          std::min(length, static_cast<std::int32_t>(pick(random, 1, 6)));
      std::int32_t const heads = group * g.num_kv_heads;
      std::vector<float> q(static_cast<std::size_t>(num_queries * heads * g.head_dim_k));
      std::normal_distribution<float> normal;
      for (float& x : q) x = normal(random);
      std::int32_t const indptr[] = {0, kv::blocks_for(length, g.block_tokens)};
      std::int32_t const offsets[] = {0, num_queries};
      kv::cpu::AttentionBatch const batch{
          indptr, std::span(table).first(static_cast<std::size_t>(indptr[1])),
          std::span(&length, 1), offsets};
      kv::cpu::AttentionOptions const options{
          .softmax_scale = 0.1F,
          .window = round % 3 == 1 ? static_cast<std::int32_t>(pick(random, 1, 300)) : 0};
      auto const attend = [&](auto* attention) {
        std::vector<float> out(static_cast<std::size_t>(num_queries * heads * g.head_dim_v));
        attention(storage.view(), 0, batch,
                  {q.data(), out.data(), heads, heads * g.head_dim_k, heads * g.head_dim_v},
                  options);
        return out;
      };
      auto const prefill = attend(&kv::cpu::scalar::prefill_attention);
      auto const decode = attend(&kv::cpu::scalar::decode_attention);
      at_each_level([&](char const* level) {
        INFO(level << " " << to_string(format) << " length " << length << " dims " << g.head_dim_k
                   << " " << g.head_dim_v << " window " << options.window);
        CHECK(same_floats(attend(&kv::cpu::prefill_attention), prefill));
        CHECK(same_floats(attend(&kv::cpu::decode_attention), decode));
      });
    }
  }
}

namespace {

/// K and V of one head whose codes the test chooses; one query head reads them.
struct CodesScene {
  CodesScene(KvFormat format, std::int32_t dim, std::int32_t tokens, float k_scale, float v_scale)
      : num_tokens(tokens),
        q(static_cast<std::size_t>(dim)),
        storage({.num_layers = 1,
                 .num_kv_heads = 1,
                 .head_dim_k = dim,
                 .head_dim_v = dim,
                 .block_tokens = 16,
                 .format = format},
                4, {}, scales(format, k_scale, v_scale)) {
    std::mt19937 random(77);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    if (is_static(format) || kv::quant::is_unscaled(format.element)) return;
    for (std::int32_t t = 0; t < tokens; ++t) {
      set_scale(layer().k, t, k_scale);
      set_scale(layer().v, t, t % 5 == 3 ? 0.5F : v_scale);
    }
  }

  void set_scale(kv::KvTensor const& t, std::int32_t token, float scale) const {
    float* const entry = t.scale(block(token), token % 16, 0);
    entry[0] = scale;
    if (kv::quant::has_zero(t.format.element)) entry[1] = 0.25F;
  }
  static std::vector<kv::StaticScales> scales(KvFormat format, float k, float v) {
    if (!is_static(format)) return {{}};
    return {{{k}, {v}}};
  }
  [[nodiscard]] kv::KvLayer const& layer() const { return storage.view().layers[0]; }
  [[nodiscard]] std::int32_t block(std::int32_t token) const { return table[token / 16]; }

  /// Makes the next numbers of a tensor's tokens, one after the other.
  template <class Next>
  void fill(kv::KvTensor const& t, Next next) const {
    std::int64_t const bytes = bytes_per_vector(t.format.element, 1);
    for (std::int32_t token = 0; token < num_tokens; ++token) {
      std::byte* const vector = t.vector(block(token), token % 16, 0);
      for (std::int32_t i = 0; i < t.head_dim; ++i) {
        std::uint32_t const code = next();
        std::memcpy(vector + i * bytes, &code, static_cast<std::size_t>(bytes));
      }
    }
  }
  [[nodiscard]] std::vector<float> attend(decltype(&kv::cpu::decode_attention) attention,
                                          float softmax_scale) const {
    std::vector<float> out(q.size());
    auto const dim = static_cast<std::int64_t>(q.size());
    std::int32_t const indptr[] = {0, kv::blocks_for(num_tokens, 16)};
    auto const blocks = std::span(table).first(static_cast<std::size_t>(indptr[1]));
    attention(storage.view(), 0, {indptr, blocks, std::span(&num_tokens, 1)},
              {q.data(), out.data(), 1, dim, dim}, {.softmax_scale = softmax_scale});
    return out;
  }

  std::int32_t table[4] = {2, 0, 3, 1};
  std::int32_t num_tokens;
  std::vector<float> q;
  KvStorage storage;
};

constexpr float extreme_scales[] = {0.0173F, 1.0F, 0x1p-140F, 0x1p119F, 0x1p121F, 3e38F};
constexpr std::int32_t whole_dims[] = {16, 64, 80, 128, 192};

}  // namespace

TEST_CASE("a single query head reads every code of V as the oracle does, whatever the scale") {
  for (KvFormat const format : all_formats()) {
    if (bits_per_element(format.element) > 16 || format.element == Element::int4) continue;
    for (float const scale : extreme_scales) {
      for (std::int32_t const dim : whole_dims) {
        // One token has weight 1: `out` is its V. Then as many as there are codes.
        for (std::int32_t const tokens : {1, 37}) {
          CodesScene const s(format, dim, tokens, 0.1F, scale);
          std::uint32_t const step = bits_per_element(format.element) == 16 ? 251 : 1;
          for (std::uint32_t first = 0; first < 65536; first += tokens == 1 ? 16 * step : 30000) {
            if (step == 1 && first >= 256) break;
            std::uint32_t code = first;
            s.fill(s.layer().k, [] { return 1U; });
            s.fill(s.layer().v, [&] { return code += step; });
            auto const expected = s.attend(&kv::cpu::scalar::decode_attention, 0.1F);
            at_each_level([&](char const* level) {
              INFO(level << " " << to_string(format) << " dim " << dim << " scale " << scale
                         << " codes from " << first);
              CHECK(same_floats(s.attend(&kv::cpu::decode_attention, 0.1F), expected));
            });
          }
        }
      }
    }
  }
}

TEST_CASE("a single query head reads K as the oracle does: extreme scales, a NaN") {
  std::mt19937 random(9);
  for (KvFormat const format : all_formats()) {
    bool const is_e4m3 = format.element == Element::fp8_e4m3;
    if (!is_e4m3 && format.element != Element::fp8_e5m2) continue;
    for (float const scale : {0.0173F, 0x1p-140F, 0x1p119F, 0x1p121F}) {
      for (std::int32_t const dim : whole_dims) {
        CodesScene const s(format, dim, 37, scale, 0.1F);
        // Up to 1 and of both signs, so that scores stay finite.
        std::uint32_t const one = is_e4m3 ? 0x38 : 0x3C;
        s.fill(s.layer().k, [&] {
          auto const bits = static_cast<std::uint32_t>(random());
          return (bits & 0x80U) + (bits >> 8) % (one + 1);
        });
        s.fill(s.layer().v, [&] { return static_cast<std::uint32_t>(random() % 0x70U); });
        float const softmax_scale = std::min(1.0F, 1.0F / scale);
        auto const compare = [&] {
          auto const expected = s.attend(&kv::cpu::scalar::decode_attention, softmax_scale);
          at_each_level([&](char const* level) {
            INFO(level << " " << to_string(format) << " dim " << dim << " scale " << scale);
            CHECK(same_floats(s.attend(&kv::cpu::decode_attention, softmax_scale), expected));
          });
          return expected[0];
        };
        CHECK(std::isfinite(compare()));
        s.layer().k.vector(s.block(20), 4, 0)[dim - 1] = std::byte{0xFF};
        CHECK(std::isnan(compare()));
      }
    }
  }
}

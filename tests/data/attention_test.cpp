// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <pagedkv/data/cpu/softmax_exp.hpp>
#include <pagedkv/data/cpu/workers.hpp>

#include "catch.hpp"
#include "data_support.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::KvStorage;

namespace {

struct Shape {
  std::int32_t kv_heads = 2;
  std::int32_t q_heads = 4;
  std::int32_t dim_k = 16;
  std::int32_t dim_v = 16;
  std::int32_t block_tokens = 16;
  KvFormat format{Element::f32, Granularity::none};
  kv::KvLayout layout{};
};

/// Sequences of random content in scattered blocks, with queries for all their last tokens.
struct Scene {
  Scene(Shape s, std::vector<std::int32_t> lengths_given, std::vector<std::int32_t> queries_given,
        std::uint32_t seed)
      : shape(s), lengths(std::move(lengths_given)), counts(std::move(queries_given)) {
    for (std::int32_t const n : lengths) {
      indptr.push_back(indptr.back() + kv::blocks_for(n, s.block_tokens));
    }
    for (std::int32_t const n : counts) offsets.push_back(offsets.back() + n);
    Geometry const g{.num_layers = 1,
                     .num_kv_heads = s.kv_heads,
                     .head_dim_k = s.dim_k,
                     .head_dim_v = s.dim_v,
                     .block_tokens = s.block_tokens,
                     .format = s.format};
    std::mt19937 random(seed);
    indices = random_blocks(indptr.back() + 1, random);
    storage = std::make_shared<KvStorage>(g, indptr.back() + 1, s.layout, scales_for(g));
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      auto const slots = slots_of(table(i), s.block_tokens, 0, lengths[i]);
      auto const n = static_cast<std::int64_t>(lengths[i]);
      auto const some = seed * 100 + static_cast<std::uint32_t>(i);
      Rows k({n, s.kv_heads, s.dim_k}, some);
      Rows v({n, s.kv_heads, s.dim_v}, some + 50);
      kv::cpu::scalar::write_kv(view(), 0, k.rows(), v.rows(), slots);
    }
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(rows() * q_stride()));
    for (float& x : q) x = normal(random);
  }

  [[nodiscard]] std::span<std::int32_t const> table(std::size_t i) const {
    return std::span(indices).subspan(static_cast<std::size_t>(indptr[i]),
                                      static_cast<std::size_t>(indptr[i + 1] - indptr[i]));
  }
  [[nodiscard]] kv::KvView view() const { return storage->view(); }
  [[nodiscard]] std::int64_t rows() const {
    return std::max<std::int64_t>(offsets.back(), static_cast<std::int64_t>(lengths.size()));
  }
  [[nodiscard]] std::int64_t q_stride() const { return shape.q_heads * shape.dim_k + 3; }
  [[nodiscard]] std::int64_t out_stride() const { return shape.q_heads * shape.dim_v + 1; }

  [[nodiscard]] std::vector<float> attend(decltype(&kv::cpu::decode_attention) attention,
                                          kv::cpu::AttentionOptions const& options) const {
    std::vector<float> out(static_cast<std::size_t>(rows() * out_stride()), 7.0F);
    attention(view(), 0,
              {indptr, std::span(indices).first(std::size_t(indptr.back())), lengths, offsets},
              {q.data(), out.data(), shape.q_heads, q_stride(), out_stride()}, options);
    return out;
  }

  Shape shape;
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> indptr{0};
  std::vector<std::int32_t> offsets{0};
  std::vector<std::int32_t> indices;
  std::shared_ptr<KvStorage> storage;
  std::vector<float> q;
};

/// Softmax attention in double, of what the cache reads.
std::vector<double> plain(Scene const& s, std::size_t sequence, std::int64_t row,
                          std::int32_t position, std::int32_t head,
                          kv::cpu::AttentionOptions const& options) {
  auto const& layer = s.view().layers[0];
  std::int32_t const kv_head = head / (s.shape.q_heads / s.shape.kv_heads);
  float const* const q = s.q.data() + row * s.q_stride() + head * s.shape.dim_k;
  std::int32_t const begin = options.window > 0 ? std::max(0, position + 1 - options.window) : 0;
  std::vector<double> scores;
  auto const block = [&](std::int32_t p) {
    return s.table(sequence)[static_cast<std::size_t>(p / s.shape.block_tokens)];
  };
  for (std::int32_t p = begin; p <= position; ++p) {
    auto const k = read(layer.k, block(p), p % s.shape.block_tokens, kv_head);
    double sum = 0;
    for (std::size_t i = 0; i < k.size(); ++i) sum += double{q[i]} * double{k[i]};
    scores.push_back(sum * double{options.softmax_scale});
  }
  double const max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> out(static_cast<std::size_t>(s.shape.dim_v));
  for (std::int32_t p = begin; p <= position; ++p) {
    double const weight = std::exp(scores[static_cast<std::size_t>(p - begin)] - max);
    total += weight;
    auto const v = read(layer.v, block(p), p % s.shape.block_tokens, kv_head);
    for (std::size_t d = 0; d < v.size(); ++d) out[d] += weight * double{v[d]};
  }
  for (double& x : out) x /= total;
  return out;
}

void check_near(std::vector<double> const& expected, float const* got) {
  double largest = 1e-3;
  for (double const x : expected) largest = std::max(largest, std::abs(x));
  double worst = 0;
  for (std::size_t d = 0; d < expected.size(); ++d) {
    worst = std::max(worst, std::abs(expected[d] - double{got[d]}));
  }
  CHECK(worst <= 3e-5 * largest);
}

}  // namespace

TEST_CASE("softmax_exp is within 1.3e-7 of exp, 1 at 0, 0 far below, and keeps NaN") {
  double worst = 0;
  for (std::uint32_t bits = 0x8000'0000U; bits < 0xC2AE'0000U; bits += 997) {
    float const x = kv::quant::detail::float_of(bits);
    double const exact = std::exp(double{x});
    worst = std::max(worst, std::abs(double{kv::cpu::softmax_exp(x)} - exact) / exact);
  }
  INFO("worst relative error " << worst);
  CHECK(worst < 1.3e-7);
  CHECK(kv::cpu::softmax_exp(0.0F) == 1.0F);
  CHECK(kv::cpu::softmax_exp(-0.0F) == 1.0F);
  CHECK(kv::cpu::softmax_exp(-87.1F) == 0.0F);
  CHECK(kv::cpu::softmax_exp(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(std::isnan(kv::cpu::softmax_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("decode attention is softmax attention over what the cache reads") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Scene const s({.kv_heads = 2, .q_heads = 6, .dim_k = 24, .dim_v = 40, .format = format},
                    {1, 0, 300, 17}, {1, 0, 1, 1}, 3);
      for (std::int32_t const window : {0, 1, 20, 290}) {
        kv::cpu::AttentionOptions const options{.softmax_scale = 0.2F, .window = window};
        auto const out = s.attend(ops.decode_attention, options);
        INFO(ops.name << " " << to_string(format) << " window " << window);
        for (std::size_t i : {0, 2, 3}) {
          for (std::int32_t h = 0; h < 6; ++h) {
            auto const row = static_cast<std::int64_t>(i);
            check_near(plain(s, i, row, s.lengths[i] - 1, h, options),
                       out.data() + row * s.out_stride() + h * 40);
          }
        }
        // A sequence of length 0 leaves its rows alone.
        CHECK(out[static_cast<std::size_t>(s.out_stride())] == 7.0F);
      }
    }
  }
}

TEST_CASE("prefill attention is causal, for chunks at any place of a sequence") {
  for (auto const& ops : both_operations) {
    for (auto const layout : {kv::KvLayout{}, kv::KvLayout{kv::BlockOrder::hnd}}) {
      Scene const s({.kv_heads = 2, .q_heads = 4, .block_tokens = 4, .layout = layout},
                    {5, 270, 3, 9}, {5, 20, 0, 1}, 5);
      for (std::int32_t const window : {0, 3, 8, 265}) {
        kv::cpu::AttentionOptions const options{.softmax_scale = 0.25F, .window = window};
        auto const out = s.attend(ops.prefill_attention, options);
        INFO(ops.name << " window " << window);
        for (std::size_t i = 0; i < s.lengths.size(); ++i) {
          for (std::int32_t c = 0; c < s.counts[i]; ++c) {
            std::int64_t const row = s.offsets[i] + c;
            for (std::int32_t h = 0; h < 4; ++h) {
              check_near(plain(s, i, row, s.lengths[i] - s.counts[i] + c, h, options),
                         out.data() + row * s.out_stride() + h * 16);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the last query of a prefill is the decode query, bit for bit") {
  for (auto const& ops : both_operations) {
    Scene const prefill({.dim_k = 32, .dim_v = 32}, {600}, {9}, 2);
    Scene decode({.dim_k = 32, .dim_v = 32}, {600}, {1}, 2);
    std::copy_n(prefill.q.end() - decode.q_stride(), decode.q_stride(), decode.q.begin());
    auto const a = prefill.attend(ops.prefill_attention, {.softmax_scale = 0.1F});
    auto const b = decode.attend(ops.decode_attention, {.softmax_scale = 0.1F});
    CHECK(same_floats(std::span(a).last(b.size()), b));
  }
}

TEST_CASE("the block size, the layout and the number of workers don't change a bit") {
  std::vector<float> first;
  for (std::int32_t const threads : {1, 2, 3}) {
    // Scratch for a few tiles only: long contexts take several rounds.
    kv::cpu::Workers workers(threads, threads == 3 ? 20000 : std::size_t{1} << 18);
    for (std::int32_t const block_tokens : {1, 7, 16, 64}) {
      for (auto const& ops : both_operations) {
        Scene const s({.kv_heads = 2,
                       .q_heads = 6,
                       .dim_k = 20,
                       .dim_v = 33,
                       .block_tokens = block_tokens,
                       .layout = {block_tokens == 7 ? kv::BlockOrder::hnd : kv::BlockOrder::nhd}},
                      {3000, 0, 513}, {1, 0, 1}, 4);
        auto options = kv::cpu::AttentionOptions{.softmax_scale = 0.2F, .window = 2500};
        if (threads > 1) options.workers = &workers;
        // Blocks are dealt out differently; q must not be.
        Scene const same_q({.kv_heads = 2, .q_heads = 6, .dim_k = 20, .dim_v = 33, .layout = {}},
                           {3000, 0, 513}, {1, 0, 1}, 4);
        Scene with = s;
        with.q = same_q.q;
        auto const out = with.attend(ops.decode_attention, options);
        if (first.empty()) first = out;
        INFO(ops.name << " " << threads << " threads, blocks of " << block_tokens);
        CHECK(same_floats(first, out));
      }
    }
  }
}

TEST_CASE("what lies behind the last token is never read") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Scene s({.dim_k = 16, .dim_v = 16, .format = format}, {21}, {5}, 8);
      auto const clean = s.attend(ops.prefill_attention, {});
      auto const& layer = s.view().layers[0];
      for (std::int32_t i = 21 % 16; i < 16; ++i) {
        for (std::int32_t h = 0; h < 2; ++h) {
          for (auto const* t : {&layer.k, &layer.v}) {
            std::memset(t->vector(s.table(0)[1], i, h), 0xFF,
                        static_cast<std::size_t>(bytes_per_vector(format.element, 16)));
            if (format.granularity == Granularity::per_token_head) {
              *t->scale(s.table(0)[1], i, h) = std::numeric_limits<float>::quiet_NaN();
            }
          }
        }
      }
      INFO(ops.name << " " << to_string(format));
      CHECK(same_floats(s.attend(ops.prefill_attention, {}), clean));
    }
  }
}

TEST_CASE("reading whole blocks of a fresh, partly written pool yields no NaN") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Geometry const g{.num_layers = 1,
                       .num_kv_heads = 2,
                       .head_dim_k = 16,
                       .head_dim_v = 16,
                       .block_tokens = 16,
                       .format = format};
      KvStorage storage(g, 2, {}, scales_for(g));
      std::vector<kv::BlockId> const blocks = {kv::BlockId{0}, kv::BlockId{1}};
      ops.zero_blocks(storage.view(), blocks);
      Rows rows({3, 2, 16}, 1);
      std::vector<kv::Slot> const slots = {16, 17, 18};
      ops.write_kv(storage.view(), 0, rows.rows(), rows.rows(), slots);
      std::vector<std::int32_t> const table = {1, 0};
      Rows k({32, 2, 16});
      Rows v({32, 2, 16});
      ops.gather_kv(storage.view(), 0, table, {0, 32}, k.mutable_rows(), v.mutable_rows());
      INFO(ops.name << " " << to_string(format));
      for (std::int64_t t = 0; t < 32; ++t) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (float const x : k.floats(t, h)) CHECK((t < 3 ? std::isfinite(x) : x == 0.0F));
          for (float const x : v.floats(t, h)) CHECK((t < 3 ? std::isfinite(x) : x == 0.0F));
        }
      }
    }
  }
}

#if PAGEDKV_ASSERT_LEVEL >= 1
TEST_CASE("wrong attention inputs are named") {
  for (auto const& ops : both_operations) {
    Scene s({}, {20}, {3}, 1);
    auto const message = [&](auto&& change) {
      Scene wrong = s;
      change(wrong);
      return outcome_of([&] { (void)wrong.attend(ops.prefill_attention, {}); }).message;
    };
    CHECK(message([](Scene&) {}).empty());
    CHECK_THAT(message([](Scene& w) { w.lengths[0] = 33; }), contains_text("33 tokens need 3"));
    CHECK_THAT(message([](Scene& w) { w.indices[1] = 99; }),
               contains_text("block 99 at column 1 of sequence 0"));
    CHECK_THAT(message([](Scene& w) { w.indptr[0] = 2, w.indptr[1] = 1; }),
               contains_text("blocks 2 to 1 of 1 indices"));
    CHECK_THAT(message([](Scene& w) { w.indptr[0] = -1; }),
               contains_text("blocks -1 to 2 of 2 indices"));
    CHECK_THAT(message([](Scene& w) { w.shape.q_heads = 3; }),
               contains_text("multiple of num_kv_heads"));
    CHECK_THAT(message([](Scene& w) { w.offsets[1] = 21; }),
               contains_text("more queries than tokens"));
  }
}
#endif

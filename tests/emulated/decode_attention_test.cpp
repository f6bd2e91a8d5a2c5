// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

struct Case {
  LayerFormat format{};
  std::int32_t dim = 64;
  std::int32_t group = 1;
  std::int32_t window = 0;
  std::int32_t num_splits = 1;
  KvLayout layout{};
  Element queries = Element::f32;
  std::int64_t gap = 0;   ///< between the queries of neighbouring sequences, elements
  bool is_table = false;  ///< a dense table instead of lists
};

constexpr std::int32_t block_tokens = 4;
constexpr std::int32_t num_blocks = 11;
constexpr std::int32_t kv_heads = 2;

Geometry geometry(Case const& c) {
  return {.num_layers = 1,
          .num_kv_heads = kv_heads,
          .head_dim_k = c.dim,
          .head_dim_v = c.dim,
          .block_tokens = block_tokens,
          .format = c.format};
}

/// The sequences of a step: what the oracle is told, and what the device is.
struct Sequences {
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> indptr;
  std::vector<std::int32_t> indices;
};

/// A pool full of numbers and a query for each sequence.
class Attending {
 public:
  Attending(Case const& c, std::int64_t num_sequences, unsigned seed)
      : case_(c),
        oracle_(geometry(c), num_blocks, c.layout, scales_for(geometry(c))),
        q_heads_(kv_heads * c.group),
        q_({num_sequences, q_heads_, c.dim, c.queries, 0, c.gap}, seed + 2000),
        empty_({num_sequences, q_heads_, c.dim, c.queries, 0, 2 * c.gap}) {
    std::vector<Slot> all;
    for (Slot s = 0; s < num_blocks * block_tokens; ++s) all.push_back(s);
    Rows k({num_blocks * block_tokens, kv_heads, c.dim}, seed);
    Rows v({num_blocks * block_tokens, kv_heads, c.dim}, seed + 1000);
    cpu::scalar::write_kv(oracle_.view(), 0, k.rows(), v.rows(), all);
  }

  /// The oracle's result, a row of heads a sequence; nothing where the length is 0.
  [[nodiscard]] std::vector<std::vector<float>> wanted(Sequences const& s) {
    auto const row = static_cast<std::size_t>(q_heads_ * case_.dim);
    std::vector<float> q;
    for (std::size_t i = 0; i < s.lengths.size(); ++i) {
      for (std::int64_t h = 0; h < q_heads_; ++h) {
        auto const x = q_.floats(static_cast<std::int64_t>(i), h);
        q.insert(q.end(), x.begin(), x.end());
      }
    }
    std::vector<float> out(q.size());
    auto const stride = static_cast<std::int64_t>(row);
    cpu::scalar::decode_attention(oracle_.view(), 0, {s.indptr, s.indices, s.lengths},
                                  {q.data(), out.data(), q_heads_, stride, stride},
                                  {scale(), case_.window});
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < s.lengths.size(); ++i) {
      auto const begin = out.begin() + static_cast<std::ptrdiff_t>(i * row);
      rows.emplace_back(begin, s.lengths[i] == 0 ? begin : begin + stride);
    }
    return rows;
  }

  /// Within 1e-3 of the largest wanted, and half a step of the element of `out`. A sequence without
  /// wanted numbers leaves its row, and every row the gap behind it, untouched.
  [[nodiscard]] RunResult run(Sequences const& s, std::vector<std::vector<float>> const& want) {
    DevicePool pool(oracle_);
    DeviceRows const q(q_);
    DeviceRows const out(empty_);
    DeviceBuffer<std::int32_t> const lengths(s.lengths, "lengths");
    DeviceBuffer<std::int32_t> const indptr(s.indptr, "indptr");
    auto const n = static_cast<std::int32_t>(s.lengths.size());
    std::int64_t const columns = case_.is_table ? std::ssize(s.indices) / n : 0;
    DeviceBuffer<std::int32_t> const indices(s.indices, "indices");
    DeviceBuffer<float> workspace(static_cast<std::size_t>(cuda::decode_workspace_floats(
                                      n, q_heads_, case_.dim, case_.num_splits)),
                                  "workspace");
    MutableKvRows const to = out.mutable_rows();
    auto const error = cuda::decode_attention(
        pool.view(), 0,
        {indices.data(), case_.is_table ? nullptr : indptr.data(), columns, lengths.data(), n},
        {q.rows().data, to.data, case_.queries, q_heads_, q.rows().token_stride, to.token_stride},
        {scale(), case_.window, case_.num_splits, workspace.data()}, nullptr);
    finish();
    return judge(error, is_right(out.bytes(), want));
  }

 private:
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(case_.dim)); }
  [[nodiscard]] bool is_right(std::vector<std::byte> bytes,
                              std::vector<std::vector<float>> const& want) {
    float largest = 0.0F;
    for (auto const& row : want) {
      for (float const x : row) largest = std::max(largest, std::fabs(x));
    }
    float const step = case_.queries == Element::f32   ? 0.0F
                       : case_.queries == Element::f16 ? 0x1p-11F
                                                       : 0x1p-8F;
    Rows read = empty_;
    std::memcpy(read.vector(0, 0), bytes.data(), bytes.size());
    bool right = true;
    for (std::size_t s = 0; s < want.size(); ++s) {
      for (std::size_t i = 0; i < want[s].size(); ++i) {
        auto const dim = static_cast<std::size_t>(case_.dim);
        auto const head = static_cast<std::int64_t>(i / dim);
        float const x = read.floats(static_cast<std::int64_t>(s), head)[i % dim];
        float const error = std::fabs(x - want[s][i]);
        right = right && error <= 1e-3F * largest + step * std::fabs(want[s][i]);
        read.set(static_cast<std::int64_t>(s), head, static_cast<std::int64_t>(i % dim), 0.0F);
      }
    }
    // What wasn't to be written is what it was.
    Rows untouched = empty_;
    for (std::size_t s = 0; s < want.size(); ++s) {
      for (std::size_t i = 0; i < want[s].size(); ++i) {
        auto const dim = static_cast<std::size_t>(case_.dim);
        untouched.set(static_cast<std::int64_t>(s), static_cast<std::int64_t>(i / dim),
                      static_cast<std::int64_t>(i % dim), 0.0F);
      }
    }
    return right && read.bytes() == untouched.bytes();
  }

  Case case_;
  KvStorage oracle_;
  std::int32_t q_heads_;
  Rows q_;
  Rows empty_;
};

unsigned next_seed() {
  static unsigned seed = 0;
  return ++seed;
}

/// Five sequences, one of them padding, one whose last block is full.
void check(Case const& c) {
  unsigned const seed = next_seed();
  std::mt19937 random(seed);
  auto const blocks = random_blocks(num_blocks, random);
  Sequences s{{1, 0, 17, 22, 16}, {0, 1, 1, 6, 12, 16}, {}};
  std::vector<std::int32_t> const from = {0, 0, 0, 4, 2};  // some share blocks
  std::vector<std::int32_t> table;
  for (std::size_t i = 0; i < s.lengths.size(); ++i) {
    std::int32_t const count = s.indptr[i + 1] - s.indptr[i];
    auto const first = blocks.begin() + from[i];
    s.indices.insert(s.indices.end(), first, first + count);
    table.insert(table.end(), first, first + count);
    table.resize(6 * (i + 1), i % 2 == 0 ? -1 : num_blocks);
  }
  Attending attending(c, 5, seed);
  auto const want = attending.wanted(s);
  Sequences told = s;
  if (c.is_table) told.indices = table;
  auto const findings = try_orders([&](int) { return attending.run(told, want); });
  INFO(to_string(c.format.k) << " and " << to_string(c.format.v) << ", dim " << c.dim << ", group "
                             << c.group << ", " << to_string(c.queries) << ": " << findings.text());
  CHECK(findings.clean());
}

constexpr KvFormat e4m3{Element::fp8_e4m3, Granularity::per_token_head};
constexpr KvFormat bf16{Element::bf16, Granularity::none};

}  // namespace

TEST_CASE("attention is the oracle's within a thousandth: every format, layout, head_dim, group") {
  std::mt19937 random(1);
  for (KvFormat const format : read_formats()) {
    for (KvLayout const layout : layouts) {
      for (std::int32_t const dim : {64, 128, 256}) {
        for (std::int32_t const group : {1, 3, 8}) {
          // The rest is drawn.
          std::int32_t const windows[] = {0, 0, 1, 5};
          Element const elements[] = {Element::f32, Element::f16, Element::bf16};
          check({.format = format,
                 .dim = dim,
                 .group = group,
                 .window = windows[random() % 4],
                 .num_splits = 1 + static_cast<std::int32_t>(random() % 3),
                 .layout = layout,
                 .queries = elements[random() % 3],
                 .is_table = random() % 2 == 0});
        }
      }
    }
  }
}

TEST_CASE(
    "a window as wide as can be, more splits than tokens, a group whose last part isn't full") {
  for (KvFormat const format : {e4m3, bf16}) {
    check({.format = format, .group = 5, .num_splits = 30});
    check({.format = format, .window = INT32_MAX, .num_splits = 2});
  }
}

TEST_CASE("queries of 16 bits, apart from each other, over a dense table") {
  for (Element const queries : {Element::f16, Element::bf16, Element::f32}) {
    for (KvFormat const format : {e4m3, bf16}) {
      check({.format = format, .group = 2, .num_splits = 2, .queries = queries, .is_table = true});
      check({.format = format, .queries = queries, .gap = 5});
    }
  }
}

TEST_CASE("K and V of one element and two granularities") {
  check({.format = {KvFormat{Element::fp8_e4m3, Granularity::per_head},
                    KvFormat{Element::fp8_e4m3, Granularity::per_block_head}},
         .num_splits = 2});
  check({.format = {KvFormat{Element::int8, Granularity::per_token_head},
                    KvFormat{Element::int8, Granularity::per_tensor}},
         .group = 2});
}

TEST_CASE("a position whose block the pool or the row hasn't counts for nothing") {
  // What is left is what the oracle makes of the other blocks alone; of nothing: zeros.
  unsigned const seed = next_seed();
  Sequences const whole{{14, 12, 8, 0}, {0, 4, 7, 9, 9}, {3, 7, 1, 9, 2, 4, 6, 5, 0}};
  Sequences const torn{{22, 20, 30, 11},
                       {0, 6, 11, 13, 15},
                       {3, -1, 7, num_blocks, 1, 9,           // the last has two tokens
                        2, 4, INT32_MAX, 6, INT32_MIN, 5, 0,  // too few for 30 tokens
                        -1, num_blocks}};
  for (std::int32_t const num_splits : {1, 3}) {
    Case const c{.format = e4m3, .group = 2, .num_splits = num_splits};
    Attending attending(c, 4, seed);
    auto want = attending.wanted(whole);
    want[3].assign(want[0].size(), 0.0F);
    auto const findings = try_orders([&](int) { return attending.run(torn, want); });
    INFO(findings.text());
    CHECK(findings.clean());
  }
}

TEST_CASE("an empty step launches nothing; what attention can't work on is refused") {
  Case const c{.format = e4m3};
  KvStorage oracle(geometry(c), num_blocks);
  DevicePool pool(oracle);
  DeviceBuffer<float> floats(4096, "queries and workspace");
  DeviceBuffer<std::int32_t> const lengths(std::vector<std::int32_t>{0, 0}, "lengths");
  DeviceBuffer<std::int32_t> const indices(std::vector<std::int32_t>{0, 0}, "indices");
  struct Call {
    KvLayer layer;
    KvView view;
    cuda::DecodeBatch batch;
    cuda::DecodeQueries queries;
    cuda::DecodeOptions options;
  };
  auto const error_of = [&](auto change) {
    Call call{pool.view().layers[0],
              pool.view(),
              {indices.data(), nullptr, 1, lengths.data(), 2},
              {floats.data(), floats.data() + 1024, Element::f32, 2, 128, 128},
              {1.0F, 0, 1, floats.data() + 2048}};
    change(call);
    call.view.layers = std::span(&call.layer, 1);
    return cuda::decode_attention(call.view, 0, call.batch, call.queries, call.options, nullptr);
  };
  auto const refuses = [&](auto change) { return error_of(change) == cuda::cudaErrorInvalidValue; };
  auto const shifted = [](auto* pointer) {
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
  };
  CHECK(error_of([](Call&) {}) == cuda::cudaSuccess);
  CHECK(error_of([](Call& x) { x.batch = {}; }) == cuda::cudaSuccess);
  CHECK(refuses([](Call& x) { x.view.num_kv_heads = 0; }));
  CHECK(refuses([](Call& x) { x.layer.k.scales = nullptr; }));
  CHECK(refuses([](Call& x) { x.layer.v.scales = nullptr; }));
  CHECK(refuses([](Call& x) { x.layer.k.data = nullptr; }));
  CHECK(refuses([](Call& x) { x.layer.v.data = nullptr; }));
  CHECK(refuses([](Call& x) { x.layer.v.data += 8; }));
  CHECK(refuses([](Call& x) { x.layer.k.token_stride += 1; }));
  CHECK(refuses([](Call& x) { x.layer.v.format.granularity = Granularity::none; }));
  CHECK(refuses([](Call& x) { x.layer.v = {}; }));
  CHECK(refuses([](Call& x) { x.layer.k.head_dim = x.layer.v.head_dim = 80; }));
  CHECK(refuses([](Call& x) { x.batch.num_sequences = -1; }));
  CHECK(refuses([](Call& x) { x.batch.num_sequences = 65536; }));
  CHECK(refuses([](Call& x) { x.batch.indices = nullptr; }));
  CHECK(refuses([](Call& x) { x.batch.sequence_lengths = nullptr; }));
  CHECK(refuses([](Call& x) { x.queries.num_q_heads = 3; }));
  CHECK(refuses([](Call& x) { x.queries.num_q_heads = 0; }));
  CHECK(refuses([](Call& x) { x.queries.element = Element::int8; }));
  CHECK(refuses([](Call& x) { x.queries.q = nullptr; }));
  CHECK(refuses([](Call& x) { x.queries.out = nullptr; }));
  CHECK(refuses([&](Call& x) { x.queries.q = shifted(floats.data()); }));
  CHECK(refuses([&](Call& x) { x.queries.out = shifted(floats.data()); }));
  CHECK(refuses([](Call& x) { x.options.workspace = nullptr; }));
  CHECK(refuses([&](Call& x) { x.options.workspace = shifted(floats.data()); }));
  CHECK(refuses([](Call& x) { x.options.num_splits = 0; }));
  CHECK(refuses([](Call& x) { x.options.window = -1; }));
}

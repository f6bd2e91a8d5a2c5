// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "data_support.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::BlockCopy;
using pagedkv::BlockId;
using pagedkv::Element;
using pagedkv::Geometry;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::KvStorage;
using pagedkv::Slot;

namespace {

constexpr std::int32_t block_tokens = 5;
constexpr kv::KvLayout layouts[] = {{kv::BlockOrder::nhd, kv::PoolOrder::layer_major},
                                    {kv::BlockOrder::hnd, kv::PoolOrder::layer_major},
                                    {kv::BlockOrder::nhd, kv::PoolOrder::block_major},
                                    {kv::BlockOrder::hnd, kv::PoolOrder::block_major}};

Geometry geometry(KvFormat format, std::int32_t dim_v = 12) {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim_k = 21,
          .head_dim_v = dim_v,
          .block_tokens = block_tokens,
          .format = format};
}

KvStorage full_pool(Operations const& ops, Geometry const& g, kv::KvLayout layout,
                    std::int32_t num_blocks) {
  KvStorage storage(g, num_blocks, layout, scales_for(g));
  std::vector<Slot> slots;
  for (Slot s = 0; s < num_blocks * block_tokens; ++s) slots.push_back(s);
  auto const n = static_cast<std::int64_t>(slots.size());
  for (std::int32_t layer = 0; layer < g.num_layers; ++layer) {
    auto const seed = static_cast<std::uint32_t>(layer);
    Rows k({n, g.num_kv_heads, g.head_dim_k}, 10 + seed);
    Rows v({n, g.num_kv_heads, std::max(g.head_dim_v, 1)}, 20 + seed);
    ops.write_kv(storage.view(), layer, k.rows(), v.rows(), slots);
  }
  return storage;
}

template <class Visit>
void for_each_tensor(KvStorage const& storage, Visit&& visit) {
  for (auto const& layer : storage.view().layers) {
    for (auto const* t : {&layer.k, &layer.v}) {
      if (t->head_dim > 0) visit(*t);
    }
  }
}

}  // namespace

TEST_CASE("a copy moves the first tokens of a block with their scales, and nothing else") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      for (auto const layout : layouts) {
        for (std::int32_t const tokens : {0, 1, 3, block_tokens}) {
          Geometry const g = geometry(format, tokens == 3 ? 0 : 12);
          KvStorage const before = full_pool(ops, g, layout, 4);
          KvStorage after = full_pool(ops, g, layout, 4);
          std::vector<BlockCopy> const copies = {{BlockId{2}, BlockId{0}, tokens},
                                                 {BlockId{3}, BlockId{1}, block_tokens}};
          ops.copy_blocks(after.view(), copies);
          INFO(ops.name << " " << to_string(format) << ", " << tokens << " tokens");
          std::size_t tensor = 0;
          std::vector<kv::KvTensor> old;
          for_each_tensor(before, [&](auto const& t) { old.push_back(t); });
          for_each_tensor(after, [&](auto const& t) {
            auto const& was = old[tensor++];
            for (std::int32_t h = 0; h < 3; ++h) {
              for (std::int32_t i = 0; i < block_tokens; ++i) {
                std::int32_t const from = i < tokens ? 2 : 0;
                CHECK(stored(t, 0, i, h) == stored(was, from, i, h));
                CHECK(stored(t, 1, i, h) == stored(was, 3, i, h));
                CHECK(stored(t, 2, i, h) == stored(was, 2, i, h));
                if (is_static(format)) continue;
                bool const shared = format.granularity == Granularity::per_block_head;
                std::int32_t const scale_from = (shared ? tokens > 0 : i < tokens) ? 2 : 0;
                CHECK(scale_of(t, 0, i, h).scale == scale_of(was, scale_from, i, h).scale);
                CHECK(scale_of(t, 0, i, h).zero == scale_of(was, scale_from, i, h).zero);
                CHECK(scale_of(t, 1, i, h).scale == scale_of(was, 3, i, h).scale);
              }
            }
          });
        }
      }
    }
  }
}

TEST_CASE("zeroed blocks read as 0 and their neighbours stay; static scales stay too") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      for (auto const layout : layouts) {
        Geometry const g = geometry(format);
        KvStorage const before = full_pool(ops, g, layout, 4);
        KvStorage after = full_pool(ops, g, layout, 4);
        std::vector<BlockId> const blocks = {BlockId{3}, BlockId{1}};
        ops.zero_blocks(after.view(), blocks);
        INFO(ops.name << " " << to_string(format));
        std::size_t tensor = 0;
        std::vector<kv::KvTensor> old;
        for_each_tensor(before, [&](auto const& t) { old.push_back(t); });
        for_each_tensor(after, [&](auto const& t) {
          auto const& was = old[tensor++];
          for (std::int32_t h = 0; h < 3; ++h) {
            for (std::int32_t i = 0; i < block_tokens; ++i) {
              std::vector<float> const zeros(static_cast<std::size_t>(t.head_dim));
              CHECK(read(t, 1, i, h) == zeros);
              CHECK(read(t, 3, i, h) == zeros);
              CHECK(read(t, 0, i, h) == read(was, 0, i, h));
              CHECK(read(t, 2, i, h) == read(was, 2, i, h));
            }
          }
        });
      }
    }
  }
}

TEST_CASE("a gather reads any range of positions through the table, in any output type") {
  for (auto const& ops : both_operations) {
    for (KvFormat const format : all_formats()) {
      Geometry const g = geometry(format);
      KvStorage const storage = full_pool(ops, g, layouts[format.element == Element::int4], 4);
      std::vector<std::int32_t> const table = {2, 0, 3};
      for (auto const range : {kv::TokenRange{0, 15}, {4, 2}, {7, 0}, {13, 1}}) {
        for (Element const output : {Element::f32, Element::f16, Element::bf16}) {
          Rows k({range.count, 3, 21, output, 2, 5, 1});
          Rows v({range.count, 3, 12, output, 0, 0, 0});
          ops.gather_kv(storage.view(), 1, table, range, k.mutable_rows(), v.mutable_rows());
          INFO(ops.name << " " << to_string(format) << " to " << to_string(output));
          auto const& layer = storage.view().layers[1];
          for (std::int32_t i = 0; i < range.count; ++i) {
            std::int32_t const p = range.first + i;
            std::int32_t const block = table[p / block_tokens];
            for (std::int32_t h = 0; h < 3; ++h) {
              auto expected_k = read(layer.k, block, p % block_tokens, h);
              auto expected_v = read(layer.v, block, p % block_tokens, h);
              Rows one({1, 1, 21, output});
              for (std::int64_t d = 0; d < 21; ++d) {
                one.set(0, 0, d, expected_k[static_cast<std::size_t>(d)]);
              }
              CHECK(k.floats(i, h) == one.floats(0, 0));
              if (output == Element::f32) CHECK(v.floats(i, h) == expected_v);
            }
          }
          // Gaps between rows are the caller's.
          if (range.count > 0) CHECK(k.bytes()[0] == std::byte{0xA5});
          if (range.count > 0) CHECK(k.bytes().back() == std::byte{0xA5});
        }
      }
    }
  }
}

#if PAGEDKV_ASSERT_LEVEL >= 1
TEST_CASE("wrong tables and copies are named") {
  Geometry const g = geometry({Element::f32, Granularity::none});
  KvStorage storage(g, 4);
  auto const view = storage.view();
  Rows rows({16, 3, 21});
  for (auto const& ops : both_operations) {
    std::vector<std::int32_t> const table = {2, 4};
    auto const gather = [&](kv::TokenRange range) {
      return outcome_of([&] {
               ops.gather_kv(view, 0, table, range, rows.mutable_rows(), rows.mutable_rows());
             })
          .message;
    };
    CHECK(gather({0, 5}).empty());
    CHECK(gather({0, 6}) ==
          "gather_kv: block 4 at column 1 of sequence 0; the pool has blocks 0 to 3");
    CHECK(gather({0, 11}) ==
          "gather_kv: the block table of sequence 0 has 2 blocks; 11 tokens need 3");
    CHECK_THAT(gather({-1, 2}), contains_text("must not be negative"));

    auto const copy = [&](BlockCopy c) {
      return outcome_of([&] { ops.copy_blocks(view, std::span(&c, 1)); }).message;
    };
    CHECK(copy({BlockId{0}, BlockId{4}, 1}) ==
          "copy_blocks: block 4 of entry 0; the pool has blocks 0 to 3");
    CHECK(copy({BlockId{0}, BlockId{1}, 6}) == "copy_blocks: 6 tokens of entry 0; a block has 5");
    BlockId const wrong{-1};
    CHECK(outcome_of([&] { ops.zero_blocks(view, std::span(&wrong, 1)); }).message ==
          "zero_blocks: block -1 of entry 0; the pool has blocks 0 to 3");
  }
}
#endif

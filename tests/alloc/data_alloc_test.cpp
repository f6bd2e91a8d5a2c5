// SPDX-License-Identifier: Apache-2.0
// The CPU data plane allocates nothing in a step, on any thread.
#include <array>
#include <cmath>
#include <vector>

#include <pagedkv/data/cpu/workers.hpp>

#include "../data/data_support.hpp"
#include "catch.hpp"
#include "counting.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::BlockCopy;
using pagedkv::BlockId;
using pagedkv::Element;
using pagedkv::KvFormat;

namespace {

constexpr std::int32_t block_tokens = 16;
constexpr std::int32_t num_kv_heads = 2;
constexpr std::int32_t group = 3;
constexpr std::int32_t dim = 80;
constexpr std::int32_t long_context = 1024;
constexpr std::int32_t short_context = 30;
constexpr std::int32_t num_queries = 5;  ///< of the long sequence's prefill

/// A layer with a long and a short sequence, and all that a step of them needs.
class Step {
 public:
  Step(KvFormat format, Element row_element)
      : storage_(geometry(format), num_blocks, {kv::BlockOrder::hnd}, scales_for(geometry(format))),
        k_({long_context, num_kv_heads, dim, row_element}, 1),
        v_({long_context, num_kv_heads, dim, row_element}, 2),
        gathered_({long_context, num_kv_heads, dim, row_element}),
        q_(static_cast<std::size_t>((num_queries + 1) * q_stride), 0.25F),
        out_(q_.size()) {
    std::mt19937 random(7);
    table_ = random_blocks(num_blocks, random);
    long_slots_ = slots_of(table_, block_tokens, 0, long_context);
    long_slots_[3] = kv::padding_slot;
    short_slots_ = slots_of(std::span(table_).subspan(indptr_[1]), block_tokens, 0, short_context);
    blocks_ = {BlockId{table_[0]}, BlockId{table_[1]}};
    copies_ = {{BlockId{table_[0]}, BlockId{table_[2]}, 9}};
  }

  void run(Operations const& ops, kv::cpu::Workers* workers) {
    auto const view = storage_.view();
    ops.zero_blocks(view, blocks_);
    ops.write_kv(view, 0, k_.rows(), v_.rows(), long_slots_);
    ops.write_kv(view, 0, k_.rows(), v_.rows(), short_slots_);
    ops.copy_blocks(view, copies_);
    ops.gather_kv(view, 0, table_, {0, long_context}, gathered_.mutable_rows(),
                  gathered_.mutable_rows());
    kv::cpu::AttentionBatch const batch{indptr_, table_, lengths_, query_offsets_};
    kv::cpu::Queries const queries{q_.data(), out_.data(), num_kv_heads * group, q_stride,
                                   q_stride};
    for (std::int32_t const window : {0, 100}) {
      kv::cpu::AttentionOptions const options{0.1F, window, workers};
      ops.decode_attention(view, 0, batch, queries, options);
      ops.prefill_attention(view, 0, batch, queries, options);
    }
  }

  /// Numbers that the last run left: finite, and not all 0.
  [[nodiscard]] bool did_something() const {
    float sum = 0.0F;
    for (float const x : out_) sum += std::abs(x);
    return std::isfinite(sum) && sum > 0.0F;
  }

 private:
  static kv::Geometry geometry(KvFormat format) {
    return {.num_layers = 1,
            .num_kv_heads = num_kv_heads,
            .head_dim_k = dim,
            .head_dim_v = dim,
            .block_tokens = block_tokens,
            .format = format};
  }
  static constexpr std::int64_t q_stride = num_kv_heads * group * dim;
  static constexpr std::int32_t num_blocks = (long_context + short_context) / block_tokens + 1;

  std::array<std::int32_t, 3> indptr_{0, long_context / block_tokens, num_blocks};
  std::array<std::int32_t, 2> lengths_{long_context, short_context};
  std::array<std::int32_t, 3> query_offsets_{0, num_queries, num_queries + 1};
  kv::KvStorage storage_;
  Rows k_;
  Rows v_;
  Rows gathered_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<std::int32_t> table_;
  std::vector<kv::Slot> long_slots_;
  std::vector<kv::Slot> short_slots_;
  std::vector<BlockId> blocks_;
  std::vector<BlockCopy> copies_;
};

}  // namespace

TEST_CASE("no operation of the data plane allocates, from the first call on") {
  // Scratch for all tiles; for a few, which takes several rounds; for none, which deals out units.
  kv::cpu::Workers many(3);
  kv::cpu::Workers few(2, 20000);
  kv::cpu::Workers none(2, 16);
  for (KvFormat const format : all_formats()) {
    for (Element const row : {Element::f32, Element::f16, Element::bf16}) {
      for (auto const& ops : both_operations) {
        bool const is_oracle = ops.write_kv == &kv::cpu::scalar::write_kv;
        Step step(format, row);
        for (kv::cpu::Workers* workers :
             {static_cast<kv::cpu::Workers*>(nullptr), &many, &few, &none}) {
          if (workers != nullptr && (is_oracle || row != Element::f32)) continue;
          AllocationCount const count;
          step.run(ops, workers);
          std::int64_t const allocated = count();
          INFO(ops.name << " " << to_string(format) << ", rows of " << to_string(row));
          CHECK(allocated == 0);
          CHECK(step.did_something());
        }
      }
    }
  }
}

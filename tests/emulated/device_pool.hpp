// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the tests of the kernels share: a pool and rows in the machine's memory beside the
/// oracle's, and steps that fill blocks as sequences do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/kv_storage.hpp>

#include "../data/data_support.hpp"
#include "machine.hpp"

namespace pagedkv::testing {

inline constexpr KvLayout layouts[] = {{BlockOrder::nhd, PoolOrder::layer_major},
                                       {BlockOrder::hnd, PoolOrder::block_major}};

/// TSan sees what kernels share, which the element doesn't change: one of each kernel is enough.
inline std::vector<KvFormat> kernel_formats() {
  std::vector<KvFormat> formats = all_formats();
#if PAGEDKV_UNDER_TSAN
  std::erase_if(formats, [](KvFormat format) {
    return format.element != Element::fp8_e4m3 && format.element != Element::int4;
  });
#endif
  return formats;
}

/// The same for readers, to whom granularities are strides.
inline std::vector<KvFormat> read_formats() {
  std::vector<KvFormat> formats = kernel_formats();
#if PAGEDKV_UNDER_TSAN
  std::erase_if(formats,
                [](KvFormat format) { return format.granularity != Granularity::per_token_head; });
#endif
  return formats;
}

/// A copy of a pool.
class DevicePool {
 public:
  explicit DevicePool(KvStorage& like)
      : memory_(std::span<std::byte const>(like.memory()), "the pool"), view_(like.view()) {
    std::byte const* const base = like.memory().data();
    for (KvLayer layer : view_.layers) {
      for (KvTensor* t : {&layer.k, &layer.v}) {
        if (t->data != nullptr) t->data = memory_.data() + (t->data - base);
        if (t->scales == nullptr) continue;
        auto const* const scales = reinterpret_cast<std::byte const*>(t->scales);
        t->scales = reinterpret_cast<float*>(memory_.data() + (scales - base));
      }
      layers_.push_back(layer);
    }
    view_.layers = layers_;
    device_layers_.emplace(layers_, "layers");
  }
  [[nodiscard]] KvView const& view() const { return view_; }
  /// For kernels.
  [[nodiscard]] KvLayer const* layers() const { return device_layers_->data(); }
  [[nodiscard]] bool equals(std::span<std::byte const> expected) const {
    return std::memcmp(memory_.data(), expected.data(), expected.size()) == 0;
  }
  [[nodiscard]] bool equals(KvStorage& oracle) const { return equals(oracle.memory()); }

 private:
  DeviceBuffer<std::byte> memory_;
  std::vector<KvLayer> layers_;
  std::optional<DeviceBuffer<KvLayer>> device_layers_;
  KvView view_;
};

/// A copy of rows.
class DeviceRows {
 public:
  explicit DeviceRows(Rows& like)
      : memory_(std::span<std::byte const>(like.bytes()), "rows"), rows_(like.mutable_rows()) {
    rows_.data = memory_.data() + (static_cast<std::byte*>(rows_.data) - like.bytes().data());
  }
  [[nodiscard]] KvRows rows() const {
    return {rows_.data, rows_.element, rows_.token_stride, rows_.head_stride};
  }
  [[nodiscard]] MutableKvRows mutable_rows() const { return rows_; }
  [[nodiscard]] std::vector<std::byte> bytes() const { return memory_.copy(); }

 private:
  DeviceBuffer<std::byte> memory_;
  MutableKvRows rows_;
};

/// Numbers of very different sizes, and now and then one that is none: vectors of zeros, -0,
/// infinities, NaN, subnormals. `magnitude` is that of most.
inline void fill_rows(Rows& rows, Rows::Shape const& shape, std::mt19937& random, float magnitude) {
  std::normal_distribution<float> normal;
  float const specials[] = {0.0F,    -0.0F,    std::numeric_limits<float>::infinity(),
                            1e-41F,  -448.0F,  -std::numeric_limits<float>::infinity(),
                            60000.F, -1e-7F,   std::numeric_limits<float>::quiet_NaN(),
                            464.0F,  3.4e+38F, -3.4e+38F};
  for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      auto const kind = random() % 12;
      for (std::int64_t i = 0; i < shape.dim; ++i) {
        float x = kind == 0 ? 0.0F : normal(random) * magnitude;
        if (kind < 4 && random() % 24 == 0) x = specials[random() % std::size(specials)];
        rows.set(t, h, i, x);
      }
    }
  }
}

/// Tokens of a step, and the same as runs.
struct Step {
  std::vector<Slot> slots;
  std::vector<BlockRun> runs;

  /// The slots without those that the pool hasn't, which only kernels may be given.
  [[nodiscard]] std::vector<Slot> known_slots(std::int64_t num_slots) const {
    std::vector<Slot> known = slots;
    for (Slot& slot : known) slot = slot < num_slots ? slot : padding_slot;
    return known;
  }
};

/// Appends to blocks as sequences do: at the offset where each ends, at 0 where it is full.
class StepMaker {
 public:
  StepMaker(std::int32_t num_blocks, std::int32_t block_tokens)
      : filled_(static_cast<std::size_t>(num_blocks)), block_tokens_(block_tokens) {}

  /// About `num_runs` runs of 1 to block_tokens tokens, with padding between and behind them.
  [[nodiscard]] Step make(std::int32_t num_runs, std::mt19937& random) {
    Step step;
    auto const num_blocks = static_cast<std::int32_t>(filled_.size());
    auto const blocks = random_blocks(num_blocks, random);
    auto const pad = [&] {
      Slot const beyond = Slot{num_blocks} * block_tokens_;
      Slot const nobody[] = {padding_slot, -7, beyond, beyond + 1'000'000'000'000};
      step.slots.push_back(nobody[random() % 4]);
    };
    for (std::int32_t i = 0; i < std::min(num_runs, num_blocks); ++i) {
      std::int32_t const block = blocks[static_cast<std::size_t>(i)];
      std::int32_t& filled = filled_[static_cast<std::size_t>(block)];
      if (filled == block_tokens_) filled = 0;
      auto const left = static_cast<std::uint32_t>(block_tokens_ - filled);
      auto const count = static_cast<std::int32_t>(random() % 3 == 0 ? left : 1 + random() % left);
      auto const first = static_cast<std::int32_t>(step.slots.size());
      step.runs.push_back({BlockId{block}, filled, count, first});
      for (std::int32_t t = 0; t < count; ++t) {
        step.slots.push_back(Slot{block} * block_tokens_ + filled + t);
      }
      filled += count;
      if (random() % 2 == 0) pad();
      if (random() % 3 == 0) step.runs.push_back({BlockId{block}, 0, 0, 0});
    }
    pad();
    step.runs.push_back({BlockId{-1}, 0, 0, 0});
    step.runs.push_back({BlockId{num_blocks}, 0, 1, 0});
    return step;
  }

 private:
  std::vector<std::int32_t> filled_;
  std::int32_t block_tokens_;
};

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Attention through the library: a step's K and V go where the batch says, and are read back
/// through the block tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/cpu/workers.hpp>
#include <pagedkv/pagedkv.hpp>
#include <span>
#include <vector>

#include "forward.hpp"

namespace engine {

namespace kv = pagedkv;

/// The arrays of a step, as `Batch::build` writes them. Allocated once.
class StepArrays {
 public:
  /// `width`: columns of the block table.
  StepArrays(std::int32_t max_sequences, std::int32_t max_tokens, std::int32_t width,
             std::int32_t num_blocks);

  [[nodiscard]] kv::BatchBuffers buffers();

  // What a step wrote: the leading parts.
  [[nodiscard]] std::span<kv::Slot const> slots(kv::BatchStep const& step) const;
  [[nodiscard]] std::span<kv::BlockId const> new_blocks(kv::BatchStep const& step) const;
  [[nodiscard]] std::span<kv::BlockCopy const> copies(kv::BatchStep const& step) const;
  [[nodiscard]] kv::cpu::AttentionBatch attention(kv::BatchStep const& step) const;

 private:
  std::vector<kv::Slot> slots_;
  std::vector<std::int32_t> query_offsets_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> indices_;
  std::vector<kv::BlockId> new_blocks_;
  std::vector<kv::BlockCopy> copies_;
};

/// One step's attention. Adds up the time it spends.
class PagedAttention final : public Attention {
 public:
  /// What is referred to must outlive the step. `workers`: null for this thread alone.
  PagedAttention(ModelConfig const& config, kv::KvView const& view, StepArrays const& arrays,
                 kv::BatchStep const& step, kv::cpu::Workers* workers = nullptr);

  /// Zeroes new blocks and runs the copies: once, before the step's first layer.
  void prepare();
  void attend(std::int32_t layer, LayerQkv const& qkv, float* out) override;

  [[nodiscard]] std::chrono::nanoseconds time() const noexcept { return time_; }

 private:
  ModelConfig const& config_;
  kv::KvView const& view_;
  StepArrays const& arrays_;
  kv::BatchStep const& step_;
  kv::cpu::Workers* workers_;
  bool only_decodes_;
  std::chrono::nanoseconds time_{};
};

/// Adds the time from its construction to its destruction to a sum.
class Timed {
 public:
  explicit Timed(std::chrono::nanoseconds& sum) noexcept : sum_(sum) {}
  ~Timed() { sum_ += std::chrono::steady_clock::now() - begin_; }
  Timed(Timed const&) = delete;
  Timed& operator=(Timed const&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace engine

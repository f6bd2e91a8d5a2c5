// SPDX-License-Identifier: Apache-2.0
/// \file
/// From a `Batch` to the arguments of the CUDA operations: a ring of pinned buffers, in which steps
/// are built, and one place in device memory to which they are copied. Link `pagedkv::cuda`;
/// nothing here needs nvcc.
///
///     StagingRing ring(largest_step(cache, limits), steps_in_flight + 1);
///     ...
///     auto const step = ring.stage(batch, cache.open_tick());
///     if (!step) ...                       // no_staging_buffer: reclaim first; batch_full
///     ok(ring.upload(*step, stream));      // one copy
///     ok(zero_blocks(view, device_layers, step->new_blocks, step->counts.num_new_blocks, stream));
///     ...
///     Tick const tick = cache.end_step();
///     ok(cudaEventRecord(event, stream));
///     ...                                  // later, when the event has passed:
///     cache.reclaim(tick);
///     ring.reclaim(tick);
///
/// The arrays of a step lie one behind the other, `indices` last, so that where they begin depends
/// on the other counts alone: a graph captured with one step finds its arguments in each step that
/// is staged with the same counts (`at_least`, `StagedStep::matches`).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/memory.hpp>
#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/manage/kv_cache.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/step/batch.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// The arrays of `BatchBuffers` in device memory; null where there is none. They hold this step
/// from its `upload` in the stream to the next one's.
struct StagedStep {
  /// As many entries as there are, padding included.
  BatchStep counts;
  Slot const* slot_mapping = nullptr;
  std::int32_t const* query_offsets = nullptr;
  std::int32_t const* sequence_lengths = nullptr;
  std::int32_t const* indptr = nullptr;
  std::int32_t const* last_block_len = nullptr;
  RowMove const* row_moves = nullptr;
  RowChange const* row_changes = nullptr;
  BlockId const* new_blocks = nullptr;
  BlockCopy const* copies = nullptr;
  BlockRun const* runs = nullptr;
  std::int32_t const* indices = nullptr;

  Tick tick;
  std::int32_t buffer = 0;
  std::int64_t bytes = 0;  ///< of the copy

  [[nodiscard]] WriteSlots write_slots() const noexcept {
    return {slot_mapping, counts.padded_tokens, runs, counts.num_runs};
  }
  [[nodiscard]] TableUpdates table_updates() const noexcept {
    return {row_moves, counts.num_row_moves, row_changes, counts.num_row_changes};
  }
  /// Blocks from `indices`.
  [[nodiscard]] DecodeBatch decode_batch() const noexcept {
    return {indices, indptr, 0, sequence_lengths, counts.padded_sequences};
  }
  /// Blocks from a table that has had this step's updates.
  [[nodiscard]] DecodeBatch decode_batch(BlockTable const& table) const noexcept {
    return {table.blocks, nullptr, table.row_stride, sequence_lengths, counts.padded_sequences};
  }
  /// Whether a graph captured with a step of these counts reads this step's arrays.
  [[nodiscard]] bool matches(BatchStep const& captured) const noexcept;
};
static_assert(std::is_trivially_copyable_v<StagedStep>);

/// The most that a batch of these limits can build.
template <class Policy>
[[nodiscard]] BatchStep largest_step(BasicKvCache<Policy> const& cache, BatchLimits const& limits) {
  std::int64_t const columns =
      limits.max_blocks_per_sequence != 0 ? limits.max_blocks_per_sequence : cache.table_width();
  auto const cells =
      static_cast<std::int32_t>(std::min<std::int64_t>(limits.max_sequences * columns, INT32_MAX));
  std::int32_t const blocks = cache.config().num_blocks;
  BatchStep most;
  most.num_sequences = most.padded_sequences = most.num_row_moves = limits.max_sequences;
  most.num_tokens = most.padded_tokens = most.num_runs = limits.max_tokens;
  most.num_indices = most.num_row_changes = cells;
  most.num_new_blocks = most.num_copies = blocks;
  return most;
}

/// Allocates when it is made and never again; waits for nothing. One writer, the batch's.
class StagingRing {
 public:
  /// `largest`: how many entries each array may have; one of 0 entries isn't staged, and left to
  /// the engine. Memory: `num_buffers` times its bytes, pinned, and once on the device.
  ///
  /// `num_buffers`: one more than steps may be in flight, so that a step can be built while they
  /// run. Raises `Error` for a count below 0 or less than one buffer, and when memory is short.
  StagingRing(BatchStep const& largest, std::int32_t num_buffers,
              Allocator& device = device_memory(), Allocator& pinned = pinned_memory());

  /// Builds the step (`Batch::build`) in the next buffer, which belongs to `tick`, the open one,
  /// until `reclaim`. `at_least`: arrays are filled up to these counts with entries that do
  /// nothing, as `batch.pad_to` would; the batch isn't told.
  ///
  /// Errors: no_staging_buffer when every buffer's tick is in flight; batch_full when an array
  /// outgrows `largest` (`step_error` of `batch.required()` or of `at_least` names it) or as
  /// `Batch::build`. Nothing is handed out then. O(tokens + blocks of the sequences).
  template <class Policy>
  Result<StagedStep> stage(BasicBatch<Policy>& batch, Tick tick, BatchStep const& at_least = {});

  /// Enqueues the copy: one call, of `step.bytes`. Kernels that read the arrays follow on the same
  /// stream; the copy overwrites what the last upload brought. To be called outside a captured
  /// graph, because each step is copied from another address. Requires: not reclaimed.
  [[nodiscard]] cudaError_t upload(StagedStep const& step, cudaStream_t stream) const;

  /// The step's arrays where they are, in pinned memory and on the device: what `interop/` takes.
  /// On the host until `reclaim`. O(1).
  [[nodiscard]] BatchBuffers host_arrays(StagedStep const& step) const noexcept;
  [[nodiscard]] BatchBuffers device_arrays(StagedStep const& step) const noexcept;

  /// The device has finished every step up to `tick`: their buffers are free. O(buffers).
  void reclaim(Tick tick) noexcept;

  /// Which array of such a step is too large for this ring, and by what numbers; empty if none is.
  [[nodiscard]] std::string step_error(BatchStep const& step) const;

  [[nodiscard]] std::int32_t num_buffers() const noexcept {
    return static_cast<std::int32_t>(ticks_.size());
  }
  [[nodiscard]] std::int32_t num_in_flight() const noexcept { return num_in_flight_; }

 private:
  [[nodiscard]] BatchStep staged_counts(BatchStep const& need,
                                        BatchStep const& at_least) const noexcept;
  [[nodiscard]] bool fits(BatchStep const& counts) const noexcept;
  /// Gives the arrays of `step.counts` their places, on the device and, returned, on the host.
  [[nodiscard]] BatchBuffers place(StagedStep& step) const noexcept;
  [[nodiscard]] std::byte* pinned_buffer(StagedStep const& step) const noexcept {
    return pinned_.data() + step.buffer * buffer_bytes_;
  }
  void take_buffer(Tick tick) noexcept;

  BatchStep largest_;
  std::int64_t buffer_bytes_;
  std::vector<Tick> ticks_;  ///< of each buffer in flight
  std::int32_t first_ = 0;   ///< the oldest of them
  std::int32_t num_in_flight_ = 0;
  detail::OwnedMemory pinned_;
  detail::OwnedMemory device_;
};

// ---- how it works -------------------------------------------------------------------------------

namespace detail {

/// Behind the `used` first entries, ones that do nothing. An array that isn't staged is empty,
/// however many entries it would have had.
template <class T>
void pad_array(std::span<T> array, std::int32_t used, T padding) noexcept {
  for (T& entry : array.subspan(std::min(array.size(), static_cast<std::size_t>(used)))) {
    entry = padding;
  }
}
/// The same behind the offsets of so many rows: the last one again.
inline void pad_offsets(std::span<std::int32_t> offsets, std::int32_t rows) noexcept {
  if (offsets.empty()) return;
  pad_array(offsets, rows + 1, offsets[static_cast<std::size_t>(rows)]);
}

inline void pad_arrays(BatchBuffers const& out, BatchStep const& built) noexcept {
  std::int32_t const rows = built.padded_sequences;
  pad_array(out.slot_mapping, built.padded_tokens, padding_slot);
  pad_offsets(out.query_offsets, rows);
  pad_array(out.sequence_lengths, rows, 0);
  pad_offsets(out.indptr, rows);
  pad_array(out.last_block_len, rows, 0);
  pad_array(out.row_moves, built.num_row_moves, RowMove{-1, -1});
  pad_array(out.row_changes, built.num_row_changes, RowChange{-1, -1, -1});
  pad_array(out.new_blocks, built.num_new_blocks, BlockId{});
  pad_array(out.copies, built.num_copies, BlockCopy{});
  pad_array(out.runs, built.num_runs, BlockRun{BlockId{}, 0, 0, 0});
}

}  // namespace detail

template <class Policy>
Result<StagedStep> StagingRing::stage(BasicBatch<Policy>& batch, Tick tick,
                                      BatchStep const& at_least) {
  if (num_in_flight_ == num_buffers()) return Unexpected{Errc::no_staging_buffer};
  StagedStep step;
  step.counts = staged_counts(batch.required(), at_least);
  if (!fits(step.counts)) return Unexpected{Errc::batch_full};
  step.tick = tick;
  step.buffer = (first_ + num_in_flight_) % num_buffers();
  BatchBuffers const out = place(step);
  Result<BatchStep> const built = batch.build(out);
  if (!built) return Unexpected{built.error()};
  detail::pad_arrays(out, *built);
  take_buffer(tick);
  return step;
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

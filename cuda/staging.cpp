// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where a step's arrays lie, and their copy.
#include <pagedkv/data/cuda/staging.hpp>

#include <cuda_runtime_api.h>

#include <pagedkv/detail/checked_bytes.hpp>
#include <pagedkv/error.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace {

/// The counts that decide where arrays lie.
struct Count {
  std::int32_t BatchStep::*of;
  char const* name;
};
constexpr Count placing_counts[] = {
    {&BatchStep::padded_tokens, "padded_tokens"},
    {&BatchStep::padded_sequences, "padded_sequences"},
    {&BatchStep::num_row_moves, "num_row_moves"},
    {&BatchStep::num_row_changes, "num_row_changes"},
    {&BatchStep::num_new_blocks, "num_new_blocks"},
    {&BatchStep::num_copies, "num_copies"},
    {&BatchStep::num_runs, "num_runs"},
};
constexpr Count last_count = {&BatchStep::num_indices, "num_indices"};

template <class Visit>
void for_each_count(Visit&& visit) {
  for (Count const& count : placing_counts) visit(count);
  visit(last_count);
}

/// Calls `array(span, pointer, count)` for each, in the order in which they lie.
template <class Array>
void for_each_array(BatchBuffers& host, StagedStep& step, Array&& array) {
  BatchStep const& n = step.counts;
  std::int32_t const rows = n.padded_sequences;
  std::int32_t const ends = rows == 0 ? 0 : rows + 1;
  array(host.slot_mapping, step.slot_mapping, n.padded_tokens);
  array(host.query_offsets, step.query_offsets, ends);
  array(host.sequence_lengths, step.sequence_lengths, rows);
  array(host.indptr, step.indptr, ends);
  array(host.last_block_len, step.last_block_len, rows);
  array(host.row_moves, step.row_moves, n.num_row_moves);
  array(host.row_changes, step.row_changes, n.num_row_changes);
  array(host.new_blocks, step.new_blocks, n.num_new_blocks);
  array(host.copies, step.copies, n.num_copies);
  array(host.runs, step.runs, n.num_runs);
  array(host.indices, step.indices, n.num_indices);
}

constexpr std::int64_t alignment = 16;

BatchBuffers place_arrays(StagedStep& step, std::byte* host, std::byte* device) {
  BatchBuffers out;
  std::int64_t at = 0;
  for_each_array(out, step, [&](auto& span, auto const*& pointer, std::int32_t count) {
    using T = typename std::remove_reference_t<decltype(span)>::element_type;
    if (count == 0) return;
    span = {reinterpret_cast<T*>(host + at), static_cast<std::size_t>(count)};
    pointer = reinterpret_cast<T const*>(device + at);
    step.bytes = at + count * static_cast<std::int64_t>(sizeof(T));
    at = pagedkv::detail::round_up(step.bytes, alignment);
  });
  return out;
}

std::int64_t bytes_of(BatchStep const& counts) {
  StagedStep step;
  step.counts = counts;
  alignas(alignment) std::byte nothing[1];
  place_arrays(step, nothing, nothing);
  return pagedkv::detail::round_up(step.bytes, alignment);
}

BatchStep const& checked(BatchStep const& largest) {
  for_each_count([&](Count const& count) {
    if (largest.*count.of >= 0) return;
    raise("StagingRing: largest." + std::string(count.name) + " is " +
          std::to_string(largest.*count.of) + "; it can't be negative");
  });
  return largest;
}

std::size_t checked(std::int32_t num_buffers) {
  if (num_buffers < 1) {
    raise("StagingRing: num_buffers is " + std::to_string(num_buffers) +
          "; it must be at least 1, and one more than steps may be in flight");
  }
  return static_cast<std::size_t>(num_buffers);
}

}  // namespace

bool StagedStep::matches(BatchStep const& captured) const noexcept {
  return std::all_of(std::begin(placing_counts), std::end(placing_counts),
                     [&](Count const& count) { return counts.*count.of == captured.*count.of; });
}

StagingRing::StagingRing(BatchStep const& largest, std::int32_t num_buffers, Allocator& device,
                         Allocator& pinned)
    : largest_(checked(largest)),
      buffer_bytes_(bytes_of(largest)),
      ticks_(checked(num_buffers)),
      pinned_(pinned, buffer_bytes_ * num_buffers, "StagingRing, pinned"),
      device_(device, buffer_bytes_, "StagingRing, device") {}

BatchStep StagingRing::staged_counts(BatchStep const& need,
                                     BatchStep const& at_least) const noexcept {
  BatchStep counts = need;
  for_each_count([&](Count const& count) {
    bool const is_staged = largest_.*count.of != 0;
    counts.*count.of = is_staged ? std::max(need.*count.of, at_least.*count.of) : 0;
  });
  return counts;
}

bool StagingRing::fits(BatchStep const& counts) const noexcept {
  bool fits = true;
  for_each_count(
      [&](Count const& count) { fits = fits && counts.*count.of <= largest_.*count.of; });
  return fits;
}

std::string StagingRing::step_error(BatchStep const& step) const {
  std::string error;
  for_each_count([&](Count const& count) {
    std::int32_t const most = largest_.*count.of;
    if (!error.empty() || most == 0 || step.*count.of <= most) return;
    error = std::string(count.name) + " is " + std::to_string(step.*count.of) +
            "; the ring was made for " + std::to_string(most);
  });
  return error;
}

BatchBuffers StagingRing::place(StagedStep& step) const noexcept {
  return place_arrays(step, pinned_buffer(step), device_.data());
}
BatchBuffers StagingRing::host_arrays(StagedStep const& step) const noexcept {
  StagedStep placed = step;
  return place_arrays(placed, pinned_buffer(step), device_.data());
}
BatchBuffers StagingRing::device_arrays(StagedStep const& step) const noexcept {
  StagedStep placed = step;
  return place_arrays(placed, device_.data(), device_.data());
}

void StagingRing::take_buffer(Tick tick) noexcept {
  ticks_[static_cast<std::size_t>((first_ + num_in_flight_) % num_buffers())] = tick;
  ++num_in_flight_;
}

cudaError_t StagingRing::upload(StagedStep const& step, cudaStream_t stream) const {
  std::int32_t const age = (step.buffer - first_ + num_buffers()) % num_buffers();
  PAGEDKV_ASSERT(age < num_in_flight_ && ticks_[static_cast<std::size_t>(step.buffer)] == step.tick,
                 "StagingRing::upload: the step must be staged and not reclaimed");
  if (step.bytes == 0) return cudaSuccess;
  return cudaMemcpyAsync(device_.data(), pinned_buffer(step), static_cast<std::size_t>(step.bytes),
                         cudaMemcpyHostToDevice, stream);
}

void StagingRing::reclaim(Tick tick) noexcept {
  while (num_in_flight_ > 0 && ticks_[static_cast<std::size_t>(first_)].value() <= tick.value()) {
    first_ = (first_ + 1) % num_buffers();
    --num_in_flight_;
  }
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

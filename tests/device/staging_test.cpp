// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/staging.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <pagedkv/interop/flashinfer.hpp>
#include <pagedkv/interop/step.hpp>

#include "../alloc/counting.hpp"
#include "catch.hpp"
#include "cuda_objects.hpp"
#include "device_pool.hpp"
#include "runtime_control.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr BatchLimits limits{.max_sequences = 4, .max_tokens = 32};

/// A cache with sequences that grow, fork and leave by a fixed program: two of them do the same.
class Engine {
 public:
  Engine() : batch(cache, limits) {
    for (unsigned i = 0; i < 3; ++i) {
      std::vector<TokenId> prompt(5 + 4 * i);
      std::iota(prompt.begin(), prompt.end(), TokenId(100 * i));
      sequences.push_back(cache.open(SequenceId{i}, prompt, {.reserve = 0}).value());
      prompts.push_back(std::move(prompt));
    }
  }
  /// Step 0: prompts; later: one token each, and now and then a fork that copies, or somebody goes.
  void schedule() {
    batch.begin_step();
    if (step == 3) {
      sequences[1] = sequences[2].fork(SequenceId{9}).value();
    }
    if (step == 5) sequences.erase(sequences.begin());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      TokenId const next = TokenId(7 * step + static_cast<int>(i));
      auto const range =
          step == 0 ? sequences[i].append(prompts[i]) : sequences[i].append(std::span(&next, 1));
      REQUIRE(batch.add(sequences[i], range.value()).has_value());
    }
    ++step;
  }
  Tick finish() {
    batch.commit();
    return cache.end_step();
  }

  KvCache cache{{.block_tokens = 4,
                 .num_blocks = 64,
                 .max_sequences = 8,
                 .max_sequence_tokens = 64,
                 .reclaim = Reclaim::deferred}};
  Batch batch;
  std::vector<Sequence> sequences;
  std::vector<std::vector<TokenId>> prompts;
  int step = 0;
};

/// What `Batch::build` writes, in vectors.
struct PlainStep {
  std::vector<Slot> slots;
  std::vector<std::int32_t> query_offsets, lengths, indptr, indices, last_block_len;
  std::vector<RowMove> moves;
  std::vector<RowChange> changes;
  std::vector<BlockId> new_blocks;
  std::vector<BlockRun> runs;
  std::vector<BlockCopy> copies;
  BatchStep counts;

  explicit PlainStep(Batch& batch) {
    BatchStep const need = batch.required();
    auto const n = [](std::int32_t count) { return static_cast<std::size_t>(count); };
    slots.resize(n(need.padded_tokens));
    for (auto* ends : {&query_offsets, &indptr}) ends->resize(n(need.padded_sequences + 1));
    for (auto* rows : {&lengths, &last_block_len}) rows->resize(n(need.padded_sequences));
    indices.resize(n(need.num_indices));
    moves.resize(n(need.num_row_moves));
    changes.resize(n(need.num_row_changes));
    new_blocks.resize(n(need.num_new_blocks));
    runs.resize(n(need.num_runs));
    copies.resize(n(need.num_copies));
    counts = batch
                 .build({slots, query_offsets, lengths, indptr, indices, last_block_len, moves,
                         changes, new_blocks, runs, copies})
                 .value();
  }
};

template <class T>
std::vector<T> from_device(T const* array, std::size_t count, cudaStream_t stream) {
  std::vector<T> host(count);
  if (count == 0) return host;
  REQUIRE(cudaMemcpyAsync(host.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost, stream) ==
          cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  return host;
}

/// Whether the first entries are `want` and the rest `padding`.
template <class T>
bool holds(T const* array, std::int32_t count, std::vector<T> want, T padding,
           cudaStream_t stream) {
  want.resize(static_cast<std::size_t>(count), padding);
  return from_device(array, want.size(), stream) == want;
}

/// Every array of the step that was staged, in stream order.
void check_step(cuda::StagedStep const& step, PlainStep const& want, cudaStream_t stream) {
  BatchStep const& n = step.counts;
  std::int32_t const rows = n.padded_sequences;
  CHECK(holds(step.slot_mapping, n.padded_tokens, want.slots, padding_slot, stream));
  std::int32_t const ends = rows == 0 ? 0 : rows + 1;
  CHECK(holds(step.query_offsets, ends, want.query_offsets, want.query_offsets.back(), stream));
  CHECK(holds(step.sequence_lengths, rows, want.lengths, 0, stream));
  CHECK(holds(step.indptr, ends, want.indptr, want.indptr.back(), stream));
  CHECK(holds(step.indices, n.num_indices, want.indices, 0, stream));
  CHECK(holds(step.last_block_len, rows, want.last_block_len, 0, stream));
  CHECK(holds(step.row_moves, n.num_row_moves, want.moves, {-1, -1}, stream));
  CHECK(holds(step.row_changes, n.num_row_changes, want.changes, {-1, -1, -1}, stream));
  CHECK(holds(step.new_blocks, n.num_new_blocks, want.new_blocks, BlockId{}, stream));
  CHECK(holds(step.runs, n.num_runs, want.runs, BlockRun{BlockId{}, 0, 0, 0}, stream));
  CHECK(holds(step.copies, n.num_copies, want.copies, BlockCopy{}, stream));
}

/// The arrays as other people's kernels are told of them: on the device, and what the host must
/// read.
void check_arrays(cuda::StagingRing const& ring, cuda::StagedStep const& step,
                  PlainStep const& want) {
  BatchBuffers const host = ring.host_arrays(step);
  CHECK(std::vector(host.slot_mapping.begin(), host.slot_mapping.end()) == want.slots);
  CHECK(std::vector(host.runs.begin(), host.runs.end()) == want.runs);
  CHECK(std::vector(host.indices.begin(), host.indices.end()) == want.indices);
  auto const maxima = interop::maxima_of(step.counts, host);
  CHECK(maxima.sequence_len == *std::max_element(want.lengths.begin(), want.lengths.end()));

  BatchBuffers const device = ring.device_arrays(step);
  CHECK(device.copies.data() == step.copies);
  auto const pages = interop::flashinfer::page_table(step.counts, device);
  CHECK(pages.qo_indptr.data == step.query_offsets);
  CHECK(pages.kv_indptr.data == step.indptr);
  CHECK(pages.kv_indices.data == step.indices);
  CHECK(pages.kv_indices.shape[0] == want.counts.num_indices);
  CHECK(pages.kv_last_page_len.data == step.last_block_len);
}

template <class Make>
std::string message_of(Make make) {
  try {
    make();
  } catch (Error const& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a staged step has on the device what the batch builds") {
  WorkStream const stream;
  Engine engine;
  Engine twin;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 2);
  std::int32_t moves = 0;
  std::int32_t copies = 0;
  while (engine.step < 8) {
    engine.schedule();
    twin.schedule();
    PlainStep const want(twin.batch);
    auto const step = ring.stage(engine.batch, engine.cache.open_tick());
    REQUIRE(step);
    REQUIRE(ring.upload(*step, stream) == cudaSuccess);
    CHECK(step->counts == want.counts);
    check_step(*step, want, stream);
    check_arrays(ring, *step, want);
    moves += want.counts.num_row_moves;
    copies += want.counts.num_copies;
    Tick const tick = engine.finish();
    CHECK(twin.finish() == tick);
    for (auto* cache : {&engine.cache, &twin.cache}) cache->reclaim(tick);
    ring.reclaim(tick);
  }
  CHECK(moves > 0);  // the program reaches what it is there for
  CHECK(copies > 0);
}

TEST_CASE("a buffer is written again only after its tick is reclaimed") {
  WorkStream const stream;
  Engine engine;
  Engine twin;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 3);
  std::vector<PlainStep> want;
  std::vector<cuda::StagedStep> staged;
  std::vector<Tick> ticks;
  for (int i = 0; i < 3; ++i) {
    engine.schedule();
    twin.schedule();
    want.emplace_back(twin.batch);
    staged.push_back(ring.stage(engine.batch, engine.cache.open_tick()).value());
    ticks.push_back(engine.finish());
    static_cast<void>(twin.finish());
  }
  CHECK(ring.num_in_flight() == 3);

  // Nothing has been copied yet: the device is three steps behind.
  engine.schedule();
  twin.schedule();
  BatchStep const needed = engine.batch.required();
  CHECK(ring.stage(engine.batch, engine.cache.open_tick()).error() == Errc::no_staging_buffer);
  CHECK(engine.batch.required() == needed);
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(ring.upload(staged[i], stream) == cudaSuccess);
    check_step(staged[i], want[i], stream);
  }
  engine.cache.reclaim(ticks[0]);
  ring.reclaim(ticks[0]);
  CHECK(ring.num_in_flight() == 2);
  auto const fourth = ring.stage(engine.batch, engine.cache.open_tick());
  REQUIRE(fourth);
  CHECK(fourth->buffer == staged[0].buffer);
  REQUIRE(ring.upload(*fourth, stream) == cudaSuccess);
  check_step(*fourth, PlainStep(twin.batch), stream);
  for (std::size_t i : {1U, 2U}) {  // neither was touched
    REQUIRE(ring.upload(staged[i], stream) == cudaSuccess);
    check_step(staged[i], want[i], stream);
  }
}

TEST_CASE("an engine that reclaims before the copy has run copies the wrong step") {
  // What the ring is there for, and that these tests would see it.
  WorkStream const stream;
  Engine engine;
  Engine twin;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 1);
  engine.schedule();
  twin.schedule();
  PlainStep const want(twin.batch);
  auto const first = ring.stage(engine.batch, engine.cache.open_tick()).value();
  REQUIRE(ring.upload(first, stream) == cudaSuccess);
  Tick const tick = engine.finish();
  ring.reclaim(tick);
  engine.schedule();
  REQUIRE(ring.stage(engine.batch, engine.cache.open_tick()));
  CHECK_FALSE(
      holds(first.slot_mapping, first.counts.padded_tokens, want.slots, padding_slot, stream));
}

TEST_CASE("steps of equal counts lie at equal addresses, and their ends do nothing") {
  WorkStream const stream;
  Engine engine;
  Engine twin;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 2);
  BatchStep const captured{.padded_sequences = 4,
                           .padded_tokens = 32,
                           .num_row_moves = 3,
                           .num_row_changes = 16,
                           .num_new_blocks = 12,
                           .num_runs = 10,
                           .num_copies = 2};
  std::optional<cuda::StagedStep> first;
  while (engine.step < 8) {
    engine.schedule();
    twin.schedule();
    twin.batch.pad_to(captured.padded_tokens, captured.padded_sequences);
    PlainStep const want(twin.batch);
    auto const step = ring.stage(engine.batch, engine.cache.open_tick(), captured);
    REQUIRE(step);
    CHECK(step->matches(captured));
    REQUIRE(ring.upload(*step, stream) == cudaSuccess);
    check_step(*step, want, stream);
    if (!first) first = *step;
    CHECK(step->write_slots().slots == first->slot_mapping);
    CHECK(step->write_slots().runs == first->runs);
    CHECK(step->write_slots().num_runs == 10);
    CHECK(step->table_updates().moves == first->row_moves);
    CHECK(step->table_updates().changes == first->row_changes);
    CHECK(step->decode_batch().indices == first->indices);
    CHECK(step->decode_batch().indptr == first->indptr);
    CHECK(step->decode_batch().num_sequences == 4);
    CHECK(step->copies == first->copies);
    CHECK(step->new_blocks == first->new_blocks);
    Tick const tick = engine.finish();
    static_cast<void>(twin.finish());
    for (auto* cache : {&engine.cache, &twin.cache}) cache->reclaim(tick);
    ring.reclaim(tick);
  }
  BatchStep other = captured;
  other.num_indices = 1000;
  CHECK(first->matches(other));
  other.num_copies = 3;
  CHECK_FALSE(first->matches(other));
}

TEST_CASE("a step that outgrows the ring is named, and nothing of it handed out") {
  Engine engine;
  BatchStep small = cuda::largest_step(engine.cache, limits);
  small.num_runs = 2;
  cuda::StagingRing ring(small, 2);
  engine.schedule();
  BatchStep const need = engine.batch.required();
  CHECK(ring.stage(engine.batch, engine.cache.open_tick()).error() == Errc::batch_full);
  CHECK(ring.num_in_flight() == 0);
  CHECK(engine.batch.required() == need);
  CHECK(ring.step_error(need) ==
        "num_runs is " + std::to_string(need.num_runs) + "; the ring was made for 2");
  CHECK(ring.step_error(small).empty());
}

TEST_CASE("an array of 0 entries is left to the engine") {
  WorkStream const stream;
  Engine engine;
  BatchStep some = cuda::largest_step(engine.cache, limits);
  some.num_copies = some.num_indices = 0;
  cuda::StagingRing ring(some, 2);
  std::int32_t copies = 0;
  while (engine.step < 5) {
    engine.schedule();
    copies += static_cast<std::int32_t>(engine.cache.take_copies().size());
    auto const step = ring.stage(engine.batch, engine.cache.open_tick());
    REQUIRE(step);
    CHECK(step->copies == nullptr);
    CHECK(step->indices == nullptr);
    CHECK(step->counts.num_copies == 0);
    CHECK(ring.upload(*step, stream) == cudaSuccess);
    Tick const tick = engine.finish();
    engine.cache.reclaim(tick);
    ring.reclaim(tick);
  }
  CHECK(copies > 0);
}

TEST_CASE("a step whose table must be copied whole takes no buffer") {
  Engine engine;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 1);
  engine.schedule();
  // Row 0 goes and comes back behind the last, which has moved: more moves than there are rows.
  for (int i = 0; i < 6; ++i) {
    Sequence const& first = engine.sequences[i % 2 == 0 ? 0 : 2];
    REQUIRE(engine.batch.row_of(first) == 0);
    REQUIRE(engine.batch.remove(first));
    REQUIRE(engine.batch.add(first, {0, first.size()}));
  }
  CHECK(ring.stage(engine.batch, engine.cache.open_tick()).error() == Errc::batch_full);
  CHECK(ring.num_in_flight() == 0);
  std::vector<std::int32_t> table(4 * static_cast<std::size_t>(engine.batch.table_width()));
  engine.batch.copy_table(table);
  CHECK(ring.stage(engine.batch, engine.cache.open_tick()));
  CHECK(ring.num_in_flight() == 1);
}

TEST_CASE("whichever array is left out, the others are staged") {
  constexpr std::int32_t BatchStep::*counts[] = {
      &BatchStep::padded_tokens,   &BatchStep::padded_sequences, &BatchStep::num_row_moves,
      &BatchStep::num_row_changes, &BatchStep::num_new_blocks,   &BatchStep::num_copies,
      &BatchStep::num_runs,        &BatchStep::num_indices};
  for (auto const left_out : counts) {
    for (bool const is_padded : {false, true}) {
      WorkStream const stream;
      Engine engine;
      Engine twin;
      BatchStep some = cuda::largest_step(engine.cache, limits);
      some.*left_out = 0;
      cuda::StagingRing ring(some, 1);
      BatchStep least;
      if (is_padded) least = {.padded_sequences = 4, .padded_tokens = 32, .num_runs = 10};
      while (engine.step < 8) {
        engine.schedule();
        twin.schedule();
        if (left_out == &BatchStep::num_copies) {
          for (auto* cache : {&engine.cache, &twin.cache}) static_cast<void>(cache->take_copies());
        }
        PlainStep const want(twin.batch);
        auto const step = ring.stage(engine.batch, engine.cache.open_tick(), least);
        REQUIRE(step);
        CHECK(step->counts.*left_out == 0);
        REQUIRE(ring.upload(*step, stream) == cudaSuccess);
        check_step(*step, want, stream);
        Tick const tick = engine.finish();
        static_cast<void>(twin.finish());
        for (auto* cache : {&engine.cache, &twin.cache}) cache->reclaim(tick);
        ring.reclaim(tick);
      }
    }
  }
}

TEST_CASE("a step that can't be padded so far is staged without, as if nobody had asked") {
  Engine engine;
  cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 2);
  engine.schedule();
  BatchStep const need = engine.batch.required();
  for (BatchStep const& too_much : {BatchStep{.padded_tokens = limits.max_tokens + 1},
                                    BatchStep{.padded_sequences = limits.max_sequences + 1},
                                    BatchStep{.padded_tokens = 31, .num_copies = INT32_MAX}}) {
    CHECK(ring.stage(engine.batch, engine.cache.open_tick(), too_much).error() == Errc::batch_full);
    CHECK(engine.batch.required() == need);
    CHECK_FALSE(ring.step_error(too_much).empty());
  }
  auto const step = ring.stage(engine.batch, engine.cache.open_tick());
  REQUIRE(step);
  CHECK(step->counts == need);
}

TEST_CASE("a ring allocates when it is made, copies once a step, and gives back what it took") {
  auto const live = emulated::live_allocations();
  {
    WorkStream const stream;
    Engine engine;
    cuda::StagingRing ring(cuda::largest_step(engine.cache, limits), 2);
    auto const before = emulated::runtime_calls();
    int steps = 0;
    while (engine.step < 8) {
      engine.schedule();
      AllocationCount const allocated;
      auto const step = ring.stage(engine.batch, engine.cache.open_tick());
      CHECK(allocated() == 0);
      REQUIRE(step);
      REQUIRE(ring.upload(*step, stream) == cudaSuccess);
      ++steps;
      Tick const tick = engine.finish();
      engine.cache.reclaim(tick);
      ring.reclaim(tick);
    }
    CHECK(emulated::runtime_calls().allocations == before.allocations);
    CHECK(emulated::runtime_calls().copies == before.copies + steps);
    cuda::StagingRing const moved = std::move(ring);
    CHECK(moved.num_buffers() == 2);
  }
  CHECK(emulated::live_allocations() == live);
}

TEST_CASE("a ring that can't be had says why, and an upload what the runtime says") {
  Engine engine;
  BatchStep const most = cuda::largest_step(engine.cache, limits);
  BatchStep wrong = most;
  wrong.num_copies = -1;
  CHECK_THAT(message_of([&] { cuda::StagingRing const ring(wrong, 2); }),
             contains_text("largest.num_copies is -1; it can't be negative"));
  CHECK_THAT(message_of([&] { cuda::StagingRing const ring(most, 0); }),
             contains_text("num_buffers is 0; it must be at least 1"));
  auto const live = emulated::live_allocations();
  emulated::fail_next_call(cudaErrorMemoryAllocation);
  CHECK_THAT(message_of([&] { cuda::StagingRing const ring(most, 2); }),
             contains_text("cudaMallocHost of "));
  CHECK(emulated::live_allocations() == live);
  emulated::fail_next_call(cudaErrorMemoryAllocation, 1);
  CHECK_THAT(message_of([&] { cuda::StagingRing const ring(most, 2); }),
             contains_text("cudaMalloc of "));
  CHECK(emulated::live_allocations() == live);

  WorkStream const stream;
  cuda::StagingRing ring(most, 2);
  engine.schedule();
  auto const step = ring.stage(engine.batch, engine.cache.open_tick());
  REQUIRE(step);
  emulated::fail_next_call(cudaErrorInvalidValue);
  CHECK(ring.upload(*step, stream) == cudaErrorInvalidValue);
  CHECK(ring.upload(*step, stream) == cudaSuccess);
  static_cast<void>(engine.finish());
}

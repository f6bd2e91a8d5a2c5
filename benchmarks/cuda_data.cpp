// SPDX-License-Identifier: Apache-2.0
/// \file
/// How fast does the CUDA data plane move bytes, as a share of what a copy on the same device does?
/// docs/performance-cuda.md says how to run it and what is wanted of it. Ends with status 77 where
/// there is no device.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/cuda/kv_storage.hpp>
#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/data/rope.hpp>
#include <pagedkv/quant/half.hpp>

#include "bench_support.hpp"
#include "cuda_objects.hpp"

namespace {

using namespace bench;
using kv::Element;
using kv::Granularity;
using kv::KvFormat;
using kv::testing::Event;
using kv::testing::Graph;
using kv::testing::require_success;
using kv::testing::WorkStream;

constexpr std::int32_t num_kv_heads = 8;
constexpr std::int32_t head_dim = 128;
constexpr std::int64_t row_elements = std::int64_t{num_kv_heads} * head_dim;

/// An array in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : size_(count) {
    require_success(cudaMalloc(&data_, count * sizeof(T)), "device memory");
  }
  DeviceArray(std::vector<T> const& content, WorkStream const& stream)
      : DeviceArray(content.size()) {
    require_success(cudaMemcpyAsync(data_, content.data(), content.size() * sizeof(T),
                                    cudaMemcpyHostToDevice, stream),
                    "a copy to the device");
    stream.wait();
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(data_); }
  [[nodiscard]] std::vector<T> copy(WorkStream const& stream) const {
    std::vector<T> content(size_);
    require_success(
        cudaMemcpyAsync(content.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "a copy from the device");
    stream.wait();
    return content;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

cudaDeviceProp properties() {
  cudaDeviceProp p{};
  int device = 0;
  require_success(cudaGetDevice(&device), "the device");
  require_success(cudaGetDeviceProperties(&p, device), "the device's properties");
  return p;
}

/// So many calls of `bytes` together don't fit into the second level cache: each finds its memory
/// as a step of an engine does.
std::int64_t calls_for(std::int64_t bytes) {
  std::int64_t const cache = 2 * std::int64_t{properties().l2CacheSize};
  return std::clamp<std::int64_t>(cache / bytes + 1, 2, 512);
}

/// Times calls 0 .. num_calls - 1, captured in one graph, and says what one of them took: the
/// launch of a graph is hidden behind many. `call(i, stream)` moves `bytes` for `tokens`.
template <class Call>
void time_calls(benchmark::State& state, Checks& checks, WorkStream const& stream,
                std::int64_t num_calls, std::int64_t bytes, std::int64_t tokens, Call call) {
  Graph const graph(stream, [&](cudaStream_t s) {
    for (std::int64_t i = 0; i < num_calls; ++i) {
      checks.require(call(i, s) == cudaSuccess, "every launch succeeds");
    }
  });
  graph.launch(stream);  // warm
  stream.wait();
  double best = 1e30;
  for (auto _ : state) {
    Event const begin(stream, cudaEventDefault);
    graph.launch(stream);
    Event const end(stream, cudaEventDefault);
    end.wait();
    double const seconds = end.seconds_since(begin) / static_cast<double>(num_calls);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["tokens"] = static_cast<double>(tokens);
  state.counters["microseconds"] = 1e6 * best;
  state.counters["bytes_per_second"] = static_cast<double>(bytes) / best;
}

// ---- what the operations work on ----------------------------------------------------------------

kv::Geometry geometry_of(KvFormat format, std::int32_t num_layers = 1) {
  return {.num_layers = num_layers,
          .num_kv_heads = num_kv_heads,
          .head_dim_k = head_dim,
          .head_dim_v = head_dim,
          .block_tokens = block_tokens,
          .format = format};
}
std::vector<kv::StaticScales> static_scales(KvFormat format, std::int32_t num_layers = 1) {
  auto const count = kv::static_scale_bytes(format, num_kv_heads) / kv::bytes_per_scale;
  std::vector<float> const scales(static_cast<std::size_t>(count), 0.0173F);
  return std::vector<kv::StaticScales>(static_cast<std::size_t>(num_layers), {scales, scales});
}

std::vector<std::uint16_t> random_halves(std::int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> halves(static_cast<std::size_t>(count));
  std::size_t const different = std::min<std::size_t>(halves.size(), 1U << 20);
  for (std::size_t i = 0; i < different; ++i) halves[i] = kv::quant::encode_bf16(normal(random));
  for (std::size_t i = different; i < halves.size(); ++i) halves[i] = halves[i - different];
  return halves;
}

template <class T>
kv::KvRows rows_at(T const* data, Element element = Element::bf16) {
  return {data, element, row_elements, head_dim};
}

/// Tables of cosines and sines as models have them, and the position of each token.
struct RopeTables {
  static constexpr std::int32_t max_position = 4096;

  explicit RopeTables(std::int64_t num_tokens)
      : floats(std::size_t{max_position} * head_dim),
        positions(static_cast<std::size_t>(num_tokens)) {
    constexpr std::int32_t half = head_dim / 2;
    for (std::int32_t p = 0; p < max_position; ++p) {
      for (std::int32_t j = 0; j < half; ++j) {
        double const angle = p * std::pow(10000.0, -static_cast<double>(j) / half);
        auto const at = static_cast<std::size_t>(p) * head_dim + static_cast<std::size_t>(j);
        floats[at] = static_cast<float>(std::cos(angle));
        floats[at + half] = static_cast<float>(std::sin(angle));
      }
    }
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<std::int32_t>(i % max_position);
    }
  }
  [[nodiscard]] static kv::Rope rope(float const* floats, std::int32_t const* positions) {
    return kv::rope_of_cache(floats, max_position, head_dim, kv::RopePairing::half_split,
                             positions);
  }
  /// K as f32, rotated.
  [[nodiscard]] std::vector<float> rotated(std::vector<std::uint16_t> const& rows) const {
    std::vector<float> out(rows.size());
    std::transform(rows.begin(), rows.end(), out.begin(), kv::quant::decode_bf16);
    kv::Rope const told = rope(floats.data(), positions.data());
    for (std::size_t i = 0; i < out.size(); i += head_dim) {
      kv::rotate_vector(told, positions[i / row_elements], &out[i], head_dim);
    }
    return out;
  }

  std::vector<float> floats;
  std::vector<std::int32_t> positions;
};

/// Blocks in no order, as the tokens of calls fill them one after the other.
struct Places {
  std::vector<std::int32_t> blocks;
  std::vector<kv::Slot> slots;
  std::vector<kv::BlockRun> runs;

  explicit Places(std::int64_t num_tokens)
      : blocks(static_cast<std::size_t>(num_tokens / block_tokens)) {
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
    for (std::int32_t const block : blocks) {
      runs.push_back({kv::BlockId{block}, 0, block_tokens, 0});
      for (std::int32_t t = 0; t < block_tokens; ++t) {
        slots.push_back(kv::Slot{block} * block_tokens + t);
      }
    }
  }
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks.size()); }
};

/// A pool on the host, filled by the CPU's data plane, and the same on the device.
class Pools {
 public:
  Pools(KvFormat format, std::int32_t num_blocks, WorkStream const& stream,
        std::int32_t num_layers = 1)
      : host(geometry_of(format, num_layers), num_blocks, {}, static_scales(format, num_layers)),
        device(geometry_of(format, num_layers), num_blocks, stream, {},
               static_scales(format, num_layers)),
        stream_(stream) {}

  /// Every token of every layer, from few different rows.
  void fill() {
    constexpr std::int64_t different = 1024;
    auto const rows = random_halves(different * row_elements);
    auto const view = host.view();
    std::vector<kv::Slot> slots;
    for (kv::Slot first = 0; first < view.num_slots(); first += different) {
      slots.clear();
      for (kv::Slot s = first; s < std::min(first + different, view.num_slots()); ++s) {
        slots.push_back(s);
      }
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(view.layers.size()); ++layer) {
        write_host(layer, rows_at(rows.data()), rows_at(rows.data()), slots);
      }
    }
    require_success(cudaMemcpyAsync(device.memory().data(), host.memory().data(),
                                    host.memory().size(), cudaMemcpyHostToDevice, stream_),
                    "a copy to the device");
    stream_.wait();
  }
  void write_host(std::int32_t layer, kv::KvRows const& k, kv::KvRows const& v,
                  std::span<kv::Slot const> slots) {
    kv::cpu::write_kv(host.view(), layer, k, v, slots);
  }
  [[nodiscard]] bool are_equal() {
    auto const here = host.memory();
    std::vector<std::byte> there(here.size());
    require_success(cudaMemcpyAsync(there.data(), device.memory().data(), there.size(),
                                    cudaMemcpyDeviceToHost, stream_),
                    "a copy from the device");
    stream_.wait();
    return std::memcmp(here.data(), there.data(), here.size()) == 0;
  }

  kv::KvStorage host;
  kv::cuda::KvStorage device;

 private:
  WorkStream const& stream_;
};

/// What a token of K and V takes in a pool, its dynamic scales included.
std::int64_t stored_bytes(KvFormat format, std::int64_t tokens) {
  kv::Geometry const g = geometry_of(format);
  return g.bytes_per_block() * tokens / block_tokens;
}

// ---- the operations -----------------------------------------------------------------------------

void device_copy(benchmark::State& state) {
  constexpr std::int64_t bytes = std::int64_t{256} << 20;
  WorkStream const stream;
  Checks checks(state);
  DeviceArray<std::byte> const from(bytes);
  DeviceArray<std::byte> const to(bytes);
  require_success(cudaMemsetAsync(from.data(), 1, bytes, stream), "setting memory");
  time_calls(state, checks, stream, 2, 2 * bytes, 0, [&](std::int64_t, cudaStream_t s) {
    return cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s);
  });
  auto const copied = to.copy(stream);
  checks.require(std::count(copied.begin(), copied.end(), std::byte{1}) == bytes, "a copy");
}

enum class Rotates : bool { no, yes };

void write_rows(benchmark::State& state, KvFormat format, std::int64_t tokens, Rotates rotates) {
  WorkStream const stream;
  Checks checks(state);
  std::int64_t const bytes = 4 * tokens * row_elements + stored_bytes(format, tokens);
  std::int64_t const calls = calls_for(bytes);
  Places const places(tokens * calls);
  Pools pools(format, places.num_blocks(), stream);
  auto const rows = random_halves(tokens * calls * row_elements);
  DeviceArray<std::uint16_t> const k(rows, stream);
  DeviceArray<std::uint16_t> const v(rows, stream);
  DeviceArray<kv::Slot> const slots(places.slots, stream);
  // The tokens of a call are numbered from 0.
  auto call_runs = places.runs;
  for (std::size_t i = 0; i < call_runs.size(); ++i) {
    call_runs[i].first_token =
        static_cast<std::int32_t>(static_cast<std::int64_t>(i) * block_tokens % tokens);
  }
  DeviceArray<kv::BlockRun> const runs(call_runs, stream);
  RopeTables const tables(tokens * calls);
  DeviceArray<float> const floats(tables.floats, stream);
  DeviceArray<std::int32_t> const positions(tables.positions, stream);
  time_calls(state, checks, stream, calls, bytes, tokens, [&](std::int64_t i, cudaStream_t s) {
    std::int64_t const first = i * tokens;
    kv::KvRows const k_rows = rows_at(k.data() + first * row_elements);
    kv::KvRows const v_rows = rows_at(v.data() + first * row_elements);
    kv::cuda::WriteSlots const to{slots.data() + first, tokens, runs.data() + first / block_tokens,
                                  static_cast<std::int32_t>(tokens / block_tokens)};
    auto const view = pools.device.view();
    if (rotates == Rotates::no) return kv::cuda::write_kv(view, 0, k_rows, v_rows, to, s);
    kv::Rope const rope = RopeTables::rope(floats.data(), positions.data() + first);
    return kv::cuda::write_kv_rope(view, 0, k_rows, v_rows, rope, to, s);
  });
  if (rotates == Rotates::no) {
    pools.write_host(0, rows_at(rows.data()), rows_at(rows.data()), places.slots);
  } else {
    auto const turned = tables.rotated(rows);
    pools.write_host(0, rows_at(turned.data(), Element::f32), rows_at(rows.data()), places.slots);
  }
  checks.require(pools.are_equal(), "the CPU stores the same bytes");
}
void write_kv(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  write_rows(state, format, tokens, Rotates::no);
}
/// Tables and positions aren't counted: they stay in the cache.
void write_kv_rope(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  write_rows(state, format, tokens, Rotates::yes);
}

void calibrate_amax(benchmark::State& state, std::int64_t tokens) {
  WorkStream const stream;
  Checks checks(state);
  std::int64_t const bytes = 4 * tokens * row_elements;
  std::int64_t const calls = calls_for(bytes);
  auto const k_rows = random_halves(tokens * calls * row_elements);
  std::vector<std::uint16_t> const v_rows(k_rows.rbegin(), k_rows.rend());
  DeviceArray<std::uint16_t> const k(k_rows, stream);
  DeviceArray<std::uint16_t> const v(v_rows, stream);
  DeviceArray<float> const amax(std::vector<float>(std::size_t{2} * num_kv_heads), stream);
  kv::cuda::AmaxTable const table{
      amax.data(), amax.data() + num_kv_heads, 1, num_kv_heads, head_dim, head_dim};
  std::size_t needed = 0;
  require_success(kv::cuda::calibrate_amax_workspace(table, needed), "the workspace's size");
  DeviceArray<std::byte> const workspace((needed + 255) / 256 * 256);
  time_calls(state, checks, stream, calls, bytes, tokens, [&](std::int64_t i, cudaStream_t s) {
    std::int64_t const first = i * tokens * row_elements;
    kv::cuda::AmaxStep const step{rows_at(k.data() + first), rows_at(v.data() + first), tokens};
    return kv::cuda::calibrate_amax(table, 0, step, workspace.data(), needed, s);
  });
  std::vector<float> want(std::size_t{2} * num_kv_heads);
  for (std::size_t i = 0; i < k_rows.size(); ++i) {
    auto const head = i / head_dim % num_kv_heads;
    float& of_k = want[head];
    float& of_v = want[num_kv_heads + head];
    of_k = std::max(of_k, std::fabs(kv::quant::decode_bf16(k_rows[i])));
    of_v = std::max(of_v, std::fabs(kv::quant::decode_bf16(v_rows[i])));
  }
  checks.require(amax.copy(stream) == want, "the largest magnitude of each head");
}

void gather_kv(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  WorkStream const stream;
  Checks checks(state);
  std::int64_t const bytes = 4 * tokens * row_elements + stored_bytes(format, tokens);
  std::int64_t const calls = calls_for(bytes);
  Places const places(tokens * calls);
  Pools pools(format, places.num_blocks(), stream);
  pools.fill();
  DeviceArray<std::int32_t> const table(places.blocks, stream);
  DeviceArray<std::int64_t> const offsets(std::vector<std::int64_t>{0, tokens}, stream);
  auto const count = static_cast<std::size_t>(tokens * calls * row_elements);
  DeviceArray<std::uint16_t> const k(count);
  DeviceArray<std::uint16_t> const v(count);
  time_calls(state, checks, stream, calls, bytes, tokens, [&](std::int64_t i, cudaStream_t s) {
    std::int64_t const first = i * tokens;
    kv::cuda::GatherRanges ranges;
    ranges.indices = table.data() + first / block_tokens;
    ranges.table_stride = tokens / block_tokens;
    ranges.row_offsets = offsets.data();
    ranges.num_sequences = 1;
    ranges.max_rows = tokens;
    return kv::cuda::gather_kv(
        pools.device.view(), 0, ranges,
        {k.data() + first * row_elements, Element::f16, row_elements, head_dim},
        {v.data() + first * row_elements, Element::f16, row_elements, head_dim}, s);
  });
  std::vector<std::uint16_t> want_k(count);
  std::vector<std::uint16_t> want_v(count);
  kv::cpu::gather_kv(pools.host.view(), 0, places.blocks,
                     {0, static_cast<std::int32_t>(tokens * calls)},
                     {want_k.data(), Element::f16, row_elements, head_dim},
                     {want_v.data(), Element::f16, row_elements, head_dim});
  checks.require(k.copy(stream) == want_k && v.copy(stream) == want_v, "the CPU reads the same");
}

/// Blocks of 32 layers: `tokens` / 16 entries a call, each made of two blocks.
/// `on_device(pools, entries, count, stream)`, `on_host(view, entries)`.
template <class MakeEntry, class OnDevice, class OnHost>
void move_blocks(benchmark::State& state, KvFormat format, std::int64_t tokens,
                 std::int64_t bytes_per_stored_byte, MakeEntry make_entry, OnDevice on_device,
                 OnHost on_host) {
  constexpr std::int32_t num_layers = 32;
  WorkStream const stream;
  Checks checks(state);
  std::int64_t const count = tokens / block_tokens;
  std::int64_t const bytes = bytes_per_stored_byte * num_layers * stored_bytes(format, tokens);
  std::int64_t const calls = calls_for(bytes);
  Places const places(2 * tokens * calls);
  Pools pools(format, places.num_blocks(), stream, num_layers);
  pools.fill();
  std::vector<decltype(make_entry(kv::BlockId{}, kv::BlockId{}))> list;
  for (std::size_t i = 0; i < places.blocks.size(); i += 2) {
    list.push_back(make_entry(kv::BlockId{places.blocks[i]}, kv::BlockId{places.blocks[i + 1]}));
  }
  DeviceArray const entries(list, stream);
  time_calls(state, checks, stream, calls, bytes, tokens, [&](std::int64_t i, cudaStream_t s) {
    return on_device(pools.device, entries.data() + i * count, static_cast<std::int32_t>(count), s);
  });
  on_host(pools.host.view(), list);
  checks.require(pools.are_equal(), "the CPU leaves the same bytes");
}
void copy_blocks(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  move_blocks(
      state, format, tokens, 2,
      [](kv::BlockId from, kv::BlockId to) {
        return kv::BlockCopy{from, to, block_tokens};
      },
      [](auto const& pool, auto const* copies, std::int32_t count, cudaStream_t s) {
        return kv::cuda::copy_blocks(pool.view(), pool.device_layers(), copies, count, s);
      },
      [](kv::KvView const& view, auto const& copies) { kv::cpu::copy_blocks(view, copies); });
}
/// Every second block stays as it is.
void zero_blocks(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  move_blocks(
      state, format, tokens, 1, [](kv::BlockId zeroed, kv::BlockId /*kept*/) { return zeroed; },
      [](auto const& pool, auto const* blocks, std::int32_t count, cudaStream_t s) {
        return kv::cuda::zero_blocks(pool.view(), pool.device_layers(), blocks, count, s);
      },
      [](kv::KvView const& view, auto const& blocks) { kv::cpu::zero_blocks(view, blocks); });
}

/// A table of `tokens` sequences of up to 131,072 tokens. In a call each gets a block, and one in
/// 16 has ended: a row from the table's end takes its place.
void update_tables(benchmark::State& state, std::int64_t tokens) {
  constexpr std::int32_t num_columns = 131072 / block_tokens;
  WorkStream const stream;
  Checks checks(state);
  auto const num_changes = static_cast<std::int32_t>(tokens);
  std::int32_t const num_moves = num_changes / 16;
  auto const row_bytes = static_cast<std::int64_t>(num_columns * sizeof(std::int32_t));
  auto const move_bytes = static_cast<std::int64_t>(sizeof(kv::RowMove)) + 2 * row_bytes;
  auto const change_bytes = static_cast<std::int64_t>(sizeof(kv::RowChange) + sizeof(std::int32_t));
  std::int64_t const bytes = num_moves * move_bytes + num_changes * change_bytes;
  auto const calls = static_cast<std::int32_t>(calls_for(bytes));
  // Each row moves once, so that a graph may be replayed.
  std::int32_t const num_rows = num_changes + calls * num_moves;
  std::mt19937 random(5);
  auto const number_below = [&random](std::int32_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(end));
  };
  std::vector<std::int32_t> want(static_cast<std::size_t>(num_rows) * num_columns);
  for (std::int32_t& block : want) block = number_below(1 << 20);
  DeviceArray<std::int32_t> const blocks(want, stream);
  std::vector<kv::RowMove> moves;
  std::vector<kv::RowChange> changes;
  auto const row = [&want](std::int32_t r) {
    return want.begin() + std::ptrdiff_t{r} * num_columns;
  };
  for (std::int32_t i = 0; i < calls; ++i) {
    for (std::int32_t m = 0; m < num_moves; ++m) {
      kv::RowMove const move{num_changes + i * num_moves + m, 16 * m + i % 16};
      moves.push_back(move);
      std::copy_n(row(move.from), num_columns, row(move.to));
    }
    for (std::int32_t r = 0; r < num_changes; ++r) {
      kv::RowChange const change{r, number_below(num_columns), number_below(1 << 20)};
      changes.push_back(change);
      row(change.row)[change.column] = change.block;
    }
  }
  DeviceArray<kv::RowMove> const device_moves(moves, stream);
  DeviceArray<kv::RowChange> const device_changes(changes, stream);
  time_calls(state, checks, stream, calls, bytes, tokens, [&](std::int64_t i, cudaStream_t s) {
    return kv::cuda::update_tables({blocks.data(), num_columns, num_rows, num_columns},
                                   {device_moves.data() + i * num_moves, num_moves,
                                    device_changes.data() + i * num_changes, num_changes},
                                   s);
  });
  checks.require(blocks.copy(stream) == want, "moves in order, then changes");
}

/// 16 sequences with `tokens` of context in all, 32 query heads.
void decode_attention(benchmark::State& state, KvFormat format, std::int64_t tokens) {
  constexpr std::int32_t num_sequences = 16;
  constexpr std::int32_t q_heads = 4 * num_kv_heads;
  constexpr std::int64_t stride = std::int64_t{q_heads} * head_dim;
  WorkStream const stream;
  Checks checks(state);
  auto const context = static_cast<std::int32_t>(tokens / num_sequences);
  std::int32_t const splits = std::clamp(context / 256, 1, 32);
  Places const places(tokens);
  Pools pools(format, places.num_blocks(), stream);
  pools.fill();
  std::vector<std::int32_t> indptr;
  for (std::int32_t s = 0; s <= num_sequences; ++s) indptr.push_back(s * context / block_tokens);
  std::vector<std::int32_t> const lengths(num_sequences, context);
  std::vector<float> q(static_cast<std::size_t>(num_sequences * stride));
  std::mt19937 random(7);
  for (float& x : q) x = std::normal_distribution<float>()(random);

  DeviceArray<std::int32_t> const device_table(places.blocks, stream);
  DeviceArray<std::int32_t> const device_indptr(indptr, stream);
  DeviceArray<std::int32_t> const device_lengths(lengths, stream);
  DeviceArray<float> const device_q(q, stream);
  DeviceArray<float> const out(q.size());
  DeviceArray<float> const workspace(static_cast<std::size_t>(
      kv::cuda::decode_workspace_floats(num_sequences, q_heads, head_dim, splits)));
  float const scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  time_calls(
      state, checks, stream, 2, stored_bytes(format, tokens), tokens,
      [&](std::int64_t, cudaStream_t s) {
        return kv::cuda::decode_attention(
            pools.device.view(), 0,
            {device_table.data(), device_indptr.data(), 0, device_lengths.data(), num_sequences},
            {device_q.data(), out.data(), Element::f32, q_heads, stride, stride},
            {scale, 0, splits, workspace.data()}, s);
      });
  std::vector<float> want(q.size());
  kv::cpu::decode_attention(pools.host.view(), 0, {indptr, places.blocks, lengths},
                            {q.data(), want.data(), q_heads, stride, stride}, {scale});
  auto const got = out.copy(stream);
  float largest = 0.0F;
  for (float const x : want) largest = std::max(largest, std::fabs(x));
  bool is_near = true;
  for (std::size_t i = 0; i < want.size(); ++i) {
    is_near = is_near && std::fabs(got[i] - want[i]) <= 1e-3F * largest;
  }
  checks.require(is_near, "the CPU's numbers within a thousandth");
}

// ---- all of them --------------------------------------------------------------------------------

template <class... Arguments>
void add_one(std::string const& name, void (*operation)(benchmark::State&, Arguments...),
             std::type_identity_t<Arguments>... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), operation, arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}
void add(char const* name, void (*operation)(benchmark::State&, std::int64_t),
         std::initializer_list<std::int64_t> token_counts) {
  for (std::int64_t const tokens : token_counts) {
    add_one(std::string(name) + "/" + std::to_string(tokens), operation, tokens);
  }
}
void add(char const* name, void (*operation)(benchmark::State&, KvFormat, std::int64_t),
         KvFormat format, std::initializer_list<std::int64_t> token_counts) {
  for (std::int64_t const tokens : token_counts) {
    add_one(std::string(name) + "/" + to_string(format.element) + "/" +
                to_string(format.granularity) + "/" + std::to_string(tokens),
            operation, format, tokens);
  }
}

void add_all() {
  add_one("device_copy", device_copy);
  for (Element const element : kv::all_elements) {
    if (element == Element::f32) continue;
    for (Granularity const g : kv::granularities_of(element)) {
      add("write_kv", write_kv, {element, g}, {64, 1024, 8192});
      add("gather_kv", gather_kv, {element, g}, {64, 8192});
      add("decode_attention", decode_attention, {element, g}, {1024, 131072});
    }
  }
  for (Element const element : {Element::bf16, Element::fp8_e4m3, Element::int4}) {
    for (Granularity const g : kv::granularities_of(element)) {
      add("write_kv_rope", write_kv_rope, {element, g}, {64, 8192});
    }
    add("copy_blocks", copy_blocks, kv::default_format(element), {64, 1024});
    add("zero_blocks", zero_blocks, kv::default_format(element), {64, 1024});
  }
  add("calibrate_amax/bf16", calibrate_amax, {64, 8192});
  add("update_tables", update_tables, {64, 1024});
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  int count = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "cuda_data: skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  benchmark::AddCustomContext("device", properties().name);
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (!Checks::any_broken()) return 0;
  std::fputs("cuda_data: a benchmark computed something wrong, see the errors above\n", stderr);
  return 1;
}

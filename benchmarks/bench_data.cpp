// SPDX-License-Identifier: Apache-2.0
/// \file
/// How fast does the CPU data plane move bytes? On one thread. docs/performance-data.md says how to
/// run it, what was seen, and what decides it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "../src/data/kernels.hpp"
#include "bench_support.hpp"
#include "by_hand.hpp"

namespace {

using namespace bench;
using kv::Element;
using kv::Granularity;
using kv::KvFormat;

constexpr std::int32_t num_kv_heads = 8;

/// What counts is the best of a benchmark's laps, in time that this thread had a core: these loops
/// always do the same, and whatever else runs on the machine only ever adds to a lap.
class BestLap {
 public:
  /// A lap is `calls` times `body`: asking for the time takes part of a microsecond.
  template <class Body>
  void time(benchmark::State& state, std::int64_t calls, Body&& body) {
    body();  // memory that is touched for the first time isn't what is asked for
    for (auto _ : state) {
      double const started = now();
      for (std::int64_t i = 0; i < calls; ++i) {
        body();
        benchmark::ClobberMemory();
      }
      best_ = std::min(best_, (now() - started) / static_cast<double>(calls));
    }
  }
  [[nodiscard]] double seconds() const { return best_; }

 private:
  static double now() {
    std::timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  double best_ = 1e30;
};

/// Aligned to a cache line, as tensors are.
template <class T>
kv::detail::LazyArray<T> random_rows(Element element, std::int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  kv::detail::LazyArray<T> rows(static_cast<std::size_t>(count));
  // A million different numbers are enough.
  std::size_t const different = std::min<std::size_t>(rows.size(), 1U << 20);
  for (std::size_t i = 0; i < different; ++i) {
    float const x = normal(random);
    kv::quant::encode_vector(element, {1.0F, 0.0F}, &x, 1, reinterpret_cast<std::byte*>(&rows[i]));
  }
  for (std::size_t i = different; i < rows.size(); ++i) rows[i] = rows[i - different];
  return rows;
}

kv::Geometry geometry_of(KvFormat format, std::int32_t dim) {
  return {.num_layers = 1,
          .num_kv_heads = num_kv_heads,
          .head_dim_k = dim,
          .head_dim_v = dim,
          .block_tokens = block_tokens,
          .format = format};
}
std::vector<kv::StaticScales> static_scales(KvFormat format) {
  auto const count = kv::static_scale_bytes(format, num_kv_heads) / kv::bytes_per_scale;
  std::vector<float> const scales(static_cast<std::size_t>(count), 0.0173F);
  return {{scales, scales}};
}

// ---- write_kv -----------------------------------------------------------------------------------

struct WriteCase {
  KvFormat format;
  std::int32_t dim = 128;
  std::int64_t num_tokens = 64;  ///< of K and V: in the second level cache
  Element input = Element::bf16;
  kv::BlockOrder order = kv::BlockOrder::nhd;
  bool may_stream = true;
};

template <class T>
void write_rows(benchmark::State& state, WriteCase const& c) {
  auto const num_blocks = static_cast<std::int32_t>(c.num_tokens / block_tokens);
  kv::KvStorage storage(geometry_of(c.format, c.dim), num_blocks, {c.order},
                        static_scales(c.format));
  std::int64_t const heads = std::int64_t{num_kv_heads} * c.dim;
  auto const k = random_rows<T>(c.input, c.num_tokens * heads);
  auto const v = random_rows<T>(c.input, c.num_tokens * heads);
  std::vector<kv::Slot> slots(static_cast<std::size_t>(c.num_tokens));
  std::vector<std::size_t> blocks(static_cast<std::size_t>(num_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = static_cast<kv::Slot>(blocks[i / block_tokens] * block_tokens + i % block_tokens);
  }
  kv::KvRows const k_rows{k.data(), c.input, heads, c.dim};
  kv::KvRows const v_rows{v.data(), c.input, heads, c.dim};

  BestLap lap;
  std::int64_t const calls = std::max<std::int64_t>(1, 1024 / c.num_tokens);
  std::int64_t const streaming_bytes = kv::cpu::streaming_bytes();
  if (!c.may_stream) kv::cpu::set_streaming_bytes(INT64_MAX);
  lap.time(state, calls, [&] { kv::cpu::write_kv(storage.view(), 0, k_rows, v_rows, slots); });
  kv::cpu::set_streaming_bytes(streaming_bytes);

  Checks checks(state);
  kv::KvStorage expected(geometry_of(c.format, c.dim), num_blocks, {c.order},
                         static_scales(c.format));
  kv::cpu::scalar::write_kv(expected.view(), 0, k_rows, v_rows, slots);
  checks.require(
      std::memcmp(expected.memory().data(), storage.memory().data(), storage.memory().size()) == 0,
      "the oracle stores the same bytes");
  std::int64_t const elements = 2 * c.num_tokens * heads;
  state.counters["elements_per_second"] = static_cast<double>(elements) / lap.seconds();
  std::int64_t const bytes = elements * static_cast<std::int64_t>(sizeof(T)) + storage.bytes();
  state.counters["bytes_per_second"] = static_cast<double>(bytes) / lap.seconds();
}
void write_kv(benchmark::State& state, WriteCase const& c) {
  if (c.input == Element::f32) return write_rows<float>(state, c);
  write_rows<std::uint16_t>(state, c);
}

/// The same conversion written for AVX-512 and for nothing else: contiguous rows, no slots.
void by_hand_fp8(benchmark::State& state) {
  if (!by_hand::is_supported()) return state.SkipWithError("needs AVX-512");
  std::int64_t const count = std::int64_t{2 * 64 * 128} * num_kv_heads;
  auto const rows = random_rows<std::uint16_t>(Element::bf16, count);
  std::vector<std::uint8_t> out(rows.size());
  float const inv = 1.0F / 0.0173F;
  BestLap lap;
  lap.time(state, 16, [&] { by_hand::bf16_to_e4m3(rows.data(), count, inv, out.data()); });
  Checks checks(state);
  for (std::size_t i = 0; i < out.size(); ++i) {
    float const x = kv::quant::decode_bf16(rows[i]);
    checks.require(out[i] == kv::quant::encode_e4m3(kv::quant::detail::product(x, inv)),
                   "the codec stores the same");
  }
  state.counters["elements_per_second"] = static_cast<double>(count) / lap.seconds();
}

// ---- attention ----------------------------------------------------------------------------------

struct AttentionCase {
  KvFormat format;
  std::int32_t context = 32768;
  std::int32_t group = 1;
};

void decode_attention(benchmark::State& state, AttentionCase const& c) {
  constexpr std::int32_t dim = 128;
  std::int32_t const num_blocks = c.context / block_tokens;
  kv::KvStorage storage(geometry_of(c.format, dim), num_blocks, {kv::BlockOrder::hnd},
                        static_scales(c.format));
  std::vector<std::int32_t> table(static_cast<std::size_t>(num_blocks));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), std::mt19937(5));
  std::int64_t const heads = std::int64_t{num_kv_heads} * dim;
  auto const rows = random_rows<float>(Element::f32, std::int64_t{64} * block_tokens * heads);
  for (std::size_t b = 0; b < table.size(); ++b) {
    std::vector<kv::Slot> slots(static_cast<std::size_t>(block_tokens));
    std::iota(slots.begin(), slots.end(), kv::Slot{table[b]} * block_tokens);
    float const* const data =
        rows.data() + static_cast<std::int64_t>(b % 63) * block_tokens * heads;
    kv::cpu::write_kv(storage.view(), 0, {data, Element::f32, heads, dim},
                      {data + heads, Element::f32, heads, dim}, slots);
  }
  std::int32_t const q_heads = num_kv_heads * c.group;
  std::int64_t const q_row = std::int64_t{q_heads} * dim;
  auto const q = random_rows<float>(Element::f32, q_row);
  std::vector<float> out(q.size());
  std::int32_t const indptr[] = {0, num_blocks};
  kv::cpu::AttentionBatch const batch{indptr, table, std::span(&c.context, 1)};
  kv::cpu::Queries const queries{q.data(), out.data(), q_heads, q_row, q_row};
  kv::cpu::AttentionOptions const options{.softmax_scale = 1.0F / std::sqrt(128.0F)};

  BestLap lap;
  lap.time(state, 1,
           [&] { kv::cpu::decode_attention(storage.view(), 0, batch, queries, options); });

  Checks checks(state);
  auto const got = out;
  kv::cpu::scalar::decode_attention(storage.view(), 0, batch, queries, options);
  checks.require(std::memcmp(got.data(), out.data(), out.size() * sizeof(float)) == 0,
                 "the oracle's numbers");
  state.counters["tokens_per_second"] = c.context / lap.seconds();
  state.counters["bytes_per_second"] = static_cast<double>(storage.bytes()) / lap.seconds();
}

// ---- the machine --------------------------------------------------------------------------------

constexpr std::size_t memory_bytes = std::size_t{256} << 20;

/// Bytes read and written.
void copy_memory(benchmark::State& state) {
  std::vector<std::byte> from(memory_bytes, std::byte{1});
  std::vector<std::byte> to(memory_bytes);
  BestLap lap;
  lap.time(state, 1, [&] { std::memcpy(to.data(), from.data(), memory_bytes); });
  Checks checks(state);
  checks.require(to == from, "a copy");
  state.counters["bytes_per_second"] = 2.0 * memory_bytes / lap.seconds();
}

void read_only(benchmark::State& state) {
  std::vector<std::uint64_t> const from(memory_bytes / 8, 3);
  std::uint64_t sum = 0;
  BestLap lap;
  lap.time(state, 1, [&] { sum = by_hand::sum_of(from.data(), from.size()); });
  Checks checks(state);
  checks.require(sum == 3 * from.size(), "the sum");
  state.counters["bytes_per_second"] = static_cast<double>(memory_bytes) / lap.seconds();
}

// ---- all of them --------------------------------------------------------------------------------

void add_write(std::string const& name, WriteCase const& c) {
  std::string const full = name + "/" + to_string(c.format.element) + "/" +
                           to_string(c.format.granularity) + "/" + std::to_string(c.dim);
  benchmark::RegisterBenchmark(full.c_str(), write_kv, c)->Unit(benchmark::kMicrosecond);
}
void add_attention(std::string const& name, AttentionCase const& c) {
  bool const is_default = c.format == kv::default_format(c.format.element);
  std::string const format =
      is_default ? to_string(c.format.element)
                 : std::string(to_string(c.format.element)) + "_" + to_string(c.format.granularity);
  std::string const full = name + "/" + format + "/" + std::to_string(c.context);
  benchmark::RegisterBenchmark(full.c_str(), decode_attention, c)->Unit(benchmark::kMillisecond);
}

void add_all() {
  benchmark::RegisterBenchmark("memcpy", copy_memory)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("read_only", read_only)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("by_hand/fp8_e4m3/per_tensor/128", by_hand_fp8)
      ->Unit(benchmark::kMicrosecond);
  for (Element const element : kv::all_elements) {
    for (Granularity const g : kv::granularities_of(element)) {
      add_write("write_kv", {{element, g}});
    }
  }
  KvFormat const fp8{Element::fp8_e4m3, Granularity::per_tensor};
  KvFormat const dynamic{Element::fp8_e4m3, Granularity::per_token_head};
  KvFormat const int8{Element::int8, Granularity::per_tensor};
  for (std::int32_t const dim : {64, 256}) {
    for (KvFormat const format : {fp8, dynamic, int8}) add_write("write_kv", {format, dim});
  }
  constexpr std::int64_t many_tokens = 32768;  // 128 MiB of rows
  for (KvFormat const format : {fp8, dynamic, int8}) {
    add_write("write_kv_f16", {format, 128, 64, Element::f16});
    add_write("write_kv_f32", {format, 128, 64, Element::f32});
    add_write("write_kv_hnd", {format, 128, 64, Element::bf16, kv::BlockOrder::hnd});
    add_write("write_kv_memory", {format, 128, many_tokens});
    add_write("write_kv_memory_cached",
              {format, 128, many_tokens, Element::bf16, kv::BlockOrder::nhd, false});
  }
  for (std::int32_t const context : {2048, 32768}) {
    for (Element const element : kv::all_elements) {
      add_attention("decode_attention", {kv::default_format(element), context});
    }
    add_attention("decode_attention", {dynamic, context});
  }
  for (Element const element : {Element::f32, Element::f16, Element::fp8_e4m3, Element::int8}) {
    add_attention("decode_attention_gqa4", {kv::default_format(element), 32768, 4});
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (!Checks::any_broken()) return 0;
  std::fputs("bench_data: a benchmark computed something wrong, see the errors above\n", stderr);
  return 1;
}

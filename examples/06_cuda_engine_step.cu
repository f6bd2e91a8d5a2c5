// SPDX-License-Identifier: Apache-2.0
// An engine's loop on a CUDA device: two steps in flight, decode steps in a captured graph. The
// next token is picked on the device, so that a step is enqueued before the ids of the last one are
// known: the host reserves positions and names them when it hears. With Reclaim::deferred no block
// is written anew, and with StagingRing no pinned buffer, before the device is done with it.
//
// The model is a toy whose K, V and queries are made of token ids. At the end every answer is
// computed again, alone, by the CPU data plane.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <span>
#include <vector>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/kv_storage.hpp>
#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/data/cuda/staging.hpp>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;
namespace cuda = pagedkv::cuda;

constexpr int num_layers = 2, num_kv_heads = 2, num_q_heads = 4, head_dim = 64;
constexpr int kv_width = num_kv_heads * head_dim, q_width = num_q_heads * head_dim;
constexpr int vocabulary = 97, block_tokens = 16, num_blocks = 64;
constexpr int max_sequences = 6, max_tokens = 128, steps_in_flight = 2, answer_tokens = 40;

kv::Geometry const geometry{
    .num_layers = num_layers,
    .num_kv_heads = num_kv_heads,
    .head_dim_k = head_dim,
    .head_dim_v = head_dim,
    .block_tokens = block_tokens,
    .format = kv::KvFormat{kv::Element::fp8_e4m3, kv::Granularity::per_token_head}};

// ---- the model ----------------------------------------------------------------------------------

enum Part : unsigned { part_k, part_v, part_q, part_embedding };

PAGEDKV_HD inline float number(int token, int layer, Part part, int i) {
  unsigned h = (static_cast<unsigned>(token) * 31U + static_cast<unsigned>(layer) * 7U + part) *
                   2654435761U +
               static_cast<unsigned>(i) * 40503U;
  h = (h ^ h >> 15) * 2246822519U;
  h ^= h >> 13;
  return (static_cast<float>(h % 33U) - 16.0F) / 16.0F;
}

// out: of a sequence, a layer every `layer_stride` elements.
PAGEDKV_HD inline int pick_token(float const* out, int layer_stride) {
  int best = 0;
  float best_score = -1e30F;
  for (int token = 0; token < vocabulary; ++token) {
    float score = 0.0F;
    for (int layer = 0; layer < num_layers; ++layer) {
      for (int i = 0; i < q_width; ++i) {
        score += out[layer * layer_stride + i] * number(token, layer, part_embedding, i);
      }
    }
    if (score > best_score) best = token;
    if (score > best_score) best_score = score;
  }
  return best;
}

// An engine writes its kernels as it likes. These are written as pagedkv's are, which run on the
// CPU too.
namespace pagedkv::cuda {

struct ProjectArgs {
  TokenId const* ids;                 // [num_tokens]
  std::int32_t const* query_offsets;  // [num_sequences + 1]
  int num_tokens, num_sequences, layer;
  float *k, *v, *q;
};
template <class = void>
PAGEDKV_KERNEL(128, 1)
project(ProjectArgs const a) {
  auto const row = static_cast<int>(blockIdx.x);
  for (auto i = static_cast<int>(threadIdx.x); i < q_width; i += 128) {
    if (i < kv_width && row < a.num_tokens) {
      a.k[row * kv_width + i] = number(a.ids[row], a.layer, part_k, i);
      a.v[row * kv_width + i] = number(a.ids[row], a.layer, part_v, i);
    }
    int const last = row < a.num_sequences ? a.query_offsets[row + 1] - 1 : -1;
    if (last >= 0) a.q[row * q_width + i] = number(a.ids[last], a.layer, part_q, i);
  }
}

template <class = void>
PAGEDKV_KERNEL(32, 1)
pick(float const* out, TokenId* ids, int num_sequences) {
  auto const row = static_cast<int>(threadIdx.x);
  if (row < num_sequences) ids[row] = pick_token(out + row * q_width, max_sequences * q_width);
}

}  // namespace pagedkv::cuda

// ---- the device ---------------------------------------------------------------------------------

void ok(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* device_array(std::size_t count) {
  void* memory = nullptr;
  ok(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  ok(cudaMemsetAsync(memory, 0, count * sizeof(T), nullptr), "cudaMemsetAsync");
  return static_cast<T*>(memory);
}
template <class T>
T* pinned_array(std::size_t count) {
  void* memory = nullptr;
  ok(cudaMallocHost(&memory, count * sizeof(T)), "cudaMallocHost");
  return static_cast<T*>(memory);
}

// Addresses that graphs keep. Freed with the process.
struct Device {
  explicit Device(int table_width)
      : pool(geometry, num_blocks, nullptr),
        table{device_array<std::int32_t>(std::size_t(max_sequences) * table_width), table_width,
              max_sequences, table_width} {
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    ok(cudaStreamSynchronize(nullptr), "the arrays are zeroed");
  }

  // All of a step, in stream order. Its numbers and addresses are the staged step's.
  void enqueue(cuda::StagedStep const& step) const {
    kv::KvView const view = pool.view();
    kv::BatchStep const& n = step.counts;
    ok(cuda::zero_blocks(view, pool.device_layers(), step.new_blocks, n.num_new_blocks, stream),
       "zero_blocks");
    ok(cuda::copy_blocks(view, pool.device_layers(), step.copies, n.num_copies, stream),
       "copy_blocks");
    ok(cuda::update_tables(table, step.table_updates(), stream), "update_tables");
    kv::KvRows const k_rows{k, kv::Element::f32, kv_width, head_dim};
    kv::KvRows const v_rows{v, kv::Element::f32, kv_width, head_dim};
    for (int layer = 0; layer < num_layers; ++layer) {
      cuda::ProjectArgs const args{
          ids, step.query_offsets, n.padded_tokens, n.padded_sequences, layer, k, v, q};
      auto const rows = static_cast<unsigned>(std::max(n.padded_tokens, n.padded_sequences));
      ok(cuda::launch(&cuda::project<>, rows, 128, 0, stream, args), "project");
      ok(cuda::write_kv(view, layer, k_rows, v_rows, step.write_slots(), stream), "write_kv");
      float* const layer_out = out + std::size_t(layer) * max_sequences * q_width;
      ok(cuda::decode_attention(view, layer, step.decode_batch(table),
                                {q, layer_out, kv::Element::f32, num_q_heads, q_width, q_width},
                                {.softmax_scale = 0.125F, .num_splits = 2, .workspace = workspace},
                                stream),
         "decode_attention");
    }
    ok(cuda::launch(&cuda::pick<>, 1, 32, 0, stream, out, ids, n.padded_sequences), "pick");
  }

  cuda::KvStorage pool;
  kv::BlockTable table;
  kv::TokenId* ids = device_array<kv::TokenId>(max_tokens);  // of this step, then of the next
  float* k = device_array<float>(std::size_t(max_tokens) * kv_width);
  float* v = device_array<float>(std::size_t(max_tokens) * kv_width);
  float* q = device_array<float>(std::size_t(max_sequences) * q_width);
  float* out = device_array<float>(std::size_t(num_layers) * max_sequences * q_width);
  float* workspace = device_array<float>(static_cast<std::size_t>(
      cuda::decode_workspace_floats(max_sequences, num_q_heads, head_dim, 2)));
  cudaStream_t stream = nullptr;
};

// ---- the engine ---------------------------------------------------------------------------------

// What the host must remember of a step that the device may still be running.
struct Flight {
  kv::Tick tick;
  std::vector<kv::TokenRange> ranges;  // of each sequence
  int buffer;                          // of `events` and `results`
};

class Engine {
 public:
  Engine() {
    for (auto& event : events) {
      ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }

  // Enqueues a step of the sequences, whose new ids are `known`, one after the other; without any,
  // each gets a position for the token that the last step picks.
  void launch_step(std::span<std::vector<kv::TokenId> const> known) {
    Flight flight{.tick = cache.open_tick(), .ranges = {}, .buffer = next_buffer};
    next_buffer = (next_buffer + 1) % (steps_in_flight + 1);
    batch.begin_step();
    int num_ids = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      auto const range = known.empty() ? sequences[s].reserve(1) : sequences[s].append(known[s]);
      flight.ranges.push_back(range.value());
      if (!batch.add(sequences[s], *range)) std::exit(1);
      if (known.empty()) continue;
      std::copy(known[s].begin(), known[s].end(), pinned_ids + num_ids);
      num_ids += range->count;
    }
    bool const decodes = batch.num_tokens() == batch.num_sequences();
    auto const step = ring.stage(batch, flight.tick, decodes ? captured : kv::BatchStep{}).value();
    ok(ring.upload(step, device.stream), "upload");
    if (num_ids > 0) {
      ok(cudaMemcpyAsync(device.ids, pinned_ids, std::size_t(num_ids) * sizeof(kv::TokenId),
                         cudaMemcpyHostToDevice, device.stream),
         "ids");
    }
    if (step.matches(captured)) {
      run_graph(step);
    } else {
      device.enqueue(step);
    }
    ok(cudaMemcpyAsync(results[flight.buffer], device.ids, max_sequences * sizeof(kv::TokenId),
                       cudaMemcpyDeviceToHost, device.stream),
       "results");
    ok(cudaEventRecord(events[flight.buffer], device.stream), "cudaEventRecord");
    cache.end_step();
    in_flight.push_back(std::move(flight));
    ++num_steps;
  }

  // The oldest step: waits for it, and hears which tokens it picked.
  void finish_step() {
    Flight const flight = std::move(in_flight.front());
    in_flight.pop_front();
    ok(cudaEventSynchronize(events[flight.buffer]), "cudaEventSynchronize");
    cache.reclaim(flight.tick);
    ring.reclaim(flight.tick);
    for (std::size_t s = 0; s < flight.ranges.size(); ++s) {
      kv::TokenId const picked = results[flight.buffer][s];
      int const end = flight.ranges[s].end();
      last[s] = picked;
      sequences[s].commit(end);
      // The step behind it has a position for the token already.
      if (end < sequences[s].size()) sequences[s].set_tokens(end, {&picked, 1});
    }
  }

  // The first step of these counts is captured, the others replay it.
  void run_graph(cuda::StagedStep const& step) {
    if (graph == nullptr) {
      cudaGraph_t recorded = nullptr;
      ok(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), "capture");
      device.enqueue(step);
      ok(cudaStreamEndCapture(device.stream, &recorded), "end of the capture");
      ok(cudaGraphInstantiate(&graph, recorded, 0), "cudaGraphInstantiate");
      ok(cudaGraphDestroy(recorded), "cudaGraphDestroy");
    }
    ok(cudaGraphLaunch(graph, device.stream), "cudaGraphLaunch");
    ++num_replays;
  }

  kv::KvCache cache{{.block_tokens = block_tokens,
                     .num_blocks = num_blocks,
                     .max_sequences = max_sequences,
                     .max_sequence_tokens = 256,
                     .reclaim = kv::Reclaim::deferred}};
  kv::BatchLimits limits{.max_sequences = max_sequences, .max_tokens = max_tokens};
  kv::Batch batch{cache, limits};
  cuda::StagingRing ring{cuda::largest_step(cache, limits), steps_in_flight + 1};
  Device device{cache.table_width()};
  // What decode steps are filled up to.
  kv::BatchStep captured{.padded_sequences = max_sequences,
                         .padded_tokens = max_sequences,
                         .num_row_changes = max_sequences,
                         .num_new_blocks = max_sequences,
                         .num_runs = max_sequences,
                         .num_copies = max_sequences};
  std::vector<kv::Sequence> sequences;
  std::vector<kv::TokenId> last = std::vector<kv::TokenId>(max_sequences);
  std::deque<Flight> in_flight;
  cudaEvent_t events[steps_in_flight + 1] = {};
  kv::TokenId* results[steps_in_flight + 1] = {pinned_array<kv::TokenId>(max_sequences),
                                               pinned_array<kv::TokenId>(max_sequences),
                                               pinned_array<kv::TokenId>(max_sequences)};
  kv::TokenId* pinned_ids = pinned_array<kv::TokenId>(max_tokens);
  cudaGraphExec_t graph = nullptr;
  int next_buffer = 0, num_steps = 0, num_replays = 0;
};

// ---- the same, alone, on the CPU ----------------------------------------------------------------

// Whether every token from `first` on is the one that those before it lead to.
bool is_right(kv::Sequence const& seq, int first) {
  kv::KvStorage pool(geometry, 16);
  std::vector<std::int32_t> table(16);
  for (int b = 0; b < 16; ++b) table[std::size_t(b)] = b;
  std::vector<float> k(kv_width), v(kv_width), q(q_width), out(num_layers * q_width);
  for (int position = 0; position + 1 < seq.size(); ++position) {
    int const token = seq.token(position);
    std::int32_t const indptr[] = {0, position / block_tokens + 1}, length[] = {position + 1};
    kv::Slot const slot[] = {position};
    for (int layer = 0; layer < num_layers; ++layer) {
      for (int i = 0; i < kv_width; ++i) k[std::size_t(i)] = number(token, layer, part_k, i);
      for (int i = 0; i < kv_width; ++i) v[std::size_t(i)] = number(token, layer, part_v, i);
      for (int i = 0; i < q_width; ++i) q[std::size_t(i)] = number(token, layer, part_q, i);
      kv::cpu::write_kv(pool.view(), layer, {k.data(), kv::Element::f32, kv_width, head_dim},
                        {v.data(), kv::Element::f32, kv_width, head_dim}, slot);
      kv::cpu::decode_attention(
          pool.view(), layer, {indptr, table, length},
          {q.data(), out.data() + layer * q_width, num_q_heads, q_width, q_width},
          {.softmax_scale = 0.125F});
    }
    if (position + 1 >= first && pick_token(out.data(), q_width) != seq.token(position + 1)) {
      return false;
    }
  }
  return true;
}

int main() {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::puts("skipped: there is no CUDA device");
    return 77;
  }
  Engine engine;

  // Three prompts, computed in one step.
  std::vector<std::vector<kv::TokenId>> ids;
  for (int s = 0; s < 3; ++s) {
    std::vector<kv::TokenId> prompt;
    for (int i = 0; i < 25 + 9 * s; ++i) prompt.push_back((7 * i + 11 * s) % vocabulary);
    engine.sequences.push_back(engine.cache.open(kv::SequenceId(unsigned(s)), prompt).value());
    ids.push_back(prompt);
  }
  engine.launch_step(ids);
  engine.finish_step();

  // A second answer to the first prompt, which begins with another token: the fork shares all
  // blocks, and whoever writes first into the last one copies it.
  std::vector<int> first_checked;
  for (auto const& seq : engine.sequences) first_checked.push_back(seq.size());
  first_checked.push_back(engine.sequences[0].size() + 1);
  engine.sequences.push_back(engine.sequences[0].fork(kv::SequenceId{3}).value());
  engine.last[3] = (engine.last[0] + 1) % vocabulary;
  for (int s = 0; s < 3; ++s) ids[std::size_t(s)] = {engine.last[std::size_t(s)]};
  ids.push_back({engine.last[3]});

  engine.launch_step(ids);
  for (int t = 1; t < answer_tokens; ++t) {
    engine.launch_step({});  // its ids are not known yet
    if (engine.in_flight.size() == steps_in_flight) engine.finish_step();
  }
  while (!engine.in_flight.empty()) engine.finish_step();

  bool right = true;
  for (std::size_t s = 0; s < engine.sequences.size(); ++s) {
    kv::Sequence const& seq = engine.sequences[s];
    std::printf("sequence %d:", int(s));
    for (int p = seq.size() - 8; p < seq.size(); ++p) std::printf(" %d", seq.token(p));
    bool const same = is_right(seq, first_checked[s]);
    std::printf("  %s\n", same ? "as on the CPU" : "WRONG");
    right = right && same;
  }
  auto const copies = static_cast<int>(engine.cache.stats().copies);
  std::printf("%d steps, two in flight, %d of them by the graph; copies of blocks: %d\n",
              engine.num_steps, engine.num_replays, copies);
  bool const shown = engine.num_replays >= answer_tokens - 2 && copies > 0;
  return right && shown ? 0 : 1;
}

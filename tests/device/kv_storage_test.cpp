// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/kv_storage.hpp>
#include <pagedkv/data/cuda/operations.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "catch.hpp"
#include "cuda_objects.hpp"
#include "device_pool.hpp"
#include "runtime_control.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

constexpr KvLayout all_layouts[] = {{BlockOrder::nhd, PoolOrder::layer_major},
                                    {BlockOrder::hnd, PoolOrder::layer_major},
                                    {BlockOrder::nhd, PoolOrder::block_major},
                                    {BlockOrder::hnd, PoolOrder::block_major}};

/// Layers of every kind: static scales by head, scales beside the vectors, none.
Geometry mixed_geometry() {
  return {.num_layers = 3,
          .num_kv_heads = 3,
          .head_dim_k = 32,
          .head_dim_v = 16,
          .block_tokens = 5,
          .format = KvFormat{Element::int8, Granularity::per_head},
          .overrides = {{{0, 1}, KvFormat{Element::f16, Granularity::none}},
                        {{1, 1}, KvFormat{Element::int4, Granularity::per_token_head}}}};
}

std::vector<std::byte> host_copy(std::span<std::byte const> device) {
  std::vector<std::byte> copy(device.size());
  REQUIRE(cudaMemcpyAsync(copy.data(), device.data(), device.size(), cudaMemcpyDeviceToHost,
                          nullptr) == cudaSuccess);
  return copy;
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

/// Memory of an engine: the runtime's, counted, out at will.
class EngineMemory final : public cuda::Allocator {
 public:
  void* allocate(std::int64_t bytes) override {
    if (is_short) return nullptr;
    outstanding += bytes;
    ++calls;
    return cuda::device_memory().allocate(bytes);
  }
  void deallocate(void* memory, std::int64_t bytes) noexcept override {
    outstanding -= bytes;
    ++frees;
    cuda::device_memory().deallocate(memory, bytes);
  }
  std::int64_t outstanding = 0;
  int calls = 0;
  int frees = 0;
  bool is_short = false;
};

/// Memory that the engine keeps: what is given back is marked.
class KeptMemory final : public cuda::Allocator {
 public:
  explicit KeptMemory(std::int64_t bytes)
      : memory_(cuda::device_memory().allocate(bytes)), bytes_(bytes) {}
  KeptMemory(KeptMemory const&) = delete;
  KeptMemory& operator=(KeptMemory const&) = delete;
  ~KeptMemory() { cuda::device_memory().deallocate(memory_, bytes_); }
  void* allocate(std::int64_t bytes) override { return bytes <= bytes_ ? memory_ : nullptr; }
  void deallocate(void*, std::int64_t) noexcept override {
    std::memset(memory_, mark, static_cast<std::size_t>(bytes_));
  }
  [[nodiscard]] bool is_as_given_back() const {
    auto const* const bytes = static_cast<unsigned char const*>(memory_);
    return std::all_of(bytes, bytes + bytes_, [](unsigned char b) { return b == mark; });
  }

 private:
  static constexpr unsigned char mark = 0x5A;
  void* memory_;
  std::int64_t bytes_;
};

}  // namespace

TEST_CASE("a device pool holds what the host's does, tensor by tensor") {
  Geometry const g = mixed_geometry();
  for (auto const layout : all_layouts) {
    WorkStream const stream;
    KvStorage host(g, 6, layout, scales_for(g));
    cuda::KvStorage device(g, 6, stream, layout, scales_for(g));
    REQUIRE(kv_view_error(device.view()).empty());
    CHECK(device.bytes() == host.bytes());
    CHECK(device.block_bytes() == host.block_bytes());
    auto const content = host_copy(device.memory());
    CHECK(std::memcmp(content.data(), host.memory().data(), host.memory().size()) == 0);
    for (std::size_t i = 0; i < 3; ++i) {
      auto const& here = host.view().layers[i];
      auto const& there = device.view().layers[i];
      CHECK(there.k.vector(5, 4, 2) - device.memory().data() ==
            here.k.vector(5, 4, 2) - host.memory().data());
      CHECK(there.v.vector(5, 4, 2) - device.memory().data() ==
            here.v.vector(5, 4, 2) - host.memory().data());
    }
  }
}

TEST_CASE("the device has a copy of the layers") {
  WorkStream const stream;
  Geometry const g = mixed_geometry();
  cuda::KvStorage storage(g, 6, stream, {}, scales_for(g));
  auto const layers = storage.view().layers;
  auto const* const bytes = reinterpret_cast<std::byte const*>(storage.device_layers());
  auto const content = host_copy({bytes, layers.size_bytes()});
  CHECK(std::memcmp(content.data(), layers.data(), layers.size_bytes()) == 0);
  CHECK(bytes + layers.size_bytes() == storage.memory().data() + storage.memory().size());
}

TEST_CASE("operations on a device pool leave the oracle's bytes") {
  Geometry const g = mixed_geometry();
  for (auto const layout : all_layouts) {
    WorkStream const stream;
    KvStorage oracle(g, 6, layout, scales_for(g));
    cuda::KvStorage storage(g, 6, stream, layout, scales_for(g));
    std::vector<Slot> const slots = {0, 1, 7, padding_slot, 14, 22, 29};
    BlockCopy const copy{BlockId{0}, BlockId{3}, 2};
    BlockId const zeroed{4};
    emulated::DeviceBuffer<Slot> const device_slots(slots, "slots");
    emulated::DeviceBuffer<BlockCopy> const copies(std::span(&copy, 1), "copies");
    emulated::DeviceBuffer<BlockId> const zeros(std::span(&zeroed, 1), "zeros");
    auto const n = static_cast<std::int64_t>(slots.size());
    for (std::int32_t layer = 0; layer < g.num_layers; ++layer) {
      Rows k({n, g.num_kv_heads, g.head_dim_k, Element::f16}, 3);
      Rows v({n, g.num_kv_heads, g.head_dim_v, Element::f16}, 4);
      DeviceRows const device_k(k);
      DeviceRows const device_v(v);
      cpu::scalar::write_kv(oracle.view(), layer, k.rows(), v.rows(), slots);
      CHECK(cuda::write_kv(storage.view(), layer, device_k.rows(), device_v.rows(),
                           {device_slots.data(), n}, stream) == cudaSuccess);
      CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    cpu::scalar::copy_blocks(oracle.view(), std::span(&copy, 1));
    cpu::scalar::zero_blocks(oracle.view(), std::span(&zeroed, 1));
    CHECK(cuda::copy_blocks(storage.view(), storage.device_layers(), copies.data(), 1, stream) ==
          cudaSuccess);
    CHECK(cuda::zero_blocks(storage.view(), storage.device_layers(), zeros.data(), 1, stream) ==
          cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    auto const content = host_copy(storage.memory());
    CHECK(std::memcmp(content.data(), oracle.memory().data(), oracle.memory().size()) == 0);
  }
  CHECK(emulated::take_faults().empty());
}

TEST_CASE("a device pool takes the engine's memory once and gives it back once") {
  WorkStream const stream;
  Geometry const g = mixed_geometry();
  EngineMemory memory;
  auto const live = emulated::live_allocations();
  {
    cuda::KvStorage first(g, 6, stream, {}, scales_for(g), memory);
    CHECK(memory.calls == 1);
    CHECK(memory.outstanding == first.allocated_bytes());
    auto const view = first.view();
    auto const* const layers = first.device_layers();
    cuda::KvStorage const second = std::move(first);
    CHECK(second.view().layers.data() == view.layers.data());
    CHECK(second.device_layers() == layers);
    CHECK(memory.outstanding == second.allocated_bytes());
  }
  CHECK(memory.outstanding == 0);
  CHECK(memory.frees == 1);
  CHECK(emulated::live_allocations() == live);
}

TEST_CASE("a device pool that can't be had says which call failed, for how many bytes") {
  WorkStream const stream;
  Geometry const g = mixed_geometry();
  auto const live = emulated::live_allocations();
  auto const make = [&] { cuda::KvStorage const storage(g, 6, stream, {}, scales_for(g)); };
  std::string const bytes =
      std::to_string(cuda::KvStorage(g, 6, stream, {}, scales_for(g)).allocated_bytes());

  emulated::fail_next_call(cudaErrorMemoryAllocation);
  CHECK_THAT(message_of(make),
             contains_text("cudaMalloc of " + bytes + " bytes: out of memory (cudaError 2)"));
  EngineMemory memory;
  memory.is_short = true;
  CHECK_THAT(
      message_of([&] { cuda::KvStorage const storage(g, 6, stream, {}, scales_for(g), memory); }),
      contains_text("cuda::KvStorage: the allocator has no " + bytes + " bytes"));
  CHECK_THAT(message_of([&] { cuda::KvStorage const storage(g, 0, stream); }),
             contains_text("num_blocks is 0"));
  CHECK_THAT(message_of([&] { cuda::KvStorage const storage(g, 6, stream); }),
             contains_text("takes 3 static scales; 0 are given"));

  // In the middle: what was allocated is given back.
  std::string const calls[] = {"cudaMalloc", "cudaMemsetAsync", "cudaMemcpyAsync",
                               "cudaMemcpyAsync"};
  for (int i = 0; i < 4; ++i) {
    emulated::fail_next_call(cudaErrorInvalidValue, i);
    CHECK_THAT(message_of(make), contains_text(calls[i]));
    CHECK(emulated::live_allocations() == live);
  }
  CHECK(message_of(make).empty());
  // Nor is anything still to come that would write what the engine has got back.
  for (int i = 0; i < 3; ++i) {
    KeptMemory kept(std::stoll(bytes));
    emulated::fail_next_call(cudaErrorInvalidValue, i);
    CHECK_THAT(
        message_of([&] { cuda::KvStorage const storage(g, 6, stream, {}, scales_for(g), kept); }),
        contains_text(calls[i + 1]));
    stream.wait();
    CHECK(kept.is_as_given_back());
  }

  // Nor is it set up while something is captured.
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK_THAT(message_of(make), contains_text("not permitted when stream is capturing"));
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(emulated::live_allocations() == live);
}

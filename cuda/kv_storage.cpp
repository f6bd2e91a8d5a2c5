// SPDX-License-Identifier: Apache-2.0
/// \file
/// Device memory for a pool.
#include <pagedkv/data/cuda/kv_storage.hpp>

#include <cuda_runtime_api.h>

#include <string>

#include <pagedkv/error.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace {

void require(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // told here, it is not the next launch's
  raise("cuda::KvStorage: " + std::string(call) + ": " + cudaGetErrorString(error) +
        " (cudaError " + std::to_string(static_cast<int>(error)) + ")");
}

template <class T>
void upload(std::byte* to, std::vector<T> const& from, cudaStream_t stream) {
  if (from.empty()) return;
  require(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
}

/// At its end nothing that was queued is still to come, whatever failed in between: the copies read
/// what dies with the constructor, and the memory goes back to whoever gave it.
struct WaitsAtTheEnd {
  cudaStream_t stream;
  ~WaitsAtTheEnd() { static_cast<void>(cudaStreamSynchronize(stream)); }
};

}  // namespace

KvStorage::KvStorage(Geometry const& geometry, std::int32_t num_blocks, cudaStream_t stream,
                     KvLayout layout, std::span<StaticScales const> static_scales,
                     Allocator& allocator)
    : placement_(geometry, num_blocks, layout) {
  auto const statics = placement_.static_scales(static_scales);
  std::int64_t const layers_at = pagedkv::detail::round_up(
      placement_.allocated_bytes(), static_cast<std::int64_t>(alignof(KvLayer)));
  auto const layers_bytes = static_cast<std::int64_t>(geometry.num_layers * sizeof(KvLayer));
  memory_ = detail::OwnedMemory(allocator, layers_at + layers_bytes, "cuda::KvStorage");
  layers_ = placement_.layers(memory_.data());
  device_layers_ = reinterpret_cast<KvLayer const*>(memory_.data() + layers_at);

  WaitsAtTheEnd const waits{stream};
  constexpr int fill = PAGEDKV_ASSERT_LEVEL >= 2 ? 0xFF : 0;
  require(cudaMemsetAsync(memory_.data(), fill,
                          static_cast<std::size_t>(placement_.bytes_of_blocks()), stream),
          "cudaMemsetAsync");
  upload(memory_.data() + placement_.bytes_of_blocks(), statics, stream);
  upload(memory_.data() + layers_at, layers_, stream);
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

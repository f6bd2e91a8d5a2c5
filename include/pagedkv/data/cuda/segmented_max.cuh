// SPDX-License-Identifier: Apache-2.0
/// \file
/// The largest number of each segment, device-wide: CUB under nvcc, std on the host. Include it in
/// one translation unit: CUB takes longer to compile than all kernels of a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/device.cuh>

#if defined(__CUDACC__)
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_segmented_reduce.cuh>
#include <cuda/functional>
#else
#include <algorithm>
#include <cstring>
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

#if defined(__CUDACC__)

/// `Items` as functions of one argument, which is what iterators are made of. An item is a call:
/// inlined wherever CUB unrolls, it takes nvcc three times as long.
template <class Items>
struct ItemAt {
  Items items;
  __noinline__ __device__ std::uint32_t operator()(std::int64_t index) const {
    return items.item(index);
  }
};
template <class Items>
struct SegmentBegin {
  Items items;
  __host__ __device__ std::int64_t operator()(std::int64_t segment) const {
    return items.begin(segment);
  }
};

#endif

/// Queues found[s] = the largest items.item(i), begin(s) <= i < begin(s + 1), for num_segments; of
/// none: 0. `workspace`: device memory of `bytes`; null: nothing is queued, `bytes` becomes what is
/// needed.
///
/// `Items`: `std::uint32_t item(std::int64_t)` for the device, `std::int64_t begin(std::int64_t)`
/// for both; passed by value.
template <class Items>
cudaError_t segmented_max(void* workspace, std::size_t& bytes, Items const& items,
                          std::uint32_t* found, std::int64_t num_segments, cudaStream_t stream) {
#if defined(__CUDACC__)
  thrust::counting_iterator<std::int64_t> const index(0);
  auto const in = thrust::make_transform_iterator(index, ItemAt<Items>{items});
  auto const begin = thrust::make_transform_iterator(index, SegmentBegin<Items>{items});
  return cub::DeviceSegmentedReduce::Reduce(workspace, bytes, in, found, num_segments, begin,
                                            begin + 1, ::cuda::maximum<std::uint32_t>{},
                                            std::uint32_t{0}, stream);
#else
  constexpr std::size_t needed = 48;
  if (workspace == nullptr) {
    bytes = needed;
    return cudaSuccess;
  }
  if (bytes < needed) return cudaErrorInvalidValue;
  // As the device may: late, the workspace is used, segments and items come in any order.
  return emulated::enqueue(stream, [=] {
    std::memset(workspace, 0xA5, needed);
    for (std::int64_t s = num_segments - 1; s >= 0; --s) {
      std::uint32_t largest = 0;
      for (std::int64_t i = items.begin(s + 1) - 1; i >= items.begin(s); --i) {
        largest = std::max(largest, items.item(i));
      }
      found[s] = largest;
    }
    return cudaSuccess;
  });
#endif
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

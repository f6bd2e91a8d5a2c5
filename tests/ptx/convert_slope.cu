// SPDX-License-Identifier: Apache-2.0
/// \file
/// A conversion unrolled by different counts: how much code an element takes is the slope.
#include <pagedkv/data/cuda/tensors.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

template <Element in, Element out, int chunks>
PAGEDKV_KERNEL(256, 1)
convert_unrolled(std::byte const* from, std::byte* to, float inverse) {
  std::size_t const first = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * chunks;
  PAGEDKV_UNROLL_ALL
  for (int i = 0; i < chunks; ++i) {
    Chunk<in> x;
    Chunk<out> codes;
    load_chunk(from + (first + i) * (Chunk<in>::num_words * 4), x);
    encode_chunk(x, InverseScale{inverse}, 0.0F, codes);
    store_chunk(codes, to + (first + i) * (Chunk<out>::num_words * 4));
  }
}

#define PAGEDKV_SLOPE(in, out)                                                                \
  template __global__ void convert_unrolled<Element::in, Element::out, 2>(std::byte const*,   \
                                                                          std::byte*, float); \
  template __global__ void convert_unrolled<Element::in, Element::out, 10>(std::byte const*,  \
                                                                           std::byte*, float);
PAGEDKV_SLOPE(f16, fp8_e4m3)
PAGEDKV_SLOPE(bf16, fp8_e5m2)

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
// Compiled by nvcc, never run: every codec as device code and as host code of the same source.
#include <pagedkv/quant/vector_codec.hpp>

namespace kv = pagedkv;
namespace quant = pagedkv::quant;

// x: [dim], y: [dim], bytes: [4 * dim]
__host__ __device__ static void use_all(kv::Element element, float const* x, int dim,
                                        std::byte* bytes, float* y) {
  auto const scale = quant::vector_scale(element, x, dim);
  quant::encode_vector(element, scale, x, dim, bytes);
  auto const before = quant::power_of_two_scale(element, quant::amax(x, dim));
  auto const after = quant::Scale{2.0F * before.value};
  quant::requantize_vector(element, before, after, dim, bytes);
  quant::decode_vector(element, scale, bytes, dim, y);
}

__global__ void store_and_read(kv::Element element, float const* x, int dim, std::byte* bytes,
                               float* y) {
  if (threadIdx.x == 0) use_all(element, x, dim, bytes, y);
}

void on_the_host(kv::Element element, float const* x, int dim, std::byte* bytes, float* y) {
  use_all(element, x, dim, bytes, y);
}

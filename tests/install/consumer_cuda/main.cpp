// SPDX-License-Identifier: Apache-2.0
/// \file
/// Calls that need no device: nothing to do, and what is refused.
#include <cstddef>

#include <pagedkv/data/cuda/operations.hpp>

int main() {
  pagedkv::KvLayer layer;
  std::byte memory[64] = {};
  layer.k.data = memory;
  layer.k.head_dim = 16;
  layer.k.token_stride = 16;
  layer.k.head_stride = 16;
  layer.k.block_stride = 16;
  pagedkv::KvView const view{{&layer, 1}, 1, 1, 1};
  pagedkv::KvRows const rows{memory, pagedkv::Element::f16, 16, 16};
  bool const idle = pagedkv::cuda::write_kv(view, 0, rows, rows, {}, nullptr) == cudaSuccess &&
                    pagedkv::cuda::zero_blocks(view, &layer, nullptr, 0, nullptr) == cudaSuccess &&
                    pagedkv::cuda::update_tables({}, {}, nullptr) == cudaSuccess;
  bool const refused =
      pagedkv::cuda::write_kv(view, 1, rows, rows, {}, nullptr) == cudaErrorInvalidValue;
  return idle && refused ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What operations.hpp declares, on the kernels of the headers.
#include <pagedkv/data/cuda/convert.cuh>
#include <pagedkv/data/cuda/gather_kv.cuh>
#include <pagedkv/data/cuda/move_blocks.cuh>
#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/data/cuda/update_tables.cuh>
#include <pagedkv/data/cuda/write_kv.cuh>
#include <pagedkv/model/recommend_format.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

// What is advised for a device is what was compiled for it.
static_assert(first_with_fp8.major * 100 + first_with_fp8.minor * 10 == PAGEDKV_FP8_ARCH);

cudaError_t write_kv(KvView const& view, std::int32_t layer, KvRows const& k, KvRows const& v,
                     WriteSlots const& to, cudaStream_t stream) {
  return detail::write_kv(view, layer, k, v, to, stream);
}

cudaError_t write_kv_rope(KvView const& view, std::int32_t layer, KvRows const& k, KvRows const& v,
                          Rope const& rope, WriteSlots const& to, cudaStream_t stream) {
  return detail::write_kv_rope(view, layer, k, v, rope, to, stream);
}

cudaError_t copy_blocks(KvView const& view, KvLayer const* device_layers, BlockCopy const* copies,
                        std::int32_t num_copies, cudaStream_t stream) {
  return detail::copy_blocks(view, device_layers, copies, num_copies, stream);
}

cudaError_t zero_blocks(KvView const& view, KvLayer const* device_layers, BlockId const* blocks,
                        std::int32_t num_blocks, cudaStream_t stream) {
  return detail::zero_blocks(view, device_layers, blocks, num_blocks, stream);
}

cudaError_t gather_kv(KvView const& view, std::int32_t layer, GatherRanges const& ranges,
                      MutableKvRows const& k, MutableKvRows const& v, cudaStream_t stream) {
  return detail::gather_kv(view, layer, ranges, k, v, stream);
}

cudaError_t update_tables(BlockTable const& table, TableUpdates const& updates,
                          cudaStream_t stream) {
  return detail::update_tables(table, updates, stream);
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// decode_attention of operations.hpp.
#include <pagedkv/data/cuda/decode_attention.cuh>
#include <pagedkv/data/cuda/operations.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

cudaError_t decode_attention(KvView const& view, std::int32_t layer, DecodeBatch const& batch,
                             DecodeQueries const& queries, DecodeOptions const& options,
                             cudaStream_t stream) {
  return detail::decode_attention(view, layer, batch, queries, options, stream);
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

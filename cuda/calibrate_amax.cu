// SPDX-License-Identifier: Apache-2.0
/// \file
/// calibrate_amax of operations.hpp: the one file that includes CUB.
#include <pagedkv/data/cuda/calibrate_amax.cuh>
#include <pagedkv/data/cuda/operations.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

cudaError_t calibrate_amax_workspace(AmaxTable const& table, std::size_t& bytes) {
  return detail::calibrate_amax_workspace(table, bytes);
}

cudaError_t calibrate_amax(AmaxTable const& table, std::int32_t layer, AmaxStep const& step,
                           void* workspace, std::size_t bytes, cudaStream_t stream) {
  return detail::calibrate_amax(table, layer, step, workspace, bytes, stream);
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

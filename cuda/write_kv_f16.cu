// SPDX-License-Identifier: Apache-2.0
/// \file
/// The writers for rows of f16.
#include <pagedkv/data/cuda/write_kv.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {
template cudaError_t write_from<Element::f16, false>(WriteCall const& call);
}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

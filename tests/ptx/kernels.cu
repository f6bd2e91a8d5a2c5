// SPDX-License-Identifier: Apache-2.0
/// \file
/// The library's own kernels for nvcc: the interpreter runs the PTX. Some of the writers; of the
/// others those that launchers name.
#include <pagedkv/data/cuda/decode_attention.cuh>
#include <pagedkv/data/cuda/gather_kv.cuh>
#include <pagedkv/data/cuda/move_blocks.cuh>
#include <pagedkv/data/cuda/update_tables.cuh>
#include <pagedkv/data/cuda/write_kv.cuh>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

template __global__ void write_static<Element::f16, Element::fp8_e4m3, false>(WriteArgs);
template __global__ void write_static<Element::bf16, Element::fp8_e5m2, false>(WriteArgs);
template __global__ void write_per_token_head<Element::f16, Element::fp8_e4m3, false>(WriteArgs);
template __global__ void write_per_token_head<Element::bf16, Element::int4, false>(WriteArgs);
template __global__ void write_per_block_head<Element::f16, Element::fp8_e5m2, false>(
    BlockWriteArgs);
template __global__ void write_per_block_head<Element::f16, Element::fp8_e5m2, true>(
    BlockWriteArgs);
template __global__ void write_any<true>(AnyWriteArgs);

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

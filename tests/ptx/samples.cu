// SPDX-License-Identifier: Apache-2.0
// The executor's sample kernels for nvcc: the interpreter runs the PTX that comes out.
#include "samples/block_sum.cuh"
#include "samples/quantize.cuh"
#include "samples/row_max.cuh"
#include "samples/scatter.cuh"
#include "samples/staged_copy.cuh"
#include "samples/warp_message.cuh"

namespace pagedkv::cuda::samples {

template __global__ void block_sum<SumBug::none>(float const*, float*, int);
template __global__ void block_sum<SumBug::no_first_barrier>(float const*, float*, int);
template __global__ void block_sum<SumBug::no_loop_barrier>(float const*, float*, int);
template __global__ void block_sum<SumBug::shared_read_past_end>(float const*, float*, int);
template __global__ void block_sum<SumBug::dynamic_write_past_end>(float const*, float*, int);
template __global__ void block_sum<SumBug::not_filled>(float const*, float*, int);
template __global__ void rotate<MessageBug::none>(int const*, int*);
template __global__ void scatter<ScatterBug::none>(ScatterArgs);
template __global__ void scatter<ScatterBug::offset_of_32_bits>(ScatterArgs);
template __global__ void scatter<ScatterBug::unchecked_slot>(ScatterArgs);
template __global__ void row_max<RowMaxBug::none>(int const*, int const*, int*, unsigned*, int,
                                                  int);
template __global__ void row_max<RowMaxBug::none_with_exits>(int const*, int const*, int*,
                                                             unsigned*, int, int);
template __global__ void row_max<RowMaxBug::exited_lane>(int const*, int const*, int*, unsigned*,
                                                         int, int);
template __global__ void staged_copy<CopyBug::none>(uint4 const*, uint4*, int);
template __global__ void staged_copy<CopyBug::waits_too_little>(uint4 const*, uint4*, int);
template __global__ void staged_copy<CopyBug::no_barrier>(uint4 const*, uint4*, int);
template __global__ void quantize<RowFormat::e4m3>(uint2 const*, std::uint32_t*, float*, int,
                                                   float);
template __global__ void quantize<RowFormat::e5m2>(uint2 const*, std::uint32_t*, float*, int,
                                                   float);

}  // namespace pagedkv::cuda::samples

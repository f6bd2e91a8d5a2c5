// SPDX-License-Identifier: Apache-2.0
/// \file
/// A chunk a thread, converted as the writers do it: the interpreter tries every 16-bit input.
#include "convert_slope.cu"

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

#define PAGEDKV_CONVERSION(in, out)                                                         \
  template __global__ void convert_unrolled<Element::in, Element::out, 1>(std::byte const*, \
                                                                          std::byte*, float);
PAGEDKV_CONVERSION(f16, fp8_e4m3)
PAGEDKV_CONVERSION(f16, fp8_e5m2)
PAGEDKV_CONVERSION(f16, int8)
PAGEDKV_CONVERSION(bf16, fp8_e4m3)
PAGEDKV_CONVERSION(bf16, fp8_e5m2)
PAGEDKV_CONVERSION(bf16, int8)

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The level's functions as a table. Included by kernels_level.hpp only.

PAGEDKV_NAMESPACE_BEGIN
namespace {

#define PAGEDKV_STORE_F32(e) &store<Element::f32, e>
#define PAGEDKV_STORE_F16(e) &store<Element::f16, e>
#define PAGEDKV_STORE_BF16(e) &store<Element::bf16, e>
#define PAGEDKV_DYNAMIC_F32(e) &store_dynamic<Element::f32, e>
#define PAGEDKV_DYNAMIC_F16(e) &store_dynamic<Element::f16, e>
#define PAGEDKV_DYNAMIC_BF16(e) &store_dynamic<Element::bf16, e>
#define PAGEDKV_LOAD(e) \
  { &load<e, Element::f32>, &load<e, Element::f16>, &load<e, Element::bf16> }
#define PAGEDKV_NAME_OF(level) #level
#define PAGEDKV_NAME(level) PAGEDKV_NAME_OF(level)

constexpr Kernels table = {
    PAGEDKV_NAME(PAGEDKV_LEVEL),
    {PAGEDKV_EVERY_ELEMENT(PAGEDKV_STORE_F32), PAGEDKV_EVERY_ELEMENT(PAGEDKV_STORE_F16),
     PAGEDKV_EVERY_ELEMENT(PAGEDKV_STORE_BF16)},
    {PAGEDKV_EVERY_ELEMENT(PAGEDKV_DYNAMIC_F32), PAGEDKV_EVERY_ELEMENT(PAGEDKV_DYNAMIC_F16),
     PAGEDKV_EVERY_ELEMENT(PAGEDKV_DYNAMIC_BF16)},
    PAGEDKV_EVERY_ELEMENT(PAGEDKV_LOAD),
    {&amax<Element::f32>, &amax<Element::f16>, &amax<Element::bf16>},
    {&requantize<Element::fp8_e4m3>, &requantize<Element::fp8_e5m2>},
    &attend_tile,
};

}  // namespace
PAGEDKV_NAMESPACE_END

#define PAGEDKV_JOIN_OF(a, b) a##b
#define PAGEDKV_JOIN(a, b) PAGEDKV_JOIN_OF(a, b)

namespace pagedkv {
inline namespace v0 {
namespace cpu {
Kernels const* PAGEDKV_JOIN(kernels_, PAGEDKV_LEVEL)() noexcept { return &PAGEDKV_LEVEL::table; }
}  // namespace cpu
}  // namespace v0
}  // namespace pagedkv

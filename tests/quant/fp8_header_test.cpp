// SPDX-License-Identifier: Apache-2.0
// fp8 against cuda_fp8.h itself, where the toolkit is there; fp8_test.cpp has its recorded answers.
#include <cstdint>

#include <pagedkv/quant/fp8.hpp>
#include <pagedkv/quant/half.hpp>

#include "catch.hpp"
#include "support/nearest_code.hpp"
#include "support/threads.hpp"

#if PAGEDKV_HAVE_CUDA_FP8
#include <cuda_fp8.h>
#endif

namespace quant = pagedkv::quant;
using namespace pagedkv::testing;

namespace {

#if PAGEDKV_HAVE_CUDA_FP8

TEST_CASE("fp8 of every binary16 and bfloat16 equals cuda_fp8.h") {
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 1U << 16; ++bits) {
    auto const half = static_cast<std::uint16_t>(bits);
    __half_raw f16;
    f16.x = half;
    __nv_bfloat16_raw bf16;
    bf16.x = half;
    float const of_f16 = quant::decode_f16(half), of_bf16 = quant::decode_bf16(half);
    wrong += quant::encode_e4m3(of_f16) != __nv_cvt_halfraw_to_fp8(f16, __NV_SATFINITE, __NV_E4M3);
    wrong += quant::encode_e5m2(of_f16) != __nv_cvt_halfraw_to_fp8(f16, __NV_SATFINITE, __NV_E5M2);
    wrong +=
        quant::encode_e4m3(of_bf16) != __nv_cvt_bfloat16raw_to_fp8(bf16, __NV_SATFINITE, __NV_E4M3);
    wrong +=
        quant::encode_e5m2(of_bf16) != __nv_cvt_bfloat16raw_to_fp8(bf16, __NV_SATFINITE, __NV_E5M2);
  }
  CHECK(wrong == 0);
}

// All 2^32 with PAGEDKV_EXHAUSTIVE=1.
TEST_CASE("fp8 of floats equals cuda_fp8.h") {
  auto const wrong = count_over_floats(769, [](std::uint32_t bits) -> std::uint64_t {
    float const x = float_of(bits);
    return (quant::encode_e4m3(x) != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) +
           (quant::encode_e5m2(x) != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2));
  });
  CHECK(wrong == 0);
  std::uint32_t wrong_at_boundaries = 0;
  for (auto const& format : {e4m3_format, e5m2_format}) {
    for (float const x : boundary_inputs(format)) {
      wrong_at_boundaries +=
          quant::encode_e4m3(x) != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
      wrong_at_boundaries +=
          quant::encode_e5m2(x) != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    }
  }
  CHECK(wrong_at_boundaries == 0);
}

#else

TEST_CASE("fp8 against cuda_fp8.h: skipped, the header wasn't found when this was built") {
  WARN("no cuda_fp8.h: only its recorded answers were compared (fp8_test.cpp)");
}

#endif

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Writes fp8.txt: what cuda_fp8.h's host conversions give for every input, as runs of inputs that
// give the same code. Two functions of all 2^32 floats and four of all 2^16 halfs and bfloat16s.
//
//   g++ -O2 -std=c++20 -isystem <toolkit>/include make_fp8_golden.cpp -o make && ./make > fp8.txt
#include <cuda_fp8.h>

#include <bit>
#include <cstdint>
#include <cstdio>

template <class Convert>
static void write_runs(char const* name, std::uint64_t inputs, Convert const& convert) {
  int before = -1;
  for (std::uint64_t bits = 0; bits < inputs; ++bits) {
    int const code = convert(bits);
    if (code != before) {
      std::printf("%s %llx %x\n", name, static_cast<unsigned long long>(bits),
                  static_cast<unsigned>(code));
    }
    before = code;
  }
}

int main() {
  std::puts("# function, first input of a run (bits), code: the answers of cuda_fp8.h, SATFINITE");
  struct Target {
    char const* from_f32;
    char const* from_f16;
    char const* from_bf16;
    __nv_fp8_interpretation_t kind;
  };
  Target const targets[] = {{"f32_e4m3", "f16_e4m3", "bf16_e4m3", __NV_E4M3},
                            {"f32_e5m2", "f16_e5m2", "bf16_e5m2", __NV_E5M2}};
  for (auto const& target : targets) {
    auto const kind = target.kind;
    write_runs(target.from_f16, 1U << 16, [kind](std::uint64_t bits) {
      __half_raw raw;
      raw.x = static_cast<unsigned short>(bits);
      return __nv_cvt_halfraw_to_fp8(raw, __NV_SATFINITE, kind);
    });
    write_runs(target.from_bf16, 1U << 16, [kind](std::uint64_t bits) {
      __nv_bfloat16_raw raw;
      raw.x = static_cast<unsigned short>(bits);
      return __nv_cvt_bfloat16raw_to_fp8(raw, __NV_SATFINITE, kind);
    });
    write_runs(target.from_f32, std::uint64_t{1} << 32, [kind](std::uint64_t bits) {
      auto const x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
    });
  }
}

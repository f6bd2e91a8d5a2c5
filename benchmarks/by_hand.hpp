// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the data plane is measured against: loops written for one machine and one purpose.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns of its own header
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace bench::by_hand {

#if defined(__x86_64__) && defined(__GNUC__)
inline bool is_supported() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

/// The codec of quant/fp8.hpp step by step: sign apart, clamp, add to round, count, put together.
/// Requires: count is a multiple of 16, is_supported().
__attribute__((target("avx512f,avx512bw,avx512vl"), noinline)) inline void bf16_to_e4m3(
    std::uint16_t const* in, std::int64_t count, float inv, std::uint8_t* out) {
  __m512 const factor = _mm512_set1_ps(inv);
  __m512i const absolute = _mm512_set1_epi32(0x7FFF'FFFF);
  __m512i const largest = _mm512_set1_epi32(0x43E0'0000);
  __m512i const exponent_bits = _mm512_set1_epi32(0x7F80'0000);
  __m512i const smallest = _mm512_set1_epi32(0x3C80'0000);
  __m512i const up = _mm512_set1_epi32(20 << 23);
  __m512i const bias = _mm512_set1_epi32(968);
  __m512i const sign_bit = _mm512_set1_epi32(0x80);
  for (std::int64_t i = 0; i < count; i += 16) {
    __m256i const rows = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(in + i));
    __m512 const x = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rows), 16));
    __m512i const p = _mm512_castps_si512(_mm512_mul_ps(x, factor));
    __m512i const magnitude = _mm512_and_si512(p, absolute);
    __mmask16 const nan = _mm512_cmpgt_epi32_mask(magnitude, exponent_bits);
    __m512i const clamped = _mm512_min_epi32(magnitude, largest);
    __m512i const base = _mm512_max_epi32(_mm512_and_si512(clamped, exponent_bits), smallest);
    __m512i const rounder = _mm512_add_epi32(base, up);
    __m512i const sum = _mm512_castps_si512(
        _mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_castsi512_ps(rounder)));
    __m512i const steps = _mm512_sub_epi32(sum, rounder);
    __m512i code = _mm512_sub_epi32(_mm512_add_epi32(steps, _mm512_srli_epi32(base, 20)), bias);
    code = _mm512_ternarylogic_epi32(code, _mm512_srli_epi32(p, 24), sign_bit, 0xF8);
    code = _mm512_mask_blend_epi32(nan, code, _mm512_set1_epi32(0x7F));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(code));
  }
}

__attribute__((target("avx2"))) inline std::uint64_t sum_of(std::uint64_t const* p,
                                                            std::size_t count) {
  __m256i sums[8] = {};
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (std::size_t j = 0; j < 8; ++j) {
      auto const* const at = reinterpret_cast<__m256i const*>(p + i + 4 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(at));
    }
  }
  std::uint64_t sum = 0;
  for (__m256i const& s : sums) {
    sum += static_cast<std::uint64_t>(_mm256_extract_epi64(s, 0)) +
           static_cast<std::uint64_t>(_mm256_extract_epi64(s, 1)) +
           static_cast<std::uint64_t>(_mm256_extract_epi64(s, 2)) +
           static_cast<std::uint64_t>(_mm256_extract_epi64(s, 3));
  }
  for (; i < count; ++i) sum += p[i];
  return sum;
}
#else
inline bool is_supported() { return false; }
inline void bf16_to_e4m3(std::uint16_t const*, std::int64_t, float, std::uint8_t*) {}
inline std::uint64_t sum_of(std::uint64_t const* p, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += p[i];
  return sum;
}
#endif

}  // namespace bench::by_hand

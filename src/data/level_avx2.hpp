// SPDX-License-Identifier: Apache-2.0
/// \file
/// Decoding fp8 by hand for AVX2 with F16C, as level_avx512.hpp explains: 16 numbers at a time.
/// Included by level_codecs.hpp only.

PAGEDKV_NAMESPACE_BEGIN
namespace {

template <Element element>
struct DecodeFp8 {
  static constexpr float unit = element == Element::fp8_e4m3 ? 256.0F : 1.0F;

  static void run(std::byte const* in, std::int64_t dim, AffineScale scale, std::byte* out) {
    float const factor_value = scale.scale * unit;
    bool const exact = quant::detail::is_finite(factor_value);
    std::int64_t const whole = exact ? dim / 16 * 16 : 0;
    __m256 const factor = _mm256_set1_ps(factor_value);
    __m128i any_nan = _mm_setzero_si128();
    for (std::int64_t i = 0; i < whole; i += 16) {
      __m128i const codes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(in + i));
      __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
      if constexpr (element == Element::fp8_e4m3) {
        __m128i const magnitude = _mm_or_si128(codes, _mm_set1_epi8(static_cast<char>(0x80)));
        any_nan = _mm_or_si128(any_nan,
                               _mm_cmpeq_epi8(magnitude, _mm_set1_epi8(static_cast<char>(0xFF))));
        halves = _mm256_and_si256(_mm256_srai_epi16(halves, 1),
                                  _mm256_set1_epi16(static_cast<short>(0xBFFF)));
      }
      auto* const x = reinterpret_cast<float*>(out + i * 4);
      __m256 const a = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      __m256 const b = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
      _mm256_storeu_ps(x, _mm256_mul_ps(a, factor));
      _mm256_storeu_ps(x + 8, _mm256_mul_ps(b, factor));
    }
    std::int64_t const done = _mm_movemask_epi8(any_nan) == 0 ? whole : 0;
    if (done == dim) return;
    decode_plain<element, Element::f32>(in + done, dim - done, scale, out + done * 4);
  }
};
template <>
struct Decode<Element::fp8_e4m3, Element::f32> : DecodeFp8<Element::fp8_e4m3> {};
template <>
struct Decode<Element::fp8_e5m2, Element::f32> : DecodeFp8<Element::fp8_e5m2> {};

}  // namespace
PAGEDKV_NAMESPACE_END

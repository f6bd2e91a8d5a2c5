// SPDX-License-Identifier: Apache-2.0
/// \file
/// fp8 and int8 by hand for AVX-512: 32 numbers at a time. Included by level_codecs.hpp only.
///
/// Encoding fp8 follows quant/fp8.hpp with fewer steps: `vrangeps` clamps and keeps the sign, the
/// constant that turns steps into codes hides in the low bits of the number that is added to round
/// (it is even, so ties still go to even), only the low byte of each sum is right, and the sign
/// comes from the input. NaN is looked for over the whole vector and sends it to the plain loop.
///
/// Decoding E4M3: its bits moved to those of a binary16 are 2^-8 of the number, subnormals too; the
/// scale makes up for it, exactly.

PAGEDKV_NAMESPACE_BEGIN
namespace {

/// 32 numbers of a row: two vectors of floats, words with their signs, and how results of the two
/// go back into one vector of words in the row's order.
template <Element row>
struct Row32;

template <>
struct Row32<Element::bf16> {
  [[gnu::always_inline]] inline explicit Row32(std::byte const* in)
      : signs(_mm512_loadu_si512(in)),
        a(_mm512_castsi512_ps(_mm512_slli_epi32(signs, 16))),
        b(_mm512_castsi512_ps(
            _mm512_and_si512(signs, _mm512_set1_epi32(static_cast<int>(0xFFFF'0000U))))) {}
  [[gnu::always_inline]] static inline __m512i words(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xAAAA'AAAAU, even, _mm512_slli_epi32(odd, 16));
  }
  __m512i signs;
  __m512 a;
  __m512 b;
};

[[gnu::always_inline]] inline __m512i word_index(short first) {
  __m512i const two = _mm512_set1_epi16(2);
  __m512i const count = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17,
                                         16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi16(_mm512_mullo_epi16(count, two), _mm512_set1_epi16(first));
}

template <>
struct Row32<Element::f16> {
  [[gnu::always_inline]] inline explicit Row32(std::byte const* in)
      : signs(_mm512_loadu_si512(in)),
        a(_mm512_cvtph_ps(_mm512_castsi512_si256(signs))),
        b(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(signs, 1))) {}
  [[gnu::always_inline]] static inline __m512i words(__m512i first, __m512i second) {
    return _mm512_permutex2var_epi16(first, word_index(0), second);
  }
  __m512i signs;
  __m512 a;
  __m512 b;
};
template <>
struct Row32<Element::f32> {
  [[gnu::always_inline]] inline explicit Row32(std::byte const* in)
      : a(_mm512_loadu_ps(in)), b(_mm512_loadu_ps(in + 64)) {
    signs =
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), word_index(1), _mm512_castps_si512(b));
  }
  [[gnu::always_inline]] static inline __m512i words(__m512i first, __m512i second) {
    return _mm512_permutex2var_epi16(first, word_index(0), second);
  }
  __m512i signs;
  __m512 a;
  __m512 b;
};

constexpr int range_min_abs = 2;  // of vrangeps; both keep the first operand's sign
constexpr int range_max_abs = 3;

/// Products to codes: the low byte of each 32-bit word, without the sign.
template <Element element>
[[gnu::always_inline]] inline __m512i fp8_magnitudes(__m512 p) {
  using Fp8 =
      std::conditional_t<element == Element::fp8_e4m3, quant::detail::E4m3, quant::detail::E5m2>;
  constexpr std::uint32_t per_exponent = 1U << (23 - Fp8::shift);
  constexpr std::uint32_t to_code = (0U - Fp8::bias - per_exponent) & 0xFFU;
  static_assert(to_code % 2 == 0);
  __m512 const clamped = _mm512_range_ps(p, _mm512_set1_ps(Fp8::max), range_min_abs);
  __m512 const exponent = _mm512_and_ps(
      clamped, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xFF80'0000U))));
  __m512 const smallest = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(Fp8::min_normal)));
  __m512i const base = _mm512_castps_si512(_mm512_range_ps(exponent, smallest, range_max_abs));
  __m512i const rounder =
      _mm512_add_epi32(base, _mm512_set1_epi32(static_cast<int>((Fp8::shift << 23) + to_code)));
  __m512 const sum = _mm512_add_ps(clamped, _mm512_castsi512_ps(rounder));
  return _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_srli_epi32(base, Fp8::shift));
}

/// Words 0 to 255, 64 of them in order, as bytes.
[[gnu::always_inline]] inline __m512i bytes_of(__m512i first, __m512i second) {
  __m512i const by_lane = _mm512_packus_epi16(first, second);
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), by_lane);
}

/// Where 64 codes go, and what of the rows is asked for meanwhile.
struct ToCache {
  [[gnu::always_inline]] static inline void put(std::byte* out, __m512i codes) {
    _mm512_storeu_si512(out, codes);
  }
  template <std::int64_t bytes>
  [[gnu::always_inline]] static inline void fetch(std::byte const*) {}
};
/// Whole lines, around the caches. Rows are asked for line by line, between the work on others.
struct ToMemory {
  static constexpr std::int64_t bytes_ahead = 8192;
  [[gnu::always_inline]] static inline void put(std::byte* out, __m512i codes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out), codes);
  }
  template <std::int64_t bytes>
  [[gnu::always_inline]] static inline void fetch(std::byte const* in) {
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(in + bytes_ahead + b, 0, 2);
  }
};

/// The two ways of who has `encode<To>`.
template <class Encoder>
struct EncodesTo {
  static void run(std::byte const* in, std::int64_t dim, quant::InverseScale inv, float zero,
                  std::byte* out) {
    Encoder::template encode<ToCache>(in, dim, inv, zero, out);
  }
  static void stream(std::byte const* in, std::int64_t dim, quant::InverseScale inv, float zero,
                     std::byte* out) {
    Encoder::template encode<ToMemory>(in, dim, inv, zero, out);
  }
};

template <Element row, Element element>
struct EncodeFp8 : EncodesTo<EncodeFp8<row, element>> {
  static constexpr std::int64_t row_bytes = sizeof(typename Codec<row>::Code);

  /// 32 codes as words.
  [[gnu::always_inline]] static inline __m512i codes(std::byte const* in, __m512 factor,
                                                     std::uint32_t& any_nan) {
    Row32<row> const x(in);
    __m512 const a = _mm512_mul_ps(x.a, factor);
    __m512 const b = _mm512_mul_ps(x.b, factor);
    any_nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    __m512i const words = Row32<row>::words(fp8_magnitudes<element>(a), fp8_magnitudes<element>(b));
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x7F), words, _mm512_srli_epi16(x.signs, 8),
                                     0xCA);  // 0x7F ? words : signs
  }

  template <class To>
  [[gnu::always_inline]] static inline void encode(std::byte const* in, std::int64_t dim,
                                                   quant::InverseScale inv, float zero,
                                                   std::byte* out) {
    std::int64_t const whole = inv.value > 0.0F ? dim / 32 * 32 : 0;
    __m512 const factor = _mm512_set1_ps(inv.value);
    std::uint32_t any_nan = 0;
    std::int64_t i = 0;
    for (; i + 64 <= whole; i += 64) {
      To::template fetch<64 * row_bytes>(in + i * row_bytes);
      __m512i const first = codes(in + i * row_bytes, factor, any_nan);
      To::put(out + i, bytes_of(first, codes(in + (i + 32) * row_bytes, factor, any_nan)));
    }
    if (i < whole) {
      __m512i const last = codes(in + i * row_bytes, factor, any_nan);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi16_epi8(last));
    }
    std::int64_t const done = any_nan == 0 ? whole : 0;
    if (done == dim) return;
    encode_plain<row, element>(in + done * row_bytes, dim - done, inv, zero, out + done);
  }
};
template <Element row>
struct Encode<row, Element::fp8_e4m3> : EncodeFp8<row, Element::fp8_e4m3> {};
template <Element row>
struct Encode<row, Element::fp8_e5m2> : EncodeFp8<row, Element::fp8_e5m2> {};

/// The rounding conversion gives INT32_MIN for NaN and for what is too large; packing saturates the
/// rest. A word of INT16_MIN may be any of these and sends the vector to the plain loop.
template <Element row>
struct Encode<row, Element::int8> : EncodesTo<Encode<row, Element::int8>> {
  static constexpr std::int64_t row_bytes = sizeof(typename Codec<row>::Code);

  /// In each lane of 128 bits: four of the row's first vector, then four of its second.
  [[gnu::always_inline]] static inline __m512i words(std::byte const* in, __m512 factor) {
    Row32<row> const x(in);
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x.a, factor)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(x.b, factor)));
  }
  [[gnu::always_inline]] static inline __m512i in_order(__m512i bytes) {
    if constexpr (row == Element::bf16) {
      // Even and odd numbers of a lane, then lanes of the two halves.
      __m512i const woven =
          _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(_mm_set_epi8(
                                         15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0)));
      return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), woven);
    } else {
      return _mm512_permutexvar_epi32(
          _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
    }
  }

  template <class To>
  [[gnu::always_inline]] static inline void encode(std::byte const* in, std::int64_t dim,
                                                   quant::InverseScale inv, float zero,
                                                   std::byte* out) {
    std::int64_t const whole = dim / 64 * 64;
    __m512 const factor = _mm512_set1_ps(inv.value);
    __m512i const lowest = _mm512_set1_epi8(-127);
    __m512i smallest = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < whole; i += 64) {
      To::template fetch<64 * row_bytes>(in + i * row_bytes);
      __m512i const first = words(in + i * row_bytes, factor);
      __m512i const second = words(in + (i + 32) * row_bytes, factor);
      smallest = _mm512_min_epi16(smallest, _mm512_min_epi16(first, second));
      __m512i const bytes = _mm512_max_epi8(_mm512_packs_epi16(first, second), lowest);
      To::put(out + i, in_order(bytes));
    }
    bool const is_plain = _mm512_cmpeq_epi16_mask(smallest, _mm512_set1_epi16(INT16_MIN)) != 0;
    std::int64_t const done = is_plain ? 0 : whole;
    if (done == dim) return;
    encode_plain<row, Element::int8>(in + done * row_bytes, dim - done, inv, zero, out + done);
  }
};

template <>
struct Numbers16<Element::f16> : ExistingNumbers16<1> {
  [[gnu::always_inline]] static inline __m512 at(std::byte const* in) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(in)));
  }
};
template <>
struct Numbers16<Element::bf16> : ExistingNumbers16<1> {
  [[gnu::always_inline]] static inline __m512 at(std::byte const* in) {
    __m256i const codes = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(in));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  }
};
template <>
struct Numbers16<Element::int8> : ExistingNumbers16<1> {
  [[gnu::always_inline]] static inline __m512 at(std::byte const* in) {
    __m128i const codes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(in));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
};
template <>
struct Numbers16<Element::fp8_e5m2> : ExistingNumbers16<1> {
  [[gnu::always_inline]] static inline __m512 at(std::byte const* in) {
    __m128i const codes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(in));
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  }
};
template <>
struct Numbers16<Element::fp8_e4m3> : ExistingNumbers16<256> {
  [[gnu::always_inline]] static inline __m512 at(std::byte const* in) {
    __m128i const codes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(in));
    // The sign in bits 15 and 14, the others below.
    __m256i const halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    // All ones but the sign are NaN: only they carry into bit 14.
    __m256i const carried = _mm256_add_epi16(halves, _mm256_set1_epi16(0x80));
    __m256i const exponent_bit = _mm256_set1_epi16(0x4000);
    // exponent_bit ? halves ^ carried : halves
    return _mm512_cvtph_ps(_mm256_ternarylogic_epi32(halves, carried, exponent_bit, 0x78));
  }
};

template <Element element>
struct DecodeFp8 {
  static void run(std::byte const* in, std::int64_t dim, AffineScale scale, std::byte* out) {
    using Numbers = Numbers16<element>;
    float const factor_value = scale.scale * Numbers::unit;
    bool const exact = quant::detail::is_finite(factor_value);
    std::int64_t const whole = exact ? dim / 32 * 32 : 0;
    __m512 const factor = _mm512_set1_ps(factor_value);
    std::uint32_t any_nan = 0;
    for (std::int64_t i = 0; i < whole; i += 32) {
      __m512 const a = _mm512_mul_ps(Numbers::at(in + i), factor);
      __m512 const b = _mm512_mul_ps(Numbers::at(in + i + 16), factor);
      any_nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
      _mm512_storeu_ps(out + i * 4, a);
      _mm512_storeu_ps(out + i * 4 + 64, b);
    }
    // The plain loop gives a NaN the definition's bits.
    std::int64_t const done = any_nan == 0 ? whole : 0;
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

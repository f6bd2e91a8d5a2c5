// SPDX-License-Identifier: Apache-2.0
/// \file
/// Vectors to bytes and back, many numbers at a time. The loops are the definition of
/// quant/vector_codec.hpp as the compiler vectorizes it; where it does that badly, intrinsics
/// (level_avx512.hpp) do the same. Included by kernels_level.hpp only.

PAGEDKV_NAMESPACE_BEGIN
namespace {

using cpu::tile_tokens;
using ::pagedkv::cpu::HeadTensor;
using ::pagedkv::cpu::Kernels;
using ::pagedkv::cpu::max_lanes;
using ::pagedkv::cpu::TileArgs;
using ::pagedkv::cpu::VectorsArgs;
using quant::AffineScale;
using quant::Codec;

/// A table with an entry for each element.
#define PAGEDKV_EVERY_ELEMENT(entry)                                                          \
  {                                                                                           \
    entry(Element::f32), entry(Element::f16), entry(Element::bf16), entry(Element::fp8_e4m3), \
        entry(Element::fp8_e5m2), entry(Element::int8), entry(Element::int8_asym),            \
        entry(Element::int4)                                                                  \
  }

/// A number that may lie at any address.
template <class T>
struct __attribute__((packed, may_alias)) AnyAddress {
  T value;
};
template <Element element>
using Stored = AnyAddress<typename Codec<element>::Code>;

// ---- the largest number -------------------------------------------------------------------------

/// 64 bytes of integers, at any address.
template <class T>
struct Vector64 {
  typedef T Type __attribute__((vector_size(64)));
  typedef T Anywhere __attribute__((vector_size(64), aligned(1), may_alias));
};

template <class T>
[[gnu::always_inline]] inline T largest_of(typename Vector64<T>::Type v) {
  constexpr int count = 64 / sizeof(T);
  T x[count];
  __builtin_memcpy(x, &v, sizeof x);
  for (int half = count / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  }
  return x[0];
}
#if defined(__AVX2__)
template <>
[[gnu::always_inline]] inline std::int16_t largest_of<std::int16_t>(
    typename Vector64<std::int16_t>::Type v) {
  __m256i halves[2];
  __builtin_memcpy(halves, &v, sizeof v);
  __m256i const of16 = _mm256_max_epi16(halves[0], halves[1]);
  __m128i const of8 =
      _mm_max_epi16(_mm256_castsi256_si128(of16), _mm256_extracti128_si256(of16, 1));
  // There is an instruction for the smallest of 8; none is negative.
  __m128i const all = _mm_set1_epi16(0x7FFF);
  __m128i const smallest = _mm_minpos_epu16(_mm_xor_si128(of8, all));
  return static_cast<std::int16_t>(_mm_cvtsi128_si32(smallest) ^ 0x7FFF);
}
#endif

/// Finite magnitudes order like their bits, which are never negative.
template <Element row>
[[gnu::always_inline]] inline std::uint32_t amax_bits(std::byte const* in, std::int64_t dim) {
  using Code = typename Codec<row>::Code;
  using Signed = std::conditional_t<sizeof(Code) == 2, std::int16_t, std::int32_t>;
  using V = typename Vector64<Signed>::Type;
  using Anywhere = typename Vector64<Signed>::Anywhere;
  constexpr Signed infinite = row == Element::f32   ? static_cast<Signed>(0x7F80'0000)
                              : row == Element::f16 ? static_cast<Signed>(0x7C00)
                                                    : static_cast<Signed>(0x7F80);
  constexpr Signed magnitude_bits =
      sizeof(Code) == 2 ? static_cast<Signed>(0x7FFF) : static_cast<Signed>(0x7FFF'FFFF);
  constexpr std::int64_t count = 64 / sizeof(Code);
  V largest = {};
  std::int64_t i = 0;
  for (; i + count <= dim; i += count) {
    V const bits = *reinterpret_cast<Anywhere const*>(in + i * std::int64_t{sizeof(Code)});
    V const magnitude = bits & magnitude_bits;
    V const finite = magnitude & (magnitude < infinite);
    largest = finite > largest ? finite : largest;
  }
  Signed result = largest_of<Signed>(largest);
  for (; i < dim; ++i) {
    Signed bits;
    __builtin_memcpy(&bits, in + i * std::int64_t{sizeof(Code)}, sizeof bits);
    auto const magnitude = static_cast<Signed>(bits & magnitude_bits);
    if (magnitude < infinite && magnitude > result) result = magnitude;
  }
  return static_cast<std::uint32_t>(result);
}
template <Element row>
[[gnu::always_inline]] inline float amax_of(std::byte const* in, std::int64_t dim) {
  std::uint32_t const bits = amax_bits<row>(in, dim);
  if constexpr (row == Element::f32) {
    return quant::detail::float_of(bits);
  } else {
    return Codec<row>::decode(static_cast<std::uint16_t>(bits));
  }
}

/// Floats as integers of the same order (-0 below 0).
[[gnu::always_inline]] inline std::int32_t ordered(float x) {
  auto const bits = static_cast<std::int32_t>(quant::detail::bits_of(x));
  return bits ^ ((bits >> 31) & 0x7FFF'FFFF);
}
[[gnu::always_inline]] inline float from_ordered(std::int32_t n) {
  return quant::detail::float_of(static_cast<std::uint32_t>(n ^ ((n >> 31) & 0x7FFF'FFFF)));
}

template <Element row>
[[gnu::always_inline]] inline quant::FiniteRange range_of(std::byte const* in, std::int64_t dim) {
  auto const* const x = reinterpret_cast<Stored<row> const*>(in);
  std::int32_t low = INT32_MAX;
  std::int32_t high = INT32_MIN;
  for (std::int64_t i = 0; i < dim; ++i) {
    float const number = Codec<row>::decode(x[i].value);
    bool const finite = quant::detail::is_finite(number);
    std::int32_t const n = ordered(number);
    std::int32_t const for_low = finite ? n : INT32_MAX;
    std::int32_t const for_high = finite ? n : INT32_MIN;
    low = for_low < low ? for_low : low;
    high = for_high > high ? for_high : high;
  }
  if (low > high) return {};
  return {from_ordered(low) + 0.0F, from_ordered(high) + 0.0F};
}

template <Element row, Element element>
[[gnu::always_inline]] inline AffineScale scale_of(std::byte const* in, std::int64_t dim) {
  if constexpr (quant::is_unscaled(element)) {
    return {1.0F, 0.0F};
  } else if constexpr (quant::has_zero(element)) {
    quant::FiniteRange const range = range_of<row>(in, dim);
    return quant::dynamic_affine_scale(element, range.low, range.high);
  } else {
    return {quant::dynamic_scale(element, amax_of<row>(in, dim)).value, 0.0F};
  }
}

// ---- one vector ---------------------------------------------------------------------------------

template <Element row, Element element>
[[gnu::always_inline]] inline void encode_plain(std::byte const* __restrict in, std::int64_t dim,
                                                quant::InverseScale inv, float zero,
                                                std::byte* __restrict out) {
  auto const* const x = reinterpret_cast<Stored<row> const*>(in);
  if constexpr (element == Element::int4) {
    auto* const codes = reinterpret_cast<std::uint8_t*>(out);
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      auto const low = quant::encode_number<element>(Codec<row>::decode(x[2 * i].value), inv, zero);
      auto const high =
          quant::encode_number<element>(Codec<row>::decode(x[2 * i + 1].value), inv, zero);
      codes[i] = quant::pack_int4(low, high);
    }
    if (dim % 2 != 0) {
      codes[dim / 2] =
          quant::encode_number<element>(Codec<row>::decode(x[dim - 1].value), inv, zero);
    }
  } else {
    auto* const codes = reinterpret_cast<Stored<element>*>(out);
    for (std::int64_t i = 0; i < dim; ++i) {
      codes[i].value = quant::encode_number<element>(Codec<row>::decode(x[i].value), inv, zero);
    }
  }
}

template <Element element, Element row>
[[gnu::always_inline]] inline void decode_plain(std::byte const* __restrict in, std::int64_t dim,
                                                AffineScale scale, std::byte* __restrict out) {
  auto* const x = reinterpret_cast<Stored<row>*>(out);
  if constexpr (element == Element::int4) {
    auto const* const codes = reinterpret_cast<std::uint8_t const*>(in);
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      std::uint8_t const code = codes[i];
      x[2 * i].value = Codec<row>::encode(
          quant::decode_number<element>(static_cast<std::uint8_t>(code & 0xFU), scale));
      x[2 * i + 1].value = Codec<row>::encode(
          quant::decode_number<element>(static_cast<std::uint8_t>(code >> 4), scale));
    }
    if (dim % 2 != 0) {
      auto const code = static_cast<std::uint8_t>(codes[dim / 2] & 0xFU);
      x[dim - 1].value = Codec<row>::encode(quant::decode_number<element>(code, scale));
    }
  } else {
    auto const* const codes = reinterpret_cast<Stored<element> const*>(in);
    for (std::int64_t i = 0; i < dim; ++i) {
      x[i].value = Codec<row>::encode(quant::decode_number<element>(codes[i].value, scale));
    }
  }
}

/// What encodes a vector at this level.
template <Element row, Element element>
struct Encode {
  static void run(std::byte const* in, std::int64_t dim, quant::InverseScale inv, float zero,
                  std::byte* out) {
    encode_plain<row, element>(in, dim, inv, zero, out);
  }
};
template <Element element, Element row>
struct Decode {
  static void run(std::byte const* in, std::int64_t dim, AffineScale scale, std::byte* out) {
    decode_plain<element, row>(in, dim, scale, out);
  }
};

/// 16 stored numbers in a register, as floats of 1 / `unit` of what they read as with a scale of 1.
/// Only where a level has the instructions.
template <Element element>
struct Numbers16 {
  static constexpr bool exists = false;
};
template <int unit_value>
struct ExistingNumbers16 {
  static constexpr bool exists = true;
  static constexpr float unit = unit_value;
};

}  // namespace
PAGEDKV_NAMESPACE_END

#if defined(__AVX512F__)
#include "level_avx512.hpp"
#elif defined(__AVX2__)
#include "level_avx2.hpp"
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace {

// ---- many vectors -------------------------------------------------------------------------------

template <class Visit>
[[gnu::always_inline]] inline void for_each_vector(VectorsArgs const& a, Visit visit) {
  for (std::int64_t t = 0; t < a.num_tokens; ++t) {
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      visit(a.in + t * a.in_token_stride + h * a.in_head_stride,
            a.out + t * a.out_token_stride + h * a.out_head_stride,
            a.scales + t * a.scale_token_stride + h * a.scale_head_stride);
    }
  }
}

/// Vectors that share a scale (or have none) and lie side by side on both sides are one long
/// vector. Not int4: its vectors are padded and have scales of their own.
[[gnu::always_inline]] inline VectorsArgs joined(VectorsArgs a, std::int64_t in_bytes,
                                                 std::int64_t out_bytes) {
  bool const same_head = a.scale_head_stride == 0;
  if (same_head && a.in_head_stride == a.dim * in_bytes && a.out_head_stride == a.dim * out_bytes) {
    a.dim *= a.num_heads;
    a.num_heads = 1;
    if (a.scale_token_stride == 0 && a.in_token_stride == a.dim * in_bytes &&
        a.out_token_stride == a.dim * out_bytes) {
      a.dim *= a.num_tokens;
      a.num_tokens = 1;
    }
  }
  return a;
}

/// `stream` is where a level has it and the line begins with `out`.
template <Element row, Element element>
[[gnu::always_inline]] inline void encode(bool streams, std::byte const* in, std::int64_t dim,
                                          quant::InverseScale inv, float zero, std::byte* out) {
  if constexpr (requires { Encode<row, element>::stream(in, dim, inv, zero, out); }) {
    if (streams && reinterpret_cast<std::uintptr_t>(out) % 64 == 0) {
      return Encode<row, element>::stream(in, dim, inv, zero, out);
    }
  }
  Encode<row, element>::run(in, dim, inv, zero, out);
}

template <Element row, Element element>
void store(VectorsArgs const& args) {
  VectorsArgs const a =
      joined(args, sizeof(typename Codec<row>::Code), sizeof(typename Codec<element>::Code));
  for_each_vector(a, [&](std::byte const* in, std::byte* out, float const* scale) {
    float const value = quant::is_unscaled(element) ? 1.0F : *scale;
    encode<row, element>(a.streams, in, a.dim, quant::inverse({value}), 0.0F, out);
  });
}

/// Symmetric: the scales of some heads first, so that their chains of a maximum and a division
/// overlap.
template <Element row, Element element>
[[gnu::always_inline]] inline void store_symmetric(VectorsArgs const& a) {
  constexpr std::int64_t at_once = 8;
  for (std::int64_t t = 0; t < a.num_tokens; ++t) {
    for (std::int64_t first = 0; first < a.num_heads; first += at_once) {
      std::int64_t const left = a.num_heads - first;
      std::int64_t const count = left < at_once ? left : at_once;
      std::byte const* const in = a.in + t * a.in_token_stride + first * a.in_head_stride;
      std::byte* const out = a.out + t * a.out_token_stride + first * a.out_head_stride;
      float* const scales = a.scales + t * a.scale_token_stride + first * a.scale_head_stride;
      quant::InverseScale inv[at_once];
      for (std::int64_t h = 0; h < count; ++h) {
        // quant::dynamic_scale with one division.
        float const amax = amax_of<row>(in + h * a.in_head_stride, a.dim);
        float const scale = amax * (1.0F / quant::largest_code(element));
        inv[h] = quant::inverse({scale});
        scales[h * a.scale_head_stride] = inv[h].value == 0.0F ? 0.0F : scale;
      }
      for (std::int64_t h = 0; h < count; ++h) {
        encode<row, element>(a.streams, in + h * a.in_head_stride, a.dim, inv[h], 0.0F,
                             out + h * a.out_head_stride);
      }
    }
  }
}

template <Element row, Element element>
void store_dynamic(VectorsArgs const& a) {
  if constexpr (!quant::is_unscaled(element) && !quant::has_zero(element)) {
    store_symmetric<row, element>(a);
  } else {
    for_each_vector(a, [&](std::byte const* in, std::byte* out, float* scale) {
      AffineScale const made = scale_of<row, element>(in, a.dim);
      scale[0] = made.scale;
      if constexpr (quant::has_zero(element)) scale[1] = made.zero;
      Encode<row, element>::run(in, a.dim, quant::inverse({made.scale}), made.zero, out);
    });
  }
}

template <Element element, Element row>
void load(VectorsArgs const& args) {
  VectorsArgs a = args;
  if constexpr (element != Element::int4) {
    a = joined(args, sizeof(typename Codec<element>::Code), sizeof(typename Codec<row>::Code));
  }
  for_each_vector(a, [&](std::byte const* in, std::byte* out, float const* scale) {
    AffineScale s{1.0F, 0.0F};
    if constexpr (!quant::is_unscaled(element)) s.scale = scale[0];
    if constexpr (quant::has_zero(element)) s.zero = scale[1];
    Decode<element, row>::run(in, a.dim, s, out);
  });
}

template <Element row>
float amax(VectorsArgs const& a) {
  float largest = 0.0F;
  for_each_vector(a, [&](std::byte const* in, std::byte*, float const*) {
    float const x = amax_of<row>(in, a.dim);
    largest = x > largest ? x : largest;
  });
  return largest;
}

template <Element element>
void requantize(VectorsArgs const& a, float before, float after) {
  for_each_vector(a, [&](std::byte const*, std::byte* out, float const*) {
    auto* const codes = reinterpret_cast<std::uint8_t*>(out);
    for (std::int64_t i = 0; i < a.dim; ++i) {
      codes[i] = quant::requantize<element>(codes[i], {before}, {after});
    }
  });
}

}  // namespace
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Sixteen neighbouring elements of a vector, which is what a thread works on: their bits in
/// registers, their codes, what they read as, and what a dynamic scale is made of. Bit for bit what
/// `quant/` defines.
#pragma once

#include <cstdint>

#include <pagedkv/data/cuda/convert.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/quant/vector_codec.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

using quant::AffineScale;
using quant::InverseScale;
using quant::detail::bits_of;
using quant::detail::float_of;

template <Element element>
inline constexpr bool is_fp8 = element == Element::fp8_e4m3 || element == Element::fp8_e5m2;
template <Element element>
inline constexpr bool is_row =
    element == Element::f32 || element == Element::f16 || element == Element::bf16;
template <Element element>
inline constexpr std::int32_t bits_of_element = bits_per_element(element);

/// Two codes, `low`'s in the low byte.
template <Element element>
PAGEDKV_DEVICE std::uint32_t encode_fp8_pair(float low, float high) {
  return element == Element::fp8_e4m3 ? pack_e4m3(low, high) : pack_e5m2(low, high);
}
template <Element element>
PAGEDKV_DEVICE float2 decode_fp8_pair(std::uint32_t pair) {
  return element == Element::fp8_e4m3 ? unpack_e4m3(pair) : unpack_e5m2(pair);
}

/// Signalling NaN become quiet, all else stays: a 16-bit float through f32 and back, two at once.
template <Element element>
PAGEDKV_DEVICE std::uint32_t quiet_pair(std::uint32_t pair) {
  constexpr std::uint32_t infinity = element == Element::f16 ? 0x7C00U : 0x7F80U;
  constexpr std::uint32_t quiet = element == Element::f16 ? 0x0200U : 0x0040U;
  std::uint32_t const low = (pair & 0x7FFFU) > infinity ? quiet : 0U;
  std::uint32_t const high = ((pair >> 16) & 0x7FFFU) > infinity ? quiet << 16 : 0U;
  return pair | low | high;
}

// ---- sixteen elements ---------------------------------------------------------------------------

/// What a thread works on: so many neighbouring elements of a vector.
inline constexpr std::int32_t chunk_elements = 16;

/// Their bits, in the order of memory.
template <Element element>
struct Chunk {
  static constexpr std::int32_t num_words = bits_of_element<element> / 2;
  std::uint32_t words[num_words];
};

/// Elements i and i + 1 (i even), as `quant/` decodes them but for the bits of a NaN.
template <Element element>
PAGEDKV_DEVICE float2 row_pair(Chunk<element> const& chunk, std::int32_t i) {
  static_assert(is_row<element>);
  if constexpr (element == Element::f32) {
    return make_float2(float_of(chunk.words[i]), float_of(chunk.words[i + 1]));
  } else if constexpr (element == Element::f16) {
    return unpack_f16(chunk.words[i / 2]);
  } else {
    return unpack_bf16(chunk.words[i / 2]);
  }
}

/// The code of one number as unsigned bits.
template <Element out>
PAGEDKV_DEVICE std::uint32_t code_of(float x, InverseScale inverse, float zero) {
  return static_cast<std::uint8_t>(quant::encode_number<out>(x, inverse, zero));
}

/// 16 codes of a scaled element.
template <Element in, Element out>
PAGEDKV_DEVICE void encode_scaled(Chunk<in> const& x, InverseScale inverse, float zero,
                                  Chunk<out>& codes) {
  constexpr std::int32_t per_word = 32 / bits_of_element<out>;
  PAGEDKV_UNROLL_ALL
  for (std::int32_t w = 0; w < Chunk<out>::num_words; ++w) {
    std::uint32_t word = 0;
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < per_word; i += 2) {
      float2 const pair = row_pair(x, w * per_word + i);
      if constexpr (is_fp8<out>) {
        word |= encode_fp8_pair<out>(quant::detail::product(pair.x, inverse.value),
                                     quant::detail::product(pair.y, inverse.value))
                << (8 * i);
      } else {
        constexpr std::int32_t bits = bits_of_element<out>;
        word |= code_of<out>(pair.x, inverse, zero) << (bits * i);
        word |= code_of<out>(pair.y, inverse, zero) << (bits * (i + 1));
      }
    }
    codes.words[w] = word;
  }
}

/// 16 numbers of an element without scales. Unlike `row_pair`, exact for NaN too: they are stored.
template <Element in, Element out>
PAGEDKV_DEVICE void encode_unscaled(Chunk<in> const& x, Chunk<out>& codes) {
  static_assert(is_row<out>);
  PAGEDKV_UNROLL_ALL
  for (std::int32_t w = 0; w < Chunk<out>::num_words; ++w) {
    if constexpr (in == out && out == Element::f32) {
      codes.words[w] = x.words[w];
    } else if constexpr (in == out) {
      codes.words[w] = quiet_pair<out>(x.words[w]);
    } else if constexpr (out == Element::f32) {
      auto const half = static_cast<std::uint16_t>(x.words[w / 2] >> (w % 2 * 16));
      codes.words[w] = bits_of(quant::Codec<in>::decode(half));
    } else if constexpr (in == Element::f32) {
      using Code = quant::Codec<out>;
      codes.words[w] = std::uint32_t{Code::encode(float_of(x.words[2 * w]))} |
                       std::uint32_t{Code::encode(float_of(x.words[2 * w + 1]))} << 16;
    } else {
      auto const low = static_cast<std::uint16_t>(x.words[w] & 0xFFFFU);
      auto const high = static_cast<std::uint16_t>(x.words[w] >> 16);
      codes.words[w] = std::uint32_t{quant::Codec<out>::encode(quant::Codec<in>::decode(low))} |
                       std::uint32_t{quant::Codec<out>::encode(quant::Codec<in>::decode(high))}
                           << 16;
    }
  }
}

template <Element in, Element out>
PAGEDKV_DEVICE void encode_chunk(Chunk<in> const& x, InverseScale inverse, float zero,
                                 Chunk<out>& codes) {
  if constexpr (quant::is_unscaled(out)) {
    encode_unscaled<in, out>(x, codes);
  } else {
    encode_scaled<in, out>(x, inverse, zero, codes);
  }
}

/// Two 16-bit numbers of a gather, the low half first.
template <Element out>
PAGEDKV_DEVICE std::uint32_t narrow_pair(float low, float high) {
  return out == Element::f16 ? pack_f16(low, high) : pack_bf16(low, high);
}

/// Elements i and i + 1 (i even) of the codes in `words`, read with their scale.
template <Element in>
PAGEDKV_DEVICE float2 pair_of_words(std::uint32_t const* words, std::int32_t i, AffineScale scale) {
  constexpr std::int32_t bits = bits_of_element<in>;
  std::uint32_t const word = words[i * bits / 32] >> (i * bits % 32);
  if constexpr (in == Element::f32) {
    return make_float2(float_of(words[i]), float_of(words[i + 1]));
  } else if constexpr (in == Element::f16) {
    return unpack_f16(word);
  } else if constexpr (in == Element::bf16) {
    return unpack_bf16(word);
  } else if constexpr (is_fp8<in>) {
    float2 const pair = decode_fp8_pair<in>(word & 0xFFFFU);
    return make_float2(quant::detail::product(pair.x, scale.scale),
                       quant::detail::product(pair.y, scale.scale));
  } else {
    using Code = typename quant::Codec<in>::Code;
    constexpr std::uint32_t mask = (1U << bits) - 1;
    return make_float2(quant::decode_number<in>(static_cast<Code>(word & mask), scale),
                       quant::decode_number<in>(static_cast<Code>((word >> bits) & mask), scale));
  }
}
template <Element in>
PAGEDKV_DEVICE float2 numbers_at(Chunk<in> const& codes, std::int32_t i, AffineScale scale) {
  return pair_of_words<in>(codes.words, i, scale);
}

template <Element in, Element out>
PAGEDKV_DEVICE void decode_chunk(Chunk<in> const& codes, AffineScale scale, Chunk<out>& x) {
  static_assert(is_row<out>);
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < chunk_elements; i += 2) {
    if constexpr (in == out) {
      if constexpr (in == Element::f32) x.words[i + 1] = codes.words[i + 1];
      x.words[in == Element::f32 ? i : i / 2] = codes.words[in == Element::f32 ? i : i / 2];
    } else {
      float2 const pair = numbers_at(codes, i, scale);
      if constexpr (out == Element::f32) {
        x.words[i] = bits_of(pair.x);
        x.words[i + 1] = bits_of(pair.y);
      } else {
        x.words[i / 2] = narrow_pair<out>(pair.x, pair.y);
      }
    }
  }
}

// ---- dynamic scales -----------------------------------------------------------------------------

/// The largest finite magnitude of a vector, of one lane and then of several.
struct Amax {
  std::uint32_t bits = 0;  ///< their order is that of the magnitudes

  PAGEDKV_DEVICE void add(float x) {
    std::uint32_t const magnitude = bits_of(x) & 0x7FFF'FFFFU;
    std::uint32_t const finite = magnitude < 0x7F80'0000U ? magnitude : 0U;
    bits = finite > bits ? finite : bits;
  }
  /// With the lane whose number differs in `distance`. All lanes of the warp call it.
  PAGEDKV_DEVICE void join(std::int32_t distance) {
    std::uint32_t const other = __shfl_xor_sync(all_lanes, bits, distance);
    bits = other > bits ? other : bits;
  }
  [[nodiscard]] PAGEDKV_DEVICE float value() const { return float_of(bits); }
  [[nodiscard]] PAGEDKV_DEVICE AffineScale scale(Element element) const {
    return {quant::dynamic_scale(element, value()).value, 0.0F};
  }
};

/// Where the finite numbers of a vector lie. Without any: low is infinite and above high.
struct Range {
  float low = float_of(0x7F80'0000U);
  float high = float_of(0xFF80'0000U);

  PAGEDKV_DEVICE void add(float x) {
    bool const counts = quant::detail::is_finite(x);
    low = counts && x < low ? x : low;
    high = counts && x > high ? x : high;
  }
  PAGEDKV_DEVICE void join(std::int32_t distance) {
    float const other_low = __shfl_xor_sync(all_lanes, low, distance);
    float const other_high = __shfl_xor_sync(all_lanes, high, distance);
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  /// Zeros lose their sign, as `quant::finite_range` wants it.
  [[nodiscard]] PAGEDKV_DEVICE AffineScale scale(Element element) const {
    bool const any = low <= high;
    return quant::dynamic_affine_scale(element, any ? low + 0.0F : 0.0F, any ? high + 0.0F : 0.0F);
  }
};

template <Element in, class Found>
PAGEDKV_DEVICE void add_chunk(Chunk<in> const& x, Found& found) {
  PAGEDKV_UNROLL_ALL
  for (std::int32_t i = 0; i < chunk_elements; i += 2) {
    float2 const pair = row_pair(x, i);
    found.add(pair.x);
    found.add(pair.y);
  }
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

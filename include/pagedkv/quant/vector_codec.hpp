// SPDX-License-Identifier: Apache-2.0
/// \file
/// One vector (the `head_dim` numbers of a token's head) to and from its stored bytes, one number
/// after the other: the definition of scale.hpp applied, and what every faster version must equal
/// bit for bit.
///
///     dynamic (per_token_head):  scale = vector_scale(element, x, dim)
///     static:                    scale = {the layer's, 0}
///     encode_vector(element, scale, x, dim, bytes);    bytes_per_vector(element, dim) of them
///     decode_vector(element, scale, bytes, dim, x);
///
///     per_block_head, when the block's maximum has grown:
///     requantize_vector(element, before, after, dim, bytes)
///
/// An infinity times an inverse of 0 is NaN and is stored as such (fp8: 0x7F; integers: 0): a
/// vector of zeros and infinities says so where the element can.
///
/// Bytes may lie anywhere: nothing is assumed to be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/float_bits.hpp>
#include <pagedkv/quant/fp8.hpp>
#include <pagedkv/quant/half.hpp>
#include <pagedkv/quant/int4.hpp>
#include <pagedkv/quant/int8.hpp>
#include <pagedkv/quant/scale.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

/// The finite numbers of a vector lie in low .. high; both are 0 if there is none.
struct FiniteRange {
  float low = 0.0F;
  float high = 0.0F;
};

/// The largest finite magnitude; 0 if there is none. O(n).
[[nodiscard]] PAGEDKV_HD constexpr float amax(float const* x, std::int64_t n) noexcept {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < n; ++i) {
    float const magnitude = detail::is_finite(x[i]) ? detail::abs_of(x[i]) : 0.0F;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// O(n). A zero has no sign here: low and high are never -0.
[[nodiscard]] PAGEDKV_HD constexpr FiniteRange finite_range(float const* x,
                                                            std::int64_t n) noexcept {
  FiniteRange range{};
  bool any = false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!detail::is_finite(x[i])) continue;
    range.low = !any || x[i] < range.low ? x[i] : range.low;
    range.high = !any || x[i] > range.high ? x[i] : range.high;
    any = true;
  }
  return {range.low + 0.0F, range.high + 0.0F};
}

/// Whether a zero is stored beside the scale.
[[nodiscard]] PAGEDKV_HD constexpr bool has_zero(Element element) noexcept {
  return element == Element::int8_asym || element == Element::int4;
}
/// Whether the element is stored without a scale.
[[nodiscard]] PAGEDKV_HD constexpr bool is_unscaled(Element element) noexcept {
  return element == Element::f32 || element == Element::f16 || element == Element::bf16;
}

/// The dynamic scale of a vector (and its zero; 0 for elements that have none). 16 and 32 bit
/// elements: {1, 0}. O(dim).
[[nodiscard]] PAGEDKV_HD constexpr AffineScale vector_scale(Element element, float const* x,
                                                            std::int32_t dim) noexcept {
  if (is_unscaled(element)) return {1.0F, 0.0F};
  if (!has_zero(element)) return {dynamic_scale(element, amax(x, dim)).value, 0.0F};
  FiniteRange const range = finite_range(x, dim);
  return dynamic_affine_scale(element, range.low, range.high);
}

/// How one number of an element is stored: `Code`, `encode(p)`, `decode(code)`, p being what
/// scale.hpp calls rn(x * inv). `int4`'s codes are not packed here.
template <Element element>
struct Codec;

template <>
struct Codec<Element::f32> {
  using Code = float;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return p; }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept { return code; }
};
template <>
struct Codec<Element::f16> {
  using Code = std::uint16_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_f16(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_f16(code);
  }
};
template <>
struct Codec<Element::bf16> {
  using Code = std::uint16_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_bf16(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_bf16(code);
  }
};
template <>
struct Codec<Element::fp8_e4m3> {
  using Code = std::uint8_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_e4m3(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_e4m3(code);
  }
};
template <>
struct Codec<Element::fp8_e5m2> {
  using Code = std::uint8_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_e5m2(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_e5m2(code);
  }
};
template <>
struct Codec<Element::int8> {
  using Code = std::int8_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_int8(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_int8(code);
  }
};
template <>
struct Codec<Element::int8_asym> {
  using Code = std::uint8_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept {
    return encode_uint8(p);
  }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return decode_uint8(code);
  }
};
template <>
struct Codec<Element::int4> {
  using Code = std::uint8_t;
  [[nodiscard]] PAGEDKV_HD static constexpr Code encode(float p) noexcept { return encode_int4(p); }
  [[nodiscard]] PAGEDKV_HD static constexpr float decode(Code code) noexcept {
    return static_cast<float>(code);
  }
};

/// The code of one number: encode(rn(rn(x - zero) * inv)), without the steps an element hasn't.
template <Element element>
[[nodiscard]] PAGEDKV_HD constexpr typename Codec<element>::Code encode_number(
    float x, InverseScale inv, float zero) noexcept {
  if constexpr (is_unscaled(element)) {
    return Codec<element>::encode(x);
  } else if constexpr (has_zero(element)) {
    return Codec<element>::encode(detail::product(x - zero, inv.value));
  } else {
    return Codec<element>::encode(detail::product(x, inv.value));
  }
}
/// What a code reads as: rn(rn(decode(code) * scale) + zero), without the steps an element hasn't.
template <Element element>
[[nodiscard]] PAGEDKV_HD constexpr float decode_number(typename Codec<element>::Code code,
                                                       AffineScale scale) noexcept {
  float const number = Codec<element>::decode(code);
  if constexpr (is_unscaled(element)) {
    return number;
  } else if constexpr (has_zero(element)) {
    return detail::product(number, scale.scale) + scale.zero;
  } else {
    return detail::product(number, scale.scale);
  }
}

/// The vector of one element type known at compile time. `encode` and `decode` are O(dim) and touch
/// exactly bytes_per_vector(element, dim) bytes.
template <Element element>
struct VectorCodec {
  using Code = typename Codec<element>::Code;

  PAGEDKV_HD static void encode(AffineScale scale, float const* x, std::int32_t dim,
                                std::byte* bytes) noexcept {
    InverseScale const inv = inverse(Scale{scale.scale});
    for (std::int32_t i = 0; i < dim; ++i) {
      Code const code = encode_number<element>(x[i], inv, scale.zero);
      std::memcpy(bytes + static_cast<std::size_t>(i) * sizeof(Code), &code, sizeof(Code));
    }
  }
  PAGEDKV_HD static void decode(AffineScale scale, std::byte const* bytes, std::int32_t dim,
                                float* x) noexcept {
    for (std::int32_t i = 0; i < dim; ++i) {
      Code code{};
      std::memcpy(&code, bytes + static_cast<std::size_t>(i) * sizeof(Code), sizeof(Code));
      x[i] = decode_number<element>(code, scale);
    }
  }
};

/// Two numbers in a byte.
template <>
struct VectorCodec<Element::int4> {
  PAGEDKV_HD static void encode(AffineScale scale, float const* x, std::int32_t dim,
                                std::byte* bytes) noexcept {
    InverseScale const inv = inverse(Scale{scale.scale});
    for (std::int32_t i = 0; i < dim; i += 2) {
      std::uint8_t const low = encode_number<Element::int4>(x[i], inv, scale.zero);
      std::uint8_t const high =
          i + 1 < dim ? encode_number<Element::int4>(x[i + 1], inv, scale.zero) : std::uint8_t{0};
      bytes[i / 2] = static_cast<std::byte>(pack_int4(low, high));
    }
  }
  PAGEDKV_HD static void decode(AffineScale scale, std::byte const* bytes, std::int32_t dim,
                                float* x) noexcept {
    auto const* const codes = reinterpret_cast<std::uint8_t const*>(bytes);
    for (std::int32_t i = 0; i < dim; ++i) {
      x[i] = decode_number<Element::int4>(unpack_int4(codes, i), scale);
    }
  }
};

/// Stores x: [dim]. Writes bytes_per_vector(element, dim) bytes. `scale` is the dynamic one of
/// `vector_scale`, or {a static one, 0}; 16 and 32 bit elements don't look at it.
PAGEDKV_HD inline void encode_vector(Element element, AffineScale scale, float const* x,
                                     std::int32_t dim, std::byte* bytes) noexcept {
  switch (element) {
    case Element::f32: return VectorCodec<Element::f32>::encode(scale, x, dim, bytes);
    case Element::f16: return VectorCodec<Element::f16>::encode(scale, x, dim, bytes);
    case Element::bf16: return VectorCodec<Element::bf16>::encode(scale, x, dim, bytes);
    case Element::fp8_e4m3: return VectorCodec<Element::fp8_e4m3>::encode(scale, x, dim, bytes);
    case Element::fp8_e5m2: return VectorCodec<Element::fp8_e5m2>::encode(scale, x, dim, bytes);
    case Element::int8: return VectorCodec<Element::int8>::encode(scale, x, dim, bytes);
    case Element::int8_asym: return VectorCodec<Element::int8_asym>::encode(scale, x, dim, bytes);
    case Element::int4: return VectorCodec<Element::int4>::encode(scale, x, dim, bytes);
  }
}

/// Reads what `encode_vector` stored with the same scale. x: [dim].
PAGEDKV_HD inline void decode_vector(Element element, AffineScale scale, std::byte const* bytes,
                                     std::int32_t dim, float* x) noexcept {
  switch (element) {
    case Element::f32: return VectorCodec<Element::f32>::decode(scale, bytes, dim, x);
    case Element::f16: return VectorCodec<Element::f16>::decode(scale, bytes, dim, x);
    case Element::bf16: return VectorCodec<Element::bf16>::decode(scale, bytes, dim, x);
    case Element::fp8_e4m3: return VectorCodec<Element::fp8_e4m3>::decode(scale, bytes, dim, x);
    case Element::fp8_e5m2: return VectorCodec<Element::fp8_e5m2>::decode(scale, bytes, dim, x);
    case Element::int8: return VectorCodec<Element::int8>::decode(scale, bytes, dim, x);
    case Element::int8_asym: return VectorCodec<Element::int8_asym>::decode(scale, bytes, dim, x);
    case Element::int4: return VectorCodec<Element::int4>::decode(scale, bytes, dim, x);
  }
}

/// The code that stands for the same number under another scale: encode(rn(read * inv(after))).
/// NaN stays NaN. Between powers of two only codes at the subnormal edge lose bits.
template <Element element>
[[nodiscard]] PAGEDKV_HD constexpr std::uint8_t requantize(std::uint8_t code, Scale before,
                                                           Scale after) noexcept {
  static_assert(element == Element::fp8_e4m3 || element == Element::fp8_e5m2);
  float const read = decode_number<element>(code, {before.value, 0.0F});
  return encode_number<element>(read, inverse(after), 0.0F);
}

/// `per_block_head`: rewrites a stored vector for the block's new scale, `after` >= `before`.
/// O(dim). Requires: element is fp8.
PAGEDKV_HD inline void requantize_vector(Element element, Scale before, Scale after,
                                         std::int32_t dim, std::byte* bytes) noexcept {
  for (std::int32_t i = 0; i < dim; ++i) {
    auto const code = static_cast<std::uint8_t>(bytes[i]);
    bytes[i] = static_cast<std::byte>(element == Element::fp8_e4m3
                                          ? requantize<Element::fp8_e4m3>(code, before, after)
                                          : requantize<Element::fp8_e5m2>(code, before, after));
  }
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// How K and V are stored: an element type and how far one scale reaches.
///
/// | element            | granularity, coarsest first                              |
/// |--------------------|----------------------------------------------------------|
/// | f32, f16, bf16     | none                                                     |
/// | fp8_e4m3, fp8_e5m2 | per_tensor, per_head, per_token_head, per_block_head     |
/// | int8               | per_tensor, per_head, per_token_head                     |
/// | int8_asym, int4    | per_token_head                                           |
///
/// `per_tensor` and `per_head` are static, the others dynamic.
///
/// A static scale is calibrated once and belongs to the layer; its bytes don't grow with tokens.
/// All others are stored beside the block they describe. Scales are f32; `int8_asym` and `int4`
/// carry a scale and a zero, both f32.
///
/// As text: `element` or `element/granularity`, e.g. `bf16`, `fp8_e4m3/per_token_head`. The element
/// alone means the coarsest granularity it takes (the first of its row above).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// The type of one stored number.
enum class Element : std::uint8_t { f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int8_asym, int4 };

/// How many stored numbers share one scale.
enum class Granularity : std::uint8_t {
  none,            ///< 16 and 32 bit elements need no scale
  per_tensor,      ///< static: one for K and one for V of a layer
  per_head,        ///< static: one for each KV head of a layer
  per_token_head,  ///< dynamic: one for each vector; never changes once written
  per_block_head,  ///< dynamic: one for each head of a block; grows with the block's maximum
};

inline constexpr std::array<Element, 8> all_elements = {
    Element::f32,      Element::f16,  Element::bf16,      Element::fp8_e4m3,
    Element::fp8_e5m2, Element::int8, Element::int8_asym, Element::int4};

inline constexpr std::array<Granularity, 5> all_granularities = {
    Granularity::none, Granularity::per_tensor, Granularity::per_head, Granularity::per_token_head,
    Granularity::per_block_head};

/// Bytes of one scale, and of one zero.
inline constexpr std::int64_t bytes_per_scale = 4;

/// The enumerator's name, e.g. "fp8_e4m3".
[[nodiscard]] constexpr char const* to_string(Element element) noexcept {
  switch (element) {
    case Element::f32: return "f32";
    case Element::f16: return "f16";
    case Element::bf16: return "bf16";
    case Element::fp8_e4m3: return "fp8_e4m3";
    case Element::fp8_e5m2: return "fp8_e5m2";
    case Element::int8: return "int8";
    case Element::int8_asym: return "int8_asym";
    case Element::int4: return "int4";
  }
  return "unknown";
}

/// The enumerator's name, e.g. "per_token_head".
[[nodiscard]] constexpr char const* to_string(Granularity granularity) noexcept {
  switch (granularity) {
    case Granularity::none: return "none";
    case Granularity::per_tensor: return "per_tensor";
    case Granularity::per_head: return "per_head";
    case Granularity::per_token_head: return "per_token_head";
    case Granularity::per_block_head: return "per_block_head";
  }
  return "unknown";
}

/// The element of exactly this name, if there is one.
[[nodiscard]] constexpr std::optional<Element> parse_element(std::string_view text) noexcept {
  for (Element const element : all_elements) {
    if (text == to_string(element)) return element;
  }
  return std::nullopt;
}

/// The granularity of exactly this name, if there is one.
[[nodiscard]] constexpr std::optional<Granularity> parse_granularity(
    std::string_view text) noexcept {
  for (Granularity const granularity : all_granularities) {
    if (text == to_string(granularity)) return granularity;
  }
  return std::nullopt;
}

/// 32, 16, 8 or 4.
[[nodiscard]] constexpr std::int32_t bits_per_element(Element element) noexcept {
  switch (element) {
    case Element::f32: return 32;
    case Element::f16:
    case Element::bf16: return 16;
    case Element::int4: return 4;
    default: return 8;
  }
}

namespace detail {
inline constexpr std::array<Granularity, 1> unscaled = {Granularity::none};
inline constexpr std::array<Granularity, 4> fp8_scaled = {
    Granularity::per_tensor, Granularity::per_head, Granularity::per_token_head,
    Granularity::per_block_head};
inline constexpr std::array<Granularity, 1> token_head_scaled = {Granularity::per_token_head};
}  // namespace detail

/// What an element can be combined with, coarsest first. Valid for the life of the program.
[[nodiscard]] constexpr std::span<Granularity const> granularities_of(Element element) noexcept {
  switch (element) {
    case Element::f32:
    case Element::f16:
    case Element::bf16: return detail::unscaled;
    case Element::fp8_e4m3:
    case Element::fp8_e5m2: return detail::fp8_scaled;
    case Element::int8: return std::span(detail::fp8_scaled).first(3);
    case Element::int8_asym:
    case Element::int4: return detail::token_head_scaled;
  }
  return detail::unscaled;
}

/// Element and granularity of one stored tensor.
struct KvFormat {
  Element element = Element::f16;
  Granularity granularity = Granularity::none;

  friend constexpr bool operator==(KvFormat const&, KvFormat const&) noexcept = default;
};

/// Whether the table at the top of this file has the combination.
[[nodiscard]] constexpr bool is_valid(KvFormat format) noexcept {
  for (Granularity const granularity : granularities_of(format.element)) {
    if (granularity == format.granularity) return true;
  }
  return false;
}

/// The element with the coarsest granularity it takes.
[[nodiscard]] constexpr KvFormat default_format(Element element) noexcept {
  return {element, granularities_of(element).front()};
}

/// Bytes of one vector (the `dim` numbers of one token, one head). Elements of less than a byte are
/// packed within a vector and never across two: an odd `int4` vector ends in half a byte of
/// padding.
[[nodiscard]] constexpr std::int64_t bytes_per_vector(Element element, std::int32_t dim) noexcept {
  return (std::int64_t{dim} * bits_per_element(element) + 7) / 8;
}

/// Bytes of one scale entry: a scale, or a scale and a zero.
[[nodiscard]] constexpr std::int64_t bytes_per_scale_entry(Element element) noexcept {
  bool const has_zero = element == Element::int8_asym || element == Element::int4;
  return has_zero ? 2 * bytes_per_scale : bytes_per_scale;
}

/// Scale bytes stored beside each vector; 0 unless `per_token_head`.
[[nodiscard]] constexpr std::int64_t scale_bytes_per_vector(KvFormat format) noexcept {
  return format.granularity == Granularity::per_token_head ? bytes_per_scale_entry(format.element)
                                                           : 0;
}

/// Scale bytes stored beside each head of each block; 0 unless `per_block_head`.
[[nodiscard]] constexpr std::int64_t scale_bytes_per_block_head(KvFormat format) noexcept {
  return format.granularity == Granularity::per_block_head ? bytes_per_scale_entry(format.element)
                                                           : 0;
}

/// Bytes of a layer's static scales, for `num_heads` heads, whatever the number of tokens; 0 unless
/// `per_tensor` or `per_head`.
[[nodiscard]] constexpr std::int64_t static_scale_bytes(KvFormat format,
                                                        std::int32_t num_heads) noexcept {
  if (format.granularity == Granularity::per_tensor) return bytes_per_scale_entry(format.element);
  if (format.granularity == Granularity::per_head) {
    return num_heads * bytes_per_scale_entry(format.element);
  }
  return 0;
}

/// "f16", "fp8_e4m3/per_token_head": what `parse_kv_format` reads back.
[[nodiscard]] inline std::string to_string(KvFormat format) {
  std::string text = to_string(format.element);
  if (format.granularity != Granularity::none) {
    text += '/';
    text += to_string(format.granularity);
  }
  return text;
}

/// Reads "element" or "element/granularity". Nothing if a name is unknown or the combination is not
/// in the table; `kv_format_error` then says why.
[[nodiscard]] constexpr std::optional<KvFormat> parse_kv_format(std::string_view text) noexcept {
  auto const slash = text.find('/');
  auto const element = parse_element(text.substr(0, slash));
  if (!element) return std::nullopt;
  if (slash == std::string_view::npos) return default_format(*element);
  auto const granularity = parse_granularity(text.substr(slash + 1));
  if (!granularity) return std::nullopt;
  KvFormat const format{*element, *granularity};
  return is_valid(format) ? std::optional(format) : std::nullopt;
}

namespace detail {
template <class Range>
[[nodiscard]] std::string join_names(Range const& values) {
  std::string text;
  for (auto const value : values) {
    if (!text.empty()) text += ", ";
    text += to_string(value);
  }
  return text;
}
}  // namespace detail

/// Why the combination is refused and what would be taken; empty if it is valid.
[[nodiscard]] inline std::string kv_format_error(KvFormat format) {
  if (is_valid(format)) return {};
  return std::string(to_string(format.element)) + " can't be scaled " +
         to_string(format.granularity) +
         "; it takes: " + detail::join_names(granularities_of(format.element));
}

/// Why `parse_kv_format` refuses the text and what it would take; empty if it doesn't refuse.
[[nodiscard]] inline std::string kv_format_error(std::string_view text) {
  auto const slash = text.find('/');
  auto const element = parse_element(text.substr(0, slash));
  if (!element) {
    return "unknown KV element '" + std::string(text.substr(0, slash)) +
           "'; it is one of: " + detail::join_names(all_elements);
  }
  if (slash == std::string_view::npos) return {};
  auto const granularity = parse_granularity(text.substr(slash + 1));
  if (!granularity) {
    return "unknown granularity '" + std::string(text.substr(slash + 1)) + "'; " +
           to_string(*element) + " takes: " + detail::join_names(granularities_of(*element));
  }
  return kv_format_error(KvFormat{*element, *granularity});
}

PAGEDKV_NAMESPACE_END

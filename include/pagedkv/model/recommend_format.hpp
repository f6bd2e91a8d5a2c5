// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which KV format suits a GPU, and why.
#pragma once

#include <array>
#include <compare>
#include <optional>

#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// What CUDA calls a device's compute capability: {8, 9} is 8.9.
struct ComputeCapability {
  int major = 0;
  int minor = 0;

  friend constexpr auto operator<=>(ComputeCapability const&,
                                    ComputeCapability const&) noexcept = default;
};

/// From here on the hardware converts fp8, and kernels compiled for it use that.
inline constexpr ComputeCapability first_with_fp8{8, 9};

/// A format and the reason for it, a string literal.
struct FormatAdvice {
  KvFormat format;
  char const* reason = "";
};

/// The format to start from: the fewest bytes that the device reads and writes at the speed of its
/// memory without a loss of quality that users report. It says nothing about what a given attention
/// kernel can read.
[[nodiscard]] constexpr FormatAdvice recommend_format(ComputeCapability capability) noexcept {
  if (capability >= first_with_fp8) {
    return {
        {Element::fp8_e4m3, Granularity::per_tensor},
        "the hardware converts fp8_e4m3 (compute capability 8.9, 9.0 and later): half the bytes "
        "of 16 bit at little loss; without calibrated scales take per_token_head"};
  }
  if (capability >= ComputeCapability{8, 0}) {
    return {{Element::int8, Granularity::per_token_head},
            "no fp8 conversion in hardware below compute capability 8.9, and in software it is "
            "several times slower; int8 is as small and converts natively (f16 or bf16 where "
            "quality must not change at all)"};
  }
  return {{Element::f16, Granularity::none},
          "below compute capability 8.0 neither fp8 nor bf16 exists in hardware; f16 is stored as "
          "it is computed"};
}

/// What the planner proposes when a cache is too small, from the most bytes to the fewest (at any
/// head_dim in use). The 8-bit element is one that the device converts well; fp8 if it isn't known.
[[nodiscard]] constexpr std::array<KvFormat, 4> formats_to_try(
    std::optional<ComputeCapability> capability) noexcept {
  bool const has_fp8 = !capability || *capability >= first_with_fp8;
  auto const byte = has_fp8 ? Element::fp8_e4m3 : Element::int8;
  return {KvFormat{Element::f16, Granularity::none}, KvFormat{byte, Granularity::per_token_head},
          KvFormat{byte, Granularity::per_tensor},
          KvFormat{Element::int4, Granularity::per_token_head}};
}

PAGEDKV_NAMESPACE_END

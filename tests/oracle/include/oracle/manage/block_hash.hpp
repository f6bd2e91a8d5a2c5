// SPDX-License-Identifier: Apache-2.0
/// \file
/// The block hash: 128 bits, seeded, chained. It finds candidates; equality decides (contract 5),
/// so a collision costs time and never a wrong answer.
///
///     content(tokens of block j)  --+
///     extra(extra keys of block j) -+--> chain(hash of block j - 1, content) = hash of block j
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend constexpr bool operator==(Hash128 const&, Hash128 const&) noexcept = default;
};

/// What a hash policy must offer. All functions are pure; equal inputs give equal hashes on every
/// platform (contract 15).
template <class H>
concept BlockHash = requires(std::span<TokenId const> tokens, std::span<std::byte const> bytes,
                             std::uint64_t seed, Hash128 h) {
  { H::root(seed) }
  noexcept->std::same_as<Hash128>;
  { H::content(tokens, seed) }
  noexcept->std::same_as<Hash128>;
  { H::extra(bytes, seed) }
  noexcept->std::same_as<Hash128>;
  { H::chain(h, h) }
  noexcept->std::same_as<Hash128>;
};

/// XXH3-128 of the block's own bytes, then a two-multiply mix with the parent's hash. For one
/// content the mix is a bijection of the parent's hash: no two parents merge.
struct Xxh3BlockHash {
  [[nodiscard]] static Hash128 root(std::uint64_t seed) noexcept {
    return from(XXH3_128bits_withSeed(&seed, sizeof seed, seed));
  }
  [[nodiscard]] static Hash128 content(std::span<TokenId const> tokens,
                                       std::uint64_t seed) noexcept {
    if (tokens.size() == 16) return content_of_16(tokens.data(), seed);
    return from(XXH3_128bits_withSeed(tokens.data(), tokens.size_bytes(), seed));
  }
  [[nodiscard]] static Hash128 extra(std::span<std::byte const> bytes,
                                     std::uint64_t seed) noexcept {
    return from(XXH3_128bits_withSeed(bytes.data(), bytes.size(), ~seed));
  }
  [[nodiscard]] static Hash128 chain(Hash128 parent, Hash128 content) noexcept {
    std::uint64_t low = (parent.low ^ content.low) * 0x9E3779B185EBCA87ULL;
    std::uint64_t high = parent.high ^ content.high ^ (low >> 32);
    high *= 0xC2B2AE3D27D4EB4FULL;
    low ^= high >> 32;
    return {low, high};
  }

 private:
  // The common block size: with the length known, all of XXH3's choices fold away.
#if defined(__GNUC__)
  [[gnu::flatten]]
#endif
  static Hash128
  content_of_16(TokenId const* tokens, std::uint64_t seed) noexcept {
    return from(XXH3_128bits_withSeed(tokens, 64, seed));
  }
  static Hash128 from(XXH128_hash_t h) noexcept { return {h.low64, h.high64}; }
};
static_assert(BlockHash<Xxh3BlockHash>);

PAGEDKV_ORACLE_END

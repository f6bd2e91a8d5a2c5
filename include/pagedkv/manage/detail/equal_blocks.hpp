// SPDX-License-Identifier: Apache-2.0
/// \file
/// Comparing the token ids of blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

class EqualBlocks {
 public:
  explicit EqualBlocks(std::int32_t block_tokens) noexcept
      : block_tokens_(static_cast<std::size_t>(block_tokens)) {}

  [[nodiscard]] std::size_t block_tokens() const noexcept { return block_tokens_; }
  /// Where block j of a prompt begins.
  [[nodiscard]] std::size_t at(std::int32_t j) const noexcept {
    return static_cast<std::size_t>(j) * block_tokens_;
  }
  /// `a` lies at a place.
  [[nodiscard]] bool equal_block(TokenId const* a, TokenId const* b) const noexcept {
#if defined(__SSE2__)
    // The common block size, one cache line: a third of the instructions of memcmp.
    if (block_tokens_ == 16) {
      auto const lane = [&](int i) {
        return _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<__m128i const*>(a) + i),
                               _mm_loadu_si128(reinterpret_cast<__m128i const*>(b) + i));
      };
      __m128i const equal =
          _mm_and_si128(_mm_and_si128(lane(0), lane(1)), _mm_and_si128(lane(2), lane(3)));
      return _mm_movemask_epi8(equal) == 0xFFFF;
    }
#endif
    return std::memcmp(a, b, block_tokens_ * sizeof(TokenId)) == 0;
  }
  /// Leading equal blocks of two arrays of `most`: many at once, then one by one.
  [[nodiscard]] std::int32_t equal_blocks(TokenId const* a, TokenId const* b,
                                          std::int32_t most) const noexcept {
    constexpr std::int32_t group = 64;
    std::int32_t n = 0;
    while (most - n >= 8) {
      std::int32_t const part = std::min(most - n, group);
      if (std::memcmp(a + at(n), b + at(n), at(part) * sizeof(TokenId)) != 0) break;
      n += part;
    }
    while (n < most && equal_block(a + at(n), b + at(n))) ++n;
    return n;
  }
  /// Leading equal tokens, at most a block's.
  [[nodiscard]] std::int32_t common_prefix(std::span<TokenId const> a,
                                           TokenId const* b) const noexcept {
    std::size_t n = 0;
    std::size_t const limit = std::min(a.size(), block_tokens_);
    while (n < limit && a[n] == b[n]) ++n;
    return static_cast<std::int32_t>(n);
  }

 private:
  std::size_t block_tokens_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

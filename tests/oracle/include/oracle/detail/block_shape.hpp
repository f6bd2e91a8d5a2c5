// SPDX-License-Identifier: Apache-2.0
/// \file
/// Division by block_tokens: a shift when it is a power of two, which it nearly always is.
#pragma once

#include <bit>
#include <cstdint>

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN
namespace detail {

class BlockShape {
 public:
  explicit constexpr BlockShape(std::int32_t block_tokens) noexcept
      : tokens_(block_tokens),
        shift_(std::has_single_bit(static_cast<std::uint32_t>(block_tokens))
                   ? std::countr_zero(static_cast<std::uint32_t>(block_tokens))
                   : -1) {}

  [[nodiscard]] constexpr std::int32_t tokens() const noexcept { return tokens_; }
  /// The block that position `p` falls into.
  [[nodiscard]] constexpr std::int32_t block(std::int32_t p) const noexcept {
    return shift_ >= 0 ? p >> shift_ : p / tokens_;
  }
  [[nodiscard]] constexpr std::int32_t offset(std::int32_t p) const noexcept {
    return shift_ >= 0 ? p & (tokens_ - 1) : p % tokens_;
  }
  /// Blocks needed by `n` positions; equals `blocks_for(n, tokens())`.
  [[nodiscard]] constexpr std::int32_t blocks(std::int32_t n) const noexcept {
    return block(n) + (offset(n) != 0 ? 1 : 0);
  }

 private:
  std::int32_t tokens_;
  std::int32_t shift_;
};

}  // namespace detail
PAGEDKV_ORACLE_END

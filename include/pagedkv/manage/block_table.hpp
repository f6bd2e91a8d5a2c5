// SPDX-License-Identifier: Apache-2.0
/// \file
/// One row of blocks for each sequence, in one array of fixed width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

namespace detail {
/// Places between two rows of `width`: whole cache lines, an odd number of them, so that equal
/// columns of many rows don't fall into the same few sets of the cache (a power of two would do
/// that).
[[nodiscard]] constexpr std::size_t row_stride(std::int32_t width) noexcept {
  constexpr std::size_t line = 64 / sizeof(std::int32_t);
  return ((static_cast<std::size_t>(width) + line - 1) / line | 1) * line;
}
}  // namespace detail

/// Rows of `width` places; the owner knows which rows are alive and how long they are. Row
/// addresses are stable. Pages of rows that are never touched cost nothing.
class BlockTables {
 public:
  BlockTables(std::int32_t num_rows, std::int32_t width)
      : width_(width),
        stride_(detail::row_stride(width)),
        places_(static_cast<std::size_t>(num_rows) * stride_) {}

  [[nodiscard]] std::int32_t width() const noexcept { return width_; }
  [[nodiscard]] BlockId* row(std::int32_t r) noexcept {
    return places_.data() + static_cast<std::size_t>(r) * stride_;
  }
  [[nodiscard]] BlockId const* row(std::int32_t r) const noexcept {
    return places_.data() + static_cast<std::size_t>(r) * stride_;
  }

 private:
  std::int32_t width_;
  std::size_t stride_;
  detail::LazyArray<BlockId> places_;
};

PAGEDKV_NAMESPACE_END

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

/// Rows of `width` places; who is alive and how long a row is, the owner knows. Row addresses are
/// stable. Pages of rows that are never touched cost nothing.
class BlockTables {
 public:
  BlockTables(std::int32_t num_rows, std::int32_t width)
      : width_(static_cast<std::size_t>(width)),
        places_(static_cast<std::size_t>(num_rows) * width_) {}

  [[nodiscard]] std::int32_t width() const noexcept { return static_cast<std::int32_t>(width_); }
  [[nodiscard]] BlockId* row(std::int32_t r) noexcept {
    return places_.data() + static_cast<std::size_t>(r) * width_;
  }
  [[nodiscard]] BlockId const* row(std::int32_t r) const noexcept {
    return places_.data() + static_cast<std::size_t>(r) * width_;
  }

 private:
  std::size_t width_;
  detail::LazyArray<BlockId> places_;
};

PAGEDKV_NAMESPACE_END

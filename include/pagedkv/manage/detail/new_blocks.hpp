// SPDX-License-Identifier: Apache-2.0
/// \file
/// Blocks that were allocated since a `Batch` asked last, and that nothing was committed into yet:
/// an engine may zero them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

class NewBlocks {
 public:
  explicit NewBlocks(std::int32_t num_blocks) : num_blocks_(static_cast<std::size_t>(num_blocks)) {}

  /// From now on allocated blocks are listed.
  void track() {
    if (is_tracked()) return;
    list_ = LazyArray<BlockId>(num_blocks_);
    marks_ = LazyArray<std::uint8_t>(num_blocks_);
  }
  [[nodiscard]] bool is_tracked() const noexcept { return list_.size() != 0; }
  /// At least as many as `take` would report.
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }

  void add(std::span<BlockId const> blocks) noexcept {
    if (!is_tracked()) return;
    for (BlockId const b : blocks) {
      if ((mark(b) & listed) == 0) list_[static_cast<std::size_t>(size_++)] = b;
      mark(b) = listed | is_new;
    }
  }
  /// They aren't new any more, reported or not.
  void forget(std::span<BlockId const> blocks) noexcept {
    if (size_ == 0) return;
    for (BlockId const b : blocks) mark(b) &= static_cast<std::uint8_t>(~is_new);
  }
  /// Calls `report(b)` once for each block listed since the last call that is still new.
  template <class Report>
  void take(Report&& report) {
    for (std::int32_t i = 0; i < size_; ++i) {
      BlockId const b = list_[static_cast<std::size_t>(i)];
      if ((mark(b) & is_new) != 0) report(b);
      mark(b) = 0;
    }
    size_ = 0;
  }

 private:
  static constexpr std::uint8_t listed = 1;
  static constexpr std::uint8_t is_new = 2;

  std::uint8_t& mark(BlockId b) noexcept { return marks_[static_cast<std::size_t>(b.value())]; }

  std::size_t num_blocks_;
  std::int32_t size_ = 0;
  LazyArray<BlockId> list_;
  LazyArray<std::uint8_t> marks_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

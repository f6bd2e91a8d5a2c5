// SPDX-License-Identifier: Apache-2.0
/// \file
/// The free blocks: a stack, so that what was freed last is used first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/detail/new_blocks.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

class FreeBlocks {
 public:
  /// All are free; block 0 is taken first.
  explicit FreeBlocks(std::int32_t num_blocks)
      : stack_(static_cast<std::size_t>(num_blocks)), size_(num_blocks), new_blocks_(num_blocks) {
    for (std::int32_t i = 0; i < num_blocks; ++i) {
      stack_[static_cast<std::size_t>(i)] = BlockId{num_blocks - 1 - i};
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  /// Those that were taken since a `Batch` asked.
  [[nodiscard]] NewBlocks& new_blocks() noexcept { return new_blocks_; }
  [[nodiscard]] NewBlocks const& new_blocks() const noexcept { return new_blocks_; }

  /// Requires: there is one.
  PAGEDKV_ALWAYS_INLINE BlockId take() noexcept {
    BlockId const b = stack_[static_cast<std::size_t>(--size_)];
    new_blocks_.add({&b, 1});
    return b;
  }
  /// As many as there are; returns how many. `new_blocks` is told by the caller.
  std::size_t take(std::span<BlockId> out) noexcept {
    std::size_t const n = std::min(out.size(), static_cast<std::size_t>(size_));
    BlockId const* const top = stack_.data() + size_;
    std::reverse_copy(top - n, top, out.data());
    size_ -= static_cast<std::int32_t>(n);
    return n;
  }
  PAGEDKV_ALWAYS_INLINE void give(BlockId b) noexcept {
    new_blocks_.forget({&b, 1});
    stack_[static_cast<std::size_t>(size_++)] = b;
  }
  /// The last one first, or (`in_order`) the first one first.
  PAGEDKV_ALWAYS_INLINE void give(std::span<BlockId const> blocks, bool in_order) noexcept {
    if (blocks.size() == 1) return give(blocks[0]);
    give_many(blocks, in_order);
  }

  /// Calls `visit(b)` for each.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::int32_t i = 0; i < size_; ++i) visit(stack_[static_cast<std::size_t>(i)]);
  }

 private:
  PAGEDKV_NEVER_INLINE void give_many(std::span<BlockId const> blocks, bool in_order) noexcept {
    new_blocks_.forget(blocks);
    BlockId* const top = stack_.data() + size_;
    size_ += static_cast<std::int32_t>(blocks.size());
    if (in_order) {
      std::copy(blocks.begin(), blocks.end(), top);
    } else {
      std::reverse_copy(blocks.begin(), blocks.end(), top);
    }
  }

  LazyArray<BlockId> stack_;
  std::int32_t size_;
  NewBlocks new_blocks_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

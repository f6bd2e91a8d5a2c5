// SPDX-License-Identifier: Apache-2.0
/// \file
/// Whether a prompt's first block is cached under other extra keys, so that a miss can say why.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/manage/detail/equal_blocks.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// The newest first block per bucket of a hash of its tokens. A hint: it forgets a block whose
/// bucket a newer one takes, and what it names may have lost its content, so all is compared.
template <BlockHash Hash>
class RootHint {
 public:
  RootHint(RunTable const& runs, EqualBlocks compare, std::uint64_t seed)
      : runs_(&runs),
        compare_(compare),
        seed_(seed),
        newest_(std::bit_ceil(static_cast<std::size_t>(runs.num_blocks()) / 4 + 1)) {}

  /// `x`, which begins with a first block, is published.
  void note(RunId x) noexcept {
    std::int32_t const start = (*runs_)[x].start;
    newest_[bucket(runs_->tokens(start))] = runs_->block_at(start);
  }
  /// Whether a published first block has these tokens, [block_tokens].
  [[nodiscard]] bool knows(TokenId const* tokens) const noexcept {
    BlockId const b = newest_[bucket(tokens)];
    RunId const x = runs_->run_of(b);
    if (x < 0 || !(*runs_)[x].has(Run::published) || (*runs_)[x].parent != -1) return false;
    std::int32_t const start = (*runs_)[x].start;
    return runs_->place(b) == start && compare_.equal_block(runs_->tokens(start), tokens);
  }

 private:
  std::size_t bucket(TokenId const* tokens) const noexcept {
    return Hash::content({tokens, compare_.block_tokens()}, seed_).low & (newest_.size() - 1);
  }

  RunTable const* runs_;
  EqualBlocks compare_;
  std::uint64_t seed_;
  LazyArray<BlockId> newest_;  ///< 0: perhaps none
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

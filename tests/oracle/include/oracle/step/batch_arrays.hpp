// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a step's kernels read, as plain arrays in the caller's memory.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// What a `Batch` is sized for.
struct BatchLimits {
  std::int32_t max_sequences = 256;  ///< rows
  std::int32_t max_tokens = 8192;    ///< tokens of one step
  /// Columns of the block table; 0: the cache's own width.
  std::int32_t max_blocks_per_sequence = 0;
};

/// Row `from` takes the place of row `to`: table[to] = table[from].
struct RowMove {
  std::int32_t from;
  std::int32_t to;
  friend constexpr bool operator==(RowMove const&, RowMove const&) noexcept = default;
};
/// table[row][column] = block.
struct RowChange {
  std::int32_t row;
  std::int32_t column;
  std::int32_t block;
  friend constexpr bool operator==(RowChange const&, RowChange const&) noexcept = default;
};
/// Tokens `first_token .. first_token + count - 1` of the step go to `block`, from `offset` on.
struct BlockRun {
  BlockId block;
  std::int32_t offset;
  std::int32_t count;
  std::int32_t first_token;
  friend constexpr bool operator==(BlockRun const&, BlockRun const&) noexcept = default;
};
static_assert(std::is_trivially_copyable_v<RowMove> && std::is_trivially_copyable_v<RowChange> &&
              std::is_trivially_copyable_v<BlockRun>);

/// Where `Batch::build` writes: e.g. pinned memory at stable addresses, so that captured graphs
/// keep working. n and t: sequences and tokens of the step, padded. Empty spans are skipped.
struct BatchBuffers {
  std::span<Slot> slot_mapping{};              ///< [t]; padding: -1
  std::span<std::int32_t> query_offsets{};     ///< [n + 1], tokens
  std::span<std::int32_t> sequence_lengths{};  ///< [n], tokens with this step's; padding: 0
  std::span<std::int32_t> indptr{};            ///< [n + 1], into indices
  std::span<std::int32_t> indices{};           ///< [num_indices], blocks of all sequences
  std::span<std::int32_t> last_block_len{};    ///< [n], tokens in the last block; padding: 0
  std::span<RowMove> row_moves{};              ///< apply these first, in order,
  std::span<RowChange> row_changes{};          ///< then these
  std::span<BlockId> new_blocks{};             ///< to be zeroed, before the copies
  std::span<BlockRun> runs{};                  ///< which tokens go to which block
  std::span<BlockCopy> copies{};               ///< the copy plan, taken by this call
};

/// [num_rows, row_stride], the first `num_columns` of each row in use: row b has the blocks of
/// entry b in order, block 0 behind them. As `Batch::copy_table` writes it (row_stride =
/// num_columns = table_width()), or in device memory, kept up to date by row moves and changes.
struct BlockTable {
  std::int32_t* blocks = nullptr;
  std::int64_t row_stride = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_columns = 0;
};

/// How much of each array a step takes, in elements.
struct BatchStep {
  std::int32_t num_sequences = 0;  ///< rows in use
  std::int32_t num_tokens = 0;
  std::int32_t padded_sequences = 0;
  std::int32_t padded_tokens = 0;
  std::int32_t num_indices = 0;
  std::int32_t num_row_moves = 0;
  std::int32_t num_row_changes = 0;
  std::int32_t num_new_blocks = 0;
  std::int32_t num_runs = 0;
  std::int32_t num_copies = 0;
  /// Leading full blocks that all sequences with tokens in this step have in common.
  std::int32_t common_prefix_blocks = 0;

  friend constexpr bool operator==(BatchStep const&, BatchStep const&) noexcept = default;
};

PAGEDKV_ORACLE_END

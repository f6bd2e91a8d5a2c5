// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a cache is told when it is built. Every table is sized from here; nothing grows later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <pagedkv/error.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

class CacheObserver;

/// When a released block may take new content.
enum class Reclaim : std::uint8_t {
  /// At once: later writes queue behind earlier reads on one stream. Blocks of a sequence that is
  /// in this step's `Batch`, or that `used_by` named for it, wait for `end_step()`.
  stream_ordered,
  /// After `reclaim(t)`, t being the last step that used it: the last one whose `Batch` had its
  /// sequence, or that `Sequence::used_by` named. See docs/concepts.md, "Fences".
  deferred,
};

/// What happens to a block that a commit makes findable while another block, which somebody owns,
/// bears the same content already. (A block that nobody owns hands its content over instead.)
enum class Twins : std::uint8_t {
  /// The block stays in its row as a twin, which holds nothing. Tables only grow at their end: no
  /// entry of a row changes but by `truncate` and by the copy of a tail. When the block that bears
  /// the content goes, the oldest twin bears it.
  keep,
  /// The row switches to the block that bears the content, at commit; the next `Batch` lists it.
  adopt,
};

/// A hint at release.
enum class Reuse : std::uint8_t {
  likely,  ///< least recently used order
  none,    ///< certain that nobody comes back: what only this sequence used is evicted first
  resume,  ///< preempted, comes back: released as `likely`, counted as a preemption
};

/// Requires: see `validate()`. Counts are blocks, tokens, handles or bytes, as named.
struct KvCacheConfig {
  std::int32_t block_tokens = 16;    ///< positions of a block; powers of two are fastest
  std::int32_t num_blocks = 0;       ///< blocks of the pool, e.g. `capacity_plan().num_blocks`
  std::int32_t max_sequences = 256;  ///< live `Sequence` handles
  std::int32_t max_sequence_tokens = 32768;  ///< positions of one sequence
  std::int32_t max_pins = 64;                ///< live `Pin` handles
  std::int32_t max_extra_key_bytes = 64;     ///< encoded extra keys of one block
  Reclaim reclaim = Reclaim::stream_ordered;
  Twins twins = Twins::keep;
  bool partial_hits = false;                ///< share the leading part of one more block, by a copy
  std::int32_t max_partial_candidates = 4;  ///< newest candidates compared for a partial hit
  /// Seeds the block hash. The default is fixed, so that runs repeat; take a random one in
  /// production. A hit is exact whatever the seed: it only decides which buckets are crowded.
  std::uint64_t hash_seed = 0x9E3779B97F4A7C15ULL;
  CacheObserver* observer = nullptr;  ///< not owned; must outlive the cache
};

namespace detail {
inline void require_term(bool ok, char const* term, std::int64_t value, char const* rule,
                         std::int64_t nearest) {
  if (ok) return;
  raise("KvCacheConfig." + std::string(term) + " = " + std::to_string(value) + ": " + rule +
        "; the nearest value that works is " + std::to_string(nearest));
}
}  // namespace detail

/// Raises `Error` naming the first term that can't work, the rule and the nearest value that does.
inline void validate(KvCacheConfig const& c) {
  using detail::require_term;
  constexpr std::int32_t max_block_tokens = 1 << 16;
  require_term(c.block_tokens >= 1, "block_tokens", c.block_tokens, "must be at least 1", 1);
  require_term(c.block_tokens <= max_block_tokens, "block_tokens", c.block_tokens,
               "must be at most 65536", max_block_tokens);
  require_term(c.num_blocks >= 1, "num_blocks", c.num_blocks, "the pool needs at least one block",
               1);
  // One place on the host per block, and room to grow for each sequence (manage/place_table.hpp).
  std::int64_t const places = 64 + 17 * std::clamp<std::int64_t>(c.max_sequences, 1, 1 << 20);
  std::int64_t const max_blocks = INT32_MAX - 1 - places;
  require_term(c.num_blocks <= max_blocks, "num_blocks", c.num_blocks,
               "must leave 17 places per sequence below 2^31", max_blocks);
  require_term(c.max_sequences >= 1, "max_sequences", c.max_sequences, "must be at least 1", 1);
  std::int32_t const max_handles = 1 << 20;
  require_term(c.max_sequences <= max_handles, "max_sequences", c.max_sequences,
               "must be at most 2^20", max_handles);
  require_term(c.max_pins >= 0, "max_pins", c.max_pins, "can't be negative", 0);
  require_term(c.max_pins <= max_handles, "max_pins", c.max_pins, "must be at most 2^20",
               max_handles);
  require_term(c.max_sequence_tokens >= 1, "max_sequence_tokens", c.max_sequence_tokens,
               "must be at least 1", 1);
  require_term(c.max_sequence_tokens <= INT32_MAX - max_block_tokens, "max_sequence_tokens",
               c.max_sequence_tokens, "must leave room for a block below 2^31",
               INT32_MAX - max_block_tokens);
  require_term(c.max_extra_key_bytes >= 0, "max_extra_key_bytes", c.max_extra_key_bytes,
               "can't be negative", 0);
  require_term(c.max_extra_key_bytes <= 65535, "max_extra_key_bytes", c.max_extra_key_bytes,
               "must be at most 65535", 65535);
  require_term(c.max_partial_candidates >= 1, "max_partial_candidates", c.max_partial_candidates,
               "must be at least 1", 1);
}

PAGEDKV_NAMESPACE_END

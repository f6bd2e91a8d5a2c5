// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a cache counts. Plain numbers: copy them, subtract two of them, render them with
/// observe/prometheus.hpp.
///
/// Two rules keep them honest. A prompt is counted once, when its `open` has succeeded: a retry, a
/// `match` and a failed `open` count nothing. What a preempted request looks up when it comes back
/// (`OpenOptions::resumed`) is counted apart, since hits on one's own old blocks say nothing about
/// how much the traffic shares.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Why a hit ended where it did. Each successful `open` counts exactly one of them.
enum class HitEnd : std::uint8_t {
  no_block,         ///< no findable block continues the prefix
  last_token,       ///< all but the last token was cached; that one is always computed
  salt_or_adapter,  ///< the next tokens are cached, under another salt, adapter or media item
  capacity,         ///< a partial hit was found and given up, since holding its source didn't fit
  not_read,         ///< the caller asked not to read (`OpenOptions::read = false`)
};

/// How many values `HitEnd` has.
inline constexpr std::size_t num_hit_ends = 5;

/// The enumerator's name, e.g. "last_token".
[[nodiscard]] constexpr char const* to_string(HitEnd reason) noexcept {
  switch (reason) {
    case HitEnd::no_block: return "no_block";
    case HitEnd::last_token: return "last_token";
    case HitEnd::salt_or_adapter: return "salt_or_adapter";
    case HitEnd::capacity: return "capacity";
    case HitEnd::not_read: return "not_read";
  }
  return "unknown";
}

/// One counter for each `HitEnd`.
struct HitEndCounts {
  std::array<std::uint64_t, num_hit_ends> counts{};

  [[nodiscard]] constexpr std::uint64_t& operator[](HitEnd reason) noexcept {
    return counts[static_cast<std::size_t>(reason)];
  }
  [[nodiscard]] constexpr std::uint64_t operator[](HitEnd reason) const noexcept {
    return counts[static_cast<std::size_t>(reason)];
  }
  friend constexpr bool operator==(HitEndCounts const&, HitEndCounts const&) noexcept = default;
};

/// A snapshot of a cache. The first part says how things are now, the second part only grows.
struct Stats {
  // Now. Blocks: free + idle + used + quarantined + retained = num_blocks.
  std::int32_t num_blocks = 0;   ///< all blocks of the pool
  std::int32_t free = 0;         ///< nothing findable in them; taken first
  std::int32_t idle = 0;         ///< findable, without owner; revived by a hit or evicted
  std::int32_t used = 0;         ///< referenced by a sequence or a pin
  std::int32_t quarantined = 0;  ///< released, but a step that is not over may still use it
  std::int32_t retained = 0;     ///< released, but a copy still reads or fills it
  std::int32_t sequences = 0;    ///< live `Sequence` handles
  std::int32_t pins = 0;         ///< live `Pin` handles

  // Now. Slots of the blocks in the sequences' tables, counted once per table.
  std::int64_t owned_slots = 0;   ///< blocks of each sequence times block_tokens
  std::int64_t wasted_slots = 0;  ///< those of them at or beyond the sequence's size()

  // Counters, in opens.
  std::uint64_t opens = 0;          ///< successful opens of new requests
  std::uint64_t resumed_opens = 0;  ///< successful opens of preempted requests that came back

  // Counters, in tokens. Hits include partial ones.
  std::uint64_t prefix_query_tokens = 0;   ///< prompt tokens of `opens`
  std::uint64_t prefix_hit_tokens = 0;     ///< those of them found
  std::uint64_t resumed_query_tokens = 0;  ///< prompt tokens of `resumed_opens`
  std::uint64_t resumed_hit_tokens = 0;    ///< those of them found
  std::uint64_t partial_hit_tokens = 0;    ///< hit tokens (of either kind) that came by a copy
  std::uint64_t external_tokens = 0;       ///< announced as computed elsewhere

  // Counters, in blocks.
  std::uint64_t hit_blocks = 0;          ///< full blocks found by opens of either kind
  std::uint64_t published_blocks = 0;    ///< made findable by a commit
  std::uint64_t twin_blocks = 0;         ///< full blocks whose content was findable already
  std::uint64_t adopted_blocks = 0;      ///< of those: replaced in the row by the one that bears it
  std::uint64_t evicted_blocks = 0;      ///< findable content dropped by an allocation or `evict`
  std::uint64_t moved_blocks = 0;        ///< findable content that another block bears since
  std::uint64_t unpublished_blocks = 0;  ///< findable content dropped to write there, or condemned

  // Counters, in calls and events.
  std::uint64_t copies = 0;          ///< block copies planned
  std::uint64_t dropped_copies = 0;  ///< planned copies whose destination went before being taken
  std::uint64_t forks = 0;           ///< successful forks
  std::uint64_t preemptions = 0;     ///< sequences finished with `Reuse::resume`
  std::uint64_t resets = 0;          ///< calls of `reset`
  HitEndCounts hit_ends;             ///< opens of either kind by the reason their hit ended

  /// The share of the pool that is in use, 0 to 1. Idle blocks aren't in use: they can be had.
  [[nodiscard]] constexpr double usage() const noexcept {
    return num_blocks > 0 ? static_cast<double>(used) / num_blocks : 0.0;
  }

  /// The share of owned slots that hold no position, 0 to 1.
  [[nodiscard]] constexpr double internal_fragmentation() const noexcept {
    return owned_slots > 0 ? static_cast<double>(wasted_slots) / static_cast<double>(owned_slots)
                           : 0.0;
  }

  friend constexpr bool operator==(Stats const&, Stats const&) noexcept = default;
};

static_assert(std::is_trivially_copyable_v<Stats>);

PAGEDKV_NAMESPACE_END

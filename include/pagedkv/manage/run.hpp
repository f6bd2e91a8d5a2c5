// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs: blocks that follow each other in one path and are always held together.
///
/// A run *grows* while one owner writes on, *splits* where a part of it is held, hit, truncated to,
/// copied from or evicted, and *shrinks* from its end when it is evicted. All three are O(1). When
/// it splits, the deeper part keeps the number, so that children, order and all references
/// stay valid, and the head gets a new record.
#pragma once

#include <cstdint>
#include <utility>

#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// A run's number: its record in the table. -1: none.
using RunId = std::int32_t;

/// 64 bytes. All blocks of a run have these in common.
struct alignas(64) Run {
  enum Flag : std::uint16_t {
    published = 1U << 0,     ///< findable
    shared = 1U << 1,        ///< referenced by a second owner, once
    waiting = 1U << 2,       ///< no references; not yet free or idle
    held = 1U << 3,          ///< one block: an end of a copy
    copy_target = 1U << 4,   ///< one block: an untaken copy will fill it
    leaves_first = 1U << 5,  ///< its content isn't wanted again (Reuse::none)
    has_twins = 1U << 6,     ///< of its blocks some may be in a ring of twins
    orphan = 1U << 7,        ///< published, owned, and after what was unpublished
    indexed = 1U << 8,       ///< published: it is in the hash table
  };

  std::int32_t start;   ///< place of the first block
  std::int32_t length;  ///< blocks, at least 1
  std::uint32_t references;
  std::uint32_t generation;  ///< rises when what follows it can't be found any more
  RunId parent;              ///< published: what it follows; -1: nothing
  std::uint32_t parent_generation;
  RunId last_child;           ///< the findable one that was used last, or -1
  std::int32_t num_children;  ///< findable ones
  RunId prev;                 ///< in the list that it is in
  RunId next;
  RunId jump;  ///< idle: the run pushed some places later, a hint; waiting: a link of the list
  std::uint16_t flags;
  std::uint16_t num_extra_bytes;  ///< published: of the first block's extra keys; others have none
  std::uint64_t hash;             ///< indexed: of parent and first block
  std::uint64_t stamp;            ///< the last step that may use it after its release

  [[nodiscard]] std::int32_t end() const noexcept { return start + length; }
  /// What belongs to the blocks, not to what they hold: owners, copies and, while neither waits,
  /// fences.
  void exchange_owners(Run& other) noexcept {
    constexpr unsigned mask = held | copy_target | shared;
    unsigned const mine = flags & mask;
    unsigned const theirs = other.flags & mask;
    clear(mask | leaves_first);
    set(theirs);
    other.clear(mask | has_twins);
    other.set(mine);
    std::swap(references, other.references);
    if (!other.has(waiting)) std::swap(stamp, other.stamp);
  }
  [[nodiscard]] bool has(unsigned mask) const noexcept { return (flags & mask) != 0; }
  void set(unsigned mask) noexcept { flags = static_cast<std::uint16_t>(flags | mask); }
  void clear(unsigned mask) noexcept { flags = static_cast<std::uint16_t>(flags & ~mask); }
};
static_assert(sizeof(Run) == 64);

namespace detail {
/// What a run of this generation holds, to hash what follows it. Never the same twice.
[[nodiscard]] inline Hash128 run_identity(RunId x, std::uint32_t generation) noexcept {
  return {static_cast<std::uint32_t>(x) * 0x9E3779B185EBCA87ULL, generation};
}
}  // namespace detail

PAGEDKV_NAMESPACE_END

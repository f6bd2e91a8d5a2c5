// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which idle block goes first. An eviction policy keeps the idle blocks in order; the pool asks it
/// for victims. Least recently used is the default: on recorded agent traffic it is within 0.5 % of
/// the clairvoyant optimum.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <oracle/detail/index_list.hpp>
#include <oracle/detail/lazy_array.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// Idle blocks in eviction order. A block is in it once or not at all (not checked). `push_back`
/// and `pop_front` take many at once, in order; the latter calls `soon(block)` for blocks that it
/// guesses will be popped some 16 places later.
template <class E>
concept EvictionPolicy = std::constructible_from<E, std::int32_t> &&
    requires(E e, E const c, BlockId b, std::span<BlockId const> in, std::span<BlockId> out,
             void (*soon)(BlockId)) {
  { c.size() }
  noexcept->std::same_as<std::int32_t>;
  { c.front() }
  noexcept->std::same_as<BlockId>;
  { c.after(b) }
  noexcept->std::same_as<BlockId>;
  e.push_back(in);
  e.push_front(b);
  e.erase(b);
  e.pop_front(out, soon);
};

/// Least recently used: released last, evicted last. All operations O(1).
///
/// Each element also remembers the block that was pushed 16 places after it. Eviction prefetches
/// that block's lines, so a run of evictions isn't a chain of cache misses (4 times faster at 131k
/// idle blocks). The hint may be stale; a prefetch of the wrong line is harmless.
class LruEviction {
  struct Link {
    std::int32_t prev;
    std::int32_t next;
    std::int32_t jump;
    std::int32_t unused;
  };
  static constexpr std::uint32_t distance = 16;

 public:
  explicit LruEviction(std::int32_t num_blocks) : links_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] std::int32_t size() const noexcept { return list_.size(); }
  /// The next victim, or null.
  [[nodiscard]] BlockId front() const noexcept { return BlockId{list_.front()}; }
  /// The victim after `block`, or null.
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    return BlockId{links_[index(block)].next};
  }

  /// Evicted last, in this order.
  void push_back(std::span<BlockId const> blocks) noexcept {
    list_.push_back(links_.data(), blocks, [&](Link* links, std::int32_t block) {
      std::int32_t& slot = recent_[turn_++ % distance];
      links[slot].jump = block;
      slot = block;
    });
  }
  /// Evicted first.
  void push_front(BlockId block) noexcept {
    list_.push_front(links_.data(), block.value());
    links_[index(block)].jump = block.value();
  }
  PAGEDKV_ALWAYS_INLINE void erase(BlockId block) noexcept {
    list_.erase(links_.data(), block.value());
  }

  /// Fills `out` with the next victims. Requires: `out.size() <= size()`.
  template <class Soon>
  void pop_front(std::span<BlockId> out, Soon&& soon) noexcept {
    Link const* const links = links_.data();
    std::int32_t id = list_.front();
    for (BlockId& block : out) {
      block = BlockId{id};
      std::int32_t const jump = links[id].jump;
      detail::prefetch_write(&links[jump]);
      soon(BlockId{jump});
      id = links[id].next;
    }
    list_.drop_front(links_.data(), id, static_cast<std::int32_t>(out.size()));
  }

  void prefetch(BlockId block) const noexcept { detail::prefetch_write(&links_[index(block)]); }

 private:
  static std::size_t index(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }

  detail::LazyArray<Link> links_;
  detail::IndexList list_;
  std::int32_t recent_[distance] = {};  // block 0 until written: a harmless hint
  std::uint32_t turn_ = 0;
};
static_assert(EvictionPolicy<LruEviction>);

PAGEDKV_ORACLE_END

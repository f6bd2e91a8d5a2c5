// SPDX-License-Identifier: Apache-2.0
/// \file
/// The pool: who references which block, and which block may take new content.
///
///     free ----allocate----> used ----last reference----> free         nothing published in it
///      ^                      ^ |                          idle         published: a hit revives
///      it
///      +----evicted---- idle -+ +---> waiting ---->    free, idle   the device may still use
///      it
///                                +--> retained ------->    free, idle   a copy still reads or
///                                fills it
///
/// Always: free + idle + used + waiting + retained = all. One word a block holds the reference
/// count and the flags, so that a release touches four bytes of a block that stays referenced.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <oracle/config.hpp>
#include <oracle/detail/index_list.hpp>
#include <oracle/detail/lazy_array.hpp>
#include <oracle/manage/eviction.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// The state word of a block: 23 bits of references, then flags.
struct BlockWord {
  static constexpr std::uint32_t count_mask = 0x007F'FFFF;
  static constexpr std::uint32_t listed = 1U << 23;        ///< stands in the list of new blocks
  static constexpr std::uint32_t leaves_first = 1U << 24;  ///< nobody comes back (Reuse::none)
  static constexpr std::uint32_t waiting = 1U << 25;       ///< released; not yet free or idle
  static constexpr std::uint32_t copy_target = 1U << 26;   ///< an untaken copy will fill it
  static constexpr std::uint32_t twin = 1U << 27;          ///< content published by another block
  static constexpr std::uint32_t fresh = 1U << 28;         ///< allocated, not yet reported as new
  static constexpr std::uint32_t held = 1U << 29;          ///< an end of a copy
  static constexpr std::uint32_t shared = 1U << 30;        ///< referenced by a second owner, once
  static constexpr std::uint32_t published = 1U << 31;     ///< findable

  /// Count and flags of a block that one sequence owns and may write into.
  static constexpr std::uint32_t writable_mask = count_mask | published | twin;
};

/// Reference counts, free stack, idle blocks, quarantine. Knows nothing of content: the listener
/// given to `allocate` drops what an evicted block held. One writer; const calls may run together.
template <EvictionPolicy Eviction>
class BasicBlockPool {
 public:
  /// All blocks free; block 0 is handed out first. Requires: 1 <= num_blocks < 2^31 - 1.
  explicit BasicBlockPool(std::int32_t num_blocks, Reclaim reclaim = Reclaim::stream_ordered)
      : num_blocks_(num_blocks),
        deferred_(reclaim == Reclaim::deferred),
        words_(static_cast<std::size_t>(num_blocks)),
        free_(static_cast<std::size_t>(num_blocks)),
        links_(static_cast<std::size_t>(num_blocks)),
        holds_(static_cast<std::size_t>(num_blocks)),
        eviction_(num_blocks) {
    for (std::int32_t i = 0; i < num_blocks; ++i) {
      free_[static_cast<std::size_t>(i)] = BlockId{num_blocks - 1 - i};
    }
    num_free_ = num_blocks;
  }

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  [[nodiscard]] std::int32_t num_free() const noexcept { return num_free_; }
  [[nodiscard]] std::int32_t num_idle() const noexcept { return eviction_.size(); }
  [[nodiscard]] std::int32_t num_quarantined() const noexcept {
    return waiting_.size() - num_retained_;
  }
  [[nodiscard]] std::int32_t num_retained() const noexcept { return num_retained_; }
  /// What `allocate` can hand out now.
  [[nodiscard]] std::int32_t num_available() const noexcept { return num_free_ + num_idle(); }
  /// Blocks on their way back.
  [[nodiscard]] std::int32_t num_incoming() const noexcept { return waiting_.size(); }
  [[nodiscard]] std::int32_t num_used() const noexcept {
    return num_blocks_ - num_available() - num_incoming();
  }

  [[nodiscard]] std::uint32_t word(BlockId b) const noexcept { return words_[at(b)]; }
  [[nodiscard]] std::uint32_t references(BlockId b) const noexcept {
    return word(b) & BlockWord::count_mask;
  }
  [[nodiscard]] bool has(BlockId b, std::uint32_t flags) const noexcept {
    return (word(b) & flags) != 0;
  }
  /// No sequence, pin or twin references it, and it is neither held nor waiting.
  [[nodiscard]] bool is_idle(BlockId b) const noexcept {
    constexpr auto mask =
        BlockWord::count_mask | BlockWord::held | BlockWord::waiting | BlockWord::published;
    return (word(b) & mask) == BlockWord::published;
  }
  [[nodiscard]] Eviction const& eviction() const noexcept { return eviction_; }
  [[nodiscard]] std::uint64_t open_tick() const noexcept { return open_tick_; }
  [[nodiscard]] std::uint32_t holds(BlockId b) const noexcept { return holds_[at(b)]; }

  /// Whether the last reference, dropped now, would make the block available at once.
  [[nodiscard]] bool leaves_at_once(BlockId b) const noexcept {
    return !deferred_ && !has(b, BlockWord::held) && !waits_with_others(word(b));
  }

  void set(BlockId b, std::uint32_t flags) noexcept { words_[at(b)] |= flags; }
  void clear(BlockId b, std::uint32_t flags) noexcept { words_[at(b)] &= ~flags; }
  void prefetch(BlockId b) const noexcept { detail::prefetch_write(&words_[at(b)]); }
  /// For a block that is about to be acquired from the idle ones.
  void prefetch_idle(BlockId b) const noexcept {
    prefetch(b);
    eviction_.prefetch(b);
  }

  /// Fills `out` with blocks of one reference: free ones first, then victims. For each victim the
  /// listener gets `soon(b)` some blocks ahead, `next(b)` shortly before, then `evict(b)`, which
  /// must forget its content. Requires: `out.size() <= num_available()`. O(out.size()).
  template <class Listener>
  void allocate(std::span<BlockId> out, Listener&& listener) {
    PAGEDKV_ASSERT(out.size() <= static_cast<std::size_t>(num_available()),
                   "allocate: ask num_available() first");
    if (out.size() == 1 && num_free_ != 0) {  // one more block of a running sequence
      out[0] = free_[static_cast<std::size_t>(--num_free_)];
      return take(out);
    }
    std::size_t const from_stack = std::min(out.size(), static_cast<std::size_t>(num_free_));
    BlockId const* const top = free_.data() + num_free_;
    std::reverse_copy(top - from_stack, top, out.data());
    num_free_ -= static_cast<std::int32_t>(from_stack);
    take(out.first(from_stack));
    evict_into(out.subspan(from_stack), listener);
  }

  /// One more reference. Revives an idle, waiting or retained block. O(1).
  PAGEDKV_ALWAYS_INLINE void acquire(BlockId b) noexcept {
    std::uint32_t const w = words_[at(b)];
    if ((w & BlockWord::count_mask) == 0) leave_unreferenced(b, w);
    words_[at(b)] = ((w & ~(BlockWord::leaves_first | BlockWord::waiting)) + 1) | BlockWord::shared;
  }
  /// One more reference to blocks that have one already. Four bytes a block.
  void share(std::span<BlockId const> blocks) noexcept {
    std::uint32_t* const words = words_.data();
    BlockId const* const ids = blocks.data();
    std::size_t const n = blocks.size();
    PAGEDKV_UNROLL
    for (std::size_t i = 0; i < n; ++i) {
      words[ids[i].value()] = (words[ids[i].value()] + 1) | BlockWord::shared;
    }
  }

  /// Drops one reference of each block, the last of the span first (contract 10). A block that
  /// nobody references any more goes where its flags say; `wait` sends it to quarantine. Before
  /// that `special(b, word)` is called for a twin or a copy target; it clears those flags.
  template <class Special>
  void release(std::span<BlockId const> blocks, bool wait, Special&& special) {
    constexpr std::size_t group = 64;
    constexpr auto unusual =
        BlockWord::held | BlockWord::twin | BlockWord::copy_target | BlockWord::leaves_first;
    if (blocks.size() == 1) return release_one(blocks[0], wait, special);
    std::uint32_t* const words = words_.data();
    while (!blocks.empty()) {
      auto const part = blocks.last(std::min(group, blocks.size()));
      blocks = blocks.first(blocks.size() - part.size());
      BlockId const* const ids = part.data();
      std::size_t const n = part.size();
      // The end of a fork frees nothing: where the deepest block stays referenced, that is tried
      // first, and costs a load, a store and a test a block.
      std::uint32_t dropped = 0;
      if ((words[ids[n - 1].value()] & BlockWord::count_mask) != 1) {
        // A whole group's length is known: nothing is left over from unrolling.
        bool const any_zero =
            n == group ? drop_one_each(words, ids, group) : drop_one_each(words, ids, n);
        if (!any_zero) continue;
        dropped = 1;
      }
      BlockId zeros[group];
      std::size_t num_zeros = 0;
      std::uint32_t any = 0;
      std::uint32_t all = ~0U;
      for (std::size_t i = n; i-- > 0;) {
        std::uint32_t const w = words[ids[i].value()] += dropped - 1;
        bool const zero = (w & BlockWord::count_mask) == 0;
        zeros[num_zeros] = ids[i];
        num_zeros += zero ? 1 : 0;
        any |= zero ? w : 0;
        all &= zero ? w : ~0U;
      }
      if (num_zeros == 0) continue;
      if (wait || deferred_ || (any & unusual) != 0 || num_incoming() != 0 ||
          batched_release_ == open_tick_) {
        for (std::size_t i = 0; i < num_zeros; ++i) settle(zeros[i], wait, special);
      } else if ((all & BlockWord::published) != 0) {
        eviction_.push_back({zeros, num_zeros});
      } else if ((any & BlockWord::published) == 0) {
        free_all({zeros, num_zeros});
      } else {
        for (std::size_t i = 0; i < num_zeros; ++i) place(zeros[i]);
      }
    }
  }

  /// Drops one reference.
  template <class Special>
  void release_one(BlockId b, bool wait, Special&& special) {
    if ((--words_[at(b)] & BlockWord::count_mask) == 0) settle(b, wait, special);
  }

  /// From now to the end of the open step, released blocks that were ever shared wait: they may
  /// stand in the step's `Batch` although their last owner doesn't.
  void note_batched_release() noexcept { batched_release_ = open_tick_; }

  /// Its content was given back while a step was open that hasn't been reclaimed; then somebody
  /// found it again. It may be read, and takes no new content yet (contract 11).
  [[nodiscard]] bool is_in_flight(BlockId b) const noexcept {
    return deferred_ && has(b, BlockWord::shared) && links_[at(b)].stamp > reclaimed_tick_;
  }

  /// A copy reads or fills `b`: it isn't handed out before the matching `unhold`.
  void hold(BlockId b) noexcept {
    std::uint32_t const w = words_[at(b)];
    if ((w & (BlockWord::count_mask | BlockWord::held)) == 0) {
      if ((w & BlockWord::waiting) == 0) {
        eviction_.erase(b);
        enlist(b, 0);
      }
      ++num_retained_;
    }
    ++holds_[at(b)];
    set(b, BlockWord::held);
  }
  /// Nobody waits for what follows from it before the next `flush`.
  void unhold(BlockId b) noexcept {
    if (--holds_[at(b)] != 0) return;
    clear(b, BlockWord::held);
    if (references(b) == 0) --num_retained_;
  }

  /// A published block stops being findable; an idle one becomes free, at once or after the open
  /// step's tick. The caller has dropped it from the index.
  void unpublish(BlockId b, bool at_once) noexcept {
    if (!is_idle(b)) return clear(b, BlockWord::published | BlockWord::leaves_first);
    eviction_.erase(b);
    clear(b, BlockWord::published | BlockWord::shared);
    at_once ? place(b) : enlist(b, open_tick_);
  }

  /// Closes the open step and returns its tick.
  std::uint64_t end_step() noexcept { return open_tick_++; }
  /// The device has finished every step up to `tick`: what waited for it leaves at the next
  /// `flush`.
  void mark_reclaimed(std::uint64_t tick) noexcept {
    reclaimed_tick_ = std::max(reclaimed_tick_, tick);
  }
  /// Lets go, in order, what waits for nothing any more. Behind a block that is still held, shared
  /// published ones stay, for they may be its ancestors. O(blocks of reclaimed ticks).
  void flush() noexcept {
    bool passed_held = false;
    for (std::int32_t id = waiting_.front(); id >= 0;) {
      BlockId const b{id};
      if (links_[at(b)].stamp > reclaimed_tick_) return;
      id = links_[at(b)].next;
      std::uint32_t const w = word(b);
      constexpr auto ancestor = BlockWord::published | BlockWord::shared;
      if ((w & BlockWord::held) != 0) {
        passed_held = true;
      } else if (!passed_held || (w & ancestor) != ancestor) {
        waiting_.erase(links_.data(), b.value());
        clear(b, BlockWord::waiting);
        place(b);
      }
    }
  }

  /// From now on `take_fresh` reports newly allocated blocks.
  void track_fresh() {
    if (fresh_.size() == 0) fresh_ = detail::LazyArray<BlockId>(words_.size());
  }
  /// At least as many as `take_fresh` would report.
  [[nodiscard]] std::int32_t num_fresh() const noexcept { return num_fresh_; }
  /// Calls `report(b)` once for each block allocated since the last call that is still new.
  template <class Report>
  void take_fresh(Report&& report) {
    for (std::int32_t i = 0; i < num_fresh_; ++i) {
      BlockId const b = fresh_[static_cast<std::size_t>(i)];
      if (has(b, BlockWord::fresh)) report(b);
      clear(b, BlockWord::listed | BlockWord::fresh);
    }
    num_fresh_ = 0;
  }

  /// Calls `visit(b, stamp)` for each quarantined or retained block, first to leave first.
  template <class Visit>
  void for_each_waiting(Visit&& visit) const {
    for (std::int32_t i = waiting_.front(); i >= 0; i = links_[static_cast<std::size_t>(i)].next) {
      visit(BlockId{i}, links_[static_cast<std::size_t>(i)].stamp);
    }
  }
  /// Calls `visit(b)` for each free block.
  template <class Visit>
  void for_each_free(Visit&& visit) const {
    for (std::int32_t i = 0; i < num_free_; ++i) visit(free_[static_cast<std::size_t>(i)]);
  }

 private:
  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }

  /// One reference each, nothing published.
  void take(std::span<BlockId const> blocks) noexcept {
    std::uint32_t* const words = words_.data();
    if (fresh_.size() == 0) {  // nobody asks which blocks are new
      for (BlockId const b : blocks) words[b.value()] = 1;
      return;
    }
    for (BlockId const b : blocks) {
      std::uint32_t& w = words[b.value()];
      if ((w & BlockWord::listed) == 0) fresh_[static_cast<std::size_t>(num_fresh_++)] = b;
      w = BlockWord::listed | BlockWord::fresh | 1;
    }
  }

  /// True if one of them has no reference left.
  PAGEDKV_ALWAYS_INLINE static bool drop_one_each(std::uint32_t* words, BlockId const* ids,
                                                  std::size_t n) noexcept {
    bool any_zero = false;
    PAGEDKV_UNROLL
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t const w = --words[ids[i].value()];
      any_zero |= (w & BlockWord::count_mask) == 0;
    }
    return any_zero;
  }

  template <class Listener>
  void evict_into(std::span<BlockId> out, Listener& listener) {
    // Pop a window, then touch its buckets, then forget: each pass finds its lines on the way.
    constexpr std::size_t window = 32;
    auto const soon = [&](BlockId b) {
      prefetch(b);
      listener.soon(b);
    };
    while (!out.empty()) {
      auto const victims = out.first(std::min(window, out.size()));
      eviction_.pop_front(victims, soon);
      for (BlockId const b : victims) listener.next(b);
      for (BlockId const b : victims) listener.evict(b);
      take(victims);
      out = out.subspan(victims.size());
    }
  }

  // `b` has no references; takes it out of whatever list it waits in.
  PAGEDKV_ALWAYS_INLINE void leave_unreferenced(BlockId b, std::uint32_t w) noexcept {
    if ((w & BlockWord::waiting) == 0) {
      eviction_.erase(b);
      return;
    }
    waiting_.erase(links_.data(), b.value());
    if ((w & BlockWord::held) != 0) --num_retained_;
  }

  template <class Special>
  void settle(BlockId b, bool wait, Special& special) {
    if (has(b, BlockWord::twin | BlockWord::copy_target)) special(b, word(b));
    std::uint32_t const w = word(b);
    bool const must_wait = deferred_ || wait || waits_with_others(w);
    if ((w & BlockWord::held) != 0) ++num_retained_;
    if (must_wait || (w & BlockWord::held) != 0) {
      enlist(b, must_wait ? open_tick_ : 0);
    } else {
      place(b);
    }
  }
  // A parent must not become evictable before a child that waits, and a block that a batched
  // sequence owned must not be reused in the step. Both kinds of block were shared.
  bool waits_with_others(std::uint32_t w) const noexcept {
    if ((w & BlockWord::shared) == 0) return false;
    return batched_release_ == open_tick_ ||
           ((w & BlockWord::published) != 0 && num_incoming() != 0);
  }
  void enlist(BlockId b, std::uint64_t stamp) noexcept {
    // Stamps never fall along the list, so that `flush` stops at the first that is too young.
    if (!waiting_.empty()) {
      stamp = std::max(stamp, links_[static_cast<std::size_t>(waiting_.back())].stamp);
    }
    set(b, BlockWord::waiting);
    waiting_.push_back(links_.data(), b.value());
    links_[at(b)].stamp = stamp;
  }
  void free_all(std::span<BlockId const> blocks) noexcept {
    std::uint32_t* const words = words_.data();
    BlockId* top = free_.data() + num_free_;
    for (BlockId const b : blocks) {
      words[b.value()] &= BlockWord::listed;
      *top++ = b;
    }
    num_free_ += static_cast<std::int32_t>(blocks.size());
  }
  void place(BlockId b) noexcept {
    std::uint32_t& w = words_[at(b)];
    if ((w & BlockWord::published) == 0) {
      free_all({&b, 1});
    } else if ((w & BlockWord::leaves_first) == 0) {
      eviction_.push_back({&b, 1});
    } else {
      w &= ~BlockWord::leaves_first;
      eviction_.push_front(b);
    }
  }

  std::int32_t num_blocks_;
  bool deferred_;
  std::int32_t num_free_ = 0;
  std::int32_t num_retained_ = 0;
  std::int32_t num_fresh_ = 0;
  std::uint64_t open_tick_ = 1;
  std::uint64_t reclaimed_tick_ = 0;
  std::uint64_t batched_release_ = 0;
  detail::LazyArray<std::uint32_t> words_;
  detail::LazyArray<BlockId> free_;
  detail::LazyArray<detail::Link> links_;
  detail::LazyArray<std::uint32_t> holds_;
  detail::LazyArray<BlockId> fresh_;
  detail::IndexList waiting_;
  Eviction eviction_;
};

using BlockPool = BasicBlockPool<LruEviction>;

PAGEDKV_ORACLE_END

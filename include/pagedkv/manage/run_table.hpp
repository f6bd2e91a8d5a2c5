// SPDX-License-Identifier: Apache-2.0
/// \file
/// The records of all runs: how they are laid, cut and joined.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/detail/place_arena.hpp>
#include <pagedkv/manage/place_table.hpp>
#include <pagedkv/manage/run.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// The runs, at their places. Nothing allocates after construction, and no call fails: there are
/// more places than blocks and rooms. The pool knows what references a run, and the index what is
/// in it.
class RunTable : public PlaceTable {
 public:
  /// Finding the run of a block in the middle reads one bit per block: this bounds it to 64 words.
  static constexpr std::int32_t max_run_blocks = 4096;

  RunTable(std::int32_t num_blocks, std::int32_t block_tokens, std::int32_t num_rooms)
      : PlaceTable(num_blocks, block_tokens, num_rooms),
        runs_(static_cast<std::size_t>(num_blocks) + 1) {}

  /// Records that were ever used: every run's number lies below.
  [[nodiscard]] std::int32_t num_records() const noexcept { return num_records_; }
  [[nodiscard]] std::int32_t num_runs() const noexcept { return num_runs_; }

  [[nodiscard]] Run& operator[](RunId x) noexcept { return runs_[at(x)]; }
  [[nodiscard]] Run const& operator[](RunId x) const noexcept { return runs_[at(x)]; }
  /// All records, for lists threaded through them.
  [[nodiscard]] Run* records() noexcept { return runs_.data(); }
  [[nodiscard]] Run const* records() const noexcept { return runs_.data(); }

  [[nodiscard]] std::span<BlockId const> blocks(RunId x) const noexcept {
    return {&ids_[at((*this)[x].start)], static_cast<std::size_t>((*this)[x].length)};
  }
  [[nodiscard]] BlockId last_block(RunId x) const noexcept {
    return ids_[at((*this)[x].end() - 1)];
  }
  void prefetch(RunId x) const noexcept { detail::prefetch_write(&runs_[at(x)]); }
  /// The lines that taking the last block of `x` touches.
  void prefetch_end(RunId x) const noexcept {
    Run const& r = (*this)[x];
    if (r.length == 0) return;
    detail::prefetch_write(&ids_[at(r.start)]);
    detail::prefetch_write(&ids_[at(r.end()) - 1]);
    detail::prefetch_write(&tokens_[at(r.start) * block_tokens_]);
    arena_.prefetch({r.start, r.length});
  }

  // ---- laying blocks ----------------------------------------------------------------------------

  /// Blocks that no run has get places after `tail` (-1: anywhere) and one reference each. They
  /// become a part of `tail` if `grows` and if there is room after it; else they make new runs.
  /// `room` is what the caller has in reserve; it may be exchanged for another. The first
  /// `num_clean` of them held nothing; the generation of the others rises.
  void lay(RunId tail, bool grows, std::span<BlockId const> blocks, std::size_t num_clean,
           detail::Extent& room) {
    std::size_t done = 0;
    while (done < blocks.size()) {
      auto const left = static_cast<std::int32_t>(blocks.size() - done);
      std::int32_t const first = make_room(tail, left, room, grows);
      std::int32_t const most = max_run_blocks - (grows ? (*this)[tail].length : 0);
      std::int32_t const n = std::min({left, room.count, most});
      tail = extend(tail, grows, n, room);
      put(tail, first, blocks.subspan(done, static_cast<std::size_t>(n)),
          num_clean > done ? num_clean - done : 0);
      done += static_cast<std::size_t>(n);
      grows = true;
    }
  }
  /// The same for one block that held nothing.
  PAGEDKV_ALWAYS_INLINE void lay_one(RunId tail, bool grows, BlockId block, detail::Extent& room) {
    std::int32_t const place = make_room(tail, 1, room, grows);
    tail = extend(tail, grows, 1, room);
    ids_[at(place)] = block;
    where_[at(block)].place = place;
    where_[at(block)].run = tail;
  }
  void give_room(detail::Extent& room) noexcept {
    if (room.count == 0) return;
    arena_.give({room.first, room.count});
    room = {};
  }

  // ---- cutting ----------------------------------------------------------------------------------

  /// The first k blocks become a run of their own, which is returned, in all else a copy of `x`;
  /// `x` keeps the rest. Requires: 0 < k < length.
  RunId split(RunId x, std::int32_t k) noexcept {
    RunId const h = new_record();
    Run& rest = (*this)[x];
    Run& head = (*this)[h];
    std::uint32_t const generation = head.generation;
    head = rest;
    head.generation = generation;
    head.length = k;
    head.last_child = -1;
    head.num_children = 0;
    rest.start += k;
    rest.length -= k;
    where_[at(ids_[at(head.start)])].run = h;
    where_[at(ids_[at(head.end()) - 1])].run = h;
    where_[at(ids_[at(rest.start)])].run = x;
    flip_start(rest.start);
    return h;
  }
  /// The first k blocks of `x` become the last ones of `p`, after which they lie. `x` is gone if
  /// that was all of it. Requires: `p` ends where `x` starts.
  void move_front(RunId p, RunId x, std::int32_t k) noexcept {
    Run& run = (*this)[x];
    flip_start(run.start);
    (*this)[p].length += k;
    where_[at(ids_[at(run.start) + at(k) - 1])].run = p;
    if (k == run.length) return forget_record(x);
    run.start += k;
    run.length -= k;
    where_[at(ids_[at(run.start)])].run = x;
    flip_start(run.start);
  }
  /// The last n blocks, but not all, are in no run any more; their places are free.
  void cut_end(RunId x, std::int32_t n) noexcept {
    Run& run = (*this)[x];
    run.length -= n;
    std::fill_n(&ids_[at(run.end())], n, BlockId{});
    where_[at(ids_[at(run.end()) - 1])].run = x;
    arena_.give({run.end(), n});
  }
  /// No block is in the run any more; its places are free.
  void dissolve(RunId x) noexcept {
    detail::Extent none;
    dissolve(x, none);
  }
  /// `room`, which may lie after it, is given back as well.
  PAGEDKV_ALWAYS_INLINE void dissolve(RunId x, detail::Extent& room) noexcept {
    Run const& run = (*this)[x];
    detail::Extent places{run.start, run.length};
    BlockId* const ids = &ids_[at(places.first)];
    if (places.count == 1) {
      *ids = BlockId{};
    } else {
      std::fill_n(ids, places.count, BlockId{});
    }
    flip_start(places.first);
    forget_record(x);
    if (room.count != 0 && room.first == places.end()) {
      places.count += room.count;
      room = {};
    }
    give_room(room);
    arena_.give_back(places);
  }
  /// The blocks of two runs of equal length change places, and their owners go with them. What they
  /// hold stays: tokens and all that belongs to them.
  void exchange_blocks(RunId x, RunId y) noexcept {
    std::int32_t const n = (*this)[x].length;
    std::int32_t const a = (*this)[x].start;
    std::int32_t const b = (*this)[y].start;
    std::swap_ranges(&ids_[at(a)], &ids_[at(a)] + n, &ids_[at(b)]);
    for (std::int32_t i = 0; i < n; ++i) {
      where_[at(ids_[at(a + i)])].place = a + i;
      where_[at(ids_[at(a + i)])].run = x;
      where_[at(ids_[at(b + i)])].place = b + i;
      where_[at(ids_[at(b + i)])].run = y;
    }
    (*this)[x].exchange_owners((*this)[y]);
  }

 private:
  PAGEDKV_ALWAYS_INLINE RunId new_record() noexcept {
    ++num_runs_;
    if (free_records_ < 0) return num_records_++;
    return std::exchange(free_records_, (*this)[free_records_].next);
  }
  void forget_record(RunId x) noexcept {
    --num_runs_;
    Run& run = (*this)[x];
    ++run.generation;
    run.flags = 0;
    run.length = 0;
    run.next = std::exchange(free_records_, x);
  }
  PAGEDKV_ALWAYS_INLINE RunId create(std::int32_t start, std::int32_t length) noexcept {
    RunId const x = new_record();
    Run& run = (*this)[x];
    std::uint32_t const generation = run.generation;
    run = {};
    run.generation = generation;
    run.start = start;
    run.length = length;
    run.references = 1;
    run.parent = run.last_child = run.prev = run.next = run.jump = -1;
    flip_start(start);
    return x;
  }
  /// Room for at least one block after `tail`, or elsewhere: then it doesn't grow. Returns the
  /// first place.
  PAGEDKV_ALWAYS_INLINE std::int32_t make_room(RunId tail, std::int32_t needed,
                                               detail::Extent& room, bool& grows) noexcept {
    std::int32_t const behind = tail >= 0 ? (*this)[tail].end() : 0;
    if (room.count == 0 && tail < 0 && arena_.pocket() >= needed) {
      room = arena_.take_pocket();
    } else if (room.count == 0 || room.first != behind) {
      change_room(tail, behind, needed, room);
    }
    grows = grows && room.first == behind && (*this)[tail].length < max_run_blocks;
    return room.first;
  }
  PAGEDKV_NEVER_INLINE void change_room(RunId tail, std::int32_t behind, std::int32_t needed,
                                        detail::Extent& room) noexcept {
    give_room(room);
    if (tail >= 0) room = arena_.take_at(behind, needed + growth_room);
    if (room.count == 0) room = arena_.take(needed, growth_room);
  }
  /// The run of the first n places of `room`: `tail`, or a new one.
  PAGEDKV_ALWAYS_INLINE RunId extend(RunId tail, bool grows, std::int32_t n,
                                     detail::Extent& room) noexcept {
    std::int32_t const first = std::exchange(room.first, room.first + n);
    room.count -= n;
    if (!grows) return create(first, n);
    (*this)[tail].length += n;
    return tail;
  }
  void put(RunId x, std::int32_t first, std::span<BlockId const> blocks, std::size_t num_clean) {
    constexpr std::size_t ahead = 24;
    std::size_t const n = blocks.size();
    for (std::size_t i = 0; i < n; ++i) {
      if (i + ahead < n) prefetch_where(blocks[i + ahead]);
      Where& where = where_[at(blocks[i])];
      where.place = first + static_cast<std::int32_t>(i);
      where.run = x;
      where.generation += i < num_clean ? 0 : 1;
      ids_[at(first) + i] = blocks[i];
    }
  }

  detail::LazyArray<Run> runs_;
  RunId free_records_ = -1;
  std::int32_t num_records_ = 0;
  std::int32_t num_runs_ = 0;
};

PAGEDKV_NAMESPACE_END

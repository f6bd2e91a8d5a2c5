// SPDX-License-Identifier: Apache-2.0
/// \file
/// Places: room on the host for what the manager knows of one block (its token ids, its block's
/// number). An arena hands out extents of neighbouring places, so that the blocks of one path lie
/// side by side. Their numbers are arbitrary.
///
/// Free extents hang in bins by the logarithm of their length and carry a note at both ends
/// (boundary tags): taking, giving and joining neighbours are O(1), and nothing is allocated.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// Places `first .. first + count - 1`.
struct Extent {
  std::int32_t first = 0;
  std::int32_t count = 0;

  [[nodiscard]] std::int32_t end() const noexcept { return first + count; }
};

/// All operations O(1). One writer.
class PlaceArena {
  static constexpr int num_bins = 31;

 public:
  /// Places 1 .. num_places are free; place 0 is never handed out.
  explicit PlaceArena(std::int32_t num_places)
      : end_(num_places + 1),
        notes_(static_cast<std::size_t>(num_places) + 2),
        edges_(static_cast<std::size_t>(num_places) / 64 + 2) {
    std::fill_n(bins_, num_bins, -1);
    if (num_places > 0) put({1, num_places});
  }

  /// One more than the largest place.
  [[nodiscard]] std::int32_t end() const noexcept { return end_; }
  [[nodiscard]] std::int32_t num_free() const noexcept { return num_free_ + pocket_.count; }

  /// `needed + spare` neighbouring places, or a short extent that is at hand and as long as needed;
  /// if there are none, fewer: one of the longest. At least one. Requires: one is free.
  Extent take(std::int32_t needed, std::int32_t spare) noexcept {
    if (needed <= pocket_.count) return take_pocket();
    std::int32_t const want = needed + spare;
    int const bin = bin_of(want);
    std::int32_t e = bins_[bin];
    for (int tries = 0; e >= 0 && tries < 4; ++tries, e = notes_[at(e)].next) {
      if (length_of(e) >= want) return cut(e, want);
    }
    unsigned const above = bins_in_use_ & ~((2U << bin) - 1);
    if (above != 0) return cut(bins_[std::countr_zero(above)], want);
    if (bins_in_use_ == 0) return take_pocket();
    e = bins_[31 - std::countl_zero(bins_in_use_)];
    return cut(e, std::min(want, length_of(e)));
  }
  /// Up to `want` places from `place` on; none if no free extent begins there.
  Extent take_at(std::int32_t place, std::int32_t want) noexcept {
    if (place >= end_ || !is_edge(place) || notes_[at(place)].other < place) return {};
    return cut(place, std::min(want, length_of(place)));
  }
  /// Places of the extent that a short request left last.
  [[nodiscard]] std::int32_t pocket() const noexcept { return pocket_.count; }
  /// That extent; perhaps none.
  Extent take_pocket() noexcept { return std::exchange(pocket_, Extent{}); }

  void give(Extent e) noexcept {
    if (e.count != 0) join(e);
  }
  /// The same for what a short request leaves: the next one takes it from a pocket of one extent.
  PAGEDKV_ALWAYS_INLINE void give_back(Extent e) noexcept {
    constexpr std::int32_t short_extent = 32;
    if (pocket_.count != 0 || e.count > short_extent) return give(e);
    pocket_ = e;
  }

  /// For an extent that will be given soon.
  void prefetch(Extent e) const noexcept {
    prefetch_write(&notes_[at(e.first)]);
    prefetch_write(&notes_[at(e.end() - 1)]);
  }

 private:
  /// At a free extent's first place: its last one and the neighbours in its bin. At its last place:
  /// its first one.
  struct Note {
    std::int32_t other;
    std::int32_t next;
    std::int32_t prev;
  };

  /// It becomes free, together with free neighbours.
  PAGEDKV_NEVER_INLINE void join(Extent e) noexcept {
    std::int32_t first = e.first;
    std::int32_t last = e.end() - 1;
    bool const joins_left = is_edge(first - 1);
    if (e.end() < end_ && is_edge(e.end())) {
      std::int32_t const right = e.end();
      std::int32_t const length = length_of(right);
      if (!joins_left && bin_of(length) == bin_of(length + e.count)) {
        num_free_ += e.count;
        return move_first(right, first);
      }
      last = right + length - 1;
      drop(right);
    }
    if (joins_left) {
      first = notes_[at(first - 1)].other;
      drop(first);
    }
    put({first, last - first + 1});
  }
  static std::size_t at(std::int32_t place) noexcept { return static_cast<std::size_t>(place); }
  static int bin_of(std::int32_t length) noexcept {
    return 31 - std::countl_zero(static_cast<std::uint32_t>(length) | 1U);
  }
  /// Whether a free extent begins or ends at `place`. Place 0 belongs to no run.
  bool is_edge(std::int32_t place) const noexcept {
    return (edges_[at(place) / 64] >> (at(place) % 64) & 1) != 0;
  }
  void flip_edge(std::int32_t place) noexcept {
    edges_[at(place) / 64] ^= std::uint64_t{1} << (at(place) % 64);
  }
  std::int32_t length_of(std::int32_t first) const noexcept {
    return notes_[at(first)].other - first + 1;
  }

  /// The first n places of the free extent at `first`.
  Extent cut(std::int32_t first, std::int32_t n) noexcept {
    std::int32_t const length = length_of(first);
    if (length > n && bin_of(length - n) == bin_of(length)) {
      num_free_ -= n;
      move_first(first, first + n);
      return {first, n};
    }
    drop(first);
    if (length > n) put({first + n, length - n});
    return {first, n};
  }
  /// The extent begins elsewhere and stays in its bin.
  void move_first(std::int32_t from, std::int32_t to) noexcept {
    Note const note = notes_[at(from)];
    notes_[at(note.other)] = {to, -1, -1};
    notes_[at(to)] = note;
    (note.prev >= 0 ? notes_[at(note.prev)].next : bins_[bin_of(note.other - to + 1)]) = to;
    if (note.next >= 0) notes_[at(note.next)].prev = to;
    if (from != note.other) flip_edge(from);
    if (to != note.other) flip_edge(to);
  }
  void put(Extent e) noexcept {
    std::int32_t const last = e.end() - 1;
    int const bin = bin_of(e.count);
    notes_[at(last)] = {e.first, -1, -1};
    notes_[at(e.first)] = {last, bins_[bin], -1};
    flip_edge(e.first);
    if (last != e.first) flip_edge(last);
    if (bins_[bin] >= 0) notes_[at(bins_[bin])].prev = e.first;
    bins_[bin] = e.first;
    bins_in_use_ |= 1U << bin;
    num_free_ += e.count;
  }
  void drop(std::int32_t first) noexcept {
    Note const note = notes_[at(first)];
    std::int32_t const length = note.other - first + 1;
    int const bin = bin_of(length);
    (note.prev >= 0 ? notes_[at(note.prev)].next : bins_[bin]) = note.next;
    if (note.next >= 0) notes_[at(note.next)].prev = note.prev;
    if (bins_[bin] < 0) bins_in_use_ &= ~(1U << bin);
    flip_edge(first);
    if (length > 1) flip_edge(note.other);
    num_free_ -= length;
  }

  std::int32_t end_;
  std::int32_t num_free_ = 0;
  unsigned bins_in_use_ = 0;
  std::int32_t bins_[num_bins];
  Extent pocket_;
  LazyArray<Note> notes_;
  LazyArray<std::uint64_t> edges_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

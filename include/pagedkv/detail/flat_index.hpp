// SPDX-License-Identifier: Apache-2.0
/// \file
/// Hash -> block ids, many to one hash allowed. One cache line a bucket:
///
///     | 12 one-byte tags | overflow count | 12 ids |      tag 0 = empty
///
/// An element lives in the first bucket on its probe path with room; `overflow` of a bucket counts
/// the elements that passed it. So a look-up stops at the first bucket nobody passed, an erase
/// leaves no tombstone, and a miss reads one line nearly always (load at most 1/2). Tags filter 254
/// of 255 strangers before any record is read. Linear probing over ids was 19-30 ns slower in a
/// full cold cache, from mispredicted branches.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

class FlatIndex {
  static constexpr int width = 12;
  /// Not a character type: a store through one might change anything, so that after each the
  /// compiler would read every member of every object again.
  enum class Tag : std::uint8_t { empty = 0 };
  struct alignas(64) Bucket {
    Tag tags[width];
    std::uint32_t overflow;
    std::int32_t ids[width];
  };
  static_assert(sizeof(Bucket) == 64);

 public:
  FlatIndex() = default;
  /// Holds `capacity` elements at a load of at most 1/2.
  explicit FlatIndex(std::int32_t capacity)
      : buckets_(std::bit_ceil(static_cast<std::size_t>(capacity) * 2 / width + 1)),
        mask_(buckets_.size() - 1) {}

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }

  void prefetch(Hash128 hash) const noexcept { prefetch_write(&buckets_[hash.low & mask_]); }

  /// The first id under `hash` that `match(id)` accepts, or -1. O(1) expected; with colliding
  /// hashes O(collisions).
  template <class Match>
  [[nodiscard]] std::int32_t find(Hash128 hash, Match&& match) const {
    Tag const tag = tag_of(hash);
    std::size_t const step = step_of(tag);
    for (std::size_t i = hash.low & mask_, n = 0; n <= mask_; i = (i + step) & mask_, ++n) {
      Bucket const& bucket = buckets_[i];
      for (unsigned hits = equal_tags(bucket, tag); hits != 0; hits &= hits - 1) {
        std::int32_t const id = bucket.ids[std::countr_zero(hits)];
        if (match(id)) return id;
      }
      if (bucket.overflow == 0) return -1;
    }
    return -1;
  }

  /// Requires: fewer than `capacity` elements.
  void insert(Hash128 hash, std::int32_t id) noexcept {
    Tag const tag = tag_of(hash);
    std::size_t const step = step_of(tag);
    for (std::size_t i = hash.low & mask_;; i = (i + step) & mask_) {
      Bucket& bucket = buckets_[i];
      if (unsigned const empty = equal_tags(bucket, Tag::empty); empty != 0) {
        int const place = std::countr_zero(empty);
        bucket.tags[place] = tag;
        bucket.ids[place] = id;
        ++size_;
        return;
      }
      ++bucket.overflow;
    }
  }

  /// Requires: `id` was inserted under `hash`.
  void erase(Hash128 hash, std::int32_t id) noexcept {
    Tag const tag = tag_of(hash);
    std::size_t const step = step_of(tag);
    for (std::size_t i = hash.low & mask_;; i = (i + step) & mask_) {
      Bucket& bucket = buckets_[i];
      if (int const place = place_of(bucket, tag, id); place >= 0) {
        bucket.tags[place] = Tag::empty;
        --size_;
        return;
      }
      --bucket.overflow;
    }
  }

  /// Puts `to` in the place of `from`. Requires: `from` was inserted under `hash`.
  void replace(Hash128 hash, std::int32_t from, std::int32_t to) noexcept {
    Tag const tag = tag_of(hash);
    std::size_t const step = step_of(tag);
    for (std::size_t i = hash.low & mask_;; i = (i + step) & mask_) {
      Bucket& bucket = buckets_[i];
      if (int const place = place_of(bucket, tag, from); place >= 0) {
        bucket.ids[place] = to;
        return;
      }
    }
  }

 private:
  static Tag tag_of(Hash128 hash) noexcept {
    auto const tag = static_cast<std::uint8_t>(hash.high >> 56);
    return static_cast<Tag>(tag == 0 ? 1 : tag);
  }
  // Odd, so that the probe path visits every bucket of a power of two.
  static std::size_t step_of(Tag tag) noexcept {
    return std::size_t{2} * static_cast<std::uint8_t>(tag) + 1;
  }

  static unsigned equal_tags(Bucket const& bucket, Tag tag) noexcept {
#if defined(__SSE2__)
    __m128i const tags = _mm_load_si128(reinterpret_cast<__m128i const*>(bucket.tags));
    __m128i const equal = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<unsigned>(_mm_movemask_epi8(equal)) & 0xFFFU;
#else
    unsigned hits = 0;
    for (int i = 0; i < width; ++i) hits |= static_cast<unsigned>(bucket.tags[i] == tag) << i;
    return hits;
#endif
  }
  static int place_of(Bucket const& bucket, Tag tag, std::int32_t id) noexcept {
    for (unsigned hits = equal_tags(bucket, tag); hits != 0; hits &= hits - 1) {
      int const place = std::countr_zero(hits);
      if (bucket.ids[place] == id) return place;
    }
    return -1;
  }

  LazyArray<Bucket> buckets_;
  std::size_t mask_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

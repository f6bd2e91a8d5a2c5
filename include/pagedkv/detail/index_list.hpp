// SPDX-License-Identifier: Apache-2.0
/// \file
/// A doubly linked list threaded through an array: element i is linked by `links[i].prev` and
/// `.next`, each an `std::int32_t`. No pointers, no allocation, O(1) everything.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// A list over `links` that somebody else owns. An element may be in one list of those links.
/// Ends are -1. Not checked: erasing what isn't in the list breaks it.
class IndexList {
 public:
  [[nodiscard]] std::int32_t front() const noexcept { return head_; }
  [[nodiscard]] std::int32_t back() const noexcept { return tail_; }
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

  template <class L>
  void push_back(L* links, std::int32_t id) noexcept {
    links[id].prev = tail_;
    links[id].next = -1;
    (tail_ >= 0 ? links[tail_].next : head_) = id;
    tail_ = id;
    ++size_;
  }
  template <class L>
  void push_front(L* links, std::int32_t id) noexcept {
    links[id].prev = -1;
    links[id].next = head_;
    (head_ >= 0 ? links[head_].prev : tail_) = id;
    head_ = id;
    ++size_;
  }
  /// `id` comes right after `before`, which is in the list.
  template <class L>
  void insert_after(L* links, std::int32_t before, std::int32_t id) noexcept {
    std::int32_t const next = links[before].next;
    links[id].prev = before;
    links[id].next = next;
    links[before].next = id;
    (next >= 0 ? links[next].prev : tail_) = id;
    ++size_;
  }
  template <class L>
  void erase(L* links, std::int32_t id) noexcept {
    std::int32_t const prev = links[id].prev;
    std::int32_t const next = links[id].next;
    (prev >= 0 ? links[prev].next : head_) = next;
    (next >= 0 ? links[next].prev : tail_) = prev;
    --size_;
  }

 private:
  std::int32_t head_ = -1;
  std::int32_t tail_ = -1;
  std::int32_t size_ = 0;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

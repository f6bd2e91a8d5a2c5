// SPDX-License-Identifier: Apache-2.0
/// \file
/// Numbers the events and tells the observer, if there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <oracle/manage/observer.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN
namespace detail {

class EventSource {
 public:
  explicit EventSource(CacheObserver* observer) noexcept : observer_(observer) {}

  /// `b` has just been published. `index`: a prefix index.
  template <class Index>
  void stored(Index const& index, BlockId b, std::size_t block_tokens) {
    if (observer_ == nullptr) return;
    auto const parent = index.parent(b);
    emit({.kind = CacheEvent::Kind::stored,
          .block = b,
          .generation = index.generation(b),
          .parent = parent.block,
          .parent_generation = parent.generation,
          .hash = index.hash(b),
          .parent_hash = index.hash(parent.block),
          .tokens = std::span(index.tokens(b), block_tokens),
          .extra_keys = index.extra(b)});
  }
  /// `b` is about to be unpublished.
  template <class Index>
  void removed(Index const& index, BlockId b) {
    if (observer_ == nullptr) return;
    emit({.kind = CacheEvent::Kind::removed,
          .block = b,
          .generation = index.generation(b),
          .hash = index.hash(b)});
  }
  void cleared() {
    if (observer_ != nullptr) emit({.kind = CacheEvent::Kind::cleared});
  }

 private:
  void emit(CacheEvent event) {
    event.number = next_++;
    observer_->on_event(event);
  }

  CacheObserver* observer_;
  std::uint64_t next_ = 0;
};

}  // namespace detail
PAGEDKV_ORACLE_END

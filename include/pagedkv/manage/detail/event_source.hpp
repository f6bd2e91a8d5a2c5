// SPDX-License-Identifier: Apache-2.0
/// \file
/// Numbers the events and tells the observer, if there is one. Only then are chained hashes kept,
/// one per place: what they name is content, which no split moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/manage/observer.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

class EventSource {
 public:
  EventSource(CacheObserver* observer, RunTable const& runs, std::int32_t block_tokens)
      : observer_(observer),
        block_tokens_(static_cast<std::size_t>(block_tokens)),
        hashes_(observer != nullptr ? static_cast<std::size_t>(runs.arena().end()) : 0) {}

  [[nodiscard]] bool is_heard() const noexcept { return observer_ != nullptr; }
  /// Of published content. Requires: an observer listens.
  [[nodiscard]] Hash128 hash(std::int32_t place) const noexcept {
    return hashes_[static_cast<std::size_t>(place)];
  }

  /// The content of `n` places from `first` on is findable now, after that of the place `before`
  /// (0: none). `index`: a prefix index; `extra` keys the first block.
  template <class Index>
  void stored(RunTable const& runs, Index const& index, std::int32_t before, std::int32_t first,
              std::int32_t n, std::span<std::byte const> extra) {
    if (observer_ == nullptr) return;
    for (std::int32_t place = first; place < first + n; before = place++, extra = {}) {
      std::span const tokens(runs.tokens(place), block_tokens_);
      CacheEvent event = about(CacheEvent::Kind::stored, runs, place);
      event.parent_hash = index.root_hash();
      if (before != 0) {
        event.parent = runs.block_at(before);
        event.parent_generation = runs.generation(event.parent);
        event.parent_hash = hash(before);
      }
      event.hash = index.chained(event.parent_hash, tokens, extra);
      event.tokens = tokens;
      event.extra_keys = extra;
      hashes_[static_cast<std::size_t>(place)] = event.hash;
      emit(event);
    }
  }
  /// The content of a place is about to be forgotten.
  void removed(RunTable const& runs, std::int32_t place) {
    if (observer_ != nullptr) emit(about(CacheEvent::Kind::removed, runs, place));
  }
  /// `block` will bear the content of a place.
  void moved(RunTable const& runs, std::int32_t place, BlockId block) {
    if (observer_ == nullptr) return;
    CacheEvent event = about(CacheEvent::Kind::moved, runs, place);
    event.from = std::exchange(event.block, block);
    event.from_generation = std::exchange(event.generation, runs.generation(block));
    emit(event);
  }
  void cleared() {
    if (observer_ != nullptr) emit({.kind = CacheEvent::Kind::cleared});
  }

 private:
  CacheEvent about(CacheEvent::Kind kind, RunTable const& runs, std::int32_t place) const {
    BlockId const b = runs.block_at(place);
    return {.kind = kind, .block = b, .generation = runs.generation(b), .hash = hash(place)};
  }
  void emit(CacheEvent event) {
    event.number = next_++;
    observer_->on_event(event);
  }

  CacheObserver* observer_;
  std::size_t block_tokens_;
  LazyArray<Hash128> hashes_;
  std::uint64_t next_ = 0;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

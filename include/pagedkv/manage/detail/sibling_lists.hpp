// SPDX-License-Identifier: Apache-2.0
/// \file
/// Published runs after one parent whose first blocks begin with the same token, newest first: the
/// candidates of a partial hit.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/flat_index.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// One element per published run. All operations O(1) expected.
class SiblingLists {
 public:
  /// `capacity` 0: not in use.
  explicit SiblingLists(std::int32_t capacity) : links_(static_cast<std::size_t>(capacity)) {
    if (capacity > 0) by_first_token_ = FlatIndex(capacity);
  }

  [[nodiscard]] bool in_use() const noexcept { return links_.size() != 0; }
  [[nodiscard]] RunId newest(RunTable const& runs, RunId parent, std::uint32_t generation,
                             TokenId first) const {
    return by_first_token_.find(hash(parent, generation, first), [&](RunId x) {
      return runs[x].parent == parent && runs[x].parent_generation == generation &&
             *runs.tokens(runs[x].start) == first;
    });
  }
  [[nodiscard]] RunId older(RunId x) const noexcept { return at(x).older; }

  /// `x` has just been published: it is the newest.
  void link(RunTable const& runs, RunId x) noexcept {
    Hash128 const h = hash_of(runs, x);
    RunId const older =
        newest(runs, runs[x].parent, runs[x].parent_generation, *runs.tokens(runs[x].start));
    at(x) = {-1, older};
    if (older < 0) return by_first_token_.insert(h, x);
    at(older).newer = x;
    by_first_token_.replace(h, older, x);
  }
  /// `h` begins with the block that `x` began with and takes its place.
  void replace(RunTable const& runs, RunId x, RunId h) noexcept {
    auto const [newer, older] = at(h) = at(x);
    if (older >= 0) at(older).newer = h;
    if (newer >= 0) {
      at(newer).older = h;
    } else {
      by_first_token_.replace(hash_of(runs, h), x, h);
    }
  }
  void unlink(RunTable const& runs, RunId x) noexcept {
    auto const [newer, older] = at(x);
    if (older >= 0) at(older).newer = newer;
    if (newer >= 0) {
      at(newer).older = older;
    } else if (older >= 0) {
      by_first_token_.replace(hash_of(runs, x), x, older);
    } else {
      by_first_token_.erase(hash_of(runs, x), x);
    }
  }

 private:
  struct Link {
    RunId newer;
    RunId older;
  };

  Link& at(RunId x) noexcept { return links_[static_cast<std::size_t>(x)]; }
  Link const& at(RunId x) const noexcept { return links_[static_cast<std::size_t>(x)]; }
  static Hash128 hash(RunId parent, std::uint32_t generation, TokenId first) noexcept {
    return Xxh3BlockHash::chain(run_identity(parent, generation),
                                {static_cast<std::uint32_t>(first), 0});
  }
  static Hash128 hash_of(RunTable const& runs, RunId x) noexcept {
    return hash(runs[x].parent, runs[x].parent_generation, *runs.tokens(runs[x].start));
  }

  LazyArray<Link> links_;
  FlatIndex by_first_token_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Twins: referenced blocks whose content another block bears already (contract 9). Each content
/// that has twins has a ring: the bearer, then its twins, the oldest first. A twin holds nothing;
/// when the bearer goes, the oldest twin bears the content in its place.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// Links by block, touched only where there are twins. All operations O(1) except `dissolve`.
class TwinRings {
 public:
  explicit TwinRings(std::int32_t num_blocks) : links_(static_cast<std::size_t>(num_blocks)) {}

  /// The place of the content that `b` bears or is a twin of; 0: `b` is in no ring.
  [[nodiscard]] std::int32_t content(BlockId b) const noexcept { return at(b).content; }
  /// The oldest twin of a bearer, or null.
  [[nodiscard]] BlockId oldest(BlockId bearer) const noexcept {
    return at(bearer).content == 0 ? BlockId{} : at(bearer).next;
  }
  /// The next younger twin, or null.
  [[nodiscard]] BlockId younger(BlockId twin) const noexcept { return at(twin).next; }

  /// `twin` has the content of `place`, which `bearer` bears.
  void join(std::int32_t place, BlockId bearer, BlockId twin) noexcept {
    Link& ring = at(bearer);
    if (ring.content == 0) ring = {BlockId{}, bearer, place};
    at(twin) = {BlockId{}, ring.prev, place};
    at(ring.prev).next = twin;
    ring.prev = twin;
  }
  void leave(BlockId bearer, BlockId twin) noexcept {
    Link const link = at(twin);
    at(twin).content = 0;
    at(link.prev).next = link.next;
    at(link.next.is_null() ? bearer : link.next).prev = link.prev;
    if (at(bearer).next.is_null()) at(bearer).content = 0;
  }
  /// The oldest twin bears the content now; `bearer` has none any more.
  void succeed(BlockId bearer) noexcept {
    Link const ring = at(bearer);
    at(bearer).content = 0;
    Link& heir = at(ring.next);
    if (heir.next.is_null()) {
      heir.content = 0;
    } else {
      heir.prev = ring.prev;
    }
  }
  /// The twins of `bearer` are twins no more. O(twins).
  void dissolve(BlockId bearer) noexcept {
    for (BlockId b = oldest(bearer); !b.is_null(); b = at(b).next) at(b).content = 0;
    at(bearer).content = 0;
  }

 private:
  /// Of a twin: its neighbours in the ring. Of a bearer: its oldest and its youngest twin.
  struct Link {
    BlockId next;
    BlockId prev;
    std::int32_t content;
  };

  Link& at(BlockId b) noexcept { return links_[static_cast<std::size_t>(b.value())]; }
  Link const& at(BlockId b) const noexcept { return links_[static_cast<std::size_t>(b.value())]; }

  LazyArray<Link> links_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

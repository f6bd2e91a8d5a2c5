// SPDX-License-Identifier: Apache-2.0
/// \file
/// What became findable and what stopped being so, for routers and external indexes. Replaying the
/// events gives the exact map at any moment: a parent is stored before its child, a content is
/// removed when no block bears it any more, and numbers have no gaps. Key by block and generation,
/// not by hash: what followed an evicted parent is removed later, when the same content may be
/// stored again elsewhere. A moved event changes that key and nothing else: what follows the
/// content stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Spans are valid during the call only. A removed event carries block, generation, hash and group;
/// a moved event `from` and `from_generation` as well; a cleared event nothing but its number.
struct CacheEvent {
  enum class Kind : std::uint8_t {
    stored,   ///< `block` is findable after `parent`
    removed,  ///< `block` can't be found any more, nor what follows it
    cleared,  ///< nothing older can be found
    moved,    ///< `block` bears the content that `from` bore
  };
  Kind kind = Kind::stored;
  std::uint64_t number = 0;  ///< 0, 1, 2, ... over all kinds
  GroupId group{0};
  BlockId block{};
  std::uint32_t generation = 0;
  BlockId parent{};  ///< null for a first block
  std::uint32_t parent_generation = 0;
  Hash128 hash{};
  Hash128 parent_hash{};
  std::span<TokenId const> tokens{};        ///< [block_tokens]
  std::span<std::byte const> extra_keys{};  ///< as encoded in the block
  BlockId from{};
  std::uint32_t from_generation = 0;
};

/// Called on the cache's thread, inside the call that caused it. Must not call the cache.
class CacheObserver {
 public:
  virtual void on_event(CacheEvent const& event) noexcept = 0;

 protected:
  ~CacheObserver() = default;
};

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What is in which block, and which block continues a prefix.
///
/// A published block is found by (hash, parent identity, tokens, extra keys). The hash picks the
/// bucket; the other three are compared, so a hit is exact by induction from the first block even
/// when every hash collides. The parent's identity is its id and generation, never its hash: when a
/// parent's content goes, its generation rises and its children can't be found any more.
///
/// Child hint: each block remembers its newest child. If the hint's parent, tokens and extra keys
/// are equal it is the answer, and the block needn't be hashed at all.
///
/// Jump hint: each block also remembers its newest descendant 16 places later. A look-up prefetches
/// that one, so that a long hit isn't a chain of cache misses. Both hints may be stale: what the
/// first says is compared, what the second says is only prefetched.
///
/// Records apart by use: 32 bytes of identity, `block_tokens` ids, 8 bytes of hints.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <oracle/detail/flat_index.hpp>
#include <oracle/detail/lazy_array.hpp>
#include <oracle/manage/block_hash.hpp>
#include <oracle/manage/prompt_key.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

/// The canonical identity of a published block. For what a first block hangs on: null and the
/// group, so that two groups never meet.
struct BlockIdentity {
  BlockId block;
  std::uint32_t generation = 0;
  friend constexpr bool operator==(BlockIdentity const&, BlockIdentity const&) noexcept = default;
};

/// The published block that shares the most leading tokens, and how many.
struct PartialMatch {
  BlockId block;
  std::int32_t num_tokens = 0;
};

/// Contents of all blocks and the exact index over the published ones. `const` calls may run
/// together. Nothing allocates after construction.
template <BlockHash Hash>
class BasicPrefixIndex {
  static constexpr std::int32_t unpublished = -2;
  struct Record {
    Hash128 hash;
    std::int32_t parent;
    std::uint32_t parent_generation;
    std::uint32_t generation;
    std::uint32_t num_extra_bytes;
  };
  static_assert(sizeof(Record) == 32);
  /// Blocks, or -1.
  struct Hints {
    std::int32_t child;
    std::int32_t jump;
  };
  using Tokens = std::span<TokenId const>;
  using Bytes = std::span<std::byte const>;

 public:
  /// Places from a block to the one that its jump hint names.
  static constexpr std::int32_t jump_distance = 16;

  struct Options {
    std::int32_t num_blocks = 0;
    std::int32_t block_tokens = 16;
    std::int32_t max_extra_key_bytes = 0;
    std::int32_t max_partial_candidates = 0;  ///< 0: no partial matches
    std::uint64_t seed = 0;
    GroupId group{0};  ///< keys every block
  };

  explicit BasicPrefixIndex(Options const& options)
      : options_(options),
        block_tokens_(static_cast<std::size_t>(options.block_tokens)),
        root_{BlockId{}, options.group.value()},
        root_hash_(Hash::root(options.seed ^ options.group.value())),
        records_(size_of(options)),
        tokens_(size_of(options) * block_tokens_),
        extra_(size_of(options) * static_cast<std::size_t>(options.max_extra_key_bytes)),
        hints_(size_of(options)),
        root_hint_(std::bit_ceil(size_of(options) / 4 + 1)),
        by_hash_(options.num_blocks) {
    for (std::size_t i = 0; i < size_of(options); ++i) {
      records_[i].parent = unpublished;
      hints_[i] = {-1, -1};
    }
    std::fill_n(root_hint_.data(), root_hint_.size(), -1);
    if (options.max_partial_candidates > 0) {
      by_first_token_ = detail::FlatIndex(options.num_blocks);
      siblings_ = detail::LazyArray<Sibling>(size_of(options));
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return by_hash_.size(); }
  [[nodiscard]] Hash128 root_hash() const noexcept { return root_hash_; }

  /// The block's token ids, [block_tokens]. Writing them is the owner's business.
  [[nodiscard]] TokenId* tokens(BlockId b) noexcept { return &tokens_[at(b) * block_tokens_]; }
  [[nodiscard]] TokenId const* tokens(BlockId b) const noexcept {
    return &tokens_[at(b) * block_tokens_];
  }
  [[nodiscard]] BlockIdentity identity(BlockId b) const noexcept {
    return b.is_null() ? root_ : BlockIdentity{b, records_[at(b)].generation};
  }
  [[nodiscard]] std::uint32_t generation(BlockId b) const noexcept {
    return records_[at(b)].generation;
  }
  [[nodiscard]] bool is_published(BlockId b) const noexcept {
    return records_[at(b)].parent != unpublished;
  }
  [[nodiscard]] BlockIdentity parent(BlockId b) const noexcept {
    return {BlockId{records_[at(b)].parent}, records_[at(b)].parent_generation};
  }
  /// Of a published block; of a null one, what the first block is chained to.
  [[nodiscard]] Hash128 hash(BlockId b) const noexcept {
    return b.is_null() ? root_hash_ : records_[at(b)].hash;
  }
  [[nodiscard]] Bytes extra(BlockId b) const noexcept {
    return {extra_.data() + at(b) * extra_stride(), records_[at(b)].num_extra_bytes};
  }

  /// The hash of a full block behind `parent`.
  [[nodiscard]] Hash128 chained(Hash128 parent, Tokens tokens, Bytes extra) const noexcept {
    Hash128 content = Hash::content(tokens, options_.seed);
    if (!extra.empty()) content = Hash::chain(content, Hash::extra(extra, options_.seed));
    return Hash::chain(parent, content);
  }

  /// The published block behind `parent` with exactly this content, or null.
  [[nodiscard]] BlockId find(Hash128 hash, BlockIdentity parent, Tokens tokens, Bytes extra) const {
    return BlockId{by_hash_.find(hash, [&](std::int32_t id) {
      return records_[static_cast<std::size_t>(id)].hash == hash &&
             continues(BlockId{id}, parent, tokens.data(), extra);
    })};
  }

  /// Calls `hit(j, block)` for the leading full blocks of `prompt`, at most `max_blocks`, and
  /// returns how many there are. `soon(block)` gets blocks that will probably be hit some 16 places
  /// later. O(blocks).
  template <class Hit, class Soon>
  std::int32_t walk(detail::PromptView const& prompt, std::int32_t max_blocks, Hit&& hit,
                    Soon&& soon) const {
    BlockIdentity parent = root_;
    TokenId const* tokens = prompt.tokens.data();
    for (std::int32_t j = 0; j < max_blocks; ++j, tokens += block_tokens_) {
      Bytes const extra = prompt.extra_of(j);
      BlockId block = parent.block.is_null() ? BlockId{} : BlockId{hints_[at(parent.block)].child};
      if (block.is_null() || !continues(block, parent, tokens, extra)) {
        block = find_hashed(prompt, j, parent, extra);
        if (block.is_null()) return j;
        prefetch_children(block, soon);
      }
      if (std::int32_t const jump = hints_[at(block)].jump; jump >= 0) {
        prefetch_hit(BlockId{jump}, soon);
      }
      hit(j, block);
      parent = identity(block);
    }
    return max_blocks;
  }

  /// Among the newest `max_partial_candidates` children of `parent` that begin with the same token
  /// and have the same extra keys, the one that shares most leading tokens; ties: the newest.
  [[nodiscard]] PartialMatch find_partial(BlockIdentity parent, Tokens tokens, Bytes extra) const {
    PartialMatch best;
    if (siblings_.size() == 0 || tokens.empty()) return best;
    std::int32_t id = newest_sibling(parent, tokens[0]);
    for (std::int32_t n = 0; id >= 0 && n < options_.max_partial_candidates; ++n) {
      BlockId const candidate{id};
      if (std::ranges::equal(extra, this->extra(candidate))) {
        std::int32_t const shared = common_prefix(tokens, this->tokens(candidate));
        if (shared > best.num_tokens) best = {candidate, shared};
      }
      id = siblings_[static_cast<std::size_t>(id)].older;
    }
    return best;
  }

  /// Whether a first block with these tokens is published under other extra keys. A hint: it may
  /// miss one whose place a newer block took.
  [[nodiscard]] bool has_root_under_other_keys(Tokens tokens) const noexcept {
    std::int32_t const id = root_hint_[root_place(tokens)];
    return id >= 0 && records_[static_cast<std::size_t>(id)].parent == BlockId::null_value &&
           equal_tokens(this->tokens(BlockId{id}), tokens.data());
  }

  void prefetch(Hash128 hash) const noexcept { by_hash_.prefetch(hash); }
  void prefetch_tokens(BlockId b) const noexcept {
    detail::prefetch_read(&tokens_[at(b) * block_tokens_]);
  }
  /// For a block that will be published soon: all lines that `publish` writes.
  void prefetch_publish(BlockId b, Hash128 hash) const noexcept {
    by_hash_.prefetch(hash);
    detail::prefetch_write(&records_[at(b)]);
    detail::prefetch_write(&hints_[at(b)]);
  }
  /// For a block whose content will be dropped and replaced soon.
  void prefetch_content(BlockId b) const noexcept {
    detail::prefetch_write(&records_[at(b)]);
    detail::prefetch_write(&tokens_[at(b) * block_tokens_]);
  }
  /// For a block that will be published soon, and for its parent.
  void prefetch_publish(BlockId b) const noexcept { detail::prefetch_write(&records_[at(b)]); }
  void prefetch_parent(BlockId b) const noexcept {
    detail::prefetch_read(&records_[at(b)]);
    detail::prefetch_write(&hints_[at(b)]);
  }
  void prefetch_hints(BlockId b) const noexcept { detail::prefetch_write(&hints_[at(b)]); }
  void prefetch_bucket_of(BlockId b) const noexcept { by_hash_.prefetch(records_[at(b)].hash); }

  /// Publishes `b`, whose tokens are complete, unless something equal is published already: then
  /// that is returned and nothing has changed. Else null.
  PAGEDKV_ALWAYS_INLINE BlockId publish(BlockId b, Hash128 hash, BlockIdentity parent,
                                        Bytes extra) noexcept {
    std::int32_t const equal = by_hash_.find_or_insert(hash, b.value(), [&](std::int32_t id) {
      return records_[static_cast<std::size_t>(id)].hash == hash &&
             continues(BlockId{id}, parent, tokens(b), extra);
    });
    if (equal >= 0) return BlockId{equal};
    Record& record = records_[at(b)];
    record.hash = hash;
    record.parent = parent.block.value();
    record.parent_generation = parent.generation;
    record.num_extra_bytes = static_cast<std::uint32_t>(extra.size());
    if (!parent.block.is_null()) hints_[at(parent.block)].child = b.value();
    if (parent.block.is_null() || !extra.empty() || siblings_.size() != 0) {
      publish_rest(b, parent, extra);
    }
    return {};
  }

  /// `later` stands `jump_distance` places behind `b` in a prompt.
  void set_jump(BlockId b, BlockId later) noexcept { hints_[at(b)].jump = later.value(); }

  /// Unpublishes `b`; its generation rises, so that no child of it is found again.
  void erase(BlockId b) noexcept {
    if (siblings_.size() != 0) unlink_sibling(b);
    Record& record = records_[at(b)];
    by_hash_.erase(record.hash, b.value());
    record.parent = unpublished;
    ++record.generation;
  }

 private:
  /// Published children of one parent with one first token, newest first.
  struct Sibling {
    std::int32_t newer;
    std::int32_t older;
  };

  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }
  static std::size_t size_of(Options const& o) noexcept {
    return static_cast<std::size_t>(o.num_blocks);
  }
  std::size_t extra_stride() const noexcept {
    return static_cast<std::size_t>(options_.max_extra_key_bytes);
  }
  Tokens block_of(Tokens tokens, std::int32_t j) const noexcept {
    return tokens.subspan(static_cast<std::size_t>(j) * block_tokens_, block_tokens_);
  }
  Tokens block_tokens(BlockId b) const noexcept { return {tokens(b), block_tokens_}; }

  template <class Soon>
  PAGEDKV_ALWAYS_INLINE void prefetch_hit(BlockId b, Soon& soon) const noexcept {
    prefetch_content(b);
    prefetch_hints(b);
    soon(b);
  }
  /// What no jump hint leads to: the blocks behind the first of a run of hits.
  template <class Soon>
  void prefetch_children(BlockId b, Soon& soon) const noexcept {
    for (std::int32_t i = 1; i < jump_distance; ++i) {
      b = BlockId{hints_[at(b)].child};
      if (b.is_null()) return;
      prefetch_hit(b, soon);
    }
  }

  void publish_rest(BlockId b, BlockIdentity parent, Bytes extra) noexcept {
    if (!extra.empty())
      std::memcpy(extra_.data() + at(b) * extra_stride(), extra.data(), extra.size());
    if (parent.block.is_null()) root_hint_[root_place(block_tokens(b))] = b.value();
    if (siblings_.size() != 0) link_sibling(b);
  }

  bool equal_tokens(TokenId const* a, TokenId const* b) const noexcept {
#if defined(__SSE2__)
    // The common block size, one cache line: a third of the instructions of memcmp.
    if (block_tokens_ == 16) {
      auto const lane = [&](int i) {
        return _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<__m128i const*>(a) + i),
                               _mm_loadu_si128(reinterpret_cast<__m128i const*>(b) + i));
      };
      __m128i const equal =
          _mm_and_si128(_mm_and_si128(lane(0), lane(1)), _mm_and_si128(lane(2), lane(3)));
      return _mm_movemask_epi8(equal) == 0xFFFF;
    }
#endif
    return std::memcmp(a, b, block_tokens_ * sizeof(TokenId)) == 0;
  }
  BlockId find_hashed(detail::PromptView const& prompt, std::int32_t j, BlockIdentity parent,
                      Bytes extra) const {
    auto const tokens = block_of(prompt.tokens, j);
    Hash128 const h = prompt.hashes.empty() ? chained(hash(parent.block), tokens, extra)
                                            : prompt.hashes[static_cast<std::size_t>(j)];
    return find(h, parent, tokens, extra);
  }
  PAGEDKV_ALWAYS_INLINE bool continues(BlockId b, BlockIdentity parent, TokenId const* tokens,
                                       Bytes extra) const {
    Record const& record = records_[at(b)];
    return record.parent == parent.block.value() && record.parent_generation == parent.generation &&
           record.num_extra_bytes == extra.size() && equal_tokens(this->tokens(b), tokens) &&
           (extra.empty() || std::ranges::equal(extra, this->extra(b)));
  }
  std::int32_t common_prefix(Tokens a, TokenId const* b) const noexcept {
    std::size_t n = 0;
    std::size_t const limit = std::min(a.size(), block_tokens_);
    while (n < limit && a[n] == b[n]) ++n;
    return static_cast<std::int32_t>(n);
  }
  std::size_t root_place(Tokens tokens) const noexcept {
    return Hash::content(tokens, options_.seed).low & (root_hint_.size() - 1);
  }

  static Hash128 sibling_hash(BlockIdentity parent, TokenId first) noexcept {
    Hash128 const identity{static_cast<std::uint32_t>(parent.block.value()) * 0x9E3779B185EBCA87ULL,
                           parent.generation};
    return Xxh3BlockHash::chain(identity, {static_cast<std::uint32_t>(first), 0});
  }
  std::int32_t newest_sibling(BlockIdentity parent, TokenId first) const {
    return by_first_token_.find(sibling_hash(parent, first), [&](std::int32_t id) {
      return this->parent(BlockId{id}) == parent && tokens(BlockId{id})[0] == first;
    });
  }
  void link_sibling(BlockId b) noexcept {
    BlockIdentity const parent = this->parent(b);
    TokenId const first = tokens(b)[0];
    std::int32_t const older = newest_sibling(parent, first);
    siblings_[at(b)] = {-1, older};
    if (older < 0) {
      by_first_token_.insert(sibling_hash(parent, first), b.value());
    } else {
      siblings_[static_cast<std::size_t>(older)].newer = b.value();
      by_first_token_.replace(sibling_hash(parent, first), older, b.value());
    }
  }
  void unlink_sibling(BlockId b) noexcept {
    Hash128 const h = sibling_hash(parent(b), tokens(b)[0]);
    auto const [newer, older] = siblings_[at(b)];
    if (older >= 0) siblings_[static_cast<std::size_t>(older)].newer = newer;
    if (newer >= 0) {
      siblings_[static_cast<std::size_t>(newer)].older = older;
    } else if (older >= 0) {
      by_first_token_.replace(h, b.value(), older);
    } else {
      by_first_token_.erase(h, b.value());
    }
  }

  Options options_;
  std::size_t block_tokens_;
  BlockIdentity root_;
  Hash128 root_hash_;
  detail::LazyArray<Record> records_;
  detail::LazyArray<TokenId> tokens_;
  detail::LazyArray<std::byte> extra_;
  detail::LazyArray<Hints> hints_;
  detail::LazyArray<std::int32_t> root_hint_;
  detail::FlatIndex by_hash_;
  detail::FlatIndex by_first_token_;
  detail::LazyArray<Sibling> siblings_;
};

using PrefixIndex = BasicPrefixIndex<Xxh3BlockHash>;

PAGEDKV_ORACLE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What is cached, and which run continues a prefix.
///
/// A published run is found by (parent run, the parent's generation, the tokens and extra keys of
/// its first block). The hash picks the bucket; all of these are compared, and inside the run so
/// are all tokens: a hit is exact by induction from the first block even when every hash collides.
/// (Run, generation) is an identity that is never used twice: it goes with what the run held.
///
/// Child used last: each run knows the child that was used last, and a look-up tries that one
/// first. All its other children are in the hash table; that one needn't be, so that a path without
/// branches is neither hashed when it is published nor when it is found. First blocks always are.
///
/// A block with extra keys begins a run, so that a run has one set of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <pagedkv/detail/flat_index.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/manage/detail/equal_blocks.hpp>
#include <pagedkv/manage/detail/root_hint.hpp>
#include <pagedkv/manage/detail/sibling_lists.hpp>
#include <pagedkv/manage/prompt_key.hpp>
#include <pagedkv/manage/run_table.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// The published block that shares the most leading tokens, and how many.
struct PartialMatch {
  BlockId block;
  std::int32_t num_tokens = 0;
};

/// The leading blocks of a prompt that are cached: whole runs, the last one perhaps in part.
struct RunHit {
  RunId run = -1;
  std::int32_t blocks = 0;
};

/// The exact index over the published runs of a table. `const` calls may run together. Nothing
/// allocates after construction.
template <BlockHash Hash>
class BasicPrefixIndex {
  static constexpr RunId detached = -2;  // the parent of what can't be found any more
  using Tokens = std::span<TokenId const>;
  using Bytes = std::span<std::byte const>;

 public:
  struct Options {
    std::int32_t block_tokens = 16;
    std::int32_t max_extra_key_bytes = 0;
    std::int32_t max_partial_candidates = 0;  ///< 0: no partial matches
    std::uint64_t seed = 0;
    GroupId group{0};  ///< keys every run
  };

  /// `runs` must outlive the index and have the same block_tokens.
  BasicPrefixIndex(RunTable& runs, Options const& options)
      : runs_(&runs),
        options_(options),
        compare_(options.block_tokens),
        root_hash_(Hash::root(options.seed ^ options.group.value())),
        extra_((static_cast<std::size_t>(runs.num_blocks()) + 1) *
               static_cast<std::size_t>(options.max_extra_key_bytes)),
        root_hint_(runs, compare_, options.seed),
        by_hash_(runs.num_blocks() + 1),
        siblings_(options.max_partial_candidates > 0 ? runs.num_blocks() + 1 : 0) {}

  /// Published runs.
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  /// What the chained hash of a first block is chained to.
  [[nodiscard]] Hash128 root_hash() const noexcept { return root_hash_; }
  /// The chained hash of a full block: for keys and events, the index needs none.
  [[nodiscard]] Hash128 chained(Hash128 before, Tokens tokens, Bytes extra) const noexcept {
    return Hash::chain(before, content(tokens, extra));
  }
  /// Of the run's first block.
  [[nodiscard]] Bytes extra(RunId x) const noexcept {
    return {extra_.data() + extra_place(x), (*runs_)[x].num_extra_bytes};
  }
  /// Whether what the run follows is still what it was.
  [[nodiscard]] bool is_reachable(Run const& run) const noexcept {
    if (run.parent < 0) return run.parent != detached;
    return (*runs_)[run.parent].generation == run.parent_generation;
  }

  // ---- looking up -------------------------------------------------------------------------------

  /// The published run after `parent` (-1: none) that begins with this block, or -1. O(1) expected.
  [[nodiscard]] RunId find(RunId parent, TokenId const* tokens, Bytes extra) const {
    if (parent >= 0 && (*runs_)[parent].num_children == 0) return -1;
    return find_child(parent, tokens, extra);
  }
  /// Leading blocks that a run of this length and `tokens` have in common beyond the first, which
  /// is equal. No more than `most`.
  [[nodiscard]] std::int32_t common_blocks(RunId x, TokenId const* tokens,
                                           std::int32_t most) const noexcept {
    return 1 + compare_.equal_blocks(runs_->tokens((*runs_)[x].start + 1),
                                     tokens + compare_.block_tokens(), most - 1);
  }
  /// Calls `hit(RunHit)` for the leading full blocks of `prompt` that are cached, at most
  /// `max_blocks`. O(blocks), a look-up for each run.
  template <class Hit>
  void walk(detail::PromptView const& prompt, std::int32_t max_blocks, Hit&& hit) const {
    RunId parent = -1;
    for (std::int32_t j = 0; j < max_blocks;) {
      TokenId const* const tokens = &prompt.tokens[compare_.at(j)];
      RunId const x = find(parent, tokens, prompt.extra_of(j));
      if (x < 0) return;
      std::int32_t const length = (*runs_)[x].length;
      std::int32_t const most = std::min(length, prompt.next_keyed(j + 1, max_blocks) - j);
      std::int32_t const n = common_blocks(x, tokens, most);
      hit(RunHit{x, n});
      if (n < length) return;
      j += n;
      parent = x;
    }
  }

  /// Among the newest `max_partial_candidates` published blocks after the first `blocks` of run
  /// `parent` (-1: first blocks of sequences) that begin with the same token, the one with the same
  /// extra keys that shares most leading tokens; ties: the newest.
  [[nodiscard]] PartialMatch find_partial(RunId parent, std::int32_t blocks, Tokens tokens,
                                          Bytes extra) const {
    PartialMatch best;
    if (!siblings_.in_use() || tokens.empty()) return best;
    auto const compare = [&](std::int32_t place) {
      std::int32_t const shared = compare_.common_prefix(tokens, runs_->tokens(place));
      if (shared > best.num_tokens) best = {runs_->block_at(place), shared};
    };
    if (parent >= 0 && blocks < (*runs_)[parent].length) {  // one block can follow: the run's next
      if (extra.empty()) compare((*runs_)[parent].start + blocks);
      return best;
    }
    std::uint32_t const generation =
        parent >= 0 ? (*runs_)[parent].generation : options_.group.value();
    RunId x = siblings_.newest(*runs_, parent, generation, tokens[0]);
    for (std::int32_t n = 0; x >= 0 && n < options_.max_partial_candidates; ++n) {
      if (std::ranges::equal(extra, this->extra(x))) compare((*runs_)[x].start);
      x = siblings_.older(x);
    }
    return best;
  }

  /// Whether a first block with these tokens is published under any extra keys; may miss one.
  [[nodiscard]] bool has_root_under_other_keys(Tokens tokens) const noexcept {
    return root_hint_.knows(tokens.data());
  }

  // ---- publishing -------------------------------------------------------------------------------

  /// `x`, whose tokens are complete, can be found after `parent` from now on. Requires: nothing
  /// equal is published after it.
  void publish(RunId x, RunId parent, Bytes extra) noexcept {
    Run& run = (*runs_)[x];
    ++size_;
    run.set(Run::published);
    run.parent = parent;
    run.num_extra_bytes = static_cast<std::uint16_t>(extra.size());
    if (!extra.empty()) std::memcpy(extra_.data() + extra_place(x), extra.data(), extra.size());
    if (parent >= 0) {
      run.parent_generation = (*runs_)[parent].generation;
      ++(*runs_)[parent].num_children;
      use_last(parent, x);
    } else {
      run.parent_generation = options_.group.value();
      root_hint_.note(x);
      insert(x);
    }
    if (siblings_.in_use()) siblings_.link(*runs_, x);
  }
  /// `x`, published after `parent`, was used last.
  void use_last(RunId parent, RunId x) noexcept {
    RunId const before = std::exchange((*runs_)[parent].last_child, x);
    if (before >= 0 && before != x && !(*runs_)[before].has(Run::indexed)) insert(before);
  }
  /// Run `h` was split off `x` and is found in its place; `x` is found after it.
  void split(RunId x, RunId h) noexcept {
    Run& run = (*runs_)[x];
    Run& head = (*runs_)[h];
    ++size_;
    if (head.has(Run::indexed)) {
      by_hash_.replace(key(head.hash), x, h);
      run.clear(Run::indexed);
    }
    if (siblings_.in_use() && head.parent != detached) siblings_.replace(*runs_, x, h);
    if (head.parent >= 0 && is_reachable(head) && (*runs_)[head.parent].last_child == x) {
      (*runs_)[head.parent].last_child = h;
    }
    if (head.num_extra_bytes != 0) {
      std::memcpy(extra_.data() + extra_place(h), extra_.data() + extra_place(x),
                  head.num_extra_bytes);
      run.num_extra_bytes = 0;
    }
    head.last_child = x;
    head.num_children = 1;
    run.parent = h;
    run.parent_generation = head.generation;
    if (siblings_.in_use()) siblings_.link(*runs_, x);
  }
  /// `x` isn't published any more, nor anything that follows it.
  void erase(RunId x) noexcept {
    --size_;
    take_out(x);
  }
  /// `x` can't be found any more, nor what follows it; it stays published until it is erased.
  void detach(RunId x) noexcept {
    take_out(x);
    (*runs_)[x].parent = detached;
  }
  /// What follows `x` can't be found any more.
  void forget_children(RunId x) noexcept {
    Run& run = (*runs_)[x];
    ++run.generation;
    run.num_children = 0;
    run.last_child = -1;
  }

  /// For a run that will be erased soon.
  void prefetch(RunId x) const noexcept {
    if ((*runs_)[x].has(Run::indexed)) by_hash_.prefetch(key((*runs_)[x].hash));
  }

 private:
  void take_out(RunId x) noexcept {
    Run& run = (*runs_)[x];
    if (run.has(Run::indexed)) by_hash_.erase(key(run.hash), x);
    run.clear(Run::indexed);
    if (siblings_.in_use() && run.parent != detached) siblings_.unlink(*runs_, x);
    if (run.parent >= 0 && is_reachable(run)) {
      Run& parent = (*runs_)[run.parent];
      --parent.num_children;
      if (parent.last_child == x) parent.last_child = -1;
    }
    forget_children(x);
  }
  std::size_t extra_place(RunId x) const noexcept {
    return static_cast<std::size_t>(x) * static_cast<std::size_t>(options_.max_extra_key_bytes);
  }
  PAGEDKV_NEVER_INLINE RunId find_child(RunId parent, TokenId const* tokens, Bytes extra) const {
    std::uint32_t generation = options_.group.value();
    if (parent >= 0) {
      Run const& p = (*runs_)[parent];
      generation = p.generation;
      RunId const guess = p.last_child;
      if (guess >= 0 && continues(guess, parent, generation, tokens, extra)) return guess;
      if (p.num_children <= (guess >= 0 ? 1 : 0)) return -1;
    }
    return by_hash_.find(key(hash_of(parent, generation, tokens, extra)),
                         [&](RunId x) { return continues(x, parent, generation, tokens, extra); });
  }
  Hash128 content(Tokens tokens, Bytes extra) const noexcept {
    Hash128 const h = Hash::content(tokens, options_.seed);
    return extra.empty() ? h : Hash::chain(h, Hash::extra(extra, options_.seed));
  }
  std::uint64_t hash_of(RunId parent, std::uint32_t generation, TokenId const* tokens,
                        Bytes extra) const noexcept {
    Hash128 const h = Hash::chain(detail::run_identity(parent, generation),
                                  content({tokens, compare_.block_tokens()}, extra));
    return h.low ^ h.high;
  }
  static Hash128 key(std::uint64_t hash) noexcept { return {hash, hash}; }
  void insert(RunId x) noexcept {
    Run& run = (*runs_)[x];
    run.hash = hash_of(run.parent, run.parent_generation, runs_->tokens(run.start), extra(x));
    run.set(Run::indexed);
    by_hash_.insert(key(run.hash), x);
  }
  bool continues(RunId x, RunId parent, std::uint32_t generation, TokenId const* tokens,
                 Bytes extra) const noexcept {
    Run const& run = (*runs_)[x];
    return run.has(Run::published) && run.parent == parent && run.parent_generation == generation &&
           run.num_extra_bytes == extra.size() &&
           compare_.equal_block(runs_->tokens(run.start), tokens) &&
           (extra.empty() || std::ranges::equal(extra, this->extra(x)));
  }

  RunTable* runs_;
  Options options_;
  detail::EqualBlocks compare_;
  Hash128 root_hash_;
  detail::LazyArray<std::byte> extra_;
  detail::RootHint<Hash> root_hint_;
  detail::FlatIndex by_hash_;
  detail::SiblingLists siblings_;
  std::int32_t size_ = 0;
};

using PrefixIndex = BasicPrefixIndex<Xxh3BlockHash>;

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The cache manager: which tokens are cached already, and where the others go.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <pagedkv/fwd.hpp>
#include <pagedkv/manage/detail/cache_core.hpp>
#include <pagedkv/manage/detail/verify.hpp>
#include <pagedkv/manage/sequence.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Owns the bookkeeping of a pool of equal blocks; moves no bytes.
///
/// Memory: all tables are sized by the config at construction; afterwards nothing is allocated
/// except inside `hash`. Time: no call scans, sorts or copies the pool, except `reset`
/// and `verify`; the cost of a step doesn't depend on what is cached.
///
/// Threads: one writer, its handles included. `const` calls may run together while there is no
/// write. Caches are independent. Determinism: the same calls give the same blocks, victims, copies
/// and events on every platform.
template <class Policy>
class BasicKvCache {
  using Core = detail::CacheCore<Policy>;

 public:
  using SequenceType = BasicSequence<Policy>;
  using PinType = BasicPin<Policy>;

  /// Raises `Error` for a term that can't work (config.hpp, `validate`), naming the nearest value.
  explicit BasicKvCache(KvCacheConfig const& config) : core_(config) {}
  BasicKvCache(BasicKvCache const&) = delete;  ///< handles point at it
  BasicKvCache& operator=(BasicKvCache const&) = delete;
  /// Requires: no live `Sequence` or `Pin`.
  ~BasicKvCache() {
    PAGEDKV_ASSERT(core_.sequences().num_alive() == 0 && core_.pins().num_alive() == 0,
                   "~KvCache: destroy every Sequence and Pin first");
  }

  // ---- prompts ----------------------------------------------------------------------------------

  /// A prompt's key: once per request, reused by every retry. Spans needn't outlive the call.
  /// Allocates. O(tokens).
  [[nodiscard]] PromptKey hash(std::span<TokenId const> tokens, ExtraKeys const& keys = {}) const {
    auto data = std::make_shared<PromptKey::Data>();
    data->tokens.assign(tokens.begin(), tokens.end());
    data->seed = config().hash_seed;
    data->block_tokens = config().block_tokens;
    if (!keys.salt.empty() || !keys.adapter.empty() || !keys.media.empty()) {
      data->extra = std::make_shared<detail::ExtraKeyTable const>(
          keys, static_cast<std::int32_t>(tokens.size()), config().block_tokens);
    }
    auto const block = static_cast<std::size_t>(config().block_tokens);
    data->hashes.reserve(tokens.size() / block);
    Hash128 chain = core_.index().root_hash();
    for (std::size_t j = 0; j < tokens.size() / block; ++j) {
      auto const extra = data->extra ? data->extra->block(static_cast<std::int32_t>(j))
                                     : std::span<std::byte const>{};
      chain = core_.index().chained(chain, tokens.subspan(j * block, block), extra);
      data->hashes.push_back(chain);
    }
    return PromptKey{std::move(data)};
  }
  /// Tokens that `open` would hit now: never the last one. No side effect. O(blocks).
  [[nodiscard]] std::int32_t match(PromptKey const& key) const { return core_.match(view(key)); }
  /// What `open` would take now. No side effect. O(blocks).
  [[nodiscard]] Admission admission(PromptKey const& key, OpenOptions const& options = {}) const {
    return core_.admission(view(key), options);
  }
  /// Whether `open` would find the blocks now. O(blocks).
  [[nodiscard]] bool would_fit(PromptKey const& key, OpenOptions const& options = {}) const {
    return core_.would_fit(view(key), options);
  }

  // ---- sequences --------------------------------------------------------------------------------

  /// One transaction: shares the longest cached prefix, never the last token, and reserves. After
  /// success `size() = max(options.reserve, options.external_tokens, cached())`, and
  /// `committed() = cached()`. On failure nothing has moved and nothing is counted. Errors, in this
  /// order: extra_keys_too_long, never_fits, no_free_sequences, no_free_blocks. O(blocks).
  Result<SequenceType> open(SequenceId id, PromptKey const& key, OpenOptions const& options = {}) {
    return handle(core_.open(id, view(key), key.data_->extra, options));
  }
  /// The same without a key: for prompts that are opened once and have no extra keys. Hashes only
  /// where a guess fails, and allocates nothing.
  Result<SequenceType> open(SequenceId id, std::span<TokenId const> tokens,
                            OpenOptions const& options = {}) {
    return handle(core_.open(id, detail::PromptView{tokens, nullptr}, nullptr, options));
  }
  /// Holds what is cached of this prefix (full blocks). Never fails for lack of blocks; errors:
  /// extra_keys_too_long, no_free_sequences (max_pins handles are alive). O(blocks).
  Result<PinType> pin(PromptKey const& key) {
    auto const place = core_.pin(view(key));
    if (!place) return Unexpected{place.error()};
    return Result<PinType>{PinType{&core_, *place}};
  }

  // ---- steps ------------------------------------------------------------------------------------

  /// Each planned copy, exactly once: run them before the step's writes. Destinations are distinct
  /// and none is a source. Valid until the next non-const call. O(copies). An engine with a `Batch`
  /// takes them there: a target taken here before `Batch::build` isn't listed as new any more.
  std::span<BlockCopy const> take_copies() {
    auto const copies = core_.take_copies();
    detail::check(core_);
    return copies;
  }
  /// Closes the open step once its work is enqueued; its commits may come later. O(1);
  /// stream_ordered: O(blocks that waited for it).
  Tick end_step() {
    Tick const tick = core_.end_step();
    detail::check(core_);
    return tick;
  }
  /// The device has finished every step up to `tick`. Requires: that step has ended. No effect
  /// under stream_ordered. O(blocks let go).
  void reclaim(Tick tick) {
    core_.reclaim(tick);
    detail::check(core_);
  }
  [[nodiscard]] Tick open_tick() const noexcept { return Tick{core_.pool().open_tick()}; }

  // ---- upkeep -----------------------------------------------------------------------------------

  /// Drops the content of these blocks; those with an owner are skipped. What follows an
  /// evicted block can't be found any more and is left to LRU. Returns how many. O(blocks given).
  std::int32_t evict(std::span<BlockId const> blocks) {
    std::int32_t const evicted = core_.evict(blocks);
    detail::check(core_);
    return evicted;
  }
  /// What these blocks hold is known to be wrong (a failed transfer, corrupted memory): it can't be
  /// found from now on, owned or not, and neither can what follows it. No twin bears the content
  /// instead: the twin may come from the same bad bytes. What follows without an owner becomes free
  /// at once; what has an owner stays readable in that row, is never found, and becomes free when
  /// it is given back. Rows that hold it publish nothing more after it. Returns how many of the
  /// blocks could be found. O(blocks given + runs + rows).
  std::int32_t unpublish(std::span<BlockId const> blocks) {
    std::int32_t const condemned = core_.unpublish(blocks);
    detail::check(core_);
    return condemned;
  }
  /// Ends the epoch (e.g. new weights): nothing older is ever found again, and sequences opened
  /// before, and their forks, never publish. Keys stay valid. O(pool).
  void reset() {
    core_.reset();
    detail::check(core_);
  }
  /// A snapshot. O(max_sequences).
  [[nodiscard]] Stats stats() const noexcept { return core_.stats(); }
  /// Recounts everything from the tables. Allocates. O(pool + tables).
  [[nodiscard]] VerifyReport verify() const { return detail::verify(core_); }

  /// Blocks that can be had now: free and idle.
  [[nodiscard]] std::int32_t available_blocks() const noexcept {
    return core_.pool().num_available();
  }
  /// Blocks on their way back: wait for them rather than preempting a sequence.
  [[nodiscard]] std::int32_t incoming_blocks() const noexcept {
    return core_.pool().num_incoming();
  }
  [[nodiscard]] KvCacheConfig const& config() const noexcept { return core_.config(); }
  /// Columns of a block table row: enough for the longest sequence that the pool can hold.
  [[nodiscard]] std::int32_t table_width() const noexcept { return core_.sequences().width(); }

  // ---- looking at a block: tools and tests ------------------------------------------------------

  /// What it holds can be found, or could be before `unpublish` broke the path to it.
  [[nodiscard]] bool is_published(BlockId b) const noexcept {
    Run const* const run = core_.run_of(b);
    return run != nullptr && run->has(Run::published);
  }
  /// Sequences and pins that reference it.
  [[nodiscard]] std::uint32_t references(BlockId b) const noexcept {
    Run const* const run = core_.run_of(b);
    return run != nullptr ? run->references : 0;
  }
  /// `Reclaim::deferred`: an owner gave it back, the last step of that owner isn't reclaimed yet,
  /// and the block has an owner still or again. Until that step is over, a write needs a copy.
  [[nodiscard]] bool is_in_flight(BlockId b) const noexcept {
    Run const* const run = core_.run_of(b);
    return run != nullptr && core_.pool().is_in_flight(*run);
  }
  /// Rises whenever published content leaves the block.
  [[nodiscard]] std::uint32_t generation(BlockId b) const noexcept {
    return core_.runs().generation(b);
  }

 private:
  friend class BasicBatch<Policy>;

  detail::PromptView view(PromptKey const& key) const {
    PAGEDKV_ASSERT(
        key.data_->seed == config().hash_seed && key.data_->block_tokens == config().block_tokens,
        "the key was made for another seed or block size; call this cache's hash()");
    return key.view();
  }
  Result<SequenceType> handle(Result<std::int32_t> const& row) {
    detail::check(core_);
    if (!row) return Unexpected{row.error()};
    return Result<SequenceType>{SequenceType{&core_, *row}};
  }

  Core core_;
};

#ifdef PAGEDKV_COMPILED
extern template class detail::CacheCore<DefaultPolicy>;
extern template class BasicKvCache<DefaultPolicy>;
extern template class BasicSequence<DefaultPolicy>;
extern template class BasicPin<DefaultPolicy>;
#endif

PAGEDKV_NAMESPACE_END

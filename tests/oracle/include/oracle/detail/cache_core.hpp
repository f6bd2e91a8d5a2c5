// SPDX-License-Identifier: Apache-2.0
/// \file
/// What `KvCache`, `Sequence`, `Pin` and `Batch` share: the sequences' states and the verbs,
/// composed from the pool, the index, the tables and the copy plan. Handles name a sequence by its
/// row.
///
/// One rule shapes every verb: decide first, touch nothing; then act, where nothing can fail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include <oracle/config.hpp>
#include <oracle/detail/block_shape.hpp>
#include <oracle/detail/event_source.hpp>
#include <oracle/detail/prefix_lookup.hpp>
#include <oracle/detail/sequence_table.hpp>
#include <oracle/manage/block_pool.hpp>
#include <oracle/manage/copy_plan.hpp>
#include <oracle/manage/open_options.hpp>
#include <oracle/manage/prefix_index.hpp>
#include <oracle/manage/prompt_key.hpp>
#include <oracle/manage/slot_mapping.hpp>
#include <oracle/manage/stats.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

namespace detail {

template <class Policy>
class CacheCore {
 public:
  using Pool = BasicBlockPool<typename Policy::Eviction>;
  using Index = BasicPrefixIndex<typename Policy::Hash>;
  using Ids = std::span<TokenId const>;
  using Bytes = std::span<std::byte const>;

  explicit CacheCore(KvCacheConfig const& config)
      : config_((validate(config), config)),
        shape_(config.block_tokens),
        pool_(config.num_blocks, config.reclaim),
        index_({config.num_blocks, config.block_tokens, config.max_extra_key_bytes,
                config.partial_hits ? config.max_partial_candidates : 0, config.hash_seed,
                GroupId{0}}),
        sequences_(config.max_sequences, table_width(config)),
        pins_(config.max_pins, table_width(config)),
        copies_(config.num_blocks),
        twin_of_(static_cast<std::size_t>(config.num_blocks)),
        events_(config.observer) {}
  CacheCore(CacheCore const&) = delete;
  CacheCore& operator=(CacheCore const&) = delete;

  [[nodiscard]] KvCacheConfig const& config() const noexcept { return config_; }
  [[nodiscard]] BlockShape shape() const noexcept { return shape_; }
  [[nodiscard]] Pool const& pool() const noexcept { return pool_; }
  [[nodiscard]] Index const& index() const noexcept { return index_; }
  [[nodiscard]] CopyPlan const& copies() const noexcept { return copies_; }
  [[nodiscard]] SequenceTable const& sequences() const noexcept { return sequences_; }
  [[nodiscard]] SequenceTable const& pins() const noexcept { return pins_; }
  [[nodiscard]] SequenceState const& state(std::int32_t r) const noexcept {
    return sequences_.state(r);
  }
  [[nodiscard]] std::span<BlockId const> row(std::int32_t r) const noexcept {
    return sequences_.blocks(r);
  }
  [[nodiscard]] BlockId twin_of(BlockId b) const noexcept {
    return twin_of_[static_cast<std::size_t>(b.value())];
  }
  /// The block that is findable with the content of `b`: `b` itself or the first of its twins.
  [[nodiscard]] BlockId canonical(BlockId b) const noexcept {
    return pool_.has(b, BlockWord::twin) ? twin_of(b) : b;
  }

  // ---- opening ----------------------------------------------------------------------------------

  [[nodiscard]] std::int32_t match(PromptView const& prompt) const {
    return lookup().find(prompt, true, [](std::int32_t, BlockId) {}).tokens;
  }
  [[nodiscard]] Admission admission(PromptView const& prompt, OpenOptions const& options) const {
    Hit hit = lookup().find(prompt, options.read, [](std::int32_t, BlockId) {});
    std::int32_t const needed = lookup().fit(hit, options);
    return {hit.tokens, needed};
  }
  [[nodiscard]] bool would_fit(PromptView const& prompt, OpenOptions const& options) const {
    return !never_fits(longest(prompt, options)) &&
           admission(prompt, options).blocks_needed <= pool_.num_available();
  }

  /// The new sequence's row. `extra` outlives the call: it keys the blocks to come.
  [[nodiscard]] Result<std::int32_t> open(SequenceId id, PromptView const& prompt,
                                          std::shared_ptr<ExtraKeyTable const> const& extra,
                                          OpenOptions const& options) {
    PAGEDKV_ASSERT(options.reserve >= 0 && options.external_tokens >= 0 &&
                       options.external_tokens <= prompt.num_tokens(),
                   "open: reserve must be 0 or more and external_tokens within the prompt");
    if (has_too_long_extra(prompt)) return Unexpected{Errc::extra_keys_too_long};
    if (never_fits(longest(prompt, options))) return Unexpected{Errc::never_fits};
    if (sequences_.full()) return Unexpected{Errc::no_free_sequences};

    BlockId* const row = sequences_.places(sequences_.next());  // scratch until success
    Hit hit = lookup().find(prompt, options.read, [&](std::int32_t j, BlockId b) { row[j] = b; });
    if (lookup().fit(hit, options) > pool_.num_available()) return Unexpected{Errc::no_free_blocks};

    if (hit.partial.num_tokens > 0) hold_source(hit.partial.block);
    for (std::int32_t j = 0; j < hit.blocks; ++j) pool_.acquire(row[j]);
    std::int32_t const r = start(id);
    SequenceState& s = sequences_.state(r);
    s.num_blocks = s.published_blocks = hit.blocks;
    s.publishes = options.publish;
    s.committed = s.cached = hit.tokens;
    if (extra != nullptr) sequences_.extra(r) = extra;
    if (std::int32_t const size = Lookup::positions(hit, options); size > 0) extend(r, size);
    if (hit.partial.num_tokens > 0) {
      plan_copy({hit.partial.block, row[hit.blocks], hit.partial.num_tokens});
    }
    std::int32_t const first_new = hit.blocks * shape_.tokens();
    s.known = std::min(prompt.num_tokens(), s.size);
    if (s.known > first_new) {
      write_ids(r, first_new,
                prompt.tokens.subspan(static_cast<std::size_t>(first_new),
                                      static_cast<std::size_t>(s.known - first_new)));
    }
    if (s.known < s.size) forget_ids(r, s.known);
    s.known = std::max(s.known, s.committed);
    s.external = std::max(0, options.external_tokens - hit.tokens);
    count_open(prompt, hit, options, s);
    return r;
  }

  // ---- growing ----------------------------------------------------------------------------------

  [[nodiscard]] std::int32_t blocks_needed(std::int32_t r, std::int32_t n) const noexcept {
    return growth(r, n).blocks;
  }
  [[nodiscard]] bool would_fit(std::int32_t r, std::int32_t n) const noexcept {
    SequenceState const& s = state(r);
    if (n > config_.max_sequence_tokens - s.size || never_fits(s.size + n)) return false;
    Growth const g = growth(r, n);
    std::int32_t const room = pool_.num_available();
    if (g.blocks <= room) return true;
    return g.blocks - (g.tail == Tail::copy_or_unpublish ? 1 : 0) <= room + num_adoptable(r);
  }

  [[nodiscard]] Result<TokenRange> append(std::int32_t r, Ids ids) {
    SequenceState& s = at(r);
    // The common step: one more token into a block that only this sequence has.
    if (ids.size() == 1 && s.known == s.size && s.size < config_.max_sequence_tokens) {
      std::int32_t const offset = shape_.offset(s.size);
      if (offset != 0 && !s.writable_tail.is_null()) {
        index_.tokens(s.writable_tail)[offset] = ids[0];
        s.known = ++s.size;
        return TokenRange{s.size - 1, 1};
      }
    }
    if (ids.size() > static_cast<std::size_t>(config_.max_sequence_tokens)) {
      return Unexpected{Errc::never_fits};
    }
    auto const range = grow(r, static_cast<std::int32_t>(ids.size()));
    if (range) set_ids(r, range->first, ids);
    return range;
  }
  [[nodiscard]] Result<TokenRange> reserve(std::int32_t r, std::int32_t n) {
    auto const range = grow(r, n);
    if (range) forget_ids(r, range->first);
    return range;
  }
  void set_tokens(std::int32_t r, std::int32_t first, Ids ids) {
    SequenceState const& s = state(r);
    PAGEDKV_ASSERT(first >= s.committed, "set_tokens: positions below committed() are final");
    PAGEDKV_ASSERT(ids.size() <= static_cast<std::size_t>(s.size) &&
                       first <= s.size - static_cast<std::int32_t>(ids.size()),
                   "set_tokens: the positions must have been reserved");
    PAGEDKV_ASSERT(std::find(ids.begin(), ids.end(), unknown_token) == ids.end(),
                   "set_tokens: unknown_token is no token");
    set_ids(r, first, ids);
  }

  // ---- committing -------------------------------------------------------------------------------

  void commit(std::int32_t r, std::int32_t n) {
    if (!advance(r, n)) return;
    publish(r, shape_.block(n));
  }
  /// The checks and the bookkeeping of `commit`. True if there are full blocks to deal with.
  [[nodiscard]] PAGEDKV_ALWAYS_INLINE bool advance(std::int32_t r, std::int32_t n) {
    SequenceState& s = at(r);
    PAGEDKV_ASSERT(n <= s.size, "commit: only positions that exist can be final");
    if (n <= s.committed) return false;
    PAGEDKV_ASSERT(s.known >= n || known(r, n) >= n, "commit: set_tokens first, an id is unknown");
    PAGEDKV_ASSERT(copies_.num_pending() == 0 || !fills_later(r),
                   "commit: take_copies first, a planned copy fills this block");
    if (pool_.num_fresh() != 0) mark_written(r, n);
    s.committed = n;
    return shape_.block(n) > s.published_blocks;
  }
  /// Deals with the full blocks below column `end`. Requires: they are committed.
  void publish(std::int32_t r, std::int32_t end) {
    SequenceState& s = at(r);
    if (!may_publish(s)) {
      s.published_blocks = end;
      return;
    }
    ExtraKeyTable const* const keys = sequences_.extra(r).get();
    if (keys == nullptr) {
      publish_run(r, end, [](std::int32_t) { return Bytes{}; });
    } else {
      publish_run(r, end, [keys](std::int32_t j) { return keys->block(j); });
    }
    s.published_blocks = end;
  }
  /// Some sequences before `next_hash` of this one.
  void prefetch_next(std::int32_t r) const noexcept {
    BlockId const* const blocks = sequences_.places(r);
    std::int32_t const j = state(r).published_blocks;
    index_.prefetch_publish(blocks[j]);
    pool_.prefetch(blocks[j]);
    if (j >= Index::jump_distance) index_.prefetch_hints(blocks[j - Index::jump_distance]);
    if (j > 0) {
      index_.prefetch_parent(blocks[j - 1]);
      pool_.prefetch(blocks[j - 1]);
    }
  }
  /// The hash of the next block that `publish` deals with; prefetches its bucket.
  [[nodiscard]] Hash128 next_hash(std::int32_t r) const {
    SequenceState const& s = state(r);
    if (!may_publish(s)) return {};
    std::int32_t const j = s.published_blocks;
    Hash128 const hash = index_.chained(index_.hash(parent_of(r, j)),
                                        ids_of(sequences_.places(r)[j]), sequences_.extra_of(r, j));
    index_.prefetch(hash);
    return hash;
  }
  /// Deals with the one next full block, whose hash is known.
  void publish_next(std::int32_t r, Hash128 hash) {
    SequenceState& s = at(r);
    std::int32_t const j = s.published_blocks++;
    if (!may_publish(s)) return;
    publish_block(r, j, index_.identity(parent_of(r, j)), hash, sequences_.extra_of(r, j));
  }

  // ---- shrinking, forking, leaving --------------------------------------------------------------

  void truncate(std::int32_t r, std::int32_t n) {
    SequenceState& s = at(r);
    PAGEDKV_ASSERT(n >= 0 && n <= s.size, "truncate: n must lie within size()");
    std::int32_t const keep = shape_.blocks(n);
    if (keep < s.num_blocks) {
      if (keep > 0) keep_behind_children(r, keep);
      release_blocks(r, row(r).subspan(static_cast<std::size_t>(keep)));
      s.num_blocks = keep;
      s.first_changed = std::min(s.first_changed, keep);
    }
    s.size = n;
    s.writable_tail = {};
    s.committed = std::min(s.committed, n);
    s.known = std::min(s.known, n);
    s.published_blocks = std::min(s.published_blocks, shape_.block(n));
  }

  [[nodiscard]] Result<std::int32_t> fork(std::int32_t parent, SequenceId id) {
    SequenceState& from = at(parent);
    if (from.committed != from.size) return Unexpected{Errc::uncommitted};
    if (sequences_.full()) return Unexpected{Errc::no_free_sequences};
    from.writable_tail = {};
    auto const blocks = row(parent);
    pool_.share(blocks);
    std::int32_t const child = start(id);
    std::copy(blocks.begin(), blocks.end(), sequences_.places(child));
    SequenceState& s = sequences_.state(child);
    s.size = s.committed = s.cached = from.size;
    s.known = from.known;
    s.num_blocks = from.num_blocks;
    s.published_blocks = from.published_blocks;
    s.epoch = from.epoch;
    s.publishes = from.publishes;
    s.may_have_twins = from.may_have_twins;
    s.left_children = from.left_children;
    sequences_.extra(child) = sequences_.extra(parent);
    ++stats_.forks;
    return child;
  }

  void close(std::int32_t r, Reuse reuse) {
    auto blocks = row(r);
    if (reuse == Reuse::none) blocks = blocks.first(release_unwanted(r));
    if (reuse == Reuse::resume) ++stats_.preemptions;
    release_blocks(r, blocks);
    sequences_.end(r);
  }

  // ---- pins -------------------------------------------------------------------------------------

  [[nodiscard]] Result<std::int32_t> pin(PromptView const& prompt) {
    if (has_too_long_extra(prompt)) return Unexpected{Errc::extra_keys_too_long};
    if (pins_.full()) return Unexpected{Errc::no_free_sequences};
    std::int32_t const p = pins_.start();
    BlockId* const row = pins_.places(p);
    pins_.state(p).num_blocks = index_.walk(
        prompt, std::min(shape_.block(prompt.num_tokens()), pins_.width()),
        [&](std::int32_t j, BlockId b) { row[j] = b; }, [](BlockId) {});
    for (BlockId const b : pins_.blocks(p)) pool_.acquire(b);
    return p;
  }
  void unpin(std::int32_t p) {
    pool_.release(pins_.blocks(p), false, OnLastReference{*this, false});
    pins_.end(p);
  }

  // ---- steps ------------------------------------------------------------------------------------

  std::span<BlockCopy const> take_copies() {
    auto const taken = copies_.take(pool_.open_tick());
    for (BlockCopy const& copy : taken) {
      pool_.clear(copy.dst, BlockWord::copy_target | BlockWord::fresh);
      pool_.hold(copy.dst);
    }
    return taken;
  }
  Tick end_step() {
    std::uint64_t const tick = pool_.end_step();
    if (config_.reclaim == Reclaim::stream_ordered) let_go(tick);
    return Tick{tick};
  }
  void reclaim(Tick tick) {
    PAGEDKV_ASSERT(tick.value() < pool_.open_tick(), "reclaim: end_step first, the step is open");
    if (config_.reclaim == Reclaim::deferred) let_go(tick.value());
  }

  // ---- upkeep -----------------------------------------------------------------------------------

  std::int32_t evict(std::span<BlockId const> blocks) {
    std::int32_t evicted = 0;
    for (BlockId const b : blocks) {
      PAGEDKV_ASSERT(b.value() >= 0 && b.value() < config_.num_blocks,
                     "evict: the block is not of this pool");
      if (pool_.references(b) != 0 || !pool_.has(b, BlockWord::published)) continue;
      forget(b);
      pool_.unpublish(b, config_.reclaim == Reclaim::stream_ordered);
      ++evicted;
    }
    stats_.evicted_blocks += static_cast<std::uint64_t>(evicted);
    return evicted;
  }
  void reset() {
    for (std::int32_t i = 0; i < config_.num_blocks; ++i) {
      BlockId const b{i};
      if (pool_.has(b, BlockWord::twin)) untwin(b, false);
    }
    for (std::int32_t i = 0; i < config_.num_blocks; ++i) {
      BlockId const b{i};
      if (!pool_.has(b, BlockWord::published)) continue;
      index_.erase(b);
      pool_.unpublish(b, true);
    }
    ++epoch_;
    ++stats_.resets;
    events_.cleared();
  }
  [[nodiscard]] Stats stats() const noexcept {
    Stats s = stats_;
    s.num_blocks = config_.num_blocks;
    s.free = pool_.num_free();
    s.idle = pool_.num_idle();
    s.used = pool_.num_used();
    s.quarantined = pool_.num_quarantined();
    s.retained = pool_.num_retained();
    s.sequences = sequences_.num_alive();
    s.pins = pins_.num_alive();
    for (std::int32_t r = 0; r < config_.max_sequences; ++r) {
      if (!sequences_.is_alive(r)) continue;
      std::int64_t const slots = std::int64_t{state(r).num_blocks} * shape_.tokens();
      s.owned_slots += slots;
      s.wasted_slots += slots - state(r).size;
    }
    return s;
  }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }

  // ---- for Batch --------------------------------------------------------------------------------

  void mark_batched(std::int32_t r) noexcept { at(r).batch_tick = pool_.open_tick(); }
  void mark_seen(std::int32_t r) noexcept { at(r).first_changed = SequenceState::unchanged; }
  void mark_unseen(std::int32_t r) noexcept { at(r).first_changed = 0; }
  void track_fresh() { pool_.track_fresh(); }
  template <class Report>
  void take_fresh(Report&& report) {
    pool_.take_fresh(std::forward<Report>(report));
  }

  bool adoptable(BlockId b) const noexcept {
    return pool_.has(b, BlockWord::twin) && pool_.references(b) == 1 && pool_.leaves_at_once(b);
  }
  /// Blocks that adopting this sequence's own twins frees at once. The tail isn't looked at: it is
  /// about to be written.
  std::int32_t num_adoptable(std::int32_t r) const noexcept {
    if (!state(r).may_have_twins || in_batch(r)) return 0;
    auto const full = row(r).first(static_cast<std::size_t>(shape_.block(state(r).size)));
    return static_cast<std::int32_t>(
        std::count_if(full.begin(), full.end(), [&](BlockId b) { return adoptable(b); }));
  }
  /// Blocks that nobody else references. O(blocks).
  [[nodiscard]] std::int32_t unshared_blocks(std::int32_t r) const noexcept {
    std::int32_t n = 0;
    for (BlockId const b : row(r)) n += pool_.references(b) == 1 ? 1 : 0;
    return n;
  }
  [[nodiscard]] std::int32_t unshared_tokens(std::int32_t r) const noexcept {
    std::int32_t n = 0;
    auto const blocks = row(r);
    for (std::size_t j = 0; j < blocks.size(); ++j) {
      if (pool_.references(blocks[j]) != 1) continue;
      auto const first = static_cast<std::int32_t>(j) * shape_.tokens();
      n += std::min(shape_.tokens(), state(r).size - first);
    }
    return n;
  }
  [[nodiscard]] TokenId token(std::int32_t r, std::int32_t position) const noexcept {
    BlockId const b = sequences_.places(r)[shape_.block(position)];
    return index_.tokens(b)[shape_.offset(position)];
  }

 private:
  using Lookup = PrefixLookup<Pool, Index>;
  /// What the write behind `size()` does to the block that holds the position.
  enum class Tail : std::uint8_t { none, untwin, copy, copy_or_unpublish };
  struct Growth {
    std::int32_t blocks = 0;  ///< new ones and the copy
    Tail tail = Tail::none;
  };
  /// What else goes with the last reference to a block.
  struct OnLastReference {
    CacheCore& core;
    bool wait;
    void operator()(BlockId b, std::uint32_t word) {
      if ((word & BlockWord::twin) != 0) core.untwin(b, wait);
      if ((word & BlockWord::copy_target) != 0) core.drop_copy(b);
    }
  };
  /// Forgets what an evicted block held.
  struct OnEvict {
    CacheCore& core;
    void soon(BlockId b) const noexcept { core.index_.prefetch_content(b); }
    void next(BlockId b) const noexcept { core.index_.prefetch_bucket_of(b); }
    void evict(BlockId b) const { core.forget(b); }
  };

  static std::int32_t table_width(KvCacheConfig const& c) noexcept {
    return std::min(blocks_for(c.max_sequence_tokens, c.block_tokens), c.num_blocks);
  }
  Lookup lookup() const noexcept { return {pool_, index_, shape_, config_.partial_hits}; }
  SequenceState& at(std::int32_t r) noexcept { return sequences_.state(r); }
  std::int32_t start(SequenceId id) noexcept {
    std::int32_t const r = sequences_.start();
    at(r).id = id.value();
    at(r).epoch = epoch_;
    return r;
  }

  [[nodiscard]] bool has_too_long_extra(PromptView const& prompt) const noexcept {
    return prompt.extra != nullptr &&
           prompt.extra->longest() > static_cast<std::size_t>(config_.max_extra_key_bytes);
  }
  [[nodiscard]] bool never_fits(std::int32_t tokens) const noexcept {
    return tokens > config_.max_sequence_tokens || shape_.blocks(tokens) > config_.num_blocks;
  }
  static std::int32_t longest(PromptView const& prompt, OpenOptions const& o) noexcept {
    return std::max({prompt.num_tokens(), o.reserve, o.external_tokens});
  }
  void count_open(PromptView const& prompt, Hit const& hit, OpenOptions const& options,
                  SequenceState const& s) noexcept {
    auto const queried = static_cast<std::uint64_t>(prompt.num_tokens());
    auto const found = static_cast<std::uint64_t>(hit.tokens);
    ++(options.resumed ? stats_.resumed_opens : stats_.opens);
    (options.resumed ? stats_.resumed_query_tokens : stats_.prefix_query_tokens) += queried;
    (options.resumed ? stats_.resumed_hit_tokens : stats_.prefix_hit_tokens) += found;
    stats_.partial_hit_tokens += static_cast<std::uint64_t>(hit.partial.num_tokens);
    stats_.hit_blocks += static_cast<std::uint64_t>(hit.blocks);
    stats_.external_tokens += static_cast<std::uint64_t>(s.external);
    ++stats_.hit_ends[hit.end];
  }

  /// What n more positions take. The one formula behind `would_fit` and `reserve`.
  [[nodiscard]] Growth growth(std::int32_t r, std::int32_t n) const noexcept {
    SequenceState const& s = state(r);
    n = std::min(n, INT32_MAX - s.size);
    Growth g{shape_.blocks(s.size + n) - s.num_blocks, Tail::none};
    if (n == 0 || shape_.offset(s.size) == 0) return g;
    BlockId const tail = sequences_.tail(r);
    std::uint32_t const w = pool_.word(tail);
    bool const in_flight = pool_.is_in_flight(tail);
    if ((w & BlockWord::writable_mask) == 1 && !in_flight) return g;
    if ((w & BlockWord::count_mask) > 1 || in_flight) {
      g.tail = Tail::copy;
    } else {
      g.tail = (w & BlockWord::published) != 0 ? Tail::copy_or_unpublish : Tail::untwin;
    }
    if (g.tail != Tail::untwin) ++g.blocks;
    return g;
  }

  [[nodiscard]] Result<TokenRange> grow(std::int32_t r, std::int32_t n) {
    PAGEDKV_ASSERT(n >= 0, "reserve: n must be 0 or more");
    SequenceState& s = at(r);
    if (n > config_.max_sequence_tokens - s.size || never_fits(s.size + n)) {
      return Unexpected{Errc::never_fits};
    }
    Growth g = growth(r, n);
    if (g.blocks > pool_.num_available()) {
      std::int32_t const room = pool_.num_available() + num_adoptable(r);
      if (g.blocks > room && g.tail == Tail::copy_or_unpublish && g.blocks - 1 <= room) {
        write_in_place(r);
        g = {g.blocks - 1, Tail::none};
      }
      if (g.blocks > room) return Unexpected{Errc::no_free_blocks};
      if (g.blocks > pool_.num_available()) adopt_twins(r);
    }
    if (g.tail == Tail::untwin) untwin(sequences_.tail(r), in_batch(r));
    if (g.tail == Tail::copy || g.tail == Tail::copy_or_unpublish) copy_tail(r);
    std::int32_t const first = s.size;
    extend(r, first + n);
    if (n > 0) s.writable_tail = sequences_.tail(r);
    return TokenRange{first, n};
  }

  /// Requires: that many are available.
  void allocate(std::span<BlockId> out) {
    std::int32_t const idle = pool_.num_idle();
    pool_.allocate(out, OnEvict{*this});
    stats_.evicted_blocks += static_cast<std::uint64_t>(idle - pool_.num_idle());
  }
  /// New blocks up to `size` positions. Requires: they are available.
  void extend(std::int32_t r, std::int32_t size) {
    SequenceState& s = at(r);
    s.size = size;
    std::int32_t const end = shape_.blocks(size);
    if (end == s.num_blocks) return;
    allocate({sequences_.places(r) + s.num_blocks, static_cast<std::size_t>(end - s.num_blocks)});
    s.first_changed = std::min(s.first_changed, s.num_blocks);
    s.num_blocks = end;
  }

  /// The tail is shared or published: this sequence gets a copy of its leading positions.
  void copy_tail(std::int32_t r) {
    SequenceState& s = at(r);
    std::int32_t const column = s.num_blocks - 1;
    BlockId const old = sequences_.places(r)[column];
    BlockCopy copy{old, {}, shape_.offset(s.size)};
    if (pool_.has(old, BlockWord::copy_target)) {  // a chain collapses to its first source
      BlockCopy const& earlier = copies_.into(old);
      copy.src = earlier.src;
      copy.num_tokens = std::min(copy.num_tokens, earlier.num_tokens);
    }
    hold_source(copy.src);
    allocate({&copy.dst, 1});
    std::copy_n(index_.tokens(old), copy.num_tokens, index_.tokens(copy.dst));
    plan_copy(copy);
    if (column > 0) keep_behind_children(r, column);
    sequences_.places(r)[column] = copy.dst;
    s.first_changed = std::min(s.first_changed, column);
    release_blocks(r, {&old, 1});
  }
  void hold_source(BlockId src) {
    pool_.hold(src);
    pool_.set(src, BlockWord::shared);
    pool_.clear(src, BlockWord::leaves_first);
  }
  void plan_copy(BlockCopy const& copy) {
    copies_.add(copy);
    pool_.set(copy.dst, BlockWord::copy_target);
    ++stats_.copies;
  }
  void drop_copy(BlockId dst) {
    pool_.clear(dst, BlockWord::copy_target);
    pool_.unhold(copies_.drop(dst).src);
    pool_.flush();
    ++stats_.dropped_copies;
  }
  /// No block is free for a copy and nobody else reads the published tail: it stops being findable.
  void write_in_place(std::int32_t r) {
    BlockId const tail = sequences_.tail(r);
    forget(tail);
    pool_.unpublish(tail, true);
    ++stats_.unpublished_blocks;
  }

  // ids ------------------------------------------------------------------------------------------

  Ids ids_of(BlockId b) const noexcept {
    return {index_.tokens(b), static_cast<std::size_t>(shape_.tokens())};
  }
  void write_ids(std::int32_t r, std::int32_t first, Ids ids) {
    TokenId const* from = ids.data();
    TokenRange left{first, static_cast<std::int32_t>(ids.size())};
    if (shape_.tokens() == 16 && shape_.offset(first) == 0) {  // whole blocks: a few moves each
      BlockId const* block = sequences_.places(r) + shape_.block(first);
      for (; left.count >= 16; left.count -= 16, left.first += 16, from += 16) {
        std::memcpy(index_.tokens(*block++), from, 16 * sizeof(TokenId));
      }
    }
    for_each_piece(shape_, row(r), left, [&](BlockId b, std::int32_t offset, std::int32_t count) {
      std::memcpy(index_.tokens(b) + offset, from,
                  static_cast<std::size_t>(count) * sizeof(TokenId));
      from += count;
    });
  }
  void set_ids(std::int32_t r, std::int32_t first, Ids ids) {
    SequenceState& s = at(r);
    write_ids(r, first, ids);
    if (first <= s.known) {
      s.known = std::max(s.known, first + static_cast<std::int32_t>(ids.size()));
    }
  }
  void forget_ids(std::int32_t r, std::int32_t first) {
    for_each_piece(shape_, row(r), {first, std::max(0, state(r).size - first)},
                   [&](BlockId b, std::int32_t offset, std::int32_t count) {
                     std::fill_n(index_.tokens(b) + offset, count, unknown_token);
                   });
  }
  /// Leading positions with known ids, looking no further than `n`. O(1) unless ids came in
  /// disorder.
  PAGEDKV_NEVER_INLINE std::int32_t known(std::int32_t r, std::int32_t n) noexcept {
    SequenceState& s = at(r);
    while (s.known < n && token(r, s.known) != unknown_token) ++s.known;
    return s.known;
  }
  /// Whether an untaken copy fills the block of the first position that isn't committed.
  bool fills_later(std::int32_t r) const noexcept {
    SequenceState const& s = state(r);
    if (copies_.num_pending() == 0 || shape_.offset(s.committed) == 0) return false;
    return pool_.has(sequences_.places(r)[shape_.block(s.committed)], BlockWord::copy_target);
  }

  /// Blocks with final positions are no longer new, reported or not: zeroing would destroy them.
  PAGEDKV_NEVER_INLINE void mark_written(std::int32_t r, std::int32_t n) noexcept {
    for (std::int32_t j = shape_.block(state(r).committed); j < shape_.blocks(n); ++j) {
      pool_.clear(sequences_.places(r)[j], BlockWord::fresh);
    }
  }

  // publishing -----------------------------------------------------------------------------------

  [[nodiscard]] bool may_publish(SequenceState const& s) const noexcept {
    return s.publishes && s.epoch == epoch_;
  }
  BlockId parent_of(std::int32_t r, std::int32_t j) const noexcept {
    return j == 0 ? BlockId{} : canonical(sequences_.places(r)[j - 1]);
  }
  template <class ExtraOf>
  void publish_run(std::int32_t r, std::int32_t end, ExtraOf&& extra_of) {
    // Hash some blocks ahead and prefetch their buckets, so that an insert finds its line.
    constexpr std::int32_t window = 8;
    Hash128 hashes[window];
    BlockId const* const blocks = sequences_.places(r);
    std::int32_t done = state(r).published_blocks;
    BlockIdentity parent = index_.identity(parent_of(r, done));
    Hash128 chain = index_.hash(parent.block);
    while (done < end) {
      std::int32_t const n = std::min(end - done, window);
      for (std::int32_t k = 0; k < n; ++k) {
        BlockId const b = blocks[done + k];
        hashes[k] = chain = index_.chained(chain, ids_of(b), extra_of(done + k));
        index_.prefetch_publish(b, chain);
        pool_.prefetch(b);
        if (done + k + window < end) index_.prefetch_tokens(blocks[done + k + window]);
      }
      for (std::int32_t k = 0; k < n; ++k, ++done) {
        parent = publish_block(r, done, parent, hashes[k], extra_of(done));
      }
    }
  }
  /// Returns what is findable with the content of the row's block j: itself or its first twin.
  PAGEDKV_ALWAYS_INLINE BlockIdentity publish_block(std::int32_t r, std::int32_t j,
                                                    BlockIdentity parent, Hash128 hash,
                                                    Bytes extra) {
    BlockId const b = sequences_.places(r)[j];
    BlockId const first = index_.publish(b, hash, parent, extra);
    if (!first.is_null()) {
      meet_twin(r, j, first);
      return index_.identity(first);
    }
    pool_.set(b, BlockWord::published);
    if (j >= Index::jump_distance) {
      index_.set_jump(sequences_.places(r)[j - Index::jump_distance], b);
    }
    ++stats_.published_blocks;
    events_.stored(index_, b, static_cast<std::size_t>(shape_.tokens()));
    return index_.identity(b);
  }

  // twins ----------------------------------------------------------------------------------------

  void meet_twin(std::int32_t r, std::int32_t j, BlockId first) {
    BlockId const b = sequences_.places(r)[j];
    pool_.acquire(first);
    pool_.set(b, BlockWord::twin);
    twin_of_[static_cast<std::size_t>(b.value())] = first;
    ++stats_.twin_blocks;
    if (config_.twins == Twins::adopt || config_.reclaim == Reclaim::deferred) {
      adopt(r, j);
    } else {
      at(r).may_have_twins = true;
    }
  }
  void untwin(BlockId b, bool wait) {
    pool_.clear(b, BlockWord::twin);
    pool_.release_one(twin_of(b), wait, OnLastReference{*this, wait});
  }
  /// The row takes the first of the content; the twin leaves by the gate of any released block.
  void adopt(std::int32_t r, std::int32_t j) {
    SequenceState& s = at(r);
    BlockId const b = sequences_.places(r)[j];
    sequences_.places(r)[j] = twin_of(b);
    pool_.share({&sequences_.places(r)[j], 1});
    s.first_changed = std::min(s.first_changed, j);
    ++stats_.adopted_blocks;
    release_blocks(r, {&b, 1});
  }
  void adopt_twins(std::int32_t r) {
    for (std::int32_t j = 0; j < shape_.block(state(r).size); ++j) {
      if (adoptable(sequences_.places(r)[j])) adopt(r, j);
    }
  }

  // releasing ------------------------------------------------------------------------------------

  [[nodiscard]] bool in_batch(std::int32_t r) const noexcept {
    return state(r).batch_tick == pool_.open_tick();
  }
  /// Drops this sequence's references, deepest first.
  void release_blocks(std::int32_t r, std::span<BlockId const> blocks) {
    bool const wait = in_batch(r);
    if (wait) pool_.note_batched_release();
    if (state(r).left_children) {
      for (BlockId const b : blocks) {
        if (pool_.has(b, BlockWord::published)) pool_.set(b, BlockWord::shared);
      }
    }
    pool_.release(blocks, wait, OnLastReference{*this, wait});
  }
  /// A published block at column `keep` leaves the row. Its parent mustn't be evicted before it by
  /// a `Reuse::none`, so it counts as used by others; and while it waits, so do its ancestors.
  void keep_behind_children(std::int32_t r, std::int32_t keep) noexcept {
    if (!pool_.has(sequences_.places(r)[keep], BlockWord::published)) return;
    pool_.set(sequences_.places(r)[keep - 1], BlockWord::shared);
    at(r).left_children = true;
  }
  /// Releases the deepest run of blocks that nobody else ever used and no copy holds, so that they
  /// go before all idle ones, deepest first; returns how many columns remain.
  std::size_t release_unwanted(std::int32_t r) {
    auto const blocks = row(r);
    std::size_t end = blocks.size();
    while (end > 0 && (pool_.word(blocks[end - 1]) & BlockWord::writable_mask) == 1) --end;
    constexpr auto mask = BlockWord::writable_mask | BlockWord::shared | BlockWord::held;
    std::size_t first = end;
    while (first > 0 && (pool_.word(blocks[first - 1]) & mask) == (BlockWord::published | 1)) {
      --first;
    }
    if (first == end) return blocks.size();
    release_blocks(r, blocks.subspan(end));
    for (std::size_t j = first; j < end; ++j) {
      pool_.set(blocks[j], BlockWord::leaves_first);
      release_blocks(r, {&blocks[j], 1});
    }
    return first;
  }
  void let_go(std::uint64_t tick) {
    pool_.mark_reclaimed(tick);
    copies_.release(tick, [&](BlockId b) { pool_.unhold(b); });
    pool_.flush();
  }

  /// `b` stops being findable.
  void forget(BlockId b) {
    events_.removed(index_, b);
    index_.erase(b);
  }

  KvCacheConfig config_;
  BlockShape shape_;
  Pool pool_;
  Index index_;
  SequenceTable sequences_;
  SequenceTable pins_;
  CopyPlan copies_;
  LazyArray<BlockId> twin_of_;
  EventSource events_;
  std::uint32_t epoch_ = 0;
  Stats stats_;
};

}  // namespace detail
PAGEDKV_ORACLE_END

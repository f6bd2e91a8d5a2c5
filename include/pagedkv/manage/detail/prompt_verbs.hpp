// SPDX-License-Identifier: Apache-2.0
/// \file
/// The verbs that begin with a prompt: they look it up, decide, and take what was found.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <pagedkv/config.hpp>
#include <pagedkv/detail/block_shape.hpp>
#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/manage/detail/prefix_lookup.hpp>
#include <pagedkv/manage/detail/sequence_rows.hpp>
#include <pagedkv/manage/detail/sequence_table.hpp>
#include <pagedkv/manage/open_options.hpp>
#include <pagedkv/manage/prompt_key.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/types.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

template <class Policy>
class PromptVerbs {
 public:
  using Stock = BlockStock<Policy>;
  using Pool = typename Stock::Pool;
  using Index = typename Stock::Index;

  explicit PromptVerbs(KvCacheConfig const& config)
      : config_((validate(config), config)),
        rows_(config),
        found_(static_cast<std::size_t>(sequences().width())),
        most_tokens_(static_cast<std::int32_t>(
            std::min(std::int64_t{config.max_sequence_tokens},
                     std::int64_t{config.num_blocks} * config.block_tokens))) {}
  PromptVerbs(PromptVerbs const&) = delete;
  PromptVerbs& operator=(PromptVerbs const&) = delete;

  [[nodiscard]] KvCacheConfig const& config() const noexcept { return config_; }
  [[nodiscard]] BlockShape shape() const noexcept { return rows_.shape(); }
  [[nodiscard]] Stock const& stock() const noexcept { return rows_.stock(); }
  [[nodiscard]] RunTable const& runs() const noexcept { return stock().runs(); }
  [[nodiscard]] Pool const& pool() const noexcept { return stock().pool(); }
  [[nodiscard]] Index const& index() const noexcept { return stock().index(); }
  [[nodiscard]] CopyPlan const& copies() const noexcept { return stock().copies(); }
  [[nodiscard]] SequenceTable const& sequences() const noexcept { return rows_.sequences(); }
  [[nodiscard]] SequenceTable const& pins() const noexcept { return rows_.pins(); }
  [[nodiscard]] SequenceState const& state(std::int32_t r) const noexcept {
    return sequences().state(r);
  }
  [[nodiscard]] std::span<BlockId const> row(std::int32_t r) const noexcept {
    return sequences().blocks(r);
  }
  /// The run of a block, or null if it is free.
  [[nodiscard]] Run const* run_of(BlockId b) const noexcept {
    RunId const x = runs().run_of(b);
    return x >= 0 ? &runs()[x] : nullptr;
  }

  [[nodiscard]] std::int32_t match(PromptView const& prompt) const {
    return lookup().find(prompt, true, [](RunHit) {}).tokens;
  }
  [[nodiscard]] Admission admission(PromptView const& prompt, OpenOptions const& options) const {
    Hit hit = lookup().find(prompt, options.read, [](RunHit) {});
    std::int32_t const needed = lookup().fit(hit, options);
    return {hit.tokens, needed};
  }
  [[nodiscard]] bool would_fit(PromptView const& prompt, OpenOptions const& options) const {
    return !never_fits(longest(prompt, options)) &&
           admission(prompt, options).blocks_needed <= pool().num_available();
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
    if (sequences().full()) return Unexpected{Errc::no_free_sequences};

    std::size_t num_found = 0;
    Hit hit = lookup().find(prompt, options.read, [&](RunHit h) { found_[num_found++] = h; });
    if (lookup().fit(hit, options) > pool().num_available()) {
      return Unexpected{Errc::no_free_blocks};
    }

    if (hit.partial.num_tokens > 0) {
      if (num_found > 0) found_[num_found - 1].run = mutable_stock().trim(found_[num_found - 1]);
      mutable_stock().hold_source(hit.partial.block);
    }
    std::int32_t const r = start(id);
    SequenceState& s = at(r);
    BlockId* const columns = rows_.sequences().columns(r);
    s.num_blocks = s.published_blocks = rows_.take_hits({found_.data(), num_found}, columns);
    s.publishes = options.publish;
    s.committed = s.cached = hit.tokens;
    if (extra != nullptr) rows_.sequences().extra(r) = extra;
    if (std::int32_t const size = Lookup::positions(hit, options); size > 0) rows_.extend(r, size);
    if (hit.partial.num_tokens > 0) {
      mutable_stock().plan_copy({hit.partial.block, columns[hit.blocks], hit.partial.num_tokens});
    }
    write_prompt(r, prompt.tokens, hit.blocks * shape().tokens());
    s.external = std::max(0, options.external_tokens - hit.tokens);
    count_open(prompt, hit, options, s);
    return r;
  }
  /// Holds the full blocks of the prompt that are cached. Returns the pin's number.
  [[nodiscard]] Result<std::int32_t> pin(PromptView const& prompt) {
    if (has_too_long_extra(prompt)) return Unexpected{Errc::extra_keys_too_long};
    if (pins().full()) return Unexpected{Errc::no_free_sequences};
    std::size_t num_found = 0;
    index().walk(prompt, std::min(shape().block(prompt.num_tokens()), pins().width()),
                 [&](RunHit h) { found_[num_found++] = h; });
    std::int32_t const p = rows_.pins().start();
    rows_.pins().state(p).num_blocks =
        rows_.take_hits({found_.data(), num_found}, rows_.pins().columns(p));
    return p;
  }

 protected:
  Stock& mutable_stock() noexcept { return rows_.stock(); }
  SequenceState& at(std::int32_t r) noexcept { return rows_.sequences().state(r); }
  Stats& counters() noexcept { return mutable_stock().stats(); }
  std::int32_t start(SequenceId id) noexcept {
    std::int32_t const r = rows_.sequences().start();
    at(r).id = id.value();
    at(r).epoch = epoch_;
    return r;
  }
  [[nodiscard]] bool never_fits(std::int32_t tokens) const noexcept {
    return tokens > most_tokens_;
  }

  KvCacheConfig config_;
  SequenceRows<Policy> rows_;
  LazyArray<RunHit> found_;   ///< scratch of a look-up that acts
  std::int32_t most_tokens_;  ///< positions that a sequence can ever have
  std::uint32_t epoch_ = 0;

 private:
  using Lookup = PrefixLookup<Stock>;

  Lookup lookup() const noexcept { return {stock(), shape(), config_.partial_hits}; }
  [[nodiscard]] bool has_too_long_extra(PromptView const& prompt) const noexcept {
    return prompt.extra != nullptr &&
           prompt.extra->longest() > static_cast<std::size_t>(config_.max_extra_key_bytes);
  }
  static std::int32_t longest(PromptView const& prompt, OpenOptions const& o) noexcept {
    return std::max({prompt.num_tokens(), o.reserve, o.external_tokens});
  }
  /// The ids of positions from `first_new` on that the prompt has.
  PAGEDKV_ALWAYS_INLINE void write_prompt(std::int32_t r, std::span<TokenId const> tokens,
                                          std::int32_t first_new) {
    SequenceState& s = at(r);
    s.known = std::min(static_cast<std::int32_t>(tokens.size()), s.size);
    if (s.known > first_new) {
      rows_.ids(r).write(first_new, tokens.subspan(static_cast<std::size_t>(first_new),
                                                   static_cast<std::size_t>(s.known - first_new)));
    }
    if (s.known < s.size) rows_.ids(r).forget(s.known);
    s.known = std::max(s.known, s.committed);
  }
  void count_open(PromptView const& prompt, Hit const& hit, OpenOptions const& options,
                  SequenceState const& s) noexcept {
    Stats& stats = counters();
    auto const queried = static_cast<std::uint64_t>(prompt.num_tokens());
    auto const found = static_cast<std::uint64_t>(hit.tokens);
    ++(options.resumed ? stats.resumed_opens : stats.opens);
    (options.resumed ? stats.resumed_query_tokens : stats.prefix_query_tokens) += queried;
    (options.resumed ? stats.resumed_hit_tokens : stats.prefix_hit_tokens) += found;
    stats.partial_hit_tokens += static_cast<std::uint64_t>(hit.partial.num_tokens);
    stats.hit_blocks += static_cast<std::uint64_t>(hit.blocks);
    stats.external_tokens += static_cast<std::uint64_t>(s.external);
    ++stats.hit_ends[hit.end];
  }
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

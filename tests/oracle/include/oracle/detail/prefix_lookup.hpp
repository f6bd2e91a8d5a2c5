// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a prompt would hit, and what opening it would take: the one formula behind `match`,
/// `admission`, `would_fit` and `open`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <oracle/detail/block_shape.hpp>
#include <oracle/manage/open_options.hpp>
#include <oracle/manage/prefix_index.hpp>
#include <oracle/manage/prompt_key.hpp>
#include <oracle/manage/stats.hpp>
#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN
namespace detail {

struct Hit {
  std::int32_t blocks = 0;  ///< full ones
  std::int32_t idle = 0;    ///< of those, nobody's
  std::int32_t tokens = 0;  ///< in all
  PartialMatch partial{};
  HitEnd end = HitEnd::no_block;
};

template <class Pool, class Index>
class PrefixLookup {
 public:
  PrefixLookup(Pool const& pool, Index const& index, BlockShape shape, bool partial_hits) noexcept
      : pool_(pool), index_(index), shape_(shape), partial_hits_(partial_hits) {}

  /// Positions after a successful open.
  static std::int32_t positions(Hit const& hit, OpenOptions const& o) noexcept {
    return std::max({hit.tokens, o.reserve, o.external_tokens});
  }

  /// The longest cached prefix that leaves the last token out, and why it ends. Calls
  /// `sink(j, block)` for its full blocks. O(blocks).
  template <class Sink>
  Hit find(PromptView const& prompt, bool read, Sink&& sink) const {
    Hit hit;
    if (!read) {
      hit.end = HitEnd::not_read;
      return hit;
    }
    std::int32_t const last = std::max(prompt.num_tokens() - 1, 0);
    std::int32_t const limit = shape_.block(last);
    BlockId deepest;
    // One block further than may be shared: tells a prompt that is cached to its end from others.
    std::int32_t const found = index_.walk(
        prompt, shape_.block(prompt.num_tokens()),
        [&](std::int32_t j, BlockId b) {
          if (j >= limit) return;
          sink(j, b);
          hit.idle += pool_.is_idle(b) ? 1 : 0;
          deepest = b;
        },
        [&](BlockId b) { pool_.prefetch_idle(b); });
    hit.blocks = std::min(found, limit);
    hit.tokens = hit.blocks * shape_.tokens();
    if (partial_hits_ && hit.tokens < last) {
      auto const rest = prompt.tokens.subspan(static_cast<std::size_t>(hit.tokens),
                                              static_cast<std::size_t>(last - hit.tokens));
      hit.partial =
          index_.find_partial(index_.identity(deepest), rest, prompt.extra_of(hit.blocks));
      hit.tokens += hit.partial.num_tokens;
    }
    if (found > limit || hit.tokens == last) {
      hit.end = HitEnd::last_token;
    } else if (hit.blocks == 0 && prompt.num_tokens() >= shape_.tokens() &&
               index_.has_root_under_other_keys(
                   prompt.tokens.first(static_cast<std::size_t>(shape_.tokens())))) {
      hit.end = HitEnd::salt_or_adapter;
    }
    return hit;
  }

  /// Blocks that opening with this hit takes. Gives the partial hit up if only that makes it fit.
  std::int32_t fit(Hit& hit, OpenOptions const& options) const noexcept {
    std::int32_t const with = needed(hit, options);
    if (hit.partial.num_tokens == 0 || with <= pool_.num_available()) return with;
    Hit aligned = hit;
    aligned.tokens -= hit.partial.num_tokens;
    aligned.partial = {};
    aligned.end = HitEnd::capacity;
    std::int32_t const without = needed(aligned, options);
    if (without > pool_.num_available()) return with;
    hit = aligned;
    return without;
  }

 private:
  // New blocks, idle ones that are revived, and the source of a partial hit, which is held.
  std::int32_t needed(Hit const& hit, OpenOptions const& options) const noexcept {
    bool const revives_source = hit.partial.num_tokens > 0 && pool_.is_idle(hit.partial.block);
    return shape_.blocks(positions(hit, options)) - hit.blocks + hit.idle +
           (revives_source ? 1 : 0);
  }

  Pool const& pool_;
  Index const& index_;
  BlockShape shape_;
  bool partial_hits_;
};

}  // namespace detail
PAGEDKV_ORACLE_END

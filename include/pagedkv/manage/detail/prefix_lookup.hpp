// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a prompt would hit, and what opening it would take: the one formula of `match`,
/// `admission`, `would_fit` and `open`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <pagedkv/detail/block_shape.hpp>
#include <pagedkv/manage/open_options.hpp>
#include <pagedkv/manage/prefix_index.hpp>
#include <pagedkv/manage/prompt_key.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

struct Hit {
  std::int32_t blocks = 0;  ///< full ones
  std::int32_t idle = 0;    ///< of those, without owner
  std::int32_t tokens = 0;  ///< in all
  PartialMatch partial{};
  HitEnd end = HitEnd::no_block;
};

/// A view of the block stock, made per call.
template <class Stock>
class PrefixLookup {
 public:
  PrefixLookup(Stock const& stock, BlockShape shape, bool partial_hits) noexcept
      : stock_(stock), shape_(shape), partial_hits_(partial_hits) {}

  /// Positions after a successful open.
  static std::int32_t positions(Hit const& hit, OpenOptions const& o) noexcept {
    return std::max({hit.tokens, o.reserve, o.external_tokens});
  }

  /// The longest cached prefix that leaves the last token out, and why it ends. Calls
  /// `sink(RunHit)` for its full blocks. O(blocks).
  template <class Sink>
  PAGEDKV_ALWAYS_INLINE Hit find(PromptView const& prompt, bool read, Sink&& sink) const {
    if (!read) return {.end = HitEnd::not_read};
    if (prompt.num_tokens() < shape_.tokens() && !partial_hits_) {  // not one full block
      return {.end = prompt.num_tokens() > 1 ? HitEnd::no_block : HitEnd::last_token};
    }
    return find_blocks(prompt, sink);
  }

  /// Blocks that opening with this hit takes. Gives the partial hit up if only that makes it fit.
  std::int32_t fit(Hit& hit, OpenOptions const& options) const noexcept {
    std::int32_t const with = needed(hit, options);
    if (hit.partial.num_tokens == 0 || with <= stock_.pool().num_available()) return with;
    Hit aligned = hit;
    aligned.tokens -= hit.partial.num_tokens;
    aligned.partial = {};
    aligned.end = HitEnd::capacity;
    std::int32_t const without = needed(aligned, options);
    if (without > stock_.pool().num_available()) return with;
    hit = aligned;
    return without;
  }

 private:
  template <class Sink>
  PAGEDKV_NEVER_INLINE Hit find_blocks(PromptView const& prompt, Sink& sink) const {
    Hit hit;
    std::int32_t const last = std::max(prompt.num_tokens() - 1, 0);
    std::int32_t const limit = shape_.block(last);
    RunHit deepest;
    // One block more than may be shared: shows whether the prompt is cached to its end.
    std::int32_t found = 0;
    stock_.index().walk(prompt, shape_.block(prompt.num_tokens()), [&](RunHit part) {
      found += part.blocks;
      part.blocks = std::min(part.blocks, limit - hit.blocks);
      if (part.blocks == 0) return;
      sink(part);
      hit.blocks += part.blocks;
      hit.idle += is_idle(part.run) ? part.blocks : 0;
      deepest = part;
    });
    hit.tokens = hit.blocks * shape_.tokens();
    if (partial_hits_ && hit.tokens < last) {
      auto const rest = prompt.tokens.subspan(static_cast<std::size_t>(hit.tokens),
                                              static_cast<std::size_t>(last - hit.tokens));
      hit.partial = stock_.index().find_partial(deepest.run, deepest.blocks, rest,
                                                prompt.extra_of(hit.blocks));
      hit.tokens += hit.partial.num_tokens;
    }
    if (found > limit || hit.tokens == last) {
      hit.end = HitEnd::last_token;
    } else if (hit.blocks == 0 && prompt.num_tokens() >= shape_.tokens() &&
               stock_.index().has_root_under_other_keys(
                   prompt.tokens.first(static_cast<std::size_t>(shape_.tokens())))) {
      hit.end = HitEnd::salt_or_adapter;
    }
    return hit;
  }
  bool is_idle(RunId x) const noexcept { return stock_.pool().is_idle(stock_.runs()[x]); }
  // New blocks, idle ones that are revived, and the source of a partial hit, which is held.
  PAGEDKV_ALWAYS_INLINE std::int32_t needed(Hit const& hit,
                                            OpenOptions const& options) const noexcept {
    bool const revives_source =
        hit.partial.num_tokens > 0 && is_idle(stock_.runs().run_of(hit.partial.block));
    return shape_.blocks(positions(hit, options)) - hit.blocks + hit.idle +
           (revives_source ? 1 : 0);
  }

  Stock const& stock_;
  BlockShape shape_;
  bool partial_hits_;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

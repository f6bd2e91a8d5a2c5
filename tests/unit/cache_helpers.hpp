// SPDX-License-Identifier: Apache-2.0
/// \file
/// Short words for tests that need a small cache and a prompt.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "catch.hpp"

namespace pagedkv::testing {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

/// Blocks of 4 tokens.
[[nodiscard]] inline KvCacheConfig pool_of(std::int32_t num_blocks) {
  return {.block_tokens = 4,
          .num_blocks = num_blocks,
          .max_sequences = 8,
          .max_sequence_tokens = 256,
          .max_pins = 2};
}
/// first, first + 1, ...
// Not inlined: g++ 12 would know the length and warn of the code for longer blocks.
#if defined(__GNUC__)
[[gnu::noinline]]
#endif
[[nodiscard]] inline Tokens
iota(TokenId first, std::int32_t n) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
[[nodiscard]] inline Tokens joined(Tokens a, Tokens const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Appends `tokens`, takes the copies and makes all positions final.
template <class Cache, class Sequence>
void compute(Cache& cache, Sequence& seq, Tokens const& tokens) {
  REQUIRE(seq.append(tokens).has_value());
  (void)cache.take_copies();
  seq.commit(seq.size());
}
/// A sequence with all of `prompt` final.
template <class Cache>
[[nodiscard]] auto running(Cache& cache, std::uint64_t id, Tokens const& prompt,
                           OpenOptions const& options = {}) {
  auto seq = cache.open(SequenceId{id}, prompt, options);
  REQUIRE(seq.has_value());
  if (seq->size() < static_cast<std::int32_t>(prompt.size())) {
    compute(cache, *seq, Tokens(prompt.begin() + seq->size(), prompt.end()));
  } else {
    (void)cache.take_copies();
    seq->commit(static_cast<std::int32_t>(prompt.size()));
  }
  return *std::move(seq);
}
/// Computes `prompt` and lets it go: its full blocks are idle.
template <class Cache>
void leave_idle(Cache& cache, Tokens const& prompt) {
  auto const seq = running(cache, 0, prompt);
}
template <class Sequence>
[[nodiscard]] Blocks blocks_of(Sequence const& seq) {
  auto const row = seq.blocks();
  return {row.begin(), row.end()};
}
template <class Sequence>
[[nodiscard]] Tokens tokens_of(Sequence const& seq) {
  Tokens tokens;
  for (std::int32_t p = 0; p < seq.size(); ++p) tokens.push_back(seq.token(p));
  return tokens;
}

}  // namespace pagedkv::testing

/// All is consistent; the message names the broken rule otherwise.
#define CHECK_VERIFIED(cache)                                 \
  do {                                                        \
    auto const report = (cache).verify();                     \
    INFO("broken: " << (report ? "nothing" : report.broken)); \
    CHECK(static_cast<bool>(report));                         \
  } while (false)

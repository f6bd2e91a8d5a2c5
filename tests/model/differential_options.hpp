// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the programs of the differential test may do, and the parameters that one of them draws.
#pragma once

#include <algorithm>
#include <cstdint>

#include "choices.hpp"

namespace pagedkv::testing::differential {

/// Where the library is meant to differ from version 0.1, nothing is drawn.
struct Options {
  /// Content may be computed and committed while it is findable already, in either mode of twins.
  bool allow_twins = false;
  bool allow_deferred = false;  ///< `Reclaim::deferred`
};

/// One program's cache and habits.
struct Drawn {
  int block_tokens = 16;
  int num_blocks = 8;
  int max_sequences = 4;
  int max_sequence_tokens = 64;
  int max_pins = 2;
  int max_partial_candidates = 4;
  bool partial_hits = false;
  bool deferred = false;
  bool adopt = false;
  bool observed = true;
  bool batched = true;
  int batch_sequences = 4;
  int batch_tokens = 64;
  int batch_width = 0;
  int alphabet = 2;
  int usual = 64;    ///< tokens of a long prompt
  int longest = 64;  ///< and of one that is refused perhaps
};

inline int draw_num_blocks(Choices& choices) {
  int const kind = choices.below(64);
  if (kind < 4) return 1;
  if (kind < 8) return 2;
  if (kind < 24) return choices.between(3, 8);
  if (kind < 44) return choices.between(9, 32);
  if (kind < 60) return choices.between(33, 80);
  if (kind < 63) return choices.between(81, 600);
  return choices.one_in(3) ? 4096 : choices.between(601, 4096);
}

inline void draw_lengths(Drawn& d, Choices& choices) {
  bool const large = d.num_blocks > 80;
  int const widest = std::min(d.num_blocks + 1, large ? 100 : 70);
  d.max_sequence_tokens = std::max(1, d.block_tokens * widest + choices.between(-1, 1));
  d.longest = std::min(d.max_sequence_tokens + 1, d.block_tokens * (widest + 1));
  int const blocks = large                 ? std::min(60, d.num_blocks / 5)
                     : d.block_tokens == 1 ? 12
                     : choices.one_in(4)   ? 20
                                           : 6;
  d.usual = d.block_tokens * std::min(blocks, d.num_blocks);
  d.alphabet = large && choices.one_in(2) ? 40 : choices.between(1, 3);
}

inline Drawn draw(Options const& options, Choices& choices) {
  static constexpr int sizes[] = {1, 2, 4, 4, 16, 16, 64};
  Drawn d;
  d.block_tokens = sizes[choices.below(7)];
  d.num_blocks = draw_num_blocks(choices);
  d.max_sequences = d.num_blocks > 80 ? 64 : choices.between(2, 10);
  d.max_pins = choices.between(0, 4);
  d.max_partial_candidates = choices.between(1, 4);
  d.partial_hits = choices.one_in(2);
  d.deferred = options.allow_deferred && choices.one_in(2);
  d.adopt = choices.one_in(2);
  d.observed = !choices.one_in(4);
  d.batched = choices.one_in(2);
  draw_lengths(d, choices);
  d.batch_sequences = choices.between(1, d.max_sequences);
  d.batch_tokens = choices.one_in(4) ? d.block_tokens : 4 * d.usual;
  d.batch_width = choices.one_in(6) ? choices.between(1, 6) : 0;
  return d;
}

}  // namespace pagedkv::testing::differential

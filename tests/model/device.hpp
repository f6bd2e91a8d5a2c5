// SPDX-License-Identifier: Apache-2.0
/// \file
/// The device on paper: what stands in each slot, and which steps still use it. A worker
/// lags: until a step is reclaimed (stream_ordered: ended), what it reads must stay as it was when
/// the step was built. Only a sequence's own later writes are ordered by its engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"

namespace pagedkv::testing {

/// A value names the whole history of a position.
class Device {
 public:
  static constexpr std::uint64_t garbage = 0xDEAD;
  /// Uses by no sequence: the source of a copy.
  static constexpr std::uint64_t no_sequence = 0;

  Device(int num_blocks, int block_tokens, Reclaim reclaim)
      : block_tokens_(block_tokens),
        deferred_(reclaim == Reclaim::deferred),
        cells_(std::size_t(num_blocks) * std::size_t(block_tokens)),
        uses_(std::size_t(num_blocks)) {}

  [[nodiscard]] std::uint64_t at(int block, int offset) const {
    return cells_[index(block, offset)];
  }

  /// A step writes a position of sequence `uid`.
  void write(int block, int offset, std::uint64_t value, std::uint64_t uid) {
    for (Use& use : uses_[std::size_t(block)]) {
      if (offset < use.first || offset >= use.first + int(use.values.size())) continue;
      // A step's copies run before its writes.
      bool const ordered = use.uid == uid || (use.uid == no_sequence && use.tick == open_tick);
      if (deferred_ && !ordered) report(block, use, "written by another sequence");
      use.values.resize(std::size_t(offset - use.first));
    }
    cells_[index(block, offset)] = value;
  }
  /// The block takes new content: it holds nothing of use, and no step may use it any more.
  void hand_out(int block) {
    auto const& uses = uses_[std::size_t(block)];
    if (!uses.empty()) report(block, uses.front(), "handed out");
    fill(block, garbage);
  }
  /// A new block is zeroed; its owners have written nothing of use yet. One that was given
  /// back since will never be read.
  void zero(int block, std::vector<std::uint64_t> const& owners) {
    auto& uses = uses_[std::size_t(block)];
    std::erase_if(uses, [&](Use const& use) {
      return owners.empty() || std::find(owners.begin(), owners.end(), use.uid) != owners.end();
    });
    if (deferred_ && !uses.empty()) report(block, uses.front(), "zeroed");
    fill(block, 0);
  }
  /// `owner`: the sequence that the target belongs to. `stays`: leading positions of the source
  /// that no sequence was already granted to write over.
  /// A transfer into later positions of the target may be under way.
  void copy(int src, int dst, int num_tokens, std::uint64_t owner, int stays) {
    for (Use const& use : uses_[std::size_t(dst)]) {
      if (use.first < num_tokens) report(dst, use, "filled by a copy");
    }
    for (int i = 0; i < num_tokens; ++i) cells_[index(dst, i)] = at(src, i);
    use(open_tick, no_sequence, src, std::min(num_tokens, stays));
    use(open_tick, owner, dst, num_tokens);
  }

  /// Step `tick` uses positions of the block, from `first` up to `end`, for this sequence.
  void use(std::uint64_t tick, std::uint64_t uid, int block, int end, int first = 0) {
    if (tick <= over_ || first >= end) return;
    Use out{tick, uid, first, {}};
    for (int i = first; i < end; ++i) out.values.push_back(at(block, i));
    uses_[std::size_t(block)].push_back(std::move(out));
    if (std::find(used_.begin(), used_.end(), block) == used_.end()) used_.push_back(block);
  }
  /// Steps up to `tick` are over: they have read what they should.
  void finish(std::uint64_t tick) {
    over_ = std::max(over_, tick);
    std::erase_if(used_, [&](int block) {
      auto& uses = uses_[std::size_t(block)];
      std::erase_if(uses, [&](Use const& use) {
        if (use.tick > over_) return false;
        if (deferred_) check(block, use);
        return true;
      });
      return uses.empty();
    });
  }

  std::uint64_t open_tick = 1;

 private:
  struct Use {
    std::uint64_t tick = 0;
    std::uint64_t uid = 0;
    int first = 0;
    std::vector<std::uint64_t> values;  ///< of the positions from `first` on
  };

  [[nodiscard]] std::size_t index(int block, int offset) const {
    return std::size_t(block) * std::size_t(block_tokens_) + std::size_t(offset);
  }
  void fill(int block, std::uint64_t value) {
    for (int i = 0; i < block_tokens_; ++i) cells_[index(block, i)] = value;
  }
  void check(int block, Use const& use) const {
    for (std::size_t i = 0; i < use.values.size(); ++i) {
      if (at(block, use.first + int(i)) != use.values[i]) report(block, use, "other than it was");
    }
  }
  [[noreturn]] static void report(int block, Use const& use, char const* what) {
    mismatch("block ", block, " is ", what, " while step ", use.tick, " uses it for sequence ",
             use.uid);
  }

  int block_tokens_;
  bool deferred_;
  std::vector<std::uint64_t> cells_;
  std::vector<std::vector<Use>> uses_;
  std::vector<int> used_;  ///< blocks with uses
  std::uint64_t over_ = 0;
};

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A manager of full blocks without twins: every duplicate is cached for itself. One free list in
/// the order of last use, blocks without content in that order too; content is found by the hash of
/// its prefix. A block waits for the last step of each owner that gave it back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <numeric>
#include <span>
#include <unordered_map>
#include <vector>

namespace pagedkv::testing {

class TwinOracle {
 public:
  struct Sequence {
    std::vector<int> row;
    std::uint64_t used = 0;
    int published = 0;
  };
  explicit TwinOracle(int num_blocks) : blocks_(std::size_t(num_blocks)), free_(blocks_.size()) {
    std::iota(free_.begin(), free_.end(), 0);
    for (auto i = free_.begin(); i != free_.end(); ++i) blocks_[std::size_t(*i)].place = i;
  }

  std::uint64_t open_tick = 1;
  [[nodiscard]] int available() const { return int(free_.size()); }
  [[nodiscard]] int incoming() const { return int(waiting_.size()); }

  /// Blocks that continue each other from the first on.
  [[nodiscard]] std::vector<int> match(std::span<std::uint64_t const> prefixes) const {
    std::vector<int> hit;
    for (std::uint64_t const p : prefixes) {
      auto const found = cached_.find(p);
      if (found == cached_.end()) break;
      hit.push_back(found->second.front());
    }
    return hit;
  }
  /// Of the free list, for a sequence of `n` blocks with this hit.
  [[nodiscard]] int needed(std::vector<int> const& hit, int n) const {
    return n - int(hit.size()) + int(std::count_if(hit.begin(), hit.end(), [&](int b) {
             return at(b).refs == 0 && !at(b).waits;
           }));
  }
  [[nodiscard]] Sequence open(std::vector<int> const& hit, int n) {
    for (int const b : hit) {
      if (at(b).refs++ == 0) at(b).waits ? wake(b) : void(free_.erase(at(b).place));
    }
    Sequence s{hit, 0, int(hit.size())};
    grow(s, n - int(hit.size()));
    return s;
  }
  void grow(Sequence& s, int n) {
    for (; n > 0; --n) {
      int const b = free_.front();
      free_.pop_front();
      if (at(b).prefix != 0 && std::erase(cached_[at(b).prefix], b) != 0 &&
          cached_[at(b).prefix].empty()) {
        cached_.erase(at(b).prefix);
      }
      at(b) = Block{};
      at(b).refs = 1;
      s.row.push_back(b);
    }
  }
  void commit(Sequence& s, std::span<std::uint64_t const> prefixes) {
    for (; s.published < int(prefixes.size()); ++s.published) {
      int const b = s.row[std::size_t(s.published)];
      at(b).prefix = prefixes[std::size_t(s.published)];
      cached_[at(b).prefix].push_back(b);
    }
  }
  void close(Sequence const& s) {
    for (auto i = s.row.size(); i-- > 0;) {
      Block& block = at(s.row[i]);
      block.stamp = std::max(block.stamp, s.used);
      if (--block.refs > 0) continue;
      block.waits = block.stamp > reclaimed_;
      block.waits ? waiting_.push_back(s.row[i]) : to_the_end(s.row[i]);
    }
  }
  /// Steps up to `tick` are over.
  void reclaim(std::uint64_t tick) {
    reclaimed_ = std::max(reclaimed_, tick);
    for (int const b : std::vector<int>(waiting_)) {
      if (at(b).stamp > reclaimed_) continue;
      wake(b);
      to_the_end(b);
    }
  }

 private:
  struct Block {
    int refs = 0;
    std::uint64_t prefix = 0;
    std::uint64_t stamp = 0;
    bool waits = false;
    std::list<int>::iterator place;
  };
  Block& at(int b) { return blocks_[std::size_t(b)]; }
  [[nodiscard]] Block const& at(int b) const { return blocks_[std::size_t(b)]; }
  void wake(int b) {
    at(b).waits = false;
    std::erase(waiting_, b);
  }
  void to_the_end(int b) { at(b).place = free_.insert(free_.end(), b); }

  std::vector<Block> blocks_;
  std::list<int> free_;
  std::vector<int> waiting_;
  std::unordered_map<std::uint64_t, std::vector<int>> cached_;
  std::uint64_t reclaimed_ = 0;
};

}  // namespace pagedkv::testing

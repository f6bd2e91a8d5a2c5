// SPDX-License-Identifier: Apache-2.0
/// \file
/// The loop of every pair-merging tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

namespace engine {

/// What two neighbours become.
struct Merge {
  std::int32_t id = -1;   ///< -1: they can't be merged
  double priority = 0.0;  ///< the lowest goes first; ties: the leftmost
};

/// Merges neighbours of `ids` until none can be. `merge(left, right)` -> Merge of two ids.
/// O(n log n).
template <class MergeOf>
[[nodiscard]] std::vector<std::int32_t> merge_neighbours(std::span<std::int32_t const> ids,
                                                         MergeOf&& merge) {
  struct Node {
    std::int32_t id;
    std::int32_t before;
    std::int32_t after;
  };
  struct Candidate {
    double priority;
    std::int32_t left;
    std::int32_t right;
    std::int32_t left_id;  // of when it was found: another now means that it is gone
    std::int32_t right_id;
    std::int32_t merged;
  };
  auto const later = [](Candidate const& a, Candidate const& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.left > b.left;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> candidates(later);
  auto const n = static_cast<std::int32_t>(ids.size());
  std::vector<Node> nodes;
  nodes.reserve(ids.size());
  for (std::int32_t i = 0; i < n; ++i) {
    nodes.push_back({ids[static_cast<std::size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  }
  auto const node = [&nodes](std::int32_t i) -> Node& {
    return nodes[static_cast<std::size_t>(i)];
  };
  auto const look_at = [&](std::int32_t left) {
    if (left < 0 || node(left).after < 0) return;
    std::int32_t const right = node(left).after;
    Merge const found = merge(node(left).id, node(right).id);
    if (found.id < 0) return;
    candidates.push({found.priority, left, right, node(left).id, node(right).id, found.id});
  };
  for (std::int32_t i = 0; i < n; ++i) look_at(i);
  while (!candidates.empty()) {
    Candidate const best = candidates.top();
    candidates.pop();
    Node& left = node(best.left);
    Node& right = node(best.right);
    if (left.id != best.left_id || left.after != best.right || right.id != best.right_id) continue;
    left.id = best.merged;
    left.after = right.after;
    right.id = -1;
    if (left.after >= 0) node(left.after).before = best.left;
    look_at(left.before);
    look_at(best.left);
  }
  std::vector<std::int32_t> merged;
  for (std::int32_t i = n > 0 ? 0 : -1; i >= 0; i = node(i).after) merged.push_back(node(i).id);
  return merged;
}

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What is findable, with paper and pencil. A content is a node: its parent node, its tokens, its
/// extra keys. One block bears it; a list of twins has the same content.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "naive_keys.hpp"

namespace pagedkv::testing {

/// Numbers of nodes are never used twice; 0 is what the first block of a sequence follows.
struct NaiveNode {
  int block = -1;  ///< bears it
  std::int64_t parent = 0;
  Tokens tokens;
  std::string extra;
  std::vector<int> ring;  ///< twins, oldest first
  bool lost = false;      ///< computed from bytes that are known to be wrong
};

class NaiveContent {
 public:
  [[nodiscard]] bool contains(std::int64_t node) const { return nodes_.count(node) != 0; }
  [[nodiscard]] NaiveNode const& at(std::int64_t node) const { return nodes_.at(node); }
  [[nodiscard]] NaiveNode& at(std::int64_t node) { return nodes_.at(node); }

  /// -1: none.
  [[nodiscard]] std::int64_t child_of(std::int64_t parent, Tokens const& tokens,
                                      std::string const& extra) const {
    auto const found = index_.find({parent, tokens, extra});
    return found == index_.end() ? -1 : found->second;
  }
  /// In order of publishing.
  [[nodiscard]] std::vector<std::int64_t> const& children_of(std::int64_t node) const {
    static std::vector<std::int64_t> const none;
    auto const found = children_.find(node);
    return found == children_.end() ? none : found->second;
  }
  /// Its parent isn't content any more.
  [[nodiscard]] bool is_orphan(std::int64_t node) const {
    std::int64_t const parent = at(node).parent;
    return parent != 0 && !contains(parent);
  }
  /// All that it follows is still there.
  [[nodiscard]] bool is_findable(std::int64_t node) const {
    if (node == 0) return true;
    if (!contains(node)) return false;
    if (num_orphans_ == 0) return true;
    return !at(node).lost && !is_orphan(node) && is_findable(at(node).parent);
  }

  std::int64_t add(int block, std::int64_t parent, Tokens const& tokens, std::string const& extra) {
    std::int64_t const id = ++last_;
    nodes_[id] = NaiveNode{block, parent, tokens, extra, {}, false};
    index_[{parent, tokens, extra}] = id;
    children_[parent].push_back(id);
    return id;
  }
  /// It can't be found any more, nor what follows it.
  void lose(std::int64_t id) {
    NaiveNode& node = at(id);
    if (node.lost) return;
    if (!is_orphan(id)) ++num_orphans_;
    node.lost = true;
    take_out(node, id);
  }
  /// What follows it stays, and can't be reached any more.
  void remove(std::int64_t id) {
    NaiveNode const& node = at(id);
    expect(node.ring.empty(), "model: content with twins is removed");
    if (node.lost || is_orphan(id)) --num_orphans_;
    num_orphans_ += int(children_of(id).size());
    if (!node.lost) take_out(node, id);
    nodes_.erase(id);
  }

 private:
  void take_out(NaiveNode const& node, std::int64_t id) {
    index_.erase({node.parent, node.tokens, node.extra});
    auto const siblings = children_.find(node.parent);
    std::erase(siblings->second, id);
    if (siblings->second.empty()) children_.erase(siblings);
  }

  using Name = std::tuple<std::int64_t, Tokens, std::string>;
  std::map<Name, std::int64_t> index_;
  std::map<std::int64_t, NaiveNode> nodes_;
  std::map<std::int64_t, std::vector<std::int64_t>> children_;
  std::int64_t last_ = 0;
  int num_orphans_ = 0;
};

}  // namespace pagedkv::testing

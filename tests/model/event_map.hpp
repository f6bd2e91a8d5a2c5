// SPDX-License-Identifier: Apache-2.0
/// \file
/// A listener that keeps the map of what is findable, as a router would, and refuses events that
/// such a map can't take. A content keeps its place in the map when another block bears it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"

namespace pagedkv::testing {

struct StoredContent {
  int block = -1;  ///< bears it
  std::uint32_t generation = 0;
  std::int64_t parent = 0;  ///< its number in the map; 0: none
  std::vector<TokenId> tokens;
  std::string extra;  ///< encoded bytes
  Hash128 hash;
};

class EventMap final : public CacheObserver {
 public:
  struct Heard {
    CacheEvent::Kind kind;
    int block;
    int from;
  };
  std::vector<Heard> heard;                 ///< since the last `begin_verb`
  std::string broken;                       ///< the first rule that an event broke
  std::vector<std::string>* log = nullptr;  ///< a line for each event

  void begin_verb() { heard.clear(); }

  /// What a block bears, or nullptr.
  [[nodiscard]] StoredContent const* borne_by(int block) const {
    auto const found = borne_.find(block);
    return found == borne_.end() ? nullptr : &contents_.at(found->second);
  }
  /// The block that bears the parent; -1: there is none.
  [[nodiscard]] int parent_of(StoredContent const& content) const {
    auto const found = contents_.find(content.parent);
    return found == contents_.end() ? -1 : found->second.block;
  }

  void on_event(CacheEvent const& e) noexcept override {
    if (e.number != next_number_++) complain("event numbers have a gap");
    if (log != nullptr) log->push_back(line_of(e));
    heard.push_back({e.kind, e.block.value(), e.from.value()});
    switch (e.kind) {
      case CacheEvent::Kind::stored: store(e); break;
      case CacheEvent::Kind::removed: remove(e); break;
      case CacheEvent::Kind::moved: move(e); break;
      case CacheEvent::Kind::cleared:
        contents_.clear();
        borne_.clear();
        break;
    }
  }

 private:
  static std::string line_of(CacheEvent const& e) {
    static char const* const names[] = {"stored", "removed", "cleared", "moved"};
    std::string line = join("event ", e.number, " ", names[int(e.kind)]);
    if (e.kind == CacheEvent::Kind::cleared) return line;
    line += join(" block ", e.block.value(), " generation ", e.generation, " hash ", e.hash.high,
                 ":", e.hash.low);
    if (e.kind == CacheEvent::Kind::moved) {
      return line + join(" from ", e.from.value(), " generation ", e.from_generation);
    }
    if (e.kind == CacheEvent::Kind::removed) return line;
    line += join(" parent ", e.parent.value(), " tokens");
    for (TokenId const t : e.tokens) line += join(" ", t);
    line += " extra";
    for (std::byte const b : e.extra_keys) line += join(" ", int(b));
    return line;
  }
  void store(CacheEvent const& e) {
    bear(e, ++last_);
    contents_[last_] = {
        e.block.value(),
        e.generation,
        e.parent.is_null() ? 0 : stored_parent(e),
        {e.tokens.begin(), e.tokens.end()},
        std::string(reinterpret_cast<char const*>(e.extra_keys.data()), e.extra_keys.size()),
        e.hash};
  }
  std::int64_t stored_parent(CacheEvent const& e) {
    auto const parent = borne_.find(e.parent.value());
    if (parent == borne_.end()) return complain("stored before its parent"), 0;
    StoredContent const& content = contents_.at(parent->second);
    if (content.generation != e.parent_generation) complain("stored before its parent");
    if (!(content.hash == e.parent_hash)) complain("the parent was stored under another hash");
    if (!reachable(parent->second)) complain("stored after what can't be reached");
    return parent->second;
  }
  [[nodiscard]] bool reachable(std::int64_t number) const {
    while (number != 0) {
      auto const content = contents_.find(number);
      if (content == contents_.end()) return false;
      number = content->second.parent;
    }
    return true;
  }
  /// The event's block bears content `number` from now on.
  void bear(CacheEvent const& e, std::int64_t number) {
    int const block = e.block.value();
    if (!borne_.emplace(block, number).second) complain("stored twice without being removed");
    auto const [last, is_first] = last_generation_.try_emplace(block, e.generation);
    if (!is_first && std::exchange(last->second, e.generation) == e.generation) {
      complain("stored again under the same generation");
    }
  }
  void remove(CacheEvent const& e) {
    auto const found = take_from(e.block.value(), e.generation, e.hash);
    if (found != 0) contents_.erase(found);
  }
  void move(CacheEvent const& e) {
    auto const found = take_from(e.from.value(), e.from_generation, e.hash);
    if (found == 0) return;
    contents_.at(found).block = e.block.value();
    contents_.at(found).generation = e.generation;
    bear(e, found);
  }
  /// The block bears its content no longer. Its number, or 0.
  std::int64_t take_from(int block, std::uint32_t generation, Hash128 const& hash) {
    auto const found = borne_.find(block);
    if (found == borne_.end()) return complain("removed or moved without being stored"), 0;
    std::int64_t const number = found->second;
    StoredContent const& content = contents_.at(number);
    if (content.generation != generation) complain("removed or moved under another generation");
    if (!(content.hash == hash)) complain("removed or moved under another hash");
    borne_.erase(found);
    return number;
  }
  void complain(char const* rule) {
    if (broken.empty()) broken = rule;
  }

  std::uint64_t next_number_ = 0;
  std::int64_t last_ = 0;
  std::map<std::int64_t, StoredContent> contents_;
  std::map<int, std::int64_t> borne_;  ///< by block
  std::map<int, std::uint32_t> last_generation_;
};

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A listener that keeps the map of what is findable, as a router would, and refuses events that
/// such a map can't take.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"

namespace pagedkv::testing {

struct StoredBlock {
  std::uint32_t generation = 0;
  int parent = -1;
  std::uint32_t parent_generation = 0;
  std::vector<TokenId> tokens;
  std::string extra;  ///< encoded bytes
  Hash128 hash;
};

class EventMap final : public CacheObserver {
 public:
  struct Heard {
    CacheEvent::Kind kind;
    int block;
  };
  std::vector<Heard> heard;  ///< since the last `begin_verb`
  std::map<int, StoredBlock> stored;
  std::map<int, std::uint32_t> last_generation;
  std::string broken;                       ///< the first rule that an event broke
  std::vector<std::string>* log = nullptr;  ///< a line for each event

  void begin_verb() { heard.clear(); }

  void on_event(CacheEvent const& e) noexcept override {
    if (e.number != next_number_++) complain("event numbers have a gap");
    int const block = e.block.value();
    if (log != nullptr) log->push_back(line_of(e));
    heard.push_back({e.kind, block});
    switch (e.kind) {
      case CacheEvent::Kind::stored: store(e, block); break;
      case CacheEvent::Kind::removed: remove(e, block); break;
      case CacheEvent::Kind::cleared: stored.clear(); break;
    }
  }

 private:
  static std::string line_of(CacheEvent const& e) {
    static char const* const names[] = {"stored", "removed", "cleared"};
    std::string line = join("event ", e.number, " ", names[int(e.kind)]);
    if (e.kind == CacheEvent::Kind::cleared) return line;
    line += join(" block ", e.block.value(), " generation ", e.generation, " hash ", e.hash.high,
                 ":", e.hash.low);
    if (e.kind == CacheEvent::Kind::removed) return line;
    line += join(" parent ", e.parent.value(), " tokens");
    for (TokenId const t : e.tokens) line += join(" ", t);
    line += " extra";
    for (std::byte const b : e.extra_keys) line += join(" ", int(b));
    return line;
  }
  void store(CacheEvent const& e, int block) {
    if (stored.count(block) != 0) complain("stored twice without being removed");
    auto const before = last_generation.find(block);
    if (before != last_generation.end() && before->second == e.generation) {
      complain("stored again under the same generation");
    }
    last_generation[block] = e.generation;
    if (!e.parent.is_null()) {
      auto const parent = stored.find(e.parent.value());
      if (parent == stored.end() || parent->second.generation != e.parent_generation) {
        complain("stored before its parent");
      } else if (!(parent->second.hash == e.parent_hash)) {
        complain("the parent was stored under another hash");
      }
    }
    stored[block] = {
        e.generation,
        e.parent.value(),
        e.parent_generation,
        {e.tokens.begin(), e.tokens.end()},
        std::string(reinterpret_cast<char const*>(e.extra_keys.data()), e.extra_keys.size()),
        e.hash};
  }
  void remove(CacheEvent const& e, int block) {
    auto const found = stored.find(block);
    if (found == stored.end()) return complain("removed without being stored");
    if (found->second.generation != e.generation) complain("removed under another generation");
    if (!(found->second.hash == e.hash)) complain("removed under another hash");
    stored.erase(found);
  }
  void complain(char const* rule) {
    if (broken.empty()) broken = rule;
  }

  std::uint64_t next_number_ = 0;
};

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The independent model of a prefix cache with one request at a time: a list in LRU order and a
/// set. It knows blocks by name (whatever stands for "this block behind that prefix") and nothing
/// of the library.
#pragma once

#include <cstdint>
#include <list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace naive {

struct Counts {
  std::int64_t requests = 0;
  std::int64_t rejected = 0;
  std::int64_t prompt_blocks = 0;
  std::int64_t accepted_blocks = 0;
  std::int64_t hit_blocks = 0;
  std::int64_t evicted_blocks = 0;
  std::int64_t resident_blocks = 0;
};

class Pool {
 public:
  explicit Pool(std::int64_t num_blocks) : num_blocks_(num_blocks), free_(num_blocks) {}

  /// `names`: the prompt's full blocks. `blocks`: what the request holds while it runs.
  void serve(std::vector<std::int64_t> const& names, std::int64_t blocks) {
    auto const full = static_cast<std::int64_t>(names.size());
    ++counts_.requests;
    counts_.prompt_blocks += full;
    if (blocks > num_blocks_) {
      ++counts_.rejected;
      return;
    }
    counts_.accepted_blocks += full;
    std::size_t hits = 0;
    for (; hits < names.size() && cached_.count(names[hits]) > 0; ++hits) {
      lru_.erase(cached_[names[hits]]);
      cached_.erase(names[hits]);
    }
    counts_.hit_blocks += static_cast<std::int64_t>(hits);
    std::int64_t needed = blocks - static_cast<std::int64_t>(hits);
    for (; needed > 0 && free_ > 0; --needed) --free_;
    for (; needed > 0; --needed) {
      cached_.erase(lru_.front());
      lru_.pop_front();
      ++counts_.evicted_blocks;
    }
    // The deepest block goes back first, so it is the first to be evicted.
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      cached_[*name] = lru_.insert(lru_.end(), *name);
    }
    free_ += blocks - full;
  }

  [[nodiscard]] Counts counts() const {
    Counts counts = counts_;
    counts.resident_blocks = static_cast<std::int64_t>(lru_.size());
    return counts;
  }

 private:
  std::int64_t num_blocks_;
  std::int64_t free_;
  std::list<std::int64_t> lru_;  // the first goes first
  std::unordered_map<std::int64_t, std::list<std::int64_t>::iterator> cached_;
  Counts counts_;
};

/// A prompt as its ids: `tokens_per_id` tokens each, the last for the rest.
struct Prompt {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> ids;
};

/// The prompts one after another on a pool. Requires: ids name their whole prefix, and block_tokens
/// divides tokens_per_id.
inline Counts run(std::vector<Prompt> const& prompts, std::int64_t tokens_per_id,
                  std::int64_t block_tokens, std::int64_t num_blocks) {
  Pool pool(num_blocks);
  std::int64_t const parts = tokens_per_id / block_tokens;
  std::vector<std::int64_t> names;
  for (Prompt const& prompt : prompts) {
    names.clear();
    for (std::int64_t const id : prompt.ids) {
      for (std::int64_t part = 0; part < parts; ++part) names.push_back(id * parts + part);
    }
    names.resize(static_cast<std::size_t>(prompt.tokens / block_tokens));
    // One token more than the prompt: the first generated one.
    pool.serve(names, prompt.tokens / block_tokens + 1);
  }
  return pool.counts();
}

}  // namespace naive

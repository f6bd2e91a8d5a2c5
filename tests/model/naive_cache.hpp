// SPDX-License-Identifier: Apache-2.0
/// \file
/// The cache manager as a person would do it with paper and pencil: explicit token lists, ordered
/// maps for look-ups, lists for orders. It says what every verb must answer and which
/// blocks may be touched; where the library has a free choice (which of several free blocks) it
/// takes over what the library chose, after asking whether that was allowed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"

namespace pagedkv::testing {

using Tokens = std::vector<TokenId>;

struct NaiveMedia {
  int first = 0;
  int count = 0;
  std::string id;
};

/// A prompt and everything else that its K and V depend on.
struct NaiveKey {
  Tokens tokens;
  std::string salt;
  std::string adapter;
  std::uint64_t adapter_generation = 0;
  std::vector<NaiveMedia> media;

  [[nodiscard]] int num_tokens() const { return static_cast<int>(tokens.size()); }

  /// What distinguishes block `j` beside its tokens and its parent. Salt and adapter key the first
  /// block; behind it the parent carries them.
  [[nodiscard]] std::string extra_of(int j, int block_tokens) const {
    std::string out;
    if (j == 0 && !adapter.empty()) {
      out += join("a", adapter, "#", adapter_generation, ";");
    }
    if (j == 0 && !salt.empty()) out += join("s", salt, ";");
    int const begin = j * block_tokens;
    for (auto const& m : media) {
      int const end = std::min(m.first + m.count, begin + block_tokens);
      if (m.first < begin + block_tokens && end > begin) {
        out += join("m", m.first - begin, "-", end - begin, ":", m.id, ";");
      }
    }
    return out;
  }
};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6))) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 29)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 32);
}
inline std::uint64_t mix(std::uint64_t a, std::string const& text) {
  for (char const c : text) a = mix(a, static_cast<unsigned char>(c));
  return mix(a, text.size());
}

/// Stands for the K and V of a position: they depend on all tokens up to it, the adapter and the
/// media; the salt is in it because salted tenants must never meet.
inline std::uint64_t kv_before_first(NaiveKey const& key) {
  return mix(mix(mix(1, key.salt), key.adapter), key.adapter.empty() ? 0 : key.adapter_generation);
}
inline std::uint64_t kv_after(std::uint64_t before, NaiveKey const& key, int position,
                              TokenId token) {
  std::uint64_t kv = mix(before, static_cast<std::uint32_t>(token));
  for (auto const& m : key.media) {
    if (position >= m.first && position < m.first + m.count) {
      kv = mix(mix(kv, m.id), static_cast<std::uint64_t>(position - m.first));
    }
  }
  return kv;
}

enum class State : std::uint8_t { free, idle, used, quarantined, retained };

/// A published block: content and where it hangs. Numbers are never used twice.
struct NaiveNode {
  int block = -1;
  std::int64_t parent = 0;  ///< 0: the first block of a sequence
  Tokens tokens;
  std::string extra;
};

struct NaiveBlock {
  State state = State::free;
  int refs = 0;            ///< table entries, pins, twins
  int holds = 0;           ///< ends of copies whose step is not over
  std::int64_t node = -1;  ///< published as
  int first = -1;          ///< the block whose twin this is
  bool shared = false;     ///< another sequence, a twin or a pin ever referenced it
  std::uint64_t publisher = 0;
  std::uint64_t gate = 0;   ///< deferred: tick open when its last reference went; also once revived
  bool goes_first = false;  ///< finish(none): to the front of the idle list
  std::list<int>::iterator place;
};

struct NaiveCopy {
  int src = -1;
  int dst = -1;
  int num_tokens = 0;
  std::uint64_t tick = 0;  ///< the step that took it
};

struct NaiveSequence {
  std::uint64_t uid = 0;
  NaiveKey key;
  Tokens tokens;  ///< unknown_token where reserved only
  int committed = 0;
  int cached = 0;
  int external = 0;
  std::vector<int> blocks;
  bool publish = true;
  std::uint64_t epoch = 0;
  std::uint64_t batch_tick = 0;  ///< the last step whose Batch it was in
  bool left_children = false;    ///< a published block behind its row may still be somewhere

  [[nodiscard]] int size() const { return static_cast<int>(tokens.size()); }
};

struct NaivePin {
  std::vector<int> blocks;
};

/// What a prompt finds.
struct NaiveHit {
  std::vector<int> blocks;
  int tokens = 0;  ///< the partial ones included
  int source = -1;
  int partial = 0;
  HitEnd end = HitEnd::no_block;
  bool other_keys =
      false;  ///< no_block may as well be salt_or_adapter: the library has a hint only
};

struct NaiveAdmission {
  NaiveHit hit;
  int blocks_needed = 0;
};

struct NaiveEvent {
  CacheEvent::Kind kind = CacheEvent::Kind::stored;
  int block = -1;
  std::int64_t node = -1;
};

class NaiveCache {
 public:
  explicit NaiveCache(KvCacheConfig const& c) : config(c), blocks(std::size_t(c.num_blocks)) {
    counts[int(State::free)] = c.num_blocks;
  }

  KvCacheConfig config;
  std::vector<NaiveBlock> blocks;
  std::list<int> idle;       ///< front: evicted next
  std::vector<int> leaving;  ///< quarantined and retained, in the order they lost their last user
  std::array<int, 5> counts{};
  std::vector<NaiveCopy> planned;
  std::vector<NaiveCopy> taken;
  std::uint64_t open_tick = 1;
  std::uint64_t reclaimed = 0;
  std::uint64_t epoch = 0;
  int num_sequences = 0;
  int num_pins = 0;
  std::vector<NaiveEvent> events;  ///< expected of the present verb, in order
  std::vector<int> allocated;      ///< blocks that took new content in the present verb
  Stats stats{};                   ///< counters only

  using IndexKey = std::tuple<std::int64_t, Tokens, std::string>;
  std::map<IndexKey, std::int64_t> index;
  std::map<std::int64_t, NaiveNode> nodes;
  std::map<std::int64_t, std::vector<std::int64_t>> children;  ///< in order of publishing
  std::int64_t last_node = 0;

  [[nodiscard]] int bt() const { return config.block_tokens; }
  [[nodiscard]] int count(State s) const { return counts[std::size_t(s)]; }
  [[nodiscard]] int available() const { return count(State::free) + count(State::idle); }
  [[nodiscard]] bool deferred() const { return config.reclaim == Reclaim::deferred; }
  NaiveBlock& at(int b) { return blocks[std::size_t(b)]; }
  [[nodiscard]] NaiveBlock const& at(int b) const { return blocks[std::size_t(b)]; }

  void begin_verb() {
    events.clear();
    allocated.clear();
  }

  // ------------------------------------------------------------------------------- the pool

  /// One more reference; an unreferenced block comes back from wherever it waited.
  void acquire(int b) {
    NaiveBlock& block = at(b);
    if (block.refs == 0) {
      leave(b);
      set_state(b, State::used);
    }
    block.goes_first = false;
    block.shared = true;
    ++block.refs;
  }

  /// One reference less. `batched`: the owner is in this step's Batch.
  void drop(int b, bool batched) {
    NaiveBlock& block = at(b);
    expect(block.refs > 0, "model: a reference is dropped twice");
    if (--block.refs > 0) return;
    if (block.first >= 0) {
      int const first = std::exchange(block.first, -1);
      drop(first, batched);
    }
    drop_copy_into(b);
    bool const waits = deferred() || batched || waits_with_others(b);
    if (waits || block.holds > 0) {
      enlist(b, waits ? open_tick : 0);
      set_state(b, block.holds > 0 ? State::retained : State::quarantined);
    } else {
      place(b);
    }
  }

  void hold(int b) {
    NaiveBlock& block = at(b);
    if (block.refs == 0 && block.holds == 0) {
      if (block.state == State::idle) {
        leave(b);
        enlist(b, 0);
      }
      set_state(b, State::retained);
    }
    ++block.holds;
  }
  void unhold(int b) {
    NaiveBlock& block = at(b);
    expect(block.holds > 0, "model: a hold is dropped twice");
    if (--block.holds == 0 && block.refs == 0) set_state(b, State::quarantined);
  }

  /// `n` blocks, as handed out by the library: any free ones first, then exactly the victims.
  void allocate(std::vector<int> const& given) {
    int const from_free = std::min(int(given.size()), count(State::free));
    int const num_victims = int(given.size()) - from_free;
    expect(num_victims <= count(State::idle), "model: more blocks handed out than available");
    std::vector<int> victims;
    for (int const b : idle) {
      if (int(victims.size()) == num_victims) break;
      victims.push_back(b);
    }
    for (int const b : given) {
      if (b < 0 || b >= config.num_blocks) mismatch("block ", b, " doesn't exist");
      bool const victim = std::find(victims.begin(), victims.end(), b) != victims.end();
      if (at(b).state != State::free && !victim) {
        mismatch("block ", b, " was handed out in state ", int(at(b).state),
                 "; neither free nor the next victim");
      }
      if (at(b).refs != 0) mismatch("block ", b, " was handed out twice");
      if (!victim) {
        set_state(b, State::used);
        at(b) = fresh(at(b));
      }
    }
    for (int const b : victims) {
      if (std::find(given.begin(), given.end(), b) == given.end()) {
        mismatch("block ", b, " is next to be evicted and wasn't");
      }
      if (has_findable_child(at(b).node)) mismatch("block ", b, " is evicted before its child");
      leave(b);
      forget(b);
      ++stats.evicted_blocks;
      set_state(b, State::used);
      at(b) = fresh(at(b));
    }
    allocated.insert(allocated.end(), given.begin(), given.end());
  }

  // ------------------------------------------------------------------------------ the index

  [[nodiscard]] std::int64_t child_of(std::int64_t parent, Tokens const& tokens,
                                      std::string const& extra) const {
    auto const found = index.find(IndexKey{parent, tokens, extra});
    return found == index.end() ? -1 : found->second;
  }
  [[nodiscard]] bool has_findable_child(std::int64_t node) const {
    auto const found = children.find(node);
    return found != children.end() && !found->second.empty();
  }

  void publish(int b, std::int64_t parent, Tokens const& tokens, std::string const& extra,
               std::uint64_t publisher) {
    std::int64_t const id = ++last_node;
    nodes[id] = NaiveNode{b, parent, tokens, extra};
    index[IndexKey{parent, tokens, extra}] = id;
    children[parent].push_back(id);
    at(b).node = id;
    at(b).publisher = publisher;
    ++stats.published_blocks;
    events.push_back({CacheEvent::Kind::stored, b, id});
  }
  /// The block stops being findable.
  void forget(int b) {
    events.push_back({CacheEvent::Kind::removed, b, at(b).node});
    drop_node(std::exchange(at(b).node, -1));
  }
  /// An idle block becomes free; deferred: `at_once` or after the open step's tick.
  void unpublish(int b, bool at_once) {
    NaiveBlock& block = at(b);
    forget(b);
    block.goes_first = false;
    if (block.state == State::idle) {
      leave(b);
      block.shared = false;
      if (deferred() && !at_once) {
        enlist(b, open_tick);
        set_state(b, State::quarantined);
      } else {
        place(b);
      }
    }
  }

  // ---------------------------------------------------------------------------------- opening

  [[nodiscard]] int blocks_of(int tokens) const { return (tokens + bt() - 1) / bt(); }

  [[nodiscard]] NaiveHit match(NaiveKey const& key, bool read) const {
    NaiveHit hit;
    if (!read) {
      hit.end = HitEnd::not_read;
      return hit;
    }
    int const last = std::max(key.num_tokens() - 1, 0);
    std::int64_t parent = 0;
    int j = 0;
    for (; j < last / bt(); ++j) {
      std::int64_t const child = child_of(parent, slice(key.tokens, j), key.extra_of(j, bt()));
      if (child < 0) break;
      hit.blocks.push_back(nodes.at(child).block);
      parent = child;
    }
    hit.tokens = j * bt();
    if (config.partial_hits && hit.tokens < last) find_partial(hit, key, parent, last);
    bool const last_block_too = key.num_tokens() == (j + 1) * bt() && j == last / bt() &&
                                child_of(parent, slice(key.tokens, j), key.extra_of(j, bt())) >= 0;
    if (last_block_too || hit.tokens == last) {
      hit.end = HitEnd::last_token;
    } else if (j == 0 && key.num_tokens() >= bt()) {
      auto const roots = children.find(0);
      if (roots != children.end()) {
        Tokens const first = slice(key.tokens, 0);
        hit.other_keys = std::any_of(roots->second.begin(), roots->second.end(),
                                     [&](auto id) { return nodes.at(id).tokens == first; });
      }
    }
    return hit;
  }
  /// All full blocks, also the one with the last token.
  [[nodiscard]] std::vector<int> match_all(NaiveKey const& key) const {
    std::vector<int> out;
    std::int64_t parent = 0;
    for (int j = 0; j < key.num_tokens() / bt(); ++j) {
      parent = child_of(parent, slice(key.tokens, j), key.extra_of(j, bt()));
      if (parent < 0) break;
      out.push_back(nodes.at(parent).block);
    }
    return out;
  }

  [[nodiscard]] bool never_fits(int tokens) const {
    return tokens > config.max_sequence_tokens || blocks_of(tokens) > config.num_blocks;
  }
  static int longest(NaiveKey const& key, OpenOptions const& o) {
    return std::max({key.num_tokens(), o.reserve, o.external_tokens});
  }
  static int positions(NaiveHit const& hit, OpenOptions const& o) {
    return std::max({hit.tokens, o.reserve, o.external_tokens});
  }
  /// New blocks and idle hits; a partial hit is given up if only that makes it fit.
  [[nodiscard]] NaiveAdmission admission(NaiveKey const& key, OpenOptions const& o) const {
    NaiveAdmission a{match(key, o.read), 0};
    auto const needed = [&](NaiveHit const& hit) {
      int n = blocks_of(positions(hit, o)) - int(hit.blocks.size());
      for (int const b : hit.blocks) n += at(b).state == State::idle ? 1 : 0;
      if (hit.partial > 0) n += at(hit.source).state == State::idle ? 1 : 0;
      return n;
    };
    a.blocks_needed = needed(a.hit);
    if (a.hit.partial > 0 && a.blocks_needed > available()) {
      NaiveHit aligned = a.hit;
      aligned.tokens -= aligned.partial;
      aligned.partial = 0;
      aligned.source = -1;
      aligned.end = HitEnd::capacity;
      aligned.other_keys = false;
      if (needed(aligned) <= available()) a = {aligned, needed(aligned)};
    }
    return a;
  }

  /// Requires that it fits. `row`: what the library put into the new sequence's table.
  void open(NaiveSequence& s, NaiveAdmission const& a, OpenOptions const& o,
            std::vector<int> const& row) {
    NaiveHit const& hit = a.hit;
    if (hit.partial > 0) hold_source(hit.source);
    for (std::size_t j = 0; j < hit.blocks.size(); ++j) {
      expect_equal(row[j], hit.blocks[j], "block of a hit");
      acquire(hit.blocks[j]);
    }
    s.blocks = hit.blocks;
    s.publish = o.publish;
    s.epoch = epoch;
    s.committed = s.cached = hit.tokens;
    s.external = std::max(0, o.external_tokens - hit.tokens);
    extend(s, positions(hit, o), row);
    for (int p = 0; p < std::min(s.size(), s.key.num_tokens()); ++p) {
      s.tokens[std::size_t(p)] = s.key.tokens[std::size_t(p)];
    }
    if (hit.partial > 0) plan_copy({hit.source, s.blocks[hit.blocks.size()], hit.partial, 0});
    ++num_sequences;

    auto const queried = std::uint64_t(s.key.num_tokens());
    ++(o.resumed ? stats.resumed_opens : stats.opens);
    (o.resumed ? stats.resumed_query_tokens : stats.prefix_query_tokens) += queried;
    (o.resumed ? stats.resumed_hit_tokens : stats.prefix_hit_tokens) += std::uint64_t(hit.tokens);
    stats.partial_hit_tokens += std::uint64_t(hit.partial);
    stats.hit_blocks += hit.blocks.size();
    stats.external_tokens += std::uint64_t(s.external);
    ++stats.hit_ends[hit.end];
    if (hit.other_keys) ++maybe_other_keys;
  }

  // ---------------------------------------------------------------------------------- growing

  enum class Tail : std::uint8_t { none, untwin, copy, copy_or_unpublish };
  struct Growth {
    int blocks = 0;
    Tail tail = Tail::none;
    bool adopt = false;
    bool in_place = false;
    bool fits = false;
    Errc why = Errc::never_fits;
  };
  [[nodiscard]] Growth growth(NaiveSequence const& s, int n) const {
    Growth g;
    g.blocks = blocks_of(s.size() + n) - int(s.blocks.size());
    if (n > 0 && s.size() % bt() != 0) {
      NaiveBlock const& tail = at(s.blocks.back());
      if (tail.refs > 1 || (deferred() && tail.gate > reclaimed)) {
        g.tail = Tail::copy;
      } else if (tail.node >= 0) {
        g.tail = Tail::copy_or_unpublish;
      } else if (tail.first >= 0) {
        g.tail = Tail::untwin;
      }
      if (g.tail == Tail::copy || g.tail == Tail::copy_or_unpublish) ++g.blocks;
    }
    if (never_fits(s.size() + n)) return g;
    int const room = available() + num_adoptable(s);
    g.in_place = g.blocks > room && g.tail == Tail::copy_or_unpublish && g.blocks - 1 <= room;
    int const needed = g.blocks - (g.in_place ? 1 : 0);
    g.fits = needed <= room;
    g.adopt = g.fits && needed > available();
    g.why = Errc::no_free_blocks;
    return g;
  }
  /// Requires that it fits. `row`: the library's table afterwards.
  void grow(NaiveSequence& s, int n, std::vector<int> const& row) {
    Growth const g = growth(s, n);
    if (g.in_place) {
      unpublish(s.blocks.back(), true);
      ++stats.unpublished_blocks;
    }
    if (g.adopt) {
      for (int j = 0; j < s.size() / bt(); ++j) {
        if (adoptable(s.blocks[std::size_t(j)])) adopt(s, j);
      }
    }
    if (g.tail == Tail::untwin) {
      int const first = std::exchange(at(s.blocks.back()).first, -1);
      drop(first, in_batch(s));
    } else if (g.tail != Tail::none && !g.in_place) {
      copy_tail(s, row);
    }
    extend(s, s.size() + n, row);
  }

  // ------------------------------------------------------------------------------- committing

  void commit(NaiveSequence& s, int n) {
    int const before = s.committed;
    if (n <= before) return;
    s.committed = n;
    if (!s.publish || s.epoch != epoch) return;
    for (int j = before / bt(); j < n / bt(); ++j) publish_block(s, j);
  }

  // ---------------------------------------------------------------- shrinking, forking, leaving

  void truncate(NaiveSequence& s, int n) {
    int const keep = blocks_of(n);
    if (keep < int(s.blocks.size())) {
      if (keep > 0) keep_behind_children(s, keep);
      release_from(s, keep);
    }
    s.tokens.resize(std::size_t(n));
    s.committed = std::min(s.committed, n);
  }
  void fork(NaiveSequence const& from, NaiveSequence& child) {
    child.key = from.key;
    child.tokens = from.tokens;
    child.committed = child.cached = from.size();
    child.blocks = from.blocks;
    child.publish = from.publish;
    child.epoch = from.epoch;
    child.left_children = from.left_children;
    for (int const b : child.blocks) share(b);
    ++num_sequences;
    ++stats.forks;
  }
  void close(NaiveSequence& s, Reuse reuse) {
    if (reuse == Reuse::none) release_unwanted(s);
    if (reuse == Reuse::resume) ++stats.preemptions;
    release_from(s, 0);
    --num_sequences;
  }

  // -------------------------------------------------------------------------------------- rest

  [[nodiscard]] NaivePin pin(NaiveKey const& key) {
    NaivePin out{match_all(key)};
    for (int const b : out.blocks) acquire(b);
    ++num_pins;
    return out;
  }
  void unpin(NaivePin const& p) {
    for (auto i = p.blocks.size(); i-- > 0;) drop(p.blocks[i], false);
    --num_pins;
  }
  /// The copies handed out, in the order planned; both ends are held now.
  [[nodiscard]] std::vector<NaiveCopy> take_copies() {
    auto out = std::exchange(planned, {});
    for (auto& copy : out) {
      copy.tick = open_tick;
      hold(copy.dst);
      taken.push_back(copy);
    }
    return out;
  }
  void end_step() {
    std::uint64_t const tick = open_tick++;
    if (!deferred()) let_go(tick);
  }
  void reclaim(std::uint64_t tick) {
    if (deferred()) let_go(tick);
  }
  int evict(std::vector<int> const& list) {
    int n = 0;
    for (int const b : list) {
      if (at(b).refs != 0 || at(b).node < 0) continue;
      unpublish(b, false);
      ++n;
    }
    stats.evicted_blocks += std::uint64_t(n);
    return n;
  }
  void reset() {
    for (int b = 0; b < config.num_blocks; ++b) {
      if (at(b).first >= 0) drop(std::exchange(at(b).first, -1), false);
    }
    for (int b = 0; b < config.num_blocks; ++b) {
      if (at(b).node >= 0) unpublish(b, true);
    }
    events.clear();
    events.push_back({CacheEvent::Kind::cleared, -1, -1});
    ++epoch;
    ++stats.resets;
  }
  void mark_batched(NaiveSequence& s) { s.batch_tick = open_tick; }

  [[nodiscard]] int unshared_blocks(NaiveSequence const& s) const {
    return int(
        std::count_if(s.blocks.begin(), s.blocks.end(), [&](int b) { return at(b).refs == 1; }));
  }
  [[nodiscard]] int unshared_tokens(NaiveSequence const& s) const {
    int n = 0;
    for (int j = 0; j < int(s.blocks.size()); ++j) {
      if (at(s.blocks[std::size_t(j)]).refs == 1) n += std::min(bt(), s.size() - j * bt());
    }
    return n;
  }
  /// Opens whose hit ended at a first block that is cached under other keys.
  std::uint64_t maybe_other_keys = 0;

 private:
  [[nodiscard]] Tokens slice(Tokens const& tokens, int j) const {
    auto const from = tokens.begin() + std::ptrdiff_t(j) * bt();
    return Tokens(from, from + bt());
  }
  void find_partial(NaiveHit& hit, NaiveKey const& key, std::int64_t parent, int last) const {
    auto const siblings = children.find(parent);
    if (siblings == children.end()) return;
    int const begin = hit.tokens;
    int const limit = std::min(last - begin, bt());
    std::string const extra = key.extra_of(begin / bt(), bt());
    int compared = 0;
    for (auto i = siblings->second.size(); i-- > 0;) {
      NaiveNode const& node = nodes.at(siblings->second[i]);
      if (node.tokens[0] != key.tokens[std::size_t(begin)]) continue;
      if (compared++ == config.max_partial_candidates) break;
      if (node.extra != extra) continue;
      int same = 0;
      while (same < limit &&
             node.tokens[std::size_t(same)] == key.tokens[std::size_t(begin + same)]) {
        ++same;
      }
      if (same > hit.partial) {
        hit.partial = same;
        hit.source = node.block;
      }
    }
    hit.tokens += hit.partial;
  }
  void share(int b) {
    ++at(b).refs;
    at(b).shared = true;
  }
  void hold_source(int b) {
    hold(b);
    at(b).goes_first = false;
    at(b).shared = true;
  }
  void plan_copy(NaiveCopy const& copy) {
    planned.push_back(copy);
    ++stats.copies;
  }
  void extend(NaiveSequence& s, int size, std::vector<int> const& row) {
    s.tokens.resize(std::size_t(size), unknown_token);
    auto const had = s.blocks.size();
    auto const want = std::size_t(blocks_of(size));
    if (want == had) return;
    expect_equal(row.size(), want, "length of the block table");
    std::vector<int> const given(row.begin() + std::ptrdiff_t(had), row.end());
    allocate(given);
    s.blocks.insert(s.blocks.end(), given.begin(), given.end());
  }
  void copy_tail(NaiveSequence& s, std::vector<int> const& row) {
    std::size_t const column = s.blocks.size() - 1;
    int const old = s.blocks[column];
    int const dst = row.at(column);
    NaiveCopy copy{old, dst, s.size() % bt(), 0};
    for (auto const& earlier : planned) {
      if (earlier.dst == old) copy.src = earlier.src;
    }
    hold_source(copy.src);
    allocate({dst});
    plan_copy(copy);
    if (column > 0) keep_behind_children(s, int(column));
    s.blocks[column] = dst;
    note_release(s, {old});
    drop(old, in_batch(s));
  }
  void publish_block(NaiveSequence& s, int j) {
    int const b = s.blocks[std::size_t(j)];
    std::int64_t parent = 0;
    if (j > 0) {
      int const before = s.blocks[std::size_t(j - 1)];
      parent = at(at(before).first >= 0 ? at(before).first : before).node;
      expect(parent > 0, "model: a block is published behind one that isn't");
    }
    Tokens const tokens = slice(s.tokens, j);
    std::string const extra = s.key.extra_of(j, bt());
    std::int64_t const same = child_of(parent, tokens, extra);
    if (same < 0) {
      publish(b, parent, tokens, extra, s.uid);
      return;
    }
    int const first = nodes.at(same).block;
    expect(first != b, "model: a block is published twice");
    acquire(first);
    at(b).first = first;
    ++stats.twin_blocks;
    if (config.twins == Twins::adopt || deferred()) adopt(s, j);
  }
  void adopt(NaiveSequence& s, int j) {
    int const twin = s.blocks[std::size_t(j)];
    share(at(twin).first);
    s.blocks[std::size_t(j)] = at(twin).first;
    ++stats.adopted_blocks;
    note_release(s, {twin});
    drop(twin, in_batch(s));
  }
  [[nodiscard]] bool adoptable(int b) const {
    NaiveBlock const& block = at(b);
    return block.first >= 0 && block.refs == 1 && !deferred() && block.holds == 0 &&
           !waits_with_others(b);
  }
  [[nodiscard]] int num_adoptable(NaiveSequence const& s) const {
    if (in_batch(s)) return 0;
    int n = 0;
    for (int j = 0; j < s.size() / bt(); ++j) n += adoptable(s.blocks[std::size_t(j)]) ? 1 : 0;
    return n;
  }
  [[nodiscard]] bool in_batch(NaiveSequence const& s) const { return s.batch_tick == open_tick; }
  /// Before these blocks are given back.
  void note_release(NaiveSequence const& s, std::vector<int> const& released) {
    if (in_batch(s)) batched_release = open_tick;
    if (!s.left_children) return;
    for (int const b : released) {
      if (at(b).node >= 0) at(b).shared = true;
    }
  }
  void release_from(NaiveSequence& s, int keep) {
    note_release(s, {s.blocks.begin() + keep, s.blocks.end()});
    while (int(s.blocks.size()) > keep) {
      int const b = s.blocks.back();
      s.blocks.pop_back();
      drop(b, in_batch(s));
    }
  }
  void keep_behind_children(NaiveSequence& s, int keep) {
    if (at(s.blocks[std::size_t(keep)]).node < 0) return;
    at(s.blocks[std::size_t(keep - 1)]).shared = true;
    s.left_children = true;
  }
  void release_unwanted(NaiveSequence& s) {
    auto const plain = [&](int b) { return at(b).refs == 1 && at(b).node < 0 && at(b).first < 0; };
    int end = int(s.blocks.size());
    while (end > 0 && plain(s.blocks[std::size_t(end - 1)])) --end;
    int first = end;
    while (first > 0) {
      NaiveBlock const& b = at(s.blocks[std::size_t(first - 1)]);
      if (b.refs != 1 || b.node < 0 || b.shared || b.holds > 0) break;
      --first;
    }
    if (first == end) return;
    release_from(s, end);
    // The deepest ends up in front of all.
    for (int j = first; j < end; ++j) {
      at(s.blocks[std::size_t(j)]).goes_first = true;
      note_release(s, {s.blocks[std::size_t(j)]});
      drop(s.blocks[std::size_t(j)], in_batch(s));
    }
    s.blocks.resize(std::size_t(first));
  }
  void let_go(std::uint64_t tick) {
    reclaimed = std::max(reclaimed, tick);
    while (!taken.empty() && taken.front().tick <= tick) {
      NaiveCopy const copy = taken.front();
      taken.erase(taken.begin());
      unhold(copy.src);
      unhold(copy.dst);
    }
    flush();
  }

  static NaiveBlock fresh(NaiveBlock const& before) {
    NaiveBlock block;
    block.state = before.state;
    block.refs = 1;
    return block;
  }
  void set_state(int b, State s) {
    --counts[std::size_t(at(b).state)];
    ++counts[std::size_t(s)];
    at(b).state = s;
  }
  /// Out of the list in which an unreferenced block waits.
  void leave(int b) {
    if (at(b).state == State::idle) idle.erase(at(b).place);
    if (at(b).state == State::quarantined || at(b).state == State::retained) {
      leaving.erase(std::find(leaving.begin(), leaving.end(), b));
    }
  }
  /// Waits for a tick. Nobody overtakes.
  void enlist(int b, std::uint64_t tick) {
    at(b).gate = leaving.empty() ? tick : std::max(tick, at(leaving.back()).gate);
    leaving.push_back(b);
  }
  /// Where a block goes that nobody references, holds or waits for.
  void place(int b) {
    NaiveBlock& block = at(b);
    if (block.node < 0) {
      block.goes_first = false;
      set_state(b, State::free);
      return;
    }
    block.place = idle.insert(block.goes_first ? idle.begin() : idle.end(), b);
    block.goes_first = false;
    set_state(b, State::idle);
  }
  /// In order, all that waits for nothing any more. What may be an ancestor of a block that is
  /// still held stays behind it.
  void flush() {
    bool passed_held = false;
    for (std::size_t i = 0; i < leaving.size() && at(leaving[i]).gate <= reclaimed;) {
      int const b = leaving[i];
      bool const ancestor = at(b).node >= 0 && at(b).shared;
      if (at(b).holds > 0) {
        passed_held = true;
        ++i;
      } else if (passed_held && ancestor) {
        ++i;
      } else {
        leaving.erase(leaving.begin() + std::ptrdiff_t(i));
        place(b);
      }
    }
  }
  [[nodiscard]] int incoming() const { return count(State::quarantined) + count(State::retained); }
  [[nodiscard]] bool waits_with_others(int b) const {
    if (!at(b).shared) return false;
    return batched_release == open_tick || (at(b).node >= 0 && incoming() != 0);
  }
  void drop_copy_into(int b) {
    for (std::size_t i = 0; i < planned.size(); ++i) {
      if (planned[i].dst != b) continue;
      NaiveCopy const copy = planned[i];
      planned.erase(planned.begin() + std::ptrdiff_t(i));
      ++stats.dropped_copies;
      unhold(copy.src);
      flush();
      return;
    }
  }
  void drop_node(std::int64_t id) {
    NaiveNode const& node = nodes.at(id);
    index.erase(IndexKey{node.parent, node.tokens, node.extra});
    auto siblings = children.find(node.parent);
    std::erase(siblings->second, id);
    if (siblings->second.empty()) children.erase(siblings);
    // What hangs below can't be reached any more.
    nodes.erase(id);
  }
  std::uint64_t batched_release = 0;
};

}  // namespace pagedkv::testing

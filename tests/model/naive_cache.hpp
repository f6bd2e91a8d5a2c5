// SPDX-License-Identifier: Apache-2.0
/// \file
/// The cache manager as a person would do it with paper and pencil: explicit token lists, ordered
/// maps for look-ups, lists for orders. It says what every verb must answer and which blocks may be
/// touched; naive_content.hpp says what is findable, naive_pool.hpp where blocks wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"
#include "naive_pool.hpp"

namespace pagedkv::testing {

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
  std::uint64_t used = 0;      ///< the last step whose Batch it was in, or that was named
  bool left_children = false;  ///< a published block that follows the row may still exist

  [[nodiscard]] int size() const { return static_cast<int>(tokens.size()); }
  [[nodiscard]] bool has(int b) const {
    return std::find(blocks.begin(), blocks.end(), b) != blocks.end();
  }
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

class NaiveCache : public NaivePool {
 public:
  using NaivePool::NaivePool;

  std::uint64_t epoch = 0;
  int num_sequences = 0;
  int num_pins = 0;
  /// The engine says which sequences a step uses: it made a Batch, or called `used_by`.
  bool steps_are_named = false;
  /// Opens whose hit ended at a first block that is cached under other keys.
  std::uint64_t maybe_other_keys = 0;

  void begin_verb() {
    events.clear();
    allocated.clear();
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
      std::int64_t const child =
          content.child_of(parent, slice(key.tokens, j), key.extra_of(j, bt()));
      if (child < 0) break;
      hit.blocks.push_back(content.at(child).block);
      parent = child;
    }
    hit.tokens = j * bt();
    if (config.partial_hits && hit.tokens < last) find_partial(hit, key, parent, last);
    bool const last_block_too =
        key.num_tokens() == (j + 1) * bt() && j == last / bt() &&
        content.child_of(parent, slice(key.tokens, j), key.extra_of(j, bt())) >= 0;
    if (last_block_too || hit.tokens == last) {
      hit.end = HitEnd::last_token;
    } else if (j == 0 && key.num_tokens() >= bt()) {
      auto const& roots = content.children_of(0);
      Tokens const first = slice(key.tokens, 0);
      hit.other_keys = std::any_of(roots.begin(), roots.end(),
                                   [&](auto id) { return content.at(id).tokens == first; });
    }
    return hit;
  }
  /// All full blocks, also the one with the last token.
  [[nodiscard]] std::vector<int> match_all(NaiveKey const& key) const {
    std::vector<int> out;
    std::int64_t parent = 0;
    for (int j = 0; j < key.num_tokens() / bt(); ++j) {
      parent = content.child_of(parent, slice(key.tokens, j), key.extra_of(j, bt()));
      if (parent < 0) break;
      out.push_back(content.at(parent).block);
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
    bool in_place = false;
    bool fits = false;
    Errc why = Errc::never_fits;
  };
  [[nodiscard]] Growth growth(NaiveSequence const& s, int n) const {
    Growth g;
    g.blocks = blocks_of(s.size() + n) - int(s.blocks.size());
    if (n > 0 && s.size() % bt() != 0) {
      NaiveBlock const& tail = at(s.blocks.back());
      if (tail.refs > 1 || is_in_flight(s.blocks.back())) {
        g.tail = Tail::copy;
      } else if (tail.node >= 0) {
        g.tail = Tail::copy_or_unpublish;
      } else if (tail.twin_of >= 0) {
        g.tail = Tail::untwin;
      }
      if (g.tail == Tail::copy || g.tail == Tail::copy_or_unpublish) ++g.blocks;
    }
    if (never_fits(s.size() + n)) return g;
    int const room = available();
    g.in_place = g.blocks > room && g.tail == Tail::copy_or_unpublish && g.blocks - 1 <= room;
    int const needed = g.blocks - (g.in_place ? 1 : 0);
    g.fits = needed <= room;
    g.why = Errc::no_free_blocks;
    return g;
  }
  /// Requires that it fits. `row`: the library's table afterwards.
  void grow(NaiveSequence& s, int n, std::vector<int> const& row) {
    Growth const g = growth(s, n);
    if (g.in_place && !hand_over(s.blocks.back())) {
      forget(s.blocks.back());
      ++stats.unpublished_blocks;
    }
    if (g.tail == Tail::untwin) {
      leave_ring(s.blocks.back());
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
    for (auto i = p.blocks.size(); i-- > 0;) drop(p.blocks[i], 0);
    --num_pins;
  }
  int evict(std::vector<int> const& list) {
    int n = 0;
    for (int const b : list) {
      if (at(b).refs != 0 || at(b).node < 0) continue;
      evict_one(b);
      ++n;
    }
    stats.evicted_blocks += std::uint64_t(n);
    return n;
  }
  /// What these blocks bear is content no more, and nothing that follows it can be found.
  /// A twin bears nothing; but what its rows computed after it can't be found either. `rows`:
  /// those of all sequences.
  int unpublish(std::vector<int> const& list, std::vector<std::vector<int>> const& rows) {
    int n = 0;
    bool any = false;
    for (int const b : list) {
      // A ring whose content is lost is dissolved late here; it means nothing any more.
      if (at(b).twin_of >= 0 && content.is_findable(at(b).twin_of)) {
        leave_ring(b);
        for (auto const& row : rows) lose_behind(row, b);
        any = true;
      }
      if (at(b).node < 0) continue;
      any = true;
      dissolve_ring(b);
      evict_one(b);
      ++n;
    }
    stats.unpublished_blocks += std::uint64_t(any ? n + drop_unfindable() : 0);
    return n;
  }
  void lose_behind(std::vector<int> const& row, int bad) {
    auto at_bad = std::find(row.begin(), row.end(), bad);
    if (at_bad == row.end()) return;
    while (++at_bad != row.end()) {
      if (at(*at_bad).twin_of >= 0) leave_ring(*at_bad);
      if (at(*at_bad).node >= 0) content.lose(at(*at_bad).node);
    }
  }
  void reset() {
    for (int b = 0; b < config.num_blocks; ++b) {
      if (at(b).node < 0) continue;
      dissolve_ring(b);
      evict_one(b);
    }
    events.clear();
    events.push_back({CacheEvent::Kind::cleared});
    ++epoch;
    ++stats.resets;
  }
  /// A step up to `tick` uses it.
  void mark_used(NaiveSequence& s, std::uint64_t tick) { s.used = std::max(s.used, tick); }

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

 private:
  [[nodiscard]] Tokens slice(Tokens const& tokens, int j) const {
    auto const from = tokens.begin() + std::ptrdiff_t(j) * bt();
    return Tokens(from, from + bt());
  }
  void find_partial(NaiveHit& hit, NaiveKey const& key, std::int64_t parent, int last) const {
    auto const& siblings = content.children_of(parent);
    int const begin = hit.tokens;
    int const limit = std::min(last - begin, bt());
    std::string const extra = key.extra_of(begin / bt(), bt());
    int compared = 0;
    for (auto i = siblings.size(); i-- > 0;) {
      NaiveNode const& node = content.at(siblings[i]);
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
  void hold_source(int b) {
    hold(b);
    at(b).goes_first = false;
    at(b).shared = true;
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
    drop(old, release_tick(s));
  }
  void publish_block(NaiveSequence& s, int j) {
    int const b = s.blocks[std::size_t(j)];
    std::int64_t const parent = j > 0 ? content_of(s.blocks[std::size_t(j - 1)]) : 0;
    if (parent < 0 || !content.is_findable(parent)) return;
    expect(content_of(b) < 0, "model: a block is published twice");
    Tokens const tokens = slice(s.tokens, j);
    std::string const extra = s.key.extra_of(j, bt());
    std::int64_t const same = content.child_of(parent, tokens, extra);
    if (same < 0) return publish(b, parent, tokens, extra);
    ++stats.twin_blocks;
    int const bearer = content.at(same).block;
    if (at(bearer).refs == 0) {
      succeed(bearer, b);
    } else if (config.twins == Twins::adopt) {
      adopt(s, j, bearer);
    } else {
      join_ring(b, same);
    }
  }
  void adopt(NaiveSequence& s, int j, int bearer) {
    int const own = s.blocks[std::size_t(j)];
    share(bearer);
    s.blocks[std::size_t(j)] = bearer;
    ++stats.adopted_blocks;
    note_release(s, {own});
    drop(own, release_tick(s));
  }
  /// Loses what has no reference and can't be found. Returns how many.
  int drop_unfindable() {
    int n = 0;
    for (int b = 0; b < config.num_blocks; ++b) {
      if (at(b).refs != 0 || at(b).node < 0 || content.is_findable(at(b).node)) continue;
      evict_one(b);
      ++n;
    }
    return n;
  }
  [[nodiscard]] bool in_open_step(NaiveSequence const& s) const { return s.used == open_tick; }
  /// The step that what it gives back waits for.
  [[nodiscard]] std::uint64_t release_tick(NaiveSequence const& s) const {
    if (!deferred()) return in_open_step(s) ? open_tick : 0;
    if (!steps_are_named) return open_tick;
    bool const transfer = s.external > 0 && s.committed < s.cached + s.external;
    if (transfer) return open_tick;
    return s.used > reclaimed ? s.used : 0;
  }
  /// Before these blocks are given back.
  void note_release(NaiveSequence const& s, std::vector<int> const& released) {
    if (in_open_step(s) && !released.empty()) batched_release = open_tick;
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
      drop(b, release_tick(s));
    }
  }
  void keep_behind_children(NaiveSequence& s, int keep) {
    if (at(s.blocks[std::size_t(keep)]).node < 0) return;
    NaiveBlock& parent = at(s.blocks[std::size_t(keep - 1)]);
    if (parent.node >= 0) parent.shared = true;
    s.left_children = true;
  }
  /// `finish(none)`: what no other sequence used goes to the front, the deepest in front of all.
  void release_unwanted(NaiveSequence& s) {
    int end = int(s.blocks.size());
    while (end > 0 && is_private(s.blocks[std::size_t(end - 1)])) --end;
    int first = end;
    while (first > 0 && is_unwanted(s, first - 1, end)) --first;
    if (first == end) return;
    release_from(s, end);
    for (int j = first; j < end; ++j) {
      at(s.blocks[std::size_t(j)]).goes_first = true;
      note_release(s, {s.blocks[std::size_t(j)]});
      drop(s.blocks[std::size_t(j)], release_tick(s));
    }
    s.blocks.resize(std::size_t(first));
  }
  [[nodiscard]] bool is_private(int b) const {
    std::int64_t const node = content_of(b);
    return at(b).refs == 1 && (node < 0 || !content.is_findable(node));
  }
  /// The step that column j would wait for if the row gave it back now; 0: none.
  [[nodiscard]] std::uint64_t fence_of(NaiveSequence const& s, int j) const {
    std::uint64_t const tick = std::max(at(s.blocks[std::size_t(j)]).stamp, release_tick(s));
    return tick > reclaimed ? tick : 0;
  }
  /// No other sequence used it, and nothing of others follows it (in a row with a twin of it).
  /// Nor does it leave later than what follows it.
  [[nodiscard]] bool is_unwanted(NaiveSequence const& s, int j, int end) const {
    NaiveBlock const& block = at(s.blocks[std::size_t(j)]);
    if (block.refs != 1 || block.node < 0 || block.shared || block.holds > 0) return false;
    bool const leaves_later = deferred() && j + 1 < end && fence_of(s, j) > fence_of(s, j + 1);
    if (leaves_later) return false;
    auto const& children = content.children_of(block.node);
    return std::all_of(children.begin(), children.end(), [&](std::int64_t child) {
      return j + 1 < end && content.at(child).block == s.blocks[std::size_t(j + 1)];
    });
  }
};

}  // namespace pagedkv::testing

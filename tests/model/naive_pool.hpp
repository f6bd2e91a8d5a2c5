// SPDX-License-Identifier: Apache-2.0
/// \file
/// The blocks with paper and pencil: the references to them, where blocks without references wait,
/// and what they bear. Where the library has a free choice (which of several free blocks) the model
/// takes over what the library chose, after asking whether that was allowed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"
#include "naive_content.hpp"

namespace pagedkv::testing {

enum class State : std::uint8_t { free, idle, used, quarantined, retained };

struct NaiveBlock {
  State state = State::free;
  int refs = 0;               ///< table entries and pins
  int holds = 0;              ///< ends of copies whose step is not over
  std::int64_t node = -1;     ///< the content it bears
  std::int64_t twin_of = -1;  ///< the content in whose ring it is
  bool shared = false;        ///< another sequence or a pin ever referenced it, or it succeeded
  std::uint64_t stamp = 0;    ///< the last step known to have used it
  std::uint64_t gate = 0;     ///< stream_ordered, while it waits: the step it waits for
  bool goes_first = false;    ///< finish(none): to the front of the idle list
  std::list<int>::iterator place;
};

struct NaiveCopy {
  int src = -1;
  int dst = -1;
  int num_tokens = 0;
  std::uint64_t tick = 0;  ///< the step that took it
};

struct NaiveEvent {
  CacheEvent::Kind kind = CacheEvent::Kind::stored;
  int block = -1;
  std::int64_t node = -1;
  int from = -1;  ///< moved: the block that bore it
};

class NaivePool {
 public:
  explicit NaivePool(KvCacheConfig const& c) : config(c), blocks(std::size_t(c.num_blocks)) {
    counts[int(State::free)] = c.num_blocks;
  }

  KvCacheConfig config;
  std::vector<NaiveBlock> blocks;
  NaiveContent content;
  std::list<int> idle;       ///< front: evicted next
  std::vector<int> leaving;  ///< quarantined and retained, in the order in which they leave
  std::array<int, 5> counts{};
  std::vector<NaiveCopy> planned;
  std::vector<NaiveCopy> taken;
  std::uint64_t open_tick = 1;
  std::uint64_t reclaimed = 0;
  std::vector<NaiveEvent> events;  ///< expected of the present verb, in order
  std::vector<int> allocated;      ///< blocks that took new content in the present verb
  Stats stats{};                   ///< counters only

  [[nodiscard]] int bt() const { return config.block_tokens; }
  [[nodiscard]] int count(State s) const { return counts[std::size_t(s)]; }
  [[nodiscard]] int available() const { return count(State::free) + count(State::idle); }
  [[nodiscard]] int incoming() const { return count(State::quarantined) + count(State::retained); }
  [[nodiscard]] bool deferred() const { return config.reclaim == Reclaim::deferred; }
  NaiveBlock& at(int b) { return blocks[std::size_t(b)]; }
  [[nodiscard]] NaiveBlock const& at(int b) const { return blocks[std::size_t(b)]; }

  /// What it contains as far as is known: what it bears, or what it is a twin of. -1: nothing.
  [[nodiscard]] std::int64_t content_of(int b) const {
    return at(b).twin_of >= 0 ? at(b).twin_of : at(b).node;
  }
  /// A step that isn't reclaimed may still read what another owner left in it.
  [[nodiscard]] bool is_in_flight(int b) const {
    return deferred() && at(b).shared && at(b).stamp > reclaimed;
  }
  [[nodiscard]] bool waits(int b) const {
    return at(b).state == State::quarantined || at(b).state == State::retained;
  }

  // ------------------------------------------------------------------------- references, holds

  /// One more reference; an unreferenced block comes back from where it waited.
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
  /// One reference less. `tick`: the last step in which its owner used it; last reference or not,
  /// no other owner may write into it before that step is reclaimed.
  void drop(int b, std::uint64_t tick) {
    NaiveBlock& block = at(b);
    expect(block.refs > 0, "model: a reference is dropped twice");
    block.stamp = std::max(block.stamp, tick);
    if (--block.refs > 0) return;
    part_from_content(b);
    drop_copy_into(b);
    settle(b);
  }
  void hold(int b) {
    NaiveBlock& block = at(b);
    if (block.refs == 0 && block.holds == 0) {
      if (block.state == State::idle) {
        leave(b);
        set_state(b, State::retained);
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

  // -------------------------------------------------------------------------------- allocation

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
                 "; neither free nor the next victim, which is ",
                 victims.empty() ? -1 : victims[0]);
      }
      if (at(b).refs != 0) mismatch("block ", b, " was handed out twice");
      if (!victim) take(b);
    }
    for (int const b : victims) {
      if (std::find(given.begin(), given.end(), b) == given.end()) {
        mismatch("block ", b, " is next to be evicted and wasn't");
      }
      evict_victim(b);
    }
    allocated.insert(allocated.end(), given.begin(), given.end());
  }

  // --------------------------------------------------------------------------------- contents

  void publish(int b, std::int64_t parent, Tokens const& tokens, std::string const& extra) {
    at(b).node = content.add(b, parent, tokens, extra);
    ++stats.published_blocks;
    events.push_back({CacheEvent::Kind::stored, b, at(b).node});
  }
  /// What the block bears is content no more. It has no twins.
  void forget(int b) {
    events.push_back({CacheEvent::Kind::removed, b, at(b).node});
    content.remove(std::exchange(at(b).node, -1));
  }
  /// Block `b` bears the content of `f` from now on; `f` has none.
  void succeed(int f, int b) {
    std::int64_t const node = std::exchange(at(f).node, -1);
    content.at(node).block = b;
    at(b).node = node;
    at(b).shared = true;
    ++stats.moved_blocks;
    events.push_back({CacheEvent::Kind::moved, b, node, f});
    if (at(f).state == State::idle) free_idle(f);
  }
  /// The oldest twin bears the content of `f` from now on. False: there is none, or the content
  /// can't be found anyway.
  bool hand_over(int f) {
    if (!content.is_findable(at(f).node)) dissolve_ring(f);
    std::vector<int>& ring = content.at(at(f).node).ring;
    if (ring.empty()) return false;
    int const twin = ring.front();
    leave_ring(twin);
    succeed(f, twin);
    return true;
  }
  void join_ring(int b, std::int64_t node) {
    content.at(node).ring.push_back(b);
    at(b).twin_of = node;
  }
  void leave_ring(int b) {
    std::erase(content.at(at(b).twin_of).ring, b);
    at(b).twin_of = -1;
  }
  void dissolve_ring(int b) {
    for (int const twin : std::exchange(content.at(at(b).node).ring, {})) at(twin).twin_of = -1;
  }
  /// An idle block that bears nothing any more is free at once.
  void free_idle(int b) {
    leave(b);
    place(b);
  }
  void evict_one(int b) {
    forget(b);
    if (at(b).state == State::idle) free_idle(b);
  }

  // ------------------------------------------------------------------------------------- steps

  /// The copies handed out, those of `targets` in their order; both ends are held now, and used by
  /// this step.
  [[nodiscard]] std::vector<NaiveCopy> take_copies(std::vector<int> const& targets) {
    auto out = std::exchange(planned, {});
    auto const place = [&](NaiveCopy const& copy) {
      return std::find(targets.begin(), targets.end(), copy.dst);
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](NaiveCopy const& a, NaiveCopy const& b) { return place(a) < place(b); });
    for (auto& copy : out) {
      copy.tick = open_tick;
      hold(copy.dst);
      taken.push_back(copy);
      if (!deferred()) continue;
      raise(copy.src, open_tick);
      raise(copy.dst, open_tick);
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

 protected:
  void share(int b) {
    ++at(b).refs;
    at(b).shared = true;
  }
  void plan_copy(NaiveCopy const& copy) {
    planned.push_back(copy);
    ++stats.copies;
  }
  void set_state(int b, State s) {
    --counts[std::size_t(at(b).state)];
    ++counts[std::size_t(s)];
    at(b).state = s;
  }
  std::uint64_t batched_release = 0;  ///< the last step in which a batched sequence gave back

 private:
  /// The last reference goes. A twin leaves its ring; a bearer hands over to its oldest twin; what
  /// can't be found any more is no content from now on.
  void part_from_content(int b) {
    if (at(b).twin_of >= 0) return leave_ring(b);
    if (at(b).node < 0 || hand_over(b) || content.is_findable(at(b).node)) return;
    forget(b);
    ++stats.unpublished_blocks;
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
  /// Where a block goes that has no references any more.
  void settle(int b) {
    bool const must_wait = at(b).stamp > reclaimed || child_waits(b, true) || waits_with_others(b);
    if (!must_wait && at(b).holds == 0) return place(b);
    set_state(b, at(b).holds > 0 ? State::retained : State::quarantined);
    enlist(b, must_wait ? open_tick : 0);
  }
  /// stream_ordered: blocks of one release stay in order, ancestors after what follows them.
  [[nodiscard]] bool waits_with_others(int b) const {
    if (deferred() || !at(b).shared) return false;
    return batched_release == open_tick || (at(b).node >= 0 && incoming() != 0);
  }
  /// A findable block that follows it waits. Where blocks leave: one that isn't going to be in
  /// front of it in any case.
  [[nodiscard]] bool child_waits(int b, bool any) const {
    if (at(b).node < 0) return false;
    auto const& children = content.children_of(at(b).node);
    return std::any_of(children.begin(), children.end(), [&](std::int64_t child) {
      int const block = content.at(child).block;
      return waits(block) && (any || !at(block).goes_first || gate_of(block) > reclaimed);
    });
  }

  /// Into the list of what waits, after all that leaves no later. deferred: for its stamp, and
  /// at least as long as what follows it; the stamps of its ancestors are raised to its own.
  /// stream_ordered: for `gate`, and no block overtakes.
  void enlist(int b, std::uint64_t gate) {
    if (!deferred()) {
      at(b).gate = leaving.empty() ? gate : std::max(gate, at(leaving.back()).gate);
      leaving.push_back(b);
      return;
    }
    auto const later = [&](int other) { return at(other).stamp > at(b).stamp; };
    leaving.insert(std::find_if(leaving.begin(), leaving.end(), later), b);
    if (at(b).node < 0) return;
    // All that it follows, up to what isn't given back before it anyway.
    for (std::int64_t p = content.at(at(b).node).parent; p > 0 && content.contains(p);
         p = content.at(p).parent) {
      if (at(content.at(p).block).stamp >= at(b).stamp) return;
      raise(content.at(p).block, at(b).stamp);
    }
  }
  void raise(int b, std::uint64_t tick) {
    if (at(b).stamp >= tick) return;
    at(b).stamp = tick;
    if (!waits(b)) return;
    leave(b);
    enlist(b, 0);
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
  /// In order, all that waits for nothing any more; a second time for what has waited for those.
  void flush() {
    while (flush_once()) {
    }
  }
  /// stream_ordered: what may be an ancestor of a block that is still held stays after it.
  bool flush_once() {
    bool passed_held = false;
    bool left = false;
    for (std::size_t i = 0; i < leaving.size() && gate_of(leaving[i]) <= reclaimed;) {
      int const b = leaving[i];
      bool const behind_held = !deferred() && passed_held && at(b).node >= 0 && at(b).shared;
      passed_held = passed_held || at(b).holds > 0;
      if (at(b).holds > 0 || behind_held || child_waits(b, false)) {
        ++i;
      } else {
        leaving.erase(leaving.begin() + std::ptrdiff_t(i));
        place(b);
        left = true;
      }
    }
    return left;
  }
  [[nodiscard]] std::uint64_t gate_of(int b) const { return deferred() ? at(b).stamp : at(b).gate; }

  /// Where a block goes that has no reference and no hold, and waits for nothing.
  void place(int b) {
    NaiveBlock& block = at(b);
    if (block.node < 0) {
      set_state(b, State::free);
    } else {
      block.place = idle.insert(block.goes_first ? idle.begin() : idle.end(), b);
      set_state(b, State::idle);
    }
    block.goes_first = false;
  }
  /// Out of the list in which an unreferenced block waits.
  void leave(int b) {
    if (at(b).state == State::idle) idle.erase(at(b).place);
    if (waits(b)) leaving.erase(std::find(leaving.begin(), leaving.end(), b));
  }
  void evict_victim(int b) {
    if (!content.children_of(at(b).node).empty()) {
      mismatch("block ", b, " is evicted before its child");
    }
    leave(b);
    forget(b);
    ++stats.evicted_blocks;
    take(b);
  }
  void take(int b) {
    expect(at(b).stamp <= reclaimed || at(b).stamp == 0, "a block is handed out before its tick");
    expect(at(b).holds == 0 && at(b).twin_of < 0, "model: a free block is held or a twin");
    set_state(b, State::used);
    at(b) = NaiveBlock{};
    at(b).state = State::used;
    at(b).refs = 1;
  }
};

}  // namespace pagedkv::testing

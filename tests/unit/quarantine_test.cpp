// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/quarantine.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::Run;
using kv::RunId;
using kv::RunTable;
using kv::detail::Quarantine;

namespace {

using Ids = std::vector<RunId>;

struct Fixture {
  RunTable runs;
  Quarantine waiting;

  explicit Fixture(bool sorts, std::int32_t num_blocks = 64)
      : runs(num_blocks, 1, 1), waiting(num_blocks, sorts) {}

  /// A run without references. `parent` >= 0: it is findable after that run.
  RunId run(std::int32_t length = 1, RunId parent = -1) {
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i < length; ++i) blocks.emplace_back(next_block_++);
    kv::detail::Extent room;
    runs.lay(-1, false, blocks, 0, room);
    runs.give_room(room);
    RunId const x = runs.run_of(blocks[0]);
    runs[x].references = 0;
    if (parent >= 0) hang(x, parent);
    return x;
  }
  RunId published(std::int32_t length = 1) {
    RunId const x = run(length);
    runs[x].set(Run::published);
    return x;
  }
  void hang(RunId x, RunId parent) {
    runs[x].set(Run::published);
    runs[x].parent = parent;
    runs[x].parent_generation = runs[parent].generation;
  }
  void enlist(RunId x, std::uint64_t stamp) { waiting.enlist(runs, x, stamp); }
  void erase(RunId x) { waiting.erase(runs, x); }
  /// The first k blocks of `x`, as the stock splits it.
  RunId split(RunId x, std::int32_t k) {
    RunId const head = runs.split(x, k);
    if (runs[x].has(Run::published)) hang(x, head);
    waiting.split(runs, x, head);
    return head;
  }

  /// The runs that leave.
  Ids flush(std::uint64_t reclaimed) {
    Ids out;
    waiting.flush(runs, reclaimed, [&](RunId x) { out.push_back(x); });
    return out;
  }

  [[nodiscard]] Ids order() const {
    Ids out;
    for (RunId x = waiting.front(); x >= 0; x = runs[x].next) out.push_back(x);
    return out;
  }
  [[nodiscard]] std::vector<std::uint64_t> stamps() const {
    std::vector<std::uint64_t> out;
    for (RunId const x : order()) out.push_back(runs[x].stamp);
    return out;
  }

 private:
  std::int32_t next_block_ = 0;
};

using Stamps = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("quarantine: nobody waits at first") {
  Fixture f(true);
  RunId const x = f.run();
  CHECK(f.waiting.num_blocks() == 0);
  CHECK(f.waiting.front() == -1);
  CHECK(f.waiting.waiting_children(x) == 0);
}

TEST_CASE("quarantine: sorted, runs wait by stamp, equal stamps in order of arrival") {
  Fixture f(true);
  RunId const a = f.run(2);
  RunId const b = f.run();
  RunId const c = f.run(3);
  RunId const d = f.run();
  f.enlist(a, 5);
  f.enlist(b, 3);
  f.enlist(c, 5);
  f.enlist(d, 3);
  CHECK(f.order() == Ids{b, d, a, c});
  CHECK(f.stamps() == Stamps{3, 3, 5, 5});
  CHECK(f.waiting.num_blocks() == 7);
  CHECK(f.runs[a].has(Run::waiting));
  f.erase(a);
  CHECK_FALSE(f.runs[a].has(Run::waiting));
  CHECK(f.order() == Ids{b, d, c});
  CHECK(f.waiting.num_blocks() == 5);
}

TEST_CASE("quarantine: unsorted, runs wait in order of arrival and stamps don't fall along them") {
  Fixture f(false);
  RunId const a = f.run();
  RunId const b = f.run();
  RunId const c = f.run();
  f.enlist(a, 5);
  f.enlist(b, 0);
  f.enlist(c, 6);
  CHECK(f.order() == Ids{a, b, c});
  CHECK(f.stamps() == Stamps{5, 5, 6});
  f.erase(b);
  f.erase(a);
  f.erase(c);
  f.enlist(b, 0);  // nothing is before it
  CHECK(f.stamps() == Stamps{0});
}

TEST_CASE("quarantine: many ticks are in flight, in any order") {
  Fixture f(true, 400);
  std::mt19937 random(3);
  std::vector<std::uint64_t> ticks;
  for (std::uint64_t t = 1; t <= 100; ++t) ticks.insert(ticks.end(), 4, t);
  std::shuffle(ticks.begin(), ticks.end(), random);
  std::map<std::uint64_t, Ids> expected;
  for (auto const tick : ticks) {
    RunId const x = f.run();
    f.enlist(x, tick);
    expected[tick].push_back(x);
  }
  Ids all;
  for (auto const& [tick, runs] : expected) all.insert(all.end(), runs.begin(), runs.end());
  CHECK(f.order() == all);
  // They leave tick by tick, while others come for a later one.
  for (auto const& [tick, runs] : expected) {
    for (RunId const x : runs) f.erase(x);
    f.enlist(runs[0], 1000);
  }
  CHECK(f.order().size() == 100);
  CHECK(f.order().front() == expected[1][0]);
  CHECK(f.waiting.num_blocks() == 100);
}

TEST_CASE("quarantine: the last run of a stamp may go, alone or not, and others still find it") {
  Fixture f(true);
  RunId const a = f.run();
  RunId const b = f.run();
  RunId const c = f.run();
  RunId const d = f.run();
  f.enlist(a, 1);
  f.enlist(b, 2);
  f.enlist(c, 2);
  f.enlist(d, 3);
  RunId const late = f.run();
  SECTION("of several") {
    f.erase(c);
    f.enlist(late, 2);
    CHECK(f.order() == Ids{a, b, late, d});
  }
  SECTION("of one, in the middle") {
    f.erase(b);
    f.erase(c);
    f.enlist(late, 1);
    CHECK(f.order() == Ids{a, late, d});
  }
  SECTION("of one, at the back") {
    f.erase(d);
    f.enlist(late, 2);
    CHECK(f.order() == Ids{a, b, c, late});
  }
  SECTION("of one, at the front") {
    f.erase(a);
    f.enlist(late, 1);
    CHECK(f.order() == Ids{late, b, c, d});
  }
  SECTION("not the last one of its stamp") {
    f.erase(b);
    f.enlist(late, 2);
    CHECK(f.order() == Ids{a, c, late, d});
  }
}

TEST_CASE("quarantine: what waits behind a run is counted while it can be found there") {
  Fixture f(true);
  RunId const parent = f.published();
  RunId const a = f.run(1, parent);
  RunId const b = f.run(1, parent);
  f.enlist(a, 4);
  f.enlist(b, 4);
  CHECK(f.waiting.waiting_children(parent) == 2);
  f.erase(a);
  CHECK(f.waiting.waiting_children(parent) == 1);
  SECTION("until it isn't findable itself") {
    f.waiting.unpublish(f.runs, b);
    f.runs[b].clear(Run::published);
    CHECK(f.waiting.waiting_children(parent) == 0);
    f.erase(b);
    CHECK(f.waiting.waiting_children(parent) == 0);
  }
  SECTION("until its parent's content goes") {
    f.waiting.forget_children(parent);
    ++f.runs[parent].generation;
    f.erase(b);
    CHECK(f.waiting.waiting_children(parent) == 0);
  }
  SECTION("the parent is unpublished: nothing waits after it, and it isn't counted either") {
    RunId const root = f.published();
    f.hang(parent, root);
    f.enlist(parent, 4);
    CHECK(f.waiting.waiting_children(root) == 1);
    f.waiting.unpublish(f.runs, parent);
    f.runs[parent].clear(Run::published);
    ++f.runs[parent].generation;
    CHECK(f.waiting.waiting_children(parent) == 0);
    CHECK(f.waiting.waiting_children(root) == 0);
    f.erase(b);
    CHECK(f.waiting.waiting_children(parent) == 0);
    CHECK(f.order() == Ids{parent});
  }
  SECTION("one that doesn't wait isn't counted when it is unpublished") {
    f.waiting.unpublish(f.runs, a);
    CHECK(f.waiting.waiting_children(parent) == 1);
  }
}

TEST_CASE("quarantine: a child whose parent's content has gone is nobody's") {
  Fixture f(true);
  RunId const parent = f.published();
  RunId const child = f.run(1, parent);
  ++f.runs[parent].generation;
  f.enlist(child, 4);
  CHECK(f.waiting.waiting_children(parent) == 0);
  CHECK(f.runs[parent].stamp == 0);
}

TEST_CASE("quarantine: sorted, a parent's stamp is raised to that of what waits behind it") {
  Fixture f(true);
  RunId const root = f.published();
  RunId const middle = f.run(1, root);
  RunId const leaf = f.run(1, middle);
  SECTION("all owned ancestors remember it") {
    f.enlist(leaf, 6);
    CHECK(f.runs[middle].stamp == 6);
    CHECK(f.runs[root].stamp == 6);
    CHECK(f.order() == Ids{leaf});
    CHECK(f.waiting.waiting_children(middle) == 1);
    CHECK(f.waiting.waiting_children(root) == 0);
    f.enlist(middle, 6);
    CHECK(f.waiting.waiting_children(root) == 1);
  }
  SECTION("owned ancestors of one that waits, too") {
    f.enlist(middle, 2);
    f.enlist(leaf, 6);
    CHECK(f.order() == Ids{leaf, middle});
    CHECK(f.runs[root].stamp == 6);
  }
  SECTION("waiting ancestors move after it, up to one that waits for as long") {
    RunId const other = f.run();
    f.enlist(root, 2);
    f.enlist(middle, 2);
    f.enlist(other, 5);
    f.enlist(leaf, 6);
    CHECK(f.order() == Ids{other, leaf, middle, root});
    CHECK(f.stamps() == Stamps{5, 6, 6, 6});
    CHECK(f.waiting.num_blocks() == 4);
    CHECK(f.waiting.waiting_children(root) == 1);
    CHECK(f.waiting.waiting_children(middle) == 1);
  }
  SECTION("never lowered") {
    f.runs[root].stamp = 9;
    f.enlist(leaf, 3);
    CHECK(f.runs[root].stamp == 9);
    f.erase(leaf);
    f.enlist(root, 9);
    f.enlist(leaf, 6);
    f.enlist(middle, 8);
    CHECK(f.order() == Ids{leaf, middle, root});
    CHECK(f.stamps() == Stamps{6, 8, 9});
  }
}

TEST_CASE("quarantine: unsorted, no parent is raised") {
  Fixture f(false);
  RunId const root = f.published();
  RunId const leaf = f.run(1, root);
  f.enlist(root, 2);
  f.enlist(leaf, 6);
  CHECK(f.order() == Ids{root, leaf});
  CHECK(f.stamps() == Stamps{2, 6});
  CHECK(f.waiting.waiting_children(root) == 1);
}

TEST_CASE("quarantine: the head of a waiting run leaves after the rest of it") {
  auto const sorts = GENERATE(false, true);
  Fixture f(sorts);
  RunId const a = f.run();
  RunId const x = f.published(5);
  RunId const b = f.run();
  RunId const c = f.run();
  f.enlist(a, 3);
  f.enlist(x, 3);
  f.enlist(b, 4);
  SECTION("also in the middle of its stamp") {
    f.enlist(c, 4);
    RunId const y = f.split(x, 2);
    CHECK(f.order() == Ids{a, x, y, b, c});
    CHECK(f.waiting.num_blocks() == 8);
    CHECK(f.runs[y].has(Run::waiting));
    CHECK(f.waiting.waiting_children(y) == 1);
    CHECK(f.waiting.waiting_children(x) == 0);
    f.erase(x);
    CHECK(f.waiting.waiting_children(y) == 0);
    CHECK(f.order() == Ids{a, y, b, c});
  }
  SECTION("and what comes for the same step comes after both") {
    if (!sorts) return;
    RunId const head = f.split(x, 2);
    f.enlist(c, 3);
    CHECK(f.order() == Ids{a, x, head, c, b});
    RunId const again = f.split(head, 1);
    CHECK(f.order() == Ids{a, x, head, again, c, b});
  }
}

TEST_CASE("quarantine: where the deepest comes last, the head of a run leaves before the rest") {
  Fixture f(true);
  RunId const a = f.run();
  RunId const x = f.published(5);
  RunId const b = f.run();
  f.runs[x].set(Run::leaves_first);
  auto const has_one_before = GENERATE(false, true);
  if (has_one_before) f.enlist(a, 2);
  f.enlist(x, 3);
  f.enlist(b, 4);
  RunId const head = f.split(x, 2);
  Ids expected{head, x, b};
  if (has_one_before) expected.insert(expected.begin(), a);
  CHECK(f.order() == expected);
  CHECK(f.waiting.waiting_children(head) == 1);
  RunId const late = f.run();
  f.enlist(late, 3);
  expected.insert(expected.end() - 1, late);
  CHECK(f.order() == expected);
  // The rest goes: the head is the last of its stamp but one.
  f.erase(late);
  f.erase(x);
  RunId const later = f.run();
  f.enlist(later, 3);
  CHECK(f.order() == (has_one_before ? Ids{a, head, later, b} : Ids{head, later, b}));
}

TEST_CASE("quarantine: a split private run has no child") {
  Fixture f(true);
  RunId const x = f.run(3);
  f.enlist(x, 3);
  RunId const head = f.split(x, 1);
  CHECK(f.order() == Ids{x, head});
  CHECK(f.waiting.waiting_children(head) == 0);
}

TEST_CASE("quarantine: one run waits where another did") {
  Fixture f(true);
  RunId const parent = f.published();
  RunId const a = f.run();
  RunId const x = f.run(2, parent);
  RunId const b = f.run();
  RunId const last = f.run();
  f.enlist(a, 3);
  f.enlist(x, 3);
  auto const is_last_of_stamp = GENERATE(false, true);
  if (!is_last_of_stamp) f.enlist(b, 3);
  f.enlist(last, 4);
  RunId const y = f.run(2);
  f.runs[y].stamp = 3;
  f.waiting.replace(f.runs, x, y);
  CHECK(f.order() == (is_last_of_stamp ? Ids{a, y, last} : Ids{a, y, b, last}));
  CHECK(f.waiting.num_blocks() == (is_last_of_stamp ? 4 : 5));
  CHECK(f.waiting.waiting_children(parent) == 0);
  CHECK(f.runs[y].has(Run::waiting));
  CHECK_FALSE(f.runs[x].has(Run::waiting));
  RunId const late = f.run();
  f.enlist(late, 3);
  CHECK(f.order() == (is_last_of_stamp ? Ids{a, y, late, last} : Ids{a, y, b, late, last}));
}

// ---- leaving
// --------------------------------------------------------------------------------------

TEST_CASE("quarantine: runs leave in order, up to the reclaimed step") {
  Fixture f(true);
  RunId const a = f.run();
  RunId const b = f.run();
  RunId const c = f.run();
  f.enlist(a, 2);
  f.enlist(b, 1);
  f.enlist(c, 3);
  CHECK(f.flush(0).empty());
  CHECK(f.flush(2) == Ids{b, a});
  CHECK(f.order() == Ids{c});
  CHECK(f.waiting.num_blocks() == 1);
  CHECK(f.flush(2).empty());
  CHECK(f.flush(9) == Ids{c});
  CHECK(f.waiting.num_blocks() == 0);
}

TEST_CASE("quarantine: a run with a waiting child waits, one without doesn't") {
  auto const sorts = GENERATE(false, true);
  Fixture f(sorts);
  RunId const parent = f.published();
  RunId const child = f.run(1, parent);
  RunId const other = f.published();
  SECTION("after it: they leave together, the child first") {
    f.enlist(child, 2);
    f.enlist(parent, 2);
    f.enlist(other, 2);
    CHECK(f.flush(2) == Ids{child, parent, other});
  }
  SECTION("before it: in a second turn") {
    f.enlist(parent, 2);
    f.enlist(child, 2);
    f.enlist(other, 2);
    REQUIRE(f.order() == Ids{parent, child, other});
    CHECK(f.flush(2) == Ids{child, other, parent});
  }
  SECTION("an end of a copy") {
    f.enlist(child, 2);
    f.enlist(parent, 2);
    f.enlist(other, 2);
    f.runs[child].set(Run::held);
    CHECK(f.flush(2) == Ids{other});
    CHECK(f.order() == Ids{child, parent});
    f.runs[child].clear(Run::held);
    CHECK(f.flush(2) == Ids{child, parent});
  }
}

TEST_CASE("quarantine: a child that leaves first doesn't count once its stamp is reclaimed") {
  Fixture f(true);
  RunId const parent = f.published();
  RunId const child = f.run(1, parent);
  RunId const sibling = f.run(1, parent);
  f.runs[child].set(Run::leaves_first);
  f.enlist(parent, 2);  // as a row that no request comes back for: the deepest last
  f.enlist(child, 2);
  SECTION("alone") {
    CHECK(f.flush(1).empty());
    CHECK(f.flush(2) == Ids{parent, child});
    CHECK(f.waiting.waiting_children(parent) == 0);
  }
  SECTION("with one that doesn't leave first") {
    f.enlist(sibling, 2);
    CHECK(f.flush(2) == Ids{child, sibling, parent});
  }
  SECTION("with one that a later step uses") {
    f.runs[sibling].set(Run::leaves_first);
    f.enlist(sibling, 3);  // the parent waits for as long
    CHECK(f.flush(2) == Ids{child});
    CHECK(f.order() == Ids{sibling, parent});
    CHECK(f.flush(3) == Ids{sibling, parent});
  }
}

TEST_CASE("quarantine: a path whose deepest part is held waits as a whole") {
  auto const sorts = GENERATE(false, true);
  Fixture f(sorts);
  RunId const root = f.published();
  RunId const middle = f.run(1, root);
  RunId const leaf = f.run(1, middle);
  f.runs[leaf].set(Run::held);
  for (RunId const x : {leaf, middle, root}) f.enlist(x, 1);
  CHECK(f.flush(5).empty());
  f.runs[leaf].clear(Run::held);
  CHECK(f.flush(5) == Ids{leaf, middle, root});
}

TEST_CASE("quarantine: in order of arrival, shared findable runs don't pass a held one") {
  auto const sorts = GENERATE(false, true);
  Fixture f(sorts);
  RunId const held = f.run();
  RunId const shared = f.published();
  RunId const alone = f.published();
  RunId const unpublished = f.run();
  f.runs[held].set(Run::held);
  f.runs[shared].set(Run::shared);
  f.runs[unpublished].set(Run::shared);
  for (RunId const x : {held, shared, alone, unpublished}) f.enlist(x, 1);
  CHECK(f.flush(1) == (sorts ? Ids{shared, alone, unpublished} : Ids{alone, unpublished}));
  f.runs[held].clear(Run::held);
  CHECK(f.flush(1) == (sorts ? Ids{held} : Ids{held, shared}));
}

TEST_CASE("quarantine: in order of arrival, what was shared waits with others") {
  auto const sorts = GENERATE(false, true);
  Fixture f(sorts);
  RunId const shared = f.published();
  RunId const alone = f.published();
  f.runs[shared].set(Run::shared);
  CHECK_FALSE(f.waiting.waits_with_others(f.runs[shared], 3));
  f.waiting.note_batched_release(3);
  CHECK(f.waiting.waits_with_others(f.runs[shared], 3) == !sorts);
  CHECK_FALSE(f.waiting.waits_with_others(f.runs[alone], 3));
  CHECK_FALSE(f.waiting.waits_with_others(f.runs[shared], 4));
  f.enlist(alone, 4);
  CHECK(f.waiting.waits_with_others(f.runs[shared], 4) == !sorts);
  f.runs[shared].clear(Run::published);
  CHECK_FALSE(f.waiting.waits_with_others(f.runs[shared], 4));
}

namespace {

/// A sorted list, and every parent looked up anew.
class RandomQuarantine {
 public:
  RandomQuarantine(bool sorts, unsigned seed)
      : sorts_(sorts), random_(seed), f_(sorts, num_blocks) {
    for (int i = 0; i < 24; ++i) {
      RunId const x = f_.run(1 + below(4));
      all_.push_back(x);
      if (below(4) != 0) {
        f_.runs[x].set(Run::published);
        f_.runs[x].parent = -1;
        auto const p = all_[index(below(i + 1))];  // an older one: no circles
        if (p != x && f_.runs[p].has(Run::published)) f_.hang(x, p);
      }
    }
  }

  [[nodiscard]] std::string run(int num_steps) {
    for (int i = 0; i < num_steps && wrong_.empty(); ++i) {
      if (below(6) == 0) ++open_;
      RunId const x = all_[index(below(static_cast<std::int32_t>(all_.size())))];
      switch (below(8)) {
        case 0: split(x); break;
        case 1: lose_content(x); break;
        case 2: replace(x); break;
        default:
          if (f_.runs[x].has(Run::waiting)) {
            f_.erase(x);
            list_.erase(find(x));
            if (below(2) == 0) f_.runs[x].stamp = 0;
          } else {
            enlist(x);
          }
      }
      check();
    }
    return wrong_;
  }

 private:
  static constexpr std::int32_t num_blocks = 4096;
  struct Waiting {
    RunId run;
    std::uint64_t stamp;
  };

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(random_() % static_cast<unsigned>(n));
  }
  void require(bool ok, char const* what) {
    if (!ok && wrong_.empty()) wrong_ = what;
  }
  std::vector<Waiting>::iterator find(RunId x) {
    return std::find_if(list_.begin(), list_.end(), [&](Waiting const& w) { return w.run == x; });
  }
  RunId parent(RunId x) const {
    Run const& run = f_.runs[x];
    bool const found = run.has(Run::published) && run.parent >= 0 &&
                       f_.runs[run.parent].generation == run.parent_generation;
    return found ? run.parent : -1;
  }
  void insert(RunId x, std::uint64_t stamp) {
    auto at = list_.end();
    while (at != list_.begin() && std::prev(at)->stamp > stamp) --at;
    list_.insert(at, {x, stamp});
  }

  void enlist(RunId x) {
    std::uint64_t const lag = static_cast<std::uint64_t>(below(12));
    std::uint64_t const stamp = std::max(f_.runs[x].stamp, open_ - std::min(open_, lag));
    if (!sorts_) {
      f_.enlist(x, stamp);
      return insert(x, std::max(stamp, list_.empty() ? 0 : list_.back().stamp));
    }
    Ids younger;
    for (RunId p = parent(x); p >= 0 && f_.runs[p].stamp < stamp; p = parent(p)) {
      younger.push_back(p);
    }
    f_.enlist(x, stamp);
    insert(x, stamp);
    for (RunId const p : younger) {
      require(f_.runs[p].stamp == stamp, "an ancestor's stamp is no smaller");
      auto const at = find(p);
      if (at == list_.end()) continue;
      list_.erase(at);
      insert(p, stamp);
    }
  }
  void split(RunId x) {
    if (f_.runs[x].length < 2 || all_.size() > 200) return;
    RunId const p = parent(x);
    bool const first = !f_.runs[x].has(Run::waiting) ? false : below(2) == 0;
    if (first) f_.runs[x].set(Run::leaves_first);
    std::int32_t const k = 1 + below(f_.runs[x].length - 1);
    RunId head;
    if (f_.runs[x].has(Run::waiting)) {
      head = f_.split(x, k);
      auto at = find(x);
      list_.insert(first ? at : std::next(at), {head, at->stamp});
    } else {
      head = f_.runs.split(x, k);
      if (f_.runs[x].has(Run::published)) f_.hang(x, head);
      f_.waiting.forget_children(head);
    }
    f_.runs[x].clear(Run::leaves_first);
    f_.runs[head].clear(Run::leaves_first);
    require(parent(head) == p, "the test puts a head where the run was");
    all_.push_back(head);
  }
  void lose_content(RunId x) {
    if (!f_.runs[x].has(Run::published)) return;
    f_.waiting.unpublish(f_.runs, x);
    f_.runs[x].clear(Run::published);
    ++f_.runs[x].generation;
    if (f_.runs[x].has(Run::waiting) || below(2) == 0) return;
    f_.runs[x].set(Run::published);  // and it gets other content
    f_.runs[x].parent = -1;
  }
  void replace(RunId x) {
    if (!f_.runs[x].has(Run::waiting)) return;
    for (RunId const y : all_) {
      Run& run = f_.runs[y];
      if (run.has(Run::waiting | Run::published) || run.length != f_.runs[x].length) continue;
      run.stamp = f_.runs[x].stamp;
      f_.waiting.replace(f_.runs, x, y);
      find(x)->run = y;
      return;
    }
  }
  void check() {
    Ids order;
    std::int32_t num_blocks_waiting = 0;
    std::map<RunId, std::int32_t> children;
    for (auto const& w : list_) {
      order.push_back(w.run);
      num_blocks_waiting += f_.runs[w.run].length;
      require(f_.runs[w.run].stamp == w.stamp, "stamps");
      if (RunId const p = parent(w.run); p >= 0) ++children[p];
    }
    require(f_.order() == order, "order");
    require(f_.waiting.num_blocks() == num_blocks_waiting, "num_blocks");
    for (RunId const x : all_) {
      require(f_.runs[x].has(Run::waiting) == (find(x) != list_.end()), "the flag");
      require(f_.waiting.waiting_children(x) == children[x], "waiting_children");
    }
  }

  bool sorts_;
  std::mt19937 random_;
  Fixture f_;
  Ids all_;
  std::vector<Waiting> list_;
  std::uint64_t open_ = 1;
  std::string wrong_;
};

}  // namespace

TEST_CASE("quarantine: random runs agree with a sorted list") {
  auto const sorts = GENERATE(false, true);
  auto const seed = GENERATE(range(1U, 21U));
  CAPTURE(sorts, seed);
  RandomQuarantine quarantine(sorts, seed);
  CHECK(quarantine.run(1500) == std::string());
}

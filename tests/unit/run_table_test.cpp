// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/run_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::Run;
using kv::RunId;
using kv::RunTable;
using kv::detail::Extent;

namespace {

using Blocks = std::vector<BlockId>;

Blocks numbered(std::int32_t first, std::int32_t count) {
  Blocks blocks;
  for (std::int32_t i = first; i < first + count; ++i) blocks.emplace_back(i);
  return blocks;
}
Blocks blocks_of(RunTable const& runs, RunId x) {
  auto const blocks = runs.blocks(x);
  return {blocks.begin(), blocks.end()};
}
/// A run of its own for these blocks.
RunId lay(RunTable& runs, Blocks const& blocks, Extent& room, std::size_t num_clean = 0) {
  runs.lay(-1, false, blocks, num_clean, room);
  return runs.run_of(blocks.front());
}
RunId lay(RunTable& runs, Blocks const& blocks) {
  Extent room;
  RunId const x = lay(runs, blocks, room);
  runs.give_room(room);
  return x;
}
/// Lengths of the runs that hold these blocks, in order.
std::vector<std::int32_t> lengths(RunTable const& runs, Blocks const& blocks) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < blocks.size();) {
    RunId const x = runs.run_of(blocks[i]);
    REQUIRE(x >= 0);
    REQUIRE(runs.blocks(x)[0] == blocks[i]);
    out.push_back(runs[x].length);
    i += static_cast<std::size_t>(runs[x].length);
  }
  return out;
}
void check_places(RunTable const& runs, RunId x) {
  std::int32_t place = runs[x].start;
  for (BlockId const b : runs.blocks(x)) {
    CHECK(runs.place(b) == place);
    CHECK(runs.block_at(place) == b);
    CHECK(runs.run_of(b) == x);
    CHECK(runs.is_start(place) == (place == runs[x].start));
    ++place;
  }
  CHECK(runs.run_at_edge(runs.blocks(x)[0]) == x);
  CHECK(runs.run_at_edge(runs.last_block(x)) == x);
}

/// Everything that a table knows, as a map of vectors.
class RandomTable {
 public:
  RandomTable(std::int32_t num_blocks, unsigned seed)
      : num_blocks_(num_blocks),
        random_(seed),
        runs_(num_blocks, 2, num_rooms),
        generations_(static_cast<std::size_t>(num_blocks)) {
    for (std::int32_t i = 0; i < num_blocks; ++i) free_.emplace_back(i);
  }

  [[nodiscard]] std::string run(int num_steps) {
    for (int i = 0; i < num_steps && wrong_.empty(); ++i) {
      switch (below(8)) {
        case 0:
        case 1: lay(); break;
        case 2: split(); break;
        case 3: move_front(); break;
        case 4:
        case 5: cut_end(); break;
        case 6: exchange_blocks(); break;
        default: runs_.give_room(rooms_[some_room()]);
      }
      check();
    }
    return wrong_;
  }

 private:
  static constexpr std::size_t num_rooms = 3;
  struct Naive {
    Blocks blocks;
    std::vector<kv::TokenId> tokens;  // one per block
  };

  std::int32_t below(std::size_t n) {
    return static_cast<std::int32_t>(random_() % static_cast<unsigned>(n));
  }
  std::size_t some_room() { return static_cast<std::size_t>(below(num_rooms)); }
  RunId some_run() {
    return naive_.empty() ? -1 : std::next(naive_.begin(), below(naive_.size()))->first;
  }
  void require(bool ok, char const* what) {
    if (!ok && wrong_.empty()) wrong_ = what;
  }

  void lay() {
    if (free_.empty()) return;
    std::shuffle(free_.begin(), free_.end(), random_);
    auto const n = static_cast<std::size_t>(1 + below(std::min<std::size_t>(free_.size(), 40)));
    Blocks const blocks(free_.end() - static_cast<std::ptrdiff_t>(n), free_.end());
    free_.resize(free_.size() - n);
    auto const num_clean = static_cast<std::size_t>(below(n + 1));
    for (std::size_t i = num_clean; i < n; ++i) ++generations_[index(blocks[i])];
    RunId const tail = below(3) == 0 ? -1 : some_run();
    bool const grows = tail >= 0 && below(2) == 0;
    Extent& room = rooms_[some_room()];
    bool const adjoins = tail >= 0 && room.count > 0 && room.first == runs_[tail].end();
    runs_.lay(tail, grows, blocks, num_clean, room);
    if (adjoins) {
      require(runs_.place(blocks[0]) == runs_.place(naive_[tail].blocks.back()) + 1,
              "room after the tail is used");
    }
    for (std::size_t i = 0; i < n;) {
      RunId const x = runs_.run_of(blocks[i]);
      Naive& naive = naive_[x];  // the tail, if that has grown
      require(naive.blocks.empty() || (i == 0 && grows && x == tail), "no other run grows");
      do {
        naive.blocks.push_back(blocks[i]);
        naive.tokens.push_back(next_token_);
        std::fill_n(runs_.tokens(runs_.place(blocks[i])), 2, next_token_++);
        ++i;
      } while (i < n && runs_.run_of(blocks[i]) == x);
    }
  }
  void split() {
    RunId const x = some_run();
    if (x < 0 || runs_[x].length < 2) return;
    std::int32_t const k = 1 + below(static_cast<std::size_t>(runs_[x].length - 1));
    RunId const head = runs_.split(x, k);
    require(!naive_.contains(head), "the head's number is new");
    move(x, head, k);
  }
  void move_front() {
    RunId const x = some_run();
    if (x < 0) return;
    std::int32_t const behind = runs_[x].start;
    BlockId const before = behind > 1 ? runs_.block_at(behind - 1) : BlockId{};
    RunId const p = before.is_null() ? -1 : runs_.run_of(before);
    if (p < 0 || runs_[p].end() != behind) return;
    std::int32_t const k = 1 + below(static_cast<std::size_t>(runs_[x].length));
    runs_.move_front(p, x, k);
    move(x, p, k);
  }
  /// The first k of `from` go after those of `to`.
  void move(RunId from, RunId to, std::int32_t k) {
    Naive& a = naive_[from];
    Naive& b = naive_[to];
    b.blocks.insert(b.blocks.end(), a.blocks.begin(), a.blocks.begin() + k);
    b.tokens.insert(b.tokens.end(), a.tokens.begin(), a.tokens.begin() + k);
    a.blocks.erase(a.blocks.begin(), a.blocks.begin() + k);
    a.tokens.erase(a.tokens.begin(), a.tokens.begin() + k);
    if (a.blocks.empty()) naive_.erase(from);
  }
  void cut_end() {
    RunId const x = some_run();
    if (x < 0) return;
    std::int32_t const length = runs_[x].length;
    std::int32_t const n = below(2) == 0 ? length : 1 + below(static_cast<std::size_t>(length));
    if (n < length) {
      runs_.cut_end(x, n);
    } else if (below(2) == 0) {
      runs_.dissolve(x);
    } else {
      Extent& room = rooms_[some_room()];
      runs_.dissolve(x, room);
      require(room.count == 0, "the room is given back");
    }
    Naive& naive = naive_[x];
    free_.insert(free_.end(), naive.blocks.end() - n, naive.blocks.end());
    naive.blocks.resize(naive.blocks.size() - static_cast<std::size_t>(n));
    naive.tokens.resize(naive.blocks.size());
    if (naive.blocks.empty()) naive_.erase(x);
  }
  void exchange_blocks() {
    RunId const x = some_run();
    if (x < 0) return;
    for (auto& [y, naive] : naive_) {
      if (y == x || naive.blocks.size() != naive_[x].blocks.size()) continue;
      runs_.exchange_blocks(x, y);
      return std::swap(naive_[x].blocks, naive.blocks);
    }
  }

  static std::size_t index(BlockId b) { return static_cast<std::size_t>(b.value()); }
  void check() {
    std::int32_t num_places = runs_.arena().num_free();
    for (Extent const room : rooms_) num_places += room.count;
    for (auto const& [x, naive] : naive_) {
      Run const& run = runs_[x];
      require(blocks_of(runs_, x) == naive.blocks, "blocks");
      num_places += run.length;
      for (std::size_t i = 0; i < naive.blocks.size(); ++i) {
        BlockId const b = naive.blocks[i];
        std::int32_t const place = run.start + static_cast<std::int32_t>(i);
        require(runs_.place(b) == place, "place");
        require(runs_.run_of(b) == x, "run_of");
        require(runs_.is_start(place) == (i == 0), "is_start");
        require(
            runs_.tokens(place)[0] == naive.tokens[i] && runs_.tokens(place)[1] == naive.tokens[i],
            "tokens stay at their place");
      }
      require(runs_.run_at_edge(naive.blocks.front()) == x, "run_at_edge of the first");
      require(runs_.run_at_edge(naive.blocks.back()) == x, "run_at_edge of the last");
      require(runs_.last_block(x) == naive.blocks.back(), "last_block");
      require(run.references == 1, "one reference each");
    }
    for (BlockId const b : free_) require(runs_.run_of(b) == -1, "a free block is in no run");
    for (std::int32_t i = 0; i < num_blocks_; ++i) {
      require(runs_.generation(BlockId{i}) == generations_[static_cast<std::size_t>(i)],
              "generation");
    }
    require(num_places == runs_.arena().end() - 1, "no place is lost");
    require(runs_.num_runs() == static_cast<std::int32_t>(naive_.size()), "num_runs");
    require(naive_.empty() || naive_.rbegin()->first < runs_.num_records(), "num_records");
  }

  std::int32_t num_blocks_;
  std::mt19937 random_;
  RunTable runs_;
  std::array<Extent, num_rooms> rooms_{};
  std::map<RunId, Naive> naive_;
  Blocks free_;
  std::vector<std::uint32_t> generations_;
  kv::TokenId next_token_ = 1;
  std::string wrong_;
};

}  // namespace

TEST_CASE("run table: at first no block is in a run") {
  RunTable const runs(5, 4, 1);
  CHECK(runs.num_blocks() == 5);
  CHECK(runs.num_runs() == 0);
  CHECK(runs.num_records() == 0);
  for (std::int32_t i = 0; i < 5; ++i) {
    CHECK(runs.run_of(BlockId{i}) == -1);
    CHECK(runs.generation(BlockId{i}) == 0);
  }
}

TEST_CASE("run table: laid blocks are one run, in their order, of one reference") {
  RunTable runs(10, 4, 1);
  Blocks const blocks{BlockId{7}, BlockId{0}, BlockId{9}};
  RunId const x = lay(runs, blocks);
  CHECK(runs.num_runs() == 1);
  CHECK(blocks_of(runs, x) == blocks);
  CHECK(runs[x].references == 1);
  CHECK(runs[x].flags == 0);
  CHECK(runs[x].stamp == 0);
  CHECK(runs[x].parent == -1);
  CHECK(runs[x].last_child == -1);
  CHECK(runs[x].num_children == 0);
  check_places(runs, x);
  CHECK(runs.run_of(BlockId{1}) == -1);
}

TEST_CASE("run table: token ids of neighbouring blocks lie side by side") {
  RunTable runs(4, 3, 1);
  RunId const x = lay(runs, numbered(0, 4));
  CHECK(runs.tokens(runs[x].start + 1) - runs.tokens(runs[x].start) == 3);
  CHECK(runs.tokens(runs.place(BlockId{3})) - runs.tokens(runs.place(BlockId{0})) == 9);
}

TEST_CASE("run table: a run grows where it is, block by block, in its room") {
  RunTable runs(64, 4, 1);
  Extent room;
  RunId const x = lay(runs, numbered(0, 1), room);
  CHECK(room.count == RunTable::growth_room);
  CHECK(room.first == runs[x].end());
  for (std::int32_t i = 1; i < 64; ++i) {  // and when the room is used up, in more of it
    runs.lay(x, true, numbered(i, 1), 0, room);
    REQUIRE(room.first == runs[x].end());
  }
  CHECK(runs.num_runs() == 1);
  CHECK(blocks_of(runs, x) == numbered(0, 64));
  check_places(runs, x);
}

TEST_CASE("run table: blocks that mustn't join the tail lie behind it in a run of their own") {
  RunTable runs(10, 4, 1);
  Extent room;
  RunId const x = lay(runs, numbered(0, 3), room);
  runs.lay(x, false, numbered(3, 2), 0, room);
  RunId const y = runs.run_of(BlockId{3});
  CHECK(y != x);
  CHECK(runs[y].start == runs[x].end());
  CHECK(room.first == runs[y].end());
  check_places(runs, x);
  check_places(runs, y);
}

TEST_CASE("run table: room that doesn't adjoin the tail is given back") {
  RunTable runs(10, 4, 1);
  RunId const x = lay(runs, numbered(0, 3));  // free places follow
  Extent room;
  RunId const other = lay(runs, numbered(3, 1));
  RunId const pocketed = lay(runs, numbered(9, 1));
  RunId const last = lay(runs, numbered(4, 1), room);
  auto const total = runs.arena().end() - 1;
  SECTION("the tail grows if its own neighbours are free") {
    runs.lay(last, true, numbered(5, 1), 0, room);
    runs.dissolve(pocketed);  // the next extent joins its neighbours
    runs.dissolve(other);
    runs.lay(x, true, numbered(6, 1), 0, room);
    CHECK(runs.run_of(BlockId{6}) == x);
    CHECK(runs[x].length == 4);
    check_places(runs, x);
  }
  SECTION("if they aren't, the blocks go elsewhere, grows or not") {
    runs.lay(x, true, numbered(6, 2), 0, room);
    RunId const y = runs.run_of(BlockId{6});
    CHECK(y != x);
    CHECK(runs[x].length == 3);
    CHECK(blocks_of(runs, y) == numbered(6, 2));
    CHECK(room.first == runs[y].end());
  }
  std::int32_t in_runs = 0;
  for (std::int32_t i = 0; i < 10; ++i) in_runs += runs.run_of(BlockId{i}) >= 0 ? 1 : 0;
  CHECK(in_runs + room.count + runs.arena().num_free() == total);
}

TEST_CASE("run table: a run is no longer than its bound") {
  constexpr std::int32_t most = RunTable::max_run_blocks;
  constexpr std::int32_t n = 3 * most;
  RunTable runs(n, 1, 1);
  Extent room;
  SECTION("laid at once") {
    RunId const x = lay(runs, numbered(0, 2 * most + 100), room);
    CHECK(lengths(runs, numbered(0, 2 * most + 100)) == std::vector<std::int32_t>{most, most, 100});
    CHECK(runs[x].end() == runs[runs.run_of(BlockId{most})].start);
  }
  SECTION("grown in steps") {
    RunId const x = lay(runs, numbered(0, most - 6), room);
    runs.lay(x, true, numbered(most - 6, 20), 0, room);
    CHECK(lengths(runs, numbered(0, most + 14)) == std::vector<std::int32_t>{most, 14});
    runs.lay(x, true, numbered(most + 14, 2), 0, room);  // it can't grow any more
    CHECK(runs[x].length == most);
    CHECK(lengths(runs, numbered(most + 14, 2)) == std::vector<std::int32_t>{2});
  }
  SECTION("exactly full") {
    lay(runs, numbered(0, most), room);
    CHECK(lengths(runs, numbered(0, most)) == std::vector<std::int32_t>{most});
  }
  SECTION("a whole one to grow from") {
    RunId const x = lay(runs, numbered(0, 1), room);
    runs.lay(x, true, numbered(1, most), 0, room);
    CHECK(lengths(runs, numbered(0, most + 1)) == std::vector<std::int32_t>{most, 1});
  }
}

TEST_CASE("run table: what doesn't fit side by side becomes several runs") {
  RunTable runs(200, 1, 0);
  // 200 * 5 / 4 + 64 places: 114 are left after them, and holes of two.
  std::vector<RunId> small;
  Blocks const all = numbered(0, 200);
  for (BlockId const b : all) small.push_back(lay(runs, {b}));
  Blocks again;
  for (std::size_t i = 0; i < 200; ++i) {
    if (i % 3 == 0) continue;
    runs.dissolve(small[i]);
    again.push_back(all[i]);
  }
  Extent room;
  runs.lay(-1, false, again, 0, room);
  auto const pieces = lengths(runs, again);
  CHECK(pieces.size() > 1);
  std::int32_t sum = 0;
  for (auto const length : pieces) sum += length;
  CHECK(sum == static_cast<std::int32_t>(again.size()));
}

TEST_CASE("run table: only a block that held something gets another generation") {
  RunTable runs(6, 4, 1);
  RunId const x = lay(runs, numbered(0, 6));  // none of them is called clean
  CHECK(runs.generation(BlockId{5}) == 1);
  runs.dissolve(x);
  Extent room;
  lay(runs, numbered(0, 6), room, 4);
  for (std::int32_t i = 0; i < 6; ++i) CHECK(runs.generation(BlockId{i}) == (i < 4 ? 1 : 2));
  runs.raise_generation(BlockId{2});
  CHECK(runs.generation(BlockId{2}) == 2);
}

TEST_CASE("run table: clean blocks are counted over all the runs that one call makes") {
  constexpr std::int32_t most = RunTable::max_run_blocks;
  RunTable runs(most + 10, 1, 1);
  Extent room;
  lay(runs, numbered(0, most + 10), room, most + 3);
  CHECK(runs.generation(BlockId{most - 1}) == 0);
  CHECK(runs.generation(BlockId{most + 2}) == 0);
  CHECK(runs.generation(BlockId{most + 3}) == 1);
}

TEST_CASE("run table: the run of any block, over words of starts") {
  constexpr std::int32_t n = 1000;
  RunTable runs(n, 1, 1);
  auto const length = GENERATE(1, 2, 3, 63, 64, 65, 128, 333);
  CAPTURE(length);
  std::vector<RunId> expected;
  for (std::int32_t first = 0; first + length <= n; first += length) {
    RunId const x = lay(runs, numbered(first, length));
    expected.insert(expected.end(), static_cast<std::size_t>(length), x);
  }
  for (std::int32_t i = 0; i < n; ++i) {
    RunId const x =
        i < static_cast<std::int32_t>(expected.size()) ? expected[static_cast<std::size_t>(i)] : -1;
    REQUIRE(runs.run_of(BlockId{i}) == x);
  }
}

TEST_CASE("run table: a block whose place another one has is in no run") {
  RunTable runs(4, 4, 1);
  RunId const x = lay(runs, numbered(0, 1));
  std::int32_t const place = runs[x].start;
  runs.dissolve(x);
  CHECK(runs.run_of(BlockId{0}) == -1);
  RunId const y = lay(runs, numbered(1, 1));
  REQUIRE(runs[y].start == place);
  CHECK(runs.run_of(BlockId{0}) == -1);
  CHECK(runs.run_of(BlockId{1}) == y);
}

TEST_CASE("run table: a split leaves the deeper part its number") {
  RunTable runs(8, 4, 1);
  RunId const x = lay(runs, numbered(0, 8));
  runs[x].set(Run::published | Run::shared);
  runs[x].references = 3;
  runs[x].stamp = 9;
  runs[x].hash = 77;
  runs[x].parent = 5;
  runs[x].last_child = 4;
  runs[x].num_children = 2;
  runs[x].generation = 6;
  RunId const head = runs.split(x, 3);
  CHECK(head != x);
  CHECK(runs.num_runs() == 2);
  CHECK(blocks_of(runs, head) == numbered(0, 3));
  CHECK(blocks_of(runs, x) == numbered(3, 5));
  check_places(runs, head);
  check_places(runs, x);
  for (RunId const part : {head, x}) {
    CHECK(runs[part].flags == (Run::published | Run::shared));
    CHECK(runs[part].references == 3);
    CHECK(runs[part].stamp == 9);
    CHECK(runs[part].hash == 77);
    CHECK(runs[part].parent == 5);
  }
  // What follows it follows the deeper part.
  CHECK(runs[x].last_child == 4);
  CHECK(runs[x].num_children == 2);
  CHECK(runs[x].generation == 6);
  CHECK(runs[head].last_child == -1);
  CHECK(runs[head].num_children == 0);
}

TEST_CASE("run table: a run of one block is its own first and last, also after splits") {
  RunTable runs(3, 4, 1);
  RunId const x = lay(runs, numbered(0, 3));
  RunId const first = runs.split(x, 1);
  RunId const second = runs.split(x, 1);
  CHECK(blocks_of(runs, first) == numbered(0, 1));
  CHECK(blocks_of(runs, second) == numbered(1, 1));
  for (RunId const part : {first, second, x}) check_places(runs, part);
}

TEST_CASE("run table: the front of a run moves to the one that ends there") {
  RunTable runs(10, 4, 1);
  RunId const x = lay(runs, numbered(0, 10));
  RunId const p = runs.split(x, 4);
  SECTION("a part of it") {
    runs.move_front(p, x, 2);
    CHECK(blocks_of(runs, p) == numbered(0, 6));
    CHECK(blocks_of(runs, x) == numbered(6, 4));
    CHECK(runs.num_runs() == 2);
    check_places(runs, p);
    check_places(runs, x);
  }
  SECTION("all but its last block") {
    runs.move_front(p, x, 5);
    CHECK(blocks_of(runs, x) == numbered(9, 1));
    check_places(runs, p);
    check_places(runs, x);
  }
  SECTION("all of it: it is gone") {
    std::uint32_t const generation = runs[x].generation;
    runs.move_front(p, x, 6);
    CHECK(blocks_of(runs, p) == numbered(0, 10));
    CHECK(runs.num_runs() == 1);
    CHECK(runs[x].length == 0);
    CHECK(runs[x].generation != generation);
    check_places(runs, p);
  }
}

TEST_CASE("run table: a run gives blocks from its end, and is gone with all of them") {
  RunTable runs(10, 4, 1);
  auto const places = runs.arena().num_free();
  RunId const x = lay(runs, numbered(0, 10));
  runs.cut_end(x, 3);
  CHECK(blocks_of(runs, x) == numbered(0, 7));
  CHECK(runs.arena().num_free() == places - 7);
  check_places(runs, x);
  for (std::int32_t i = 7; i < 10; ++i) CHECK(runs.run_of(BlockId{i}) == -1);
  runs.cut_end(x, 6);
  check_places(runs, x);
  std::uint32_t const generation = runs[x].generation;
  runs.dissolve(x);
  CHECK(runs.num_runs() == 0);
  CHECK(runs.arena().num_free() == places);
  CHECK(runs[x].generation != generation);
  CHECK(runs[x].flags == 0);
}

TEST_CASE("run table: places behind a run's new end are one extent with what is free there") {
  RunTable runs(10, 4, 1);
  RunId const x = lay(runs, numbered(0, 4));
  runs.cut_end(x, 1);
  Extent room;
  runs.lay(x, true, numbered(4, 6), 0, room);
  CHECK(runs.num_runs() == 1);
  CHECK(runs[x].length == 9);
  check_places(runs, x);
}

TEST_CASE("run table: room behind a run is given back with it, room elsewhere on its own") {
  RunTable runs(10, 4, 1);
  auto const places = runs.arena().num_free();
  Extent room;
  Extent other_room;
  RunId const x = lay(runs, numbered(0, 4), room);
  RunId const other = lay(runs, numbered(4, 1), other_room);
  REQUIRE(room.count > 0);
  REQUIRE(other_room.count > 0);
  SECTION("after it") {
    std::int32_t const whole = 4 + room.count;
    runs.dissolve(x, room);
    CHECK(room.count == 0);
    CHECK(runs.arena().num_free() == places - 1 - other_room.count);
    CHECK(runs.arena().pocket() == whole);  // at hand for the next short sequence
  }
  SECTION("elsewhere") {
    runs.dissolve(x, other_room);
    CHECK(other_room.count == 0);
    CHECK(runs.arena().num_free() == places - 1 - room.count);
    CHECK(runs.arena().pocket() == 4);
  }
  SECTION("none") {
    Extent none;
    runs.dissolve(x, none);
    CHECK(runs.arena().num_free() == places - 1 - room.count - other_room.count);
  }
  CHECK(runs.num_runs() == 1);
  check_places(runs, other);
}

TEST_CASE("run table: a short sequence is laid where the last one lay") {
  RunTable runs(10, 4, 1);
  Extent room;
  RunId const x = lay(runs, numbered(0, 3), room);
  std::int32_t const place = runs[x].start;
  std::int32_t const whole = 3 + room.count;
  runs.dissolve(x, room);
  RunId const y = lay(runs, numbered(5, 2), room);
  CHECK(runs[y].start == place);
  CHECK(room.count == whole - 2);  // all of it, without a look into the arena
  CHECK(runs.arena().pocket() == 0);
  runs.lay_one(y, true, BlockId{7}, room);
  CHECK(runs[y].length == 3);
  CHECK(runs.generation(BlockId{7}) == 0);
  check_places(runs, y);
  runs.lay_one(y, false, BlockId{8}, room);
  RunId const z = runs.run_of(BlockId{8});
  CHECK(z != y);
  CHECK(runs[z].start == runs[y].end());
  check_places(runs, z);
}

TEST_CASE("run table: a forgotten record is used again, under another generation") {
  RunTable runs(4, 4, 1);
  RunId const x = lay(runs, numbered(0, 2));
  runs[x].set(Run::published | Run::waiting);
  runs[x].references = 7;
  runs[x].num_children = 3;
  std::uint32_t const generation = runs[x].generation;
  runs.dissolve(x);
  RunId const y = lay(runs, numbered(2, 1));
  CHECK(y == x);
  CHECK(runs.num_records() == 1);
  CHECK(runs[y].generation > generation);
  CHECK(runs[y].flags == 0);
  CHECK(runs[y].references == 1);
  CHECK(runs[y].num_children == 0);
  RunId const head = [&] {
    RunId const two = lay(runs, numbered(0, 2));
    std::uint32_t const before = runs[two].generation;
    RunId const h = runs.split(two, 1);
    CHECK(runs[two].generation == before);
    return h;
  }();
  runs.dissolve(head);
  std::uint32_t const of_head = runs[head].generation;
  RunId const two = lay(runs, {BlockId{0}, BlockId{3}});
  CHECK(two == head);
  CHECK(runs[two].generation == of_head);
}

TEST_CASE("run table: a head keeps its record's own generation") {
  RunTable runs(6, 4, 1);
  RunId const gone = lay(runs, numbered(0, 1));
  RunId const x = lay(runs, numbered(1, 4));
  runs[x].generation = 40;
  runs.dissolve(gone);
  std::uint32_t const generation = runs[gone].generation;
  RunId const head = runs.split(x, 2);
  REQUIRE(head == gone);
  CHECK(runs[head].generation == generation);
}

TEST_CASE("run table: blocks of two runs change places, and what they hold stays") {
  RunTable runs(8, 1, 1);
  RunId const x = lay(runs, numbered(0, 3));
  RunId const y = lay(runs, numbered(5, 3));
  for (std::int32_t i = 0; i < 3; ++i) {
    *runs.tokens(runs[x].start + i) = 100 + i;
    *runs.tokens(runs[y].start + i) = 200 + i;
  }
  runs.exchange_blocks(x, y);
  CHECK(blocks_of(runs, x) == numbered(5, 3));
  CHECK(blocks_of(runs, y) == numbered(0, 3));
  check_places(runs, x);
  check_places(runs, y);
  CHECK(*runs.tokens(runs[x].start + 2) == 102);
  CHECK(*runs.tokens(runs[y].start) == 200);
  RunId const head = runs.split(x, 1);
  check_places(runs, head);
  check_places(runs, x);
}

TEST_CASE("run table: owners, copies and fences go with exchanged blocks") {
  RunTable runs(8, 1, 1);
  RunId const x = lay(runs, numbered(0, 1));
  RunId const y = lay(runs, numbered(5, 1));
  runs[x].set(Run::published | Run::indexed | Run::has_twins | Run::held | Run::leaves_first);
  runs[x].references = 0;
  runs[x].stamp = 4;
  runs[x].hash = 77;
  runs[x].num_children = 2;
  std::uint32_t const generation = runs[x].generation;
  runs[y].set(Run::has_twins | Run::copy_target | Run::shared);
  runs[y].references = 3;
  runs[y].stamp = 6;
  bool const waits = GENERATE(false, true);
  if (waits) runs[y].set(Run::waiting);  // it took over both stamp and place in the list
  runs.exchange_blocks(x, y);
  CHECK(runs[x].flags ==
        (Run::published | Run::indexed | Run::has_twins | Run::copy_target | Run::shared));
  CHECK(runs[y].flags == (Run::held | (waits ? Run::waiting : 0)));
  CHECK(runs[x].references == 3);
  CHECK(runs[y].references == 0);
  CHECK(runs[x].stamp == (waits ? 4U : 6U));
  CHECK(runs[y].stamp == (waits ? 6U : 4U));
  CHECK(runs[x].hash == 77);
  CHECK(runs[x].num_children == 2);
  CHECK(runs[x].generation == generation);
}

TEST_CASE("run table: flags are set and cleared apart") {
  Run run{};
  run.set(Run::published | Run::held);
  CHECK(run.has(Run::held));
  CHECK(run.has(Run::shared | Run::held));
  CHECK_FALSE(run.has(Run::shared));
  run.clear(Run::held | Run::shared);
  CHECK(run.flags == Run::published);
}

TEST_CASE("run table: there are places for every block and every room") {
  CHECK(RunTable::num_places(100, 4) >= 100 + 4 * RunTable::growth_room);
  CHECK(RunTable::num_places(INT32_MAX - 1, 0) <= INT32_MAX - 1);
}

TEST_CASE("run table: random programs agree with a map of vectors") {
  auto const num_blocks = GENERATE(1, 7, 80, 400);
  CAPTURE(num_blocks);
  RandomTable table(num_blocks, static_cast<unsigned>(31 + num_blocks));
  CHECK(table.run(num_blocks < 100 ? 20000 : 5000) == std::string());
}

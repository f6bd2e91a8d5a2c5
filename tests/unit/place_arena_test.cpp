// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/place_arena.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"

using pagedkv::detail::Extent;
using pagedkv::detail::PlaceArena;

namespace {

std::array<std::int32_t, 2> pair_of(Extent e) { return {e.first, e.count}; }
using Places = std::array<std::int32_t, 2>;  // first, count

/// One flag a place; the pocket apart, as its neighbours don't join it.
class NaiveArena {
 public:
  explicit NaiveArena(std::int32_t num_places) : free_(static_cast<std::size_t>(num_places) + 2) {
    std::fill(free_.begin() + 1, free_.end() - 1, true);
  }

  [[nodiscard]] Extent pocket() const { return pocket_; }
  [[nodiscard]] std::int32_t num_free() const {
    return static_cast<std::int32_t>(std::count(free_.begin(), free_.end(), true)) + pocket_.count;
  }
  /// The whole free extent that begins at `place`, or none.
  [[nodiscard]] Extent starting_at(std::int32_t place) const {
    if (!is_free(place) || is_free(place - 1)) return {};
    std::int32_t end = place;
    while (is_free(end)) ++end;
    return {place, end - place};
  }
  [[nodiscard]] std::int32_t longest() const {
    std::int32_t longest = 0;
    std::int32_t count = 0;
    for (bool const free : free_) longest = std::max(longest, count = free ? count + 1 : 0);
    return longest;
  }
  /// False if some of it is in that state already.
  [[nodiscard]] bool set(Extent e, bool free) {
    if (e.first < 1 || e.count < 1 || e.end() >= static_cast<std::int32_t>(free_.size())) {
      return false;
    }
    for (std::int32_t i = e.first; i < e.end(); ++i) {
      if (is_free(i) == free) return false;
      free_[static_cast<std::size_t>(i)] = free;
    }
    return true;
  }
  void empty_pocket() { pocket_ = {}; }
  void fill_pocket(Extent e) { pocket_ = e; }

 private:
  [[nodiscard]] bool is_free(std::int32_t place) const {
    return free_[static_cast<std::size_t>(place)];
  }

  std::vector<bool> free_;
  Extent pocket_;
};

/// Takes and gives at random, and says what the arena did wrong.
class RandomOwner {
 public:
  RandomOwner(std::int32_t num_places, unsigned seed)
      : num_places_(num_places), random_(seed), arena_(num_places), naive_(num_places) {}

  [[nodiscard]] std::string run(int num_operations) {
    for (int i = 0; i < num_operations && wrong_.empty(); ++i) {
      if (i % 512 == 0) percent_takes_ = 20 + below(61);  // now fuller, now emptier
      operate();
      if (arena_.num_free() != naive_.num_free()) wrong_ = "num_free";
    }
    while (!mine_.empty() && wrong_.empty()) give(mine_.size() - 1, false);
    if (wrong_.empty()) check_whole();
    return wrong_;
  }

 private:
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(random_() % static_cast<unsigned>(n));
  }
  void operate() {
    bool const takes = below(100) < percent_takes_;
    if (takes && arena_.num_free() > 0) return below(4) == 0 ? take_at() : take();
    if (!takes && !mine_.empty()) {
      give(static_cast<std::size_t>(below(static_cast<std::int32_t>(mine_.size()))), below(2) == 0);
    }
  }
  void take() {
    std::int32_t const needed = 1 + below(below(8) == 0 ? num_places_ : 20);
    std::int32_t const spare = below(17);
    std::int32_t const want = needed + spare;
    Extent const pocket = naive_.pocket();
    std::int32_t const longest = naive_.longest();
    Extent const e = arena_.take(needed, spare);
    if (needed <= pocket.count || longest == 0) {
      naive_.empty_pocket();
      if (pair_of(e) != pair_of(pocket)) wrong_ = "the pocket comes first";
    } else {
      check_length(e, want, longest);
      if (naive_.starting_at(e.first).count < e.count) wrong_ = "not the front of an extent";
      if (!naive_.set(e, false)) wrong_ = "taken twice";
    }
    mine_.push_back(e);
  }
  /// All that was wanted, unless no extent of the longest kind was found to have it: then a whole
  /// one of those, where a kind is all lengths of equally many binary digits.
  void check_length(Extent e, std::int32_t want, std::int32_t longest) {
    if (e.count == want) return;
    auto const digits = [](std::int32_t n) { return std::bit_width(static_cast<unsigned>(n)); };
    if (e.count > want) wrong_ = "more than was wanted";
    if (longest >= want && digits(longest) > digits(want)) wrong_ = "a longer one was there";
    if (digits(e.count) != digits(longest)) wrong_ = "not of the longest when short";
    if (naive_.starting_at(e.first).count != e.count) wrong_ = "short, and not all of the extent";
  }
  void take_at() {
    std::int32_t const place = 1 + below(num_places_ + 1);
    std::int32_t const want = 1 + below(24);
    Extent const there = place <= num_places_ ? naive_.starting_at(place) : Extent{};
    Extent const e = arena_.take_at(place, want);
    if (e.count != std::min(there.count, want)) wrong_ = "take_at";
    if (e.count == 0) return;
    if (e.first != place || !naive_.set(e, false)) wrong_ = "take_at elsewhere";
    mine_.push_back(e);
  }
  void give(std::size_t i, bool a_part) {
    Extent e = mine_[i];
    mine_[i] = mine_.back();
    mine_.pop_back();
    if (a_part && e.count > 1) {
      std::int32_t const from = below(e.count);
      std::int32_t const count = 1 + below(e.count - from);
      if (from > 0) mine_.push_back({e.first, from});
      if (from + count < e.count) {
        mine_.push_back({e.first + from + count, e.count - from - count});
      }
      e = {e.first + from, count};
    }
    if (below(3) != 0) {
      arena_.give(e);
    } else {
      arena_.give_back(e);
      if (naive_.pocket().count == 0 && e.count <= 32) return naive_.fill_pocket(e);
    }
    if (!naive_.set(e, true)) wrong_ = "the test gave what it hadn't";
  }
  /// Nothing is taken: all places are one extent again.
  void check_whole() {
    if (naive_.pocket().count != 0) arena_.give(arena_.take(1, 0));
    Extent const all = arena_.take(num_places_, 0);
    if (pair_of(all) != Places{1, num_places_}) wrong_ = "the pieces didn't join";
    if (arena_.num_free() != 0) wrong_ = "num_free at the end";
  }

  std::int32_t num_places_;
  std::mt19937 random_;
  PlaceArena arena_;
  NaiveArena naive_;
  std::vector<Extent> mine_;
  std::int32_t percent_takes_ = 50;
  std::string wrong_;
};

}  // namespace

TEST_CASE("place arena: places 1 to n are free, place 0 is nobody's") {
  PlaceArena arena(5);
  CHECK(arena.end() == 6);
  CHECK(arena.num_free() == 5);
  CHECK(pair_of(arena.take_at(0, 1)) == Places{0, 0});
  CHECK(pair_of(arena.take(3, 2)) == Places{1, 5});
  CHECK(arena.num_free() == 0);
  PlaceArena none(0);
  CHECK(none.num_free() == 0);
  CHECK(pair_of(none.take_at(1, 1)) == Places{0, 0});
}

TEST_CASE("place arena: takers lie side by side, each with its spare places") {
  PlaceArena arena(100);
  CHECK(pair_of(arena.take(4, 16)) == Places{1, 20});
  CHECK(pair_of(arena.take(1, 0)) == Places{21, 1});
  CHECK(pair_of(arena.take(2, 1)) == Places{22, 3});
  CHECK(arena.num_free() == 76);
}

TEST_CASE("place arena: neighbours join whichever is given first") {
  std::array<int, 3> order{0, 1, 2};
  do {
    CAPTURE(order[0], order[1], order[2]);
    PlaceArena arena(64);
    std::array<Extent, 3> pieces;
    std::int32_t const lengths[] = {1, 5, 12};
    for (std::size_t i = 0; i < 3; ++i) pieces[i] = arena.take(lengths[i], 0);
    Extent const rest = arena.take(46, 0);
    REQUIRE(arena.num_free() == 0);
    for (int const i : order) arena.give(pieces[static_cast<std::size_t>(i)]);
    CHECK(arena.num_free() == 18);
    CHECK(pair_of(arena.take(18, 0)) == Places{1, 18});
    arena.give({1, 18});
    arena.give(rest);
    CHECK(pair_of(arena.take(64, 0)) == Places{1, 64});
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("place arena: giving nothing changes nothing") {
  PlaceArena arena(8);
  (void)arena.take(3, 0);
  arena.give({});
  CHECK(arena.num_free() == 5);
  CHECK(pair_of(arena.take(5, 0)) == Places{4, 5});
}

TEST_CASE("place arena: take_at takes from the front of a free extent and nowhere else") {
  PlaceArena arena(40);
  Extent const a = arena.take(4, 0);
  Extent const b = arena.take(6, 0);
  Extent const c = arena.take(4, 0);
  arena.give(b);
  SECTION("all of it") {
    CHECK(pair_of(arena.take_at(a.end(), 100)) == Places{5, 6});
    CHECK(pair_of(arena.take_at(a.end(), 1)) == Places{0, 0});
  }
  SECTION("a part of it, then the rest") {
    CHECK(pair_of(arena.take_at(5, 2)) == Places{5, 2});
    CHECK(pair_of(arena.take_at(7, 9)) == Places{7, 4});
  }
  SECTION("not from its middle, nor from its end") {
    CHECK(arena.take_at(6, 1).count == 0);
    CHECK(arena.take_at(10, 1).count == 0);
  }
  SECTION("not from a place in use, nor past the last one") {
    CHECK(arena.take_at(a.first, 1).count == 0);
    CHECK(arena.take_at(c.first, 1).count == 0);
    CHECK(arena.take_at(41, 1).count == 0);
  }
  SECTION("a single place") {
    CHECK(pair_of(arena.take_at(5, 5)) == Places{5, 5});
    CHECK(pair_of(arena.take_at(10, 5)) == Places{10, 1});
  }
}

TEST_CASE("place arena: the last place") {
  auto const num_places = GENERATE(1, 2, 63, 64, 65, 127, 128);
  CAPTURE(num_places);
  PlaceArena arena(num_places);
  Extent const before = num_places > 1 ? arena.take(num_places - 1, 0) : Extent{};
  CHECK(pair_of(arena.take_at(num_places, 9)) == Places{num_places, 1});
  CHECK(arena.num_free() == 0);
  arena.give({num_places, 1});
  arena.give(before);
  CHECK(arena.num_free() == num_places);
  CHECK(pair_of(arena.take(num_places, 0)) == Places{1, num_places});
}

TEST_CASE("place arena: when short it gives all of the longest extent") {
  PlaceArena arena(100);
  Extent const small = arena.take(3, 0);
  (void)arena.take(1, 0);
  Extent const large = arena.take(20, 0);
  (void)arena.take(76, 0);
  arena.give(large);
  arena.give(small);
  REQUIRE(arena.num_free() == 23);
  CHECK(pair_of(arena.take(50, 16)) == pair_of(large));
  CHECK(pair_of(arena.take(50, 16)) == pair_of(small));
}

TEST_CASE("place arena: needed places come before spare ones") {
  PlaceArena arena(30);
  Extent const a = arena.take(10, 0);
  (void)arena.take(20, 0);
  arena.give(a);
  CHECK(pair_of(arena.take(8, 16)) == pair_of(a));  // 8 and 2 to spare
}

TEST_CASE("place arena: a short extent goes into the pocket and comes out whole") {
  PlaceArena arena(100);
  Extent const a = arena.take(20, 0);
  Extent const b = arena.take(5, 0);
  arena.give_back(a);
  CHECK(arena.num_free() == 95);
  CHECK(arena.take_at(a.first, 1).count == 0);
  SECTION("it serves a request that needs no more") {
    CHECK(pair_of(arena.take(20, 16)) == pair_of(a));
    CHECK(arena.num_free() == 75);
  }
  SECTION("a request that needs more is served elsewhere") {
    CHECK(arena.take(21, 0).first == 26);
    CHECK(arena.num_free() == 74);
  }
  SECTION("it holds one extent: the next one joins the others") {
    arena.give_back(b);
    CHECK(arena.num_free() == 100);
    CHECK(pair_of(arena.take(1, 0)) == pair_of(a));
    CHECK(pair_of(arena.take(80, 0)) == Places{21, 80});
  }
  SECTION("it is the last resort") {
    (void)arena.take(75, 0);
    CHECK(arena.num_free() == 20);
    CHECK(pair_of(arena.take(30, 0)) == pair_of(a));
    CHECK(arena.num_free() == 0);
  }
}

TEST_CASE("place arena: a long extent is no pocket's") {
  PlaceArena arena(100);
  Extent const a = arena.take(33, 0);
  arena.give_back(a);
  CHECK(pair_of(arena.take(100, 0)) == Places{1, 100});
}

TEST_CASE("place arena: a million random takes and gives agree with one flag a place") {
  struct Size {
    std::int32_t places;
    int operations;
  };
  auto const size = GENERATE(Size{1, 20000}, Size{2, 20000}, Size{63, 200000}, Size{64, 200000},
                             Size{65, 200000}, Size{130, 200000}, Size{700, 180000});
  CAPTURE(size.places);
  RandomOwner owner(size.places, static_cast<unsigned>(17 + size.places));
  CHECK(owner.run(size.operations) == std::string());
}

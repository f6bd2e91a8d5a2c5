// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/detail/index_list.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <random>
#include <vector>

#include "catch.hpp"

using pagedkv::detail::IndexList;

namespace {

struct Link {
  std::int32_t prev;
  std::int32_t next;
  std::uint64_t stamp;  ///< no list reads it
};

std::vector<std::int32_t> forwards(IndexList const& list, std::vector<Link> const& links) {
  std::vector<std::int32_t> ids;
  for (auto i = list.front(); i >= 0; i = links[static_cast<std::size_t>(i)].next) {
    ids.push_back(i);
  }
  return ids;
}
std::vector<std::int32_t> backwards(IndexList const& list, std::vector<Link> const& links) {
  std::vector<std::int32_t> ids;
  for (auto i = list.back(); i >= 0; i = links[static_cast<std::size_t>(i)].prev) {
    ids.push_back(i);
  }
  return ids;
}

}  // namespace

TEST_CASE("index list: a new list is empty") {
  IndexList const list;
  CHECK(list.empty());
  CHECK(list.size() == 0);
  CHECK(list.front() == -1);
  CHECK(list.back() == -1);
}

TEST_CASE("index list: its last element leaves it empty") {
  std::vector<Link> links(3);
  IndexList list;
  list.push_front(links.data(), 2);
  CHECK(list.front() == 2);
  CHECK(list.back() == 2);
  list.erase(links.data(), 2);
  CHECK(list.empty());
  CHECK(list.front() == -1);
  CHECK(list.back() == -1);
}

TEST_CASE("index list: pushing leaves the stamp alone") {
  std::vector<Link> links(2);
  links[1].stamp = 77;
  IndexList list;
  list.push_back(links.data(), 1);
  CHECK(links[1].stamp == 77);
}

TEST_CASE("index list: two lists share one array of links") {
  std::vector<Link> links(6);
  IndexList even;
  IndexList odd;
  for (std::int32_t i = 0; i < 6; ++i) (i % 2 == 0 ? even : odd).push_back(links.data(), i);
  CHECK(forwards(even, links) == std::vector<std::int32_t>{0, 2, 4});
  CHECK(forwards(odd, links) == std::vector<std::int32_t>{1, 3, 5});
  even.erase(links.data(), 2);
  odd.push_front(links.data(), 2);
  CHECK(forwards(even, links) == std::vector<std::int32_t>{0, 4});
  CHECK(forwards(odd, links) == std::vector<std::int32_t>{2, 1, 3, 5});
}

TEST_CASE("index list: an element goes right after another, also after the last") {
  std::vector<Link> links(5);
  IndexList list;
  list.push_back(links.data(), 0);
  list.insert_after(links.data(), 0, 1);
  CHECK(list.back() == 1);
  list.insert_after(links.data(), 0, 2);
  list.insert_after(links.data(), 2, 3);
  CHECK(list.size() == 4);
  CHECK(forwards(list, links) == std::vector<std::int32_t>{0, 2, 3, 1});
  CHECK(backwards(list, links) == std::vector<std::int32_t>{1, 3, 2, 0});
  list.push_back(links.data(), 4);
  CHECK(backwards(list, links) == std::vector<std::int32_t>{4, 1, 3, 2, 0});
}

TEST_CASE("index list: random pushes, inserts and erases agree with std::list, both ways") {
  constexpr std::int32_t n = 20;
  std::mt19937 random(7);
  std::vector<Link> links(n);
  IndexList list;
  std::list<std::int32_t> model;
  for (int step = 0; step < 5000; ++step) {
    auto const id = static_cast<std::int32_t>(random() % n);
    if (auto const at = std::find(model.begin(), model.end(), id); at != model.end()) {
      list.erase(links.data(), id);
      model.erase(at);
    } else if (!model.empty() && random() % 3 == 0) {
      auto const before = std::next(model.begin(), static_cast<int>(random() % model.size()));
      list.insert_after(links.data(), *before, id);
      model.insert(std::next(before), id);
    } else if (random() % 2 == 0) {
      list.push_back(links.data(), id);
      model.push_back(id);
    } else {
      list.push_front(links.data(), id);
      model.push_front(id);
    }
    REQUIRE(list.size() == static_cast<std::int32_t>(model.size()));
    REQUIRE(forwards(list, links) == std::vector<std::int32_t>(model.begin(), model.end()));
    REQUIRE(backwards(list, links) == std::vector<std::int32_t>(model.rbegin(), model.rend()));
  }
}

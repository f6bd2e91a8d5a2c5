// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/detail/flat_index.hpp>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::Hash128;
using kv::detail::FlatIndex;

namespace {

/// The id if it is under the hash, else -1.
std::int32_t find_id(FlatIndex const& index, Hash128 hash, std::int32_t id) {
  return index.find(hash, [&](std::int32_t candidate) { return candidate == id; });
}
/// All ids that a look-up of `hash` offers.
std::multiset<std::int32_t> offered(FlatIndex const& index, Hash128 hash) {
  std::multiset<std::int32_t> ids;
  (void)index.find(hash, [&](std::int32_t id) {
    ids.insert(id);
    return false;
  });
  return ids;
}

constexpr Hash128 some_hash{0x0123456789ABCDEFULL, 0x7700000000000000ULL};

}  // namespace

TEST_CASE("flat index: what was inserted is found until it is erased") {
  FlatIndex index(8);
  CHECK(find_id(index, some_hash, 5) == -1);
  index.insert(some_hash, 5);
  CHECK(index.size() == 1);
  CHECK(find_id(index, some_hash, 5) == 5);
  CHECK(find_id(index, some_hash, 6) == -1);
  index.erase(some_hash, 5);
  CHECK(index.size() == 0);
  CHECK(find_id(index, some_hash, 5) == -1);
  CHECK(offered(index, some_hash).empty());
}

TEST_CASE("flat index: a hash whose tag byte is zero isn't taken for an empty place") {
  FlatIndex index(8);
  Hash128 const zero{};
  index.insert(zero, 0);
  index.insert(zero, 1);
  CHECK(find_id(index, zero, 0) == 0);
  CHECK(find_id(index, zero, 1) == 1);
  index.erase(zero, 0);
  CHECK(find_id(index, zero, 0) == -1);
  CHECK(find_id(index, zero, 1) == 1);
}

TEST_CASE("flat index: a look-up is offered only what shares the tag of its hash") {
  FlatIndex index(8);
  index.insert({1, 0x0100000000000000ULL}, 3);
  CHECK(offered(index, {1, 0x0200000000000000ULL}).empty());
  CHECK(offered(index, {1, 0x0100000000000000ULL}) == std::multiset<std::int32_t>{3});
}

TEST_CASE("flat index: all ids of a full index may share one hash") {
  constexpr std::int32_t capacity = 200;
  FlatIndex index(capacity);
  std::multiset<std::int32_t> all;
  for (std::int32_t id = 0; id < capacity; ++id) {
    index.insert(some_hash, id);
    all.insert(id);
  }
  CHECK(offered(index, some_hash) == all);
  // Those in the first bucket go; those that had passed it are still reached.
  for (std::int32_t id = 0; id < capacity; id += 2) {
    index.erase(some_hash, id);
    all.erase(id);
  }
  CHECK(index.size() == capacity / 2);
  CHECK(offered(index, some_hash) == all);
}

TEST_CASE("flat index: an erase leaves nothing behind") {
  FlatIndex index(12);
  for (int round = 0; round < 1000; ++round) {
    for (std::int32_t id = 0; id < 12; ++id) index.insert(some_hash, id);
    for (std::int32_t id = 11; id >= 0; --id) index.erase(some_hash, id);
  }
  CHECK(index.size() == 0);
  CHECK(offered(index, some_hash).empty());
}

TEST_CASE("flat index: replace puts one id in the place of another") {
  FlatIndex index(50);
  for (std::int32_t id = 0; id < 40; ++id) index.insert(some_hash, id);
  index.replace(some_hash, 30, 49);
  CHECK(index.size() == 40);
  CHECK(find_id(index, some_hash, 30) == -1);
  CHECK(find_id(index, some_hash, 49) == 49);
  index.erase(some_hash, 49);
  CHECK(find_id(index, some_hash, 49) == -1);
}

TEST_CASE("flat index: random inserts, erases and replacements agree with a multimap") {
  constexpr std::int32_t capacity = 300;
  // Few distinct hashes: buckets overflow and probe paths cross.
  auto const num_hashes = GENERATE(1U, 3U, 40U, 100000U);
  CAPTURE(num_hashes);
  std::mt19937 random(20 + num_hashes);
  FlatIndex index(capacity);
  std::map<std::int32_t, Hash128> model;
  auto const some = [&] {
    std::uint64_t const n = random() % num_hashes;
    return Hash128{n * 0x9E3779B97F4A7C15ULL, (n % 5) << 56};
  };
  for (int step = 0; step < 20000; ++step) {
    auto const id = static_cast<std::int32_t>(random() % capacity);
    auto const other = static_cast<std::int32_t>(random() % capacity);
    if (auto const known = model.find(id); known == model.end()) {
      auto const hash = some();
      index.insert(hash, id);
      model[id] = hash;
    } else if (step % 3 == 0 && !model.contains(other)) {
      index.replace(known->second, id, other);
      model[other] = known->second;
      model.erase(id);
    } else {
      index.erase(known->second, id);
      model.erase(known);
    }
    REQUIRE(index.size() == static_cast<std::int32_t>(model.size()));
    auto const known = model.find(other);
    auto const hash = known != model.end() ? known->second : some();
    REQUIRE(find_id(index, hash, other) == (known != model.end() ? other : -1));
  }
  for (auto const& [id, hash] : model) REQUIRE(find_id(index, hash, id) == id);
}

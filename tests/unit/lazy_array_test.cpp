// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/detail/lazy_array.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "catch.hpp"

using pagedkv::detail::LazyArray;

namespace {
static_assert(std::is_nothrow_move_constructible_v<LazyArray<int>>);
static_assert(!std::is_copy_constructible_v<LazyArray<int>>);
static_assert(!std::is_copy_assignable_v<LazyArray<int>>);
}  // namespace

TEST_CASE("lazy array: zero bytes on a cache-line boundary") {
  LazyArray<std::int32_t> const array(1000);
  CHECK(array.size() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(array.data()) % 64 == 0);
  bool all_zero = true;
  for (std::size_t i = 0; i < array.size(); ++i) all_zero = all_zero && array[i] == 0;
  CHECK(all_zero);
}

TEST_CASE("lazy array: the last element can be written") {
  LazyArray<std::int64_t> array(7);
  array[6] = -5;
  CHECK(array[6] == -5);
  CHECK(array.data() + 6 == &array[6]);
}

TEST_CASE("lazy array: none and moved-from ones are empty") {
  LazyArray<int> none;
  CHECK(none.size() == 0);
  CHECK(LazyArray<int>(0).size() == 0);
  LazyArray<int> from(3);
  from[1] = 8;
  int const* const address = from.data();
  LazyArray<int> to(std::move(from));
  CHECK(to.size() == 3);
  CHECK(to.data() == address);
  none = std::move(to);
  CHECK(none[1] == 8);
}

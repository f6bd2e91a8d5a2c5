// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/result.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using kv::Errc;
using kv::Result;
using kv::Unexpected;

namespace {

// Accepted: a value, an error, moves; copies exactly when the value copies.
static_assert(std::is_constructible_v<Result<int>, int>);
static_assert(std::is_constructible_v<Result<int>, Unexpected>);
static_assert(std::is_convertible_v<Unexpected, Result<void>>);
static_assert(std::is_copy_constructible_v<Result<std::string>>);
static_assert(std::is_nothrow_move_constructible_v<Result<std::unique_ptr<int>>>);
// Rejected: an empty Result, a bare code, a copy of what can't be copied, an implicit bool.
static_assert(!std::is_default_constructible_v<Result<int>>);
static_assert(!std::is_constructible_v<Result<std::string>, Errc>);
static_assert(!std::is_constructible_v<Result<void>, Errc>);
static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(!std::is_convertible_v<Result<int>, bool>);
static_assert(!std::is_convertible_v<Result<void>, bool>);

// Counts the objects alive, so that a Result that forgets or repeats a destructor shows.
struct Counted {
  explicit Counted(int& alive) : alive_(&alive) { ++*alive_; }
  Counted(Counted const& other) : alive_(other.alive_) { ++*alive_; }
  Counted(Counted&& other) noexcept : alive_(other.alive_) { ++*alive_; }
  Counted& operator=(Counted const&) = delete;
  ~Counted() { --*alive_; }
  int* alive_;
};

}  // namespace

TEST_CASE("a result holds the value it was made from") {
  Result<int> const result = 7;
  CHECK(result.has_value());
  CHECK(static_cast<bool>(result));
  CHECK(result.value() == 7);
  CHECK(*result == 7);
  CHECK(result.value_or(3) == 7);
}

TEST_CASE("a result holds the error it was made from") {
  Result<int> const result = Unexpected{Errc::no_free_blocks};
  CHECK_FALSE(result.has_value());
  CHECK_FALSE(static_cast<bool>(result));
  CHECK(result.error() == Errc::no_free_blocks);
  CHECK(result.value_or(3) == 3);
}

TEST_CASE("an errc as value is not an error") {
  Result<Errc> const result = Errc::uncommitted;
  REQUIRE(result.has_value());
  CHECK(*result == Errc::uncommitted);
}

TEST_CASE("a result without a value succeeds by default") {
  Result<void> const good;
  CHECK(good.has_value());
  Result<void> const bad = Unexpected{Errc::uncommitted};
  CHECK_FALSE(bad.has_value());
  CHECK(bad.error() == Errc::uncommitted);
}

TEST_CASE("a move-only value can be moved out of a result") {
  Result<std::unique_ptr<int>> result{std::make_unique<int>(5)};
  REQUIRE(result);
  CHECK(**result == 5);
  std::unique_ptr<int> const taken = *std::move(result);
  CHECK(*taken == 5);
}

TEST_CASE("the value of a mutable result can be changed in place") {
  Result<std::string> result{std::string("block")};
  result->append("s");
  *result += "!";
  CHECK(result.value() == "blocks!");
}

TEST_CASE("assignment replaces value by error and error by value") {
  Result<std::string> result{std::string("a string long enough to be on the heap")};
  result = Result<std::string>{Unexpected{Errc::batch_full}};
  REQUIRE_FALSE(result);
  CHECK(result.error() == Errc::batch_full);
  result = Result<std::string>{std::string("another string long enough for the heap")};
  REQUIRE(result);
  CHECK(*result == "another string long enough for the heap");
}

TEST_CASE("a result destroys its value exactly once") {
  int alive = 0;
  {
    Result<Counted> first{Counted{alive}};
    CHECK(alive == 1);
    Result<Counted> second = first;
    CHECK(alive == 2);
    Result<Counted> third = std::move(second);
    CHECK(alive == 3);
    third = Result<Counted>{Unexpected{Errc::never_fits}};
    CHECK(alive == 2);
    third = std::move(first);
    CHECK(alive == 3);
  }
  CHECK(alive == 0);
}

TEST_CASE("reading the side a result doesn't hold is misuse") {
  auto const value = pagedkv::testing::outcome_of([] {
    Result<int> const result = Unexpected{Errc::never_fits};
    (void)result.value();
  });
  CHECK(value.aborted);
  CHECK(value.message == "Result::value: the call failed with never_fits; test the Result first");
  auto const error = pagedkv::testing::outcome_of([] {
    Result<int> const result = 1;
    (void)result.error();
  });
  CHECK(error.aborted);
  CHECK(error.message == "Result::error: the call succeeded; test the Result first");
  auto const nothing = pagedkv::testing::outcome_of([] {
    Result<void> const result = Unexpected{Errc::never_fits};
    result.value();
  });
  CHECK(nothing.aborted);
}

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/types.hpp>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::BlockId;
using kv::GroupId;
using kv::SequenceId;
using kv::Tick;

namespace {

// Accepted: an id from its own representation, when asked for.
static_assert(std::is_constructible_v<BlockId, std::int32_t>);
static_assert(std::is_trivially_copyable_v<BlockId> && sizeof(BlockId) == sizeof(std::int32_t));
static_assert(std::is_trivially_copyable_v<Tick> && sizeof(Tick) == sizeof(std::uint64_t));
static_assert(std::is_trivially_copyable_v<kv::TokenRange>);
static_assert(std::is_trivially_copyable_v<kv::BlockCopy> && sizeof(kv::BlockCopy) == 12);
// Rejected: ids out of bare numbers, bare numbers out of ids, one kind of id as another.
static_assert(!std::is_convertible_v<std::int32_t, BlockId>);
static_assert(!std::is_convertible_v<BlockId, std::int32_t>);
static_assert(!std::is_constructible_v<BlockId, SequenceId>);
static_assert(!std::is_constructible_v<SequenceId, Tick>);
static_assert(!std::is_constructible_v<GroupId, BlockId>);
static_assert(!std::is_same_v<SequenceId, Tick>);
// Plain on purpose: these live in buffers that engines own.
static_assert(std::is_same_v<kv::TokenId, std::int32_t>);
static_assert(std::is_same_v<kv::Slot, std::int64_t>);

// Usable where constants are needed.
static_assert(kv::blocks_for(17, 16) == 2);
static_assert(BlockId{3}.value() == 3);

}  // namespace

TEST_CASE("a default id is null") {
  CHECK(BlockId{}.is_null());
  CHECK(BlockId{}.value() == -1);
  CHECK(BlockId::null() == BlockId{});
  CHECK(SequenceId{}.is_null());
  CHECK(SequenceId{}.value() == std::numeric_limits<std::uint64_t>::max());
  CHECK_FALSE(BlockId{0}.is_null());
  CHECK_FALSE(SequenceId{0}.is_null());
}

TEST_CASE("ids compare as their numbers do") {
  CHECK(BlockId{1} == BlockId{1});
  CHECK(BlockId{1} != BlockId{2});
  CHECK(BlockId{1} < BlockId{2});
  CHECK(Tick{9} > Tick{8});
}

TEST_CASE("a token range ends after its last position") {
  kv::TokenRange const range{.first = 5, .count = 3};
  CHECK(range.end() == 8);
  CHECK_FALSE(range.empty());
  CHECK(kv::TokenRange{.first = 5, .count = 0}.empty());
  CHECK(range == kv::TokenRange{5, 3});
  CHECK_FALSE(range == kv::TokenRange{5, 2});
}

TEST_CASE("blocks_for rounds up and never overflows") {
  CHECK(kv::blocks_for(0, 16) == 0);
  CHECK(kv::blocks_for(1, 16) == 1);
  CHECK(kv::blocks_for(15, 16) == 1);
  CHECK(kv::blocks_for(16, 16) == 1);
  CHECK(kv::blocks_for(17, 16) == 2);
  CHECK(kv::blocks_for(5, 1) == 5);
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  CHECK(kv::blocks_for(most, 1) == most);
  CHECK(kv::blocks_for(most, 16) == 134217728);
  CHECK(kv::blocks_for(most, most) == 1);
}

TEST_CASE("padding and unknown are values no slot and no token has") {
  CHECK(kv::padding_slot == -1);
  CHECK(kv::unknown_token == std::numeric_limits<std::int32_t>::min());
}

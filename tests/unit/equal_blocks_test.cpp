// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/detail/equal_blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <pagedkv/detail/lazy_array.hpp>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::TokenId;
using kv::detail::EqualBlocks;
using kv::detail::LazyArray;

namespace {

/// Two equal arrays of blocks: one as places lie, one as a caller's prompt may, at an odd address.
class Pair {
 public:
  Pair(std::int32_t block_tokens, std::int32_t num_blocks)
      : size_(static_cast<std::size_t>(block_tokens) * static_cast<std::size_t>(num_blocks)),
        stored_(size_ + 1),
        prompt_(size_ + 2) {
    for (std::size_t i = 0; i < size_; ++i) {
      stored_[i] = prompt_[i + 1] = static_cast<TokenId>(i * 2654435761U % 50000U);
    }
    // What lies after it differs.
    stored_[size_] = 1;
    prompt_[size_ + 1] = 2;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] TokenId const* stored() const { return stored_.data(); }
  [[nodiscard]] TokenId const* prompt() const { return prompt_.data() + 1; }
  /// One token differs, in its highest or its lowest bit.
  void flip(std::size_t i, bool high) { prompt_[i + 1] ^= high ? INT32_MIN : 1; }

 private:
  std::size_t size_;
  LazyArray<TokenId> stored_;
  std::vector<TokenId> prompt_;
};

}  // namespace

TEST_CASE("equal blocks: a difference at any token is seen, one behind the block isn't") {
  auto const block_tokens = GENERATE(1, 2, 3, 4, 15, 16, 17, 64);
  CAPTURE(block_tokens);
  EqualBlocks const compare(block_tokens);
  CHECK(compare.block_tokens() == static_cast<std::size_t>(block_tokens));
  Pair pair(block_tokens, 1);
  CHECK(compare.equal_block(pair.stored(), pair.prompt()));
  for (std::size_t i = 0; i < pair.size(); ++i) {
    for (bool const high : {false, true}) {
      CAPTURE(i, high);
      pair.flip(i, high);
      CHECK_FALSE(compare.equal_block(pair.stored(), pair.prompt()));
      pair.flip(i, high);
    }
  }
}

TEST_CASE("equal blocks: many blocks are equal up to the first difference") {
  auto const block_tokens = GENERATE(1, 2, 15, 16, 17, 64);
  // Around the groups that are compared at once.
  auto const num_blocks = GENERATE(1, 7, 8, 9, 63, 64, 65, 71, 72, 130);
  CAPTURE(block_tokens, num_blocks);
  EqualBlocks const compare(block_tokens);
  Pair pair(block_tokens, num_blocks);
  CHECK(compare.equal_blocks(pair.stored(), pair.prompt(), num_blocks) == num_blocks);
  for (std::size_t i = 0; i < pair.size(); ++i) {
    auto const expected = static_cast<std::int32_t>(i) / block_tokens;
    pair.flip(i, i % 2 == 0);
    auto const found = compare.equal_blocks(pair.stored(), pair.prompt(), num_blocks);
    auto const fewer = compare.equal_blocks(pair.stored(), pair.prompt(), num_blocks / 2);
    pair.flip(i, i % 2 == 0);
    if (found == expected && fewer == std::min(expected, num_blocks / 2)) continue;
    CAPTURE(i, found, fewer);
    FAIL("another number of equal blocks");
  }
}

TEST_CASE("equal blocks: none of none") {
  auto const most = GENERATE(0, -1);
  Pair const pair(4, 1);
  CHECK(EqualBlocks(4).equal_blocks(pair.stored(), pair.prompt(), most) == 0);
}

TEST_CASE("equal blocks: leading tokens are counted within one block and what is given") {
  auto const block_tokens = GENERATE(1, 2, 15, 16, 17, 64);
  CAPTURE(block_tokens);
  EqualBlocks const compare(block_tokens);
  Pair pair(block_tokens, 2);
  auto const count = [&](std::size_t given) {
    return compare.common_prefix(std::span(pair.prompt(), given), pair.stored());
  };
  CHECK(count(pair.size()) == block_tokens);
  for (std::int32_t i = 0; i < block_tokens; ++i) {
    auto const at = static_cast<std::size_t>(i);
    CHECK(count(at) == i);
    pair.flip(at, true);
    CHECK(count(pair.size()) == i);
    pair.flip(at, true);
  }
}

TEST_CASE("equal blocks: where a prompt's block begins") {
  CHECK(EqualBlocks(17).at(0) == 0);
  CHECK(EqualBlocks(17).at(3) == 51);
  CHECK(EqualBlocks(65536).at(1 << 17) == std::size_t{1} << 33);
}

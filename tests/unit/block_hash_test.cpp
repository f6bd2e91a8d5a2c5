// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/block_hash.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::Hash128;
using kv::TokenId;
using kv::Xxh3BlockHash;

namespace {

using Tokens = std::span<TokenId const>;
using Bytes = std::span<std::byte const>;

// Accepted: a policy that always collides is bad and legal.
struct Constant {
  static Hash128 root(std::uint64_t) noexcept { return {}; }
  static Hash128 content(Tokens, std::uint64_t) noexcept { return {}; }
  static Hash128 extra(Bytes, std::uint64_t) noexcept { return {}; }
  static Hash128 chain(Hash128, Hash128) noexcept { return {}; }
};
// Rejected: each breaks one requirement.
struct NoRoot {
  static Hash128 content(Tokens, std::uint64_t) noexcept { return {}; }
  static Hash128 extra(Bytes, std::uint64_t) noexcept { return {}; }
  static Hash128 chain(Hash128, Hash128) noexcept { return {}; }
};
struct MayThrow : Constant {
  static Hash128 content(Tokens, std::uint64_t) { return {}; }
};
struct SixtyFourBits : Constant {
  static std::uint64_t chain(Hash128, Hash128) noexcept { return 0; }
};
struct NotStatic : Constant {
  Hash128 extra(Bytes, std::uint64_t) noexcept { return {}; }
};
static_assert(kv::BlockHash<Xxh3BlockHash>);
static_assert(kv::BlockHash<Constant>);
static_assert(!kv::BlockHash<NoRoot>);
static_assert(!kv::BlockHash<MayThrow>);
static_assert(!kv::BlockHash<SixtyFourBits>);
static_assert(!kv::BlockHash<NotStatic>);

std::vector<TokenId> iota(TokenId first, std::size_t n) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
using Parts = std::pair<std::uint64_t, std::uint64_t>;
Parts parts(Hash128 h) { return {h.low, h.high}; }

constexpr std::uint64_t default_seed = 0x9E3779B97F4A7C15ULL;

}  // namespace

// Golden values: routers and external indexes keep hashes, so a change of the hash is a decision,
// with a line in the changelog. They were computed from the definition by another program: XXH3
// with seed of the little-endian bytes, and the mix written out.
TEST_CASE("block hash: golden values") {
  auto const sixteen = iota(0, 16);
  auto const four = iota(1000, 4);
  std::array<std::byte, 3> const bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  Hash128 const root = Xxh3BlockHash::root(default_seed);
  Hash128 const content = Xxh3BlockHash::content(sixteen, default_seed);
  Hash128 const first = Xxh3BlockHash::chain(root, content);
  Hash128 const second = Xxh3BlockHash::chain(first, content);
  CHECK(parts(root) == Parts{0xC3139BA451C2A538ULL, 0x25ED05521ED7D831ULL});
  CHECK(parts(Xxh3BlockHash::root(0)) == Parts{0x45C3B49D035665B2ULL, 0x2C0A8A99DC147D54ULL});
  CHECK(parts(content) == Parts{0xA6FF44F4D2197076ULL, 0xD1C30BAD18330A55ULL});
  CHECK(parts(Xxh3BlockHash::content(four, 1)) ==
        Parts{0x936B3D7BE9EE2138ULL, 0x8A2EEA8337809742ULL});
  CHECK(parts(Xxh3BlockHash::extra(bytes, default_seed)) ==
        Parts{0x9CCC7602697CD647ULL, 0x32529D5D74B9DDCBULL});
  CHECK(parts(first) == Parts{0x861BE50D14637B30ULL, 0x47B47312F8937C67ULL});
  CHECK(parts(second) == Parts{0xBE86FC9D4324EED3ULL, 0xEDA7C339F11F7101ULL});
}

TEST_CASE("block hash: every token, its place and the seed count") {
  for (std::size_t const n : {1U, 2U, 16U, 64U}) {
    auto const tokens = iota(5, n);
    std::set<Parts> seen{parts(Xxh3BlockHash::content(tokens, 1)),
                         parts(Xxh3BlockHash::content(tokens, 2))};
    for (std::size_t i = 0; i < n; ++i) {
      auto changed = tokens;
      changed[i] ^= 1 << 30;
      seen.insert(parts(Xxh3BlockHash::content(changed, 1)));
    }
    CHECK(seen.size() == n + 2);
  }
  auto const reversed = std::vector<TokenId>{2, 1};
  CHECK(Xxh3BlockHash::content(iota(1, 2), 0) != Xxh3BlockHash::content(reversed, 0));
}

TEST_CASE("block hash: a block behind another parent is another block") {
  Hash128 const a{1, 2};
  Hash128 const b{3, 4};
  Hash128 const content{5, 6};
  CHECK(Xxh3BlockHash::chain(a, content) != Xxh3BlockHash::chain(b, content));
  CHECK(Xxh3BlockHash::chain(a, content) != Xxh3BlockHash::chain(a, b));
  // A-B and B-A are different prefixes.
  Hash128 const root = Xxh3BlockHash::root(0);
  CHECK(Xxh3BlockHash::chain(Xxh3BlockHash::chain(root, a), b) !=
        Xxh3BlockHash::chain(Xxh3BlockHash::chain(root, b), a));
}

TEST_CASE("block hash: no two parents merge behind one content") {
  // The mix is a bijection of the parent: undo it step by step.
  auto const inverse = [](std::uint64_t odd) {
    std::uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  std::uint64_t const undo_low = inverse(0x9E3779B185EBCA87ULL);
  std::uint64_t const undo_high = inverse(0xC2B2AE3D27D4EB4FULL);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Hash128 const parent{i * 0x9E3779B97F4A7C15ULL, ~i * 0xBF58476D1CE4E5B9ULL};
    Hash128 const content{i * i * 977, i << 40};
    Hash128 const mixed = Xxh3BlockHash::chain(parent, content);
    std::uint64_t const low = mixed.low ^ (mixed.high >> 32);
    std::uint64_t const high = mixed.high * undo_high ^ (low >> 32) ^ content.high;
    REQUIRE(parts({low * undo_low ^ content.low, high}) == parts(parent));
  }
}

TEST_CASE("block hash: extra keys never hash as tokens") {
  auto const tokens = iota(7, 16);
  CHECK(Xxh3BlockHash::extra(std::as_bytes(std::span(tokens)), 3) !=
        Xxh3BlockHash::content(tokens, 3));
}

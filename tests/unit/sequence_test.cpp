// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/manage/sequence.hpp>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace kv::testing;
using kv::BlockCopy;
using kv::BlockId;
using kv::Errc;
using kv::Reuse;
using kv::Sequence;
using kv::SequenceId;
using kv::TokenRange;

namespace {

static_assert(std::is_nothrow_move_constructible_v<Sequence>);
static_assert(!std::is_copy_constructible_v<Sequence> && !std::is_copy_assignable_v<Sequence>);
static_assert(!std::is_default_constructible_v<Sequence>);
static_assert(std::is_nothrow_move_constructible_v<kv::Pin>);
static_assert(!std::is_copy_constructible_v<kv::Pin> && !std::is_copy_assignable_v<kv::Pin>);

Sequence opened(kv::KvCache& cache, std::uint64_t id = 1) {
  auto seq = cache.open(SequenceId{id}, Tokens{});
  REQUIRE(seq.has_value());
  return *std::move(seq);
}
std::vector<BlockCopy> taken(kv::KvCache& cache) {
  auto const copies = cache.take_copies();
  return {copies.begin(), copies.end()};
}
/// What a misuse is told; empty without a complaint.
template <class Code>
std::string refusal(Code&& code) {
  auto const outcome = outcome_of(std::forward<Code>(code));
  return outcome.aborted ? outcome.message : "";
}

}  // namespace

TEST_CASE("sequence: a handle that was moved from is closed, and its blocks go with the other") {
  kv::KvCache cache(pool_of(8));
  auto a = running(cache, 7, iota(0, 6));
  auto b = std::move(a);
  CHECK_FALSE(a.is_open());
  CHECK(b.id() == SequenceId{7});
  CHECK(b.num_blocks() == 2);
  CHECK_THAT(refusal([&] { (void)a.size(); }), contains_text("moved from or finished"));
  auto c = running(cache, 8, iota(50, 4));
  c = std::move(b);  // what c had is released
  CHECK(c.id() == SequenceId{7});
  CHECK(cache.stats().sequences == 1);
  CHECK(cache.stats().used == 2);
  std::move(c).finish(Reuse::likely);
  CHECK_FALSE(c.is_open());
  CHECK(cache.stats().used == 0);
}

TEST_CASE("sequence: blocks follow the size exactly") {
  kv::KvCache cache(pool_of(32));
  auto seq = opened(cache);
  for (std::int32_t const n : {0, 1, 3, 0, 1, 8, 5}) {
    auto const before = seq.size();
    auto const needed = seq.blocks_needed(n);
    auto const used = cache.stats().used;
    CHECK(seq.would_fit(n));
    CHECK(seq.reserve(n).value() == TokenRange{before, n});
    CHECK(seq.size() == before + n);
    CHECK(seq.num_blocks() == kv::blocks_for(seq.size(), 4));
    CHECK(cache.stats().used == used + needed);
  }
  CHECK(seq.blocks().size() == 5);
  CHECK(seq.committed() == 0);
}

TEST_CASE("sequence: reserved positions have no ids until somebody says") {
  kv::KvCache cache(pool_of(8));
  auto seq = opened(cache);
  REQUIRE(seq.reserve(6).has_value());
  CHECK(tokens_of(seq) == Tokens(6, kv::unknown_token));
  seq.set_tokens(4, Tokens{14, 15});
  seq.set_tokens(0, Tokens{10, 11});
  CHECK(tokens_of(seq) == Tokens{10, 11, kv::unknown_token, kv::unknown_token, 14, 15});
  seq.commit(2);
  CHECK_THAT(refusal([&] { seq.commit(3); }), contains_text("an id is unknown"));
  seq.set_tokens(2, Tokens{12, 13});
  seq.commit(6);
  CHECK(seq.committed() == 6);
  CHECK(cache.match(cache.hash(iota(10, 5))) == 4);
  CHECK_THAT(refusal([&] { seq.set_tokens(5, Tokens{9}); }), contains_text("are final"));
  CHECK_THAT(refusal([&] { seq.set_tokens(6, Tokens{9}); }),
             contains_text("must have been reserved"));
  // Drafts that are forgotten take their ids along.
  REQUIRE(seq.append(Tokens{16, 17}).has_value());
  seq.truncate(6);
  REQUIRE(seq.reserve(1).has_value());
  CHECK(seq.token(6) == kv::unknown_token);
}

TEST_CASE("sequence: nothing is findable before it is final") {
  kv::KvCache cache(pool_of(8));
  auto seq = opened(cache);
  REQUIRE(seq.append(iota(0, 9)).has_value());
  auto const key = cache.hash(iota(0, 9));
  CHECK(cache.match(key) == 0);
  seq.commit(3);
  CHECK(cache.match(key) == 0);
  seq.commit(4);
  CHECK(cache.match(key) == 4);
  seq.commit(2);  // no way back by a commit
  CHECK(seq.committed() == 4);
  seq.commit(9);
  CHECK(cache.match(key) == 8);
  CHECK(cache.is_published(seq.blocks()[1]));
  CHECK_FALSE(cache.is_published(seq.blocks()[2]));
  CHECK_THAT(refusal([&] { seq.commit(10); }), contains_text("positions that exist"));
}

TEST_CASE("sequence: slots are asked for by range") {
  kv::KvCache cache(pool_of(8));
  auto seq = running(cache, 1, iota(0, 7));
  std::vector<kv::Slot> slots(3);
  seq.slot_mapping({3, 3}, slots);
  auto const first = kv::Slot{seq.blocks()[0].value()} * 4;
  auto const second = kv::Slot{seq.blocks()[1].value()} * 4;
  CHECK(slots == std::vector<kv::Slot>{first + 3, second, second + 1});
  CHECK_THAT(refusal([&] { seq.slot_mapping({6, 2}, slots); }), contains_text("must exist"));
  CHECK_THAT(refusal([&] { seq.slot_mapping({0, 4}, slots); }), contains_text("hold range.count"));
}

TEST_CASE("sequence: what fails changes nothing") {
  auto config = pool_of(4);
  config.max_sequence_tokens = 12;
  kv::KvCache cache(config);
  auto seq = running(cache, 1, iota(0, 6));
  auto const other = running(cache, 2, iota(50, 6));
  auto const before = cache.stats();
  auto const blocks = blocks_of(seq);
  auto const failed = [&](kv::Result<TokenRange> const& result) {
    REQUIRE_FALSE(result.has_value());
    CHECK(cache.stats() == before);
    CHECK(blocks_of(seq) == blocks);
    CHECK(tokens_of(seq) == iota(0, 6));
    CHECK_VERIFIED(cache);
    return result.error();
  };
  CHECK(failed(seq.reserve(3)) == Errc::no_free_blocks);
  CHECK(failed(seq.append(iota(6, 6))) == Errc::no_free_blocks);
  CHECK(failed(seq.reserve(7)) == Errc::never_fits);
  CHECK(failed(seq.append(Tokens(1000, 1))) == Errc::never_fits);
  CHECK_FALSE(seq.would_fit(3));
  CHECK_FALSE(seq.would_fit(7));
  CHECK(seq.would_fit(2));
  CHECK(seq.reserve(2).has_value());
}

TEST_CASE("truncate: drafts go, whole blocks behind n are free at once") {
  kv::KvCache cache(pool_of(8));
  auto seq = running(cache, 1, iota(0, 5));
  REQUIRE(seq.append(iota(5, 12)).has_value());
  CHECK(seq.num_blocks() == 5);
  seq.truncate(6);
  CHECK(seq.size() == 6);
  CHECK(seq.committed() == 5);
  CHECK(seq.num_blocks() == 2);
  CHECK(cache.available_blocks() == 6);
  seq.truncate(6);
  CHECK(seq.size() == 6);
  CHECK_THAT(refusal([&] { seq.truncate(7); }), contains_text("within size()"));
  seq.truncate(0);
  CHECK(seq.num_blocks() == 0);
  CHECK_VERIFIED(cache);
}

TEST_CASE("truncate: below what is committed, published blocks stay findable") {
  kv::KvCache cache(pool_of(8));
  auto seq = running(cache, 1, iota(0, 12));
  auto const blocks = blocks_of(seq);
  seq.truncate(6);
  CHECK(seq.committed() == 6);
  CHECK(seq.num_blocks() == 2);
  CHECK(cache.stats().idle == 1);
  CHECK(cache.match(cache.hash(iota(0, 13))) == 12);
  // The block that was cut can still be found by others: writing there copies first.
  CHECK(seq.blocks_needed(1) == 1);
  REQUIRE(seq.append(Tokens{70}).has_value());
  CHECK(taken(cache) == std::vector<BlockCopy>{{blocks[1], seq.blocks()[1], 2}});
  CHECK(seq.blocks()[1] != blocks[1]);
  seq.commit(7);
  CHECK(tokens_of(seq) == Tokens{0, 1, 2, 3, 4, 5, 70});
  CHECK(cache.match(cache.hash(iota(0, 13))) == 12);
  CHECK_VERIFIED(cache);
}

TEST_CASE(
    "truncate: a sole owner without a free block writes in place, and the block is no hit any "
    "more") {
  kv::KvCache cache(pool_of(2));
  auto seq = running(cache, 1, iota(0, 8));
  auto const blocks = blocks_of(seq);
  seq.truncate(6);
  CHECK(seq.would_fit(1));
  REQUIRE(seq.append(Tokens{70}).has_value());
  CHECK(blocks_of(seq) == blocks);
  CHECK(taken(cache).empty());
  CHECK(cache.stats().unpublished_blocks == 1);
  CHECK(cache.match(cache.hash(iota(0, 9))) == 4);
  CHECK_VERIFIED(cache);
}

TEST_CASE("fork: shares every block; the first append of either copies the tail once") {
  kv::KvCache cache(pool_of(16));
  auto a = running(cache, 1, iota(0, 10));
  auto forked = a.fork(SequenceId{2});
  REQUIRE(forked.has_value());
  auto& b = *forked;
  CHECK(b.id() == SequenceId{2});
  CHECK(blocks_of(b) == blocks_of(a));
  CHECK(tokens_of(b) == iota(0, 10));
  CHECK(b.committed() == 10);
  CHECK(b.cached() == 10);
  CHECK(cache.stats().used == 3);
  CHECK(cache.stats().forks == 1);
  CHECK(a.unshared_blocks() == 0);

  auto const shared_tail = a.blocks()[2];
  CHECK(b.blocks_needed(1) == 1);
  CHECK(b.blocks_needed(3) == 2);
  REQUIRE(b.append(Tokens{91}).has_value());
  CHECK(taken(cache) == std::vector<BlockCopy>{{shared_tail, b.blocks()[2], 2}});
  CHECK(b.blocks()[1] == a.blocks()[1]);
  CHECK(b.blocks()[2] != shared_tail);
  // Now the tail is a's alone.
  CHECK(a.blocks_needed(1) == 0);
  REQUIRE(a.append(Tokens{81}).has_value());
  CHECK(taken(cache).empty());
  CHECK(a.blocks()[2] == shared_tail);
  a.commit(11);
  b.commit(11);
  CHECK(a.token(10) == 81);
  CHECK(b.token(10) == 91);
  CHECK(b.unshared_blocks() == 1);
  CHECK(b.unshared_tokens() == 3);
  CHECK_VERIFIED(cache);
}

TEST_CASE("fork: at a block's end nothing has to be copied") {
  kv::KvCache cache(pool_of(16));
  auto a = running(cache, 1, iota(0, 8));
  auto b = a.fork(SequenceId{2});
  REQUIRE(b.has_value());
  REQUIRE(b->append(Tokens{91}).has_value());
  REQUIRE(a.append(Tokens{81}).has_value());
  CHECK(taken(cache).empty());
}

TEST_CASE("fork: a chain of untaken copies collapses to its first source") {
  kv::KvCache cache(pool_of(16));
  auto a = running(cache, 1, iota(0, 6));
  auto b = a.fork(SequenceId{2});
  REQUIRE(b.has_value());
  auto const source = a.blocks()[1];
  REQUIRE(b->append(Tokens{91}).has_value());  // copies 2 positions of the source
  CHECK_THAT(refusal([&] { b->commit(7); }), contains_text("take_copies first"));
  b->truncate(6);
  auto c = b->fork(SequenceId{3});
  REQUIRE(c.has_value());
  REQUIRE(c->append(Tokens{92}).has_value());  // a copy of the copy
  auto const copies = taken(cache);
  REQUIRE(copies.size() == 2);
  for (auto const& copy : copies) CHECK(copy.src == source);
  CHECK(copies[0].dst != copies[1].dst);
  CHECK(taken(cache).empty());
  CHECK_VERIFIED(cache);
}

TEST_CASE("fork: releasing an untaken copy's target drops the copy") {
  kv::KvCache cache(pool_of(16));
  auto a = running(cache, 1, iota(0, 6));
  {
    auto b = a.fork(SequenceId{2});
    REQUIRE(b.has_value());
    REQUIRE(b->append(Tokens{91}).has_value());
  }
  CHECK(taken(cache).empty());
  CHECK(cache.stats().dropped_copies == 1);
  CHECK(cache.stats().free == 14);
  CHECK_VERIFIED(cache);
}

TEST_CASE("fork: needs final positions and a free handle") {
  auto config = pool_of(8);
  config.max_sequences = 2;
  kv::KvCache cache(config);
  auto a = running(cache, 1, iota(0, 6));
  REQUIRE(a.append(Tokens{6}).has_value());
  CHECK(a.fork(SequenceId{2}).error() == Errc::uncommitted);
  a.commit(7);
  auto const b = a.fork(SequenceId{2});
  CHECK(b.has_value());
  auto const before = cache.stats();
  CHECK(a.fork(SequenceId{3}).error() == Errc::no_free_sequences);
  CHECK(cache.stats() == before);
}

TEST_CASE("destroying a handle gives its blocks back, the full ones findable") {
  kv::KvCache cache(pool_of(8));
  {
    auto seq = running(cache, 1, iota(0, 10));
    REQUIRE(seq.reserve(4).has_value());  // in the middle of its work
    CHECK(cache.stats().used == 4);
  }
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().idle == 2);
  CHECK(cache.match(cache.hash(iota(0, 10))) == 8);
}

TEST_CASE("finish: Reuse::none lets what only this sequence used go first, deepest first") {
  kv::KvCache cache(pool_of(6));
  leave_idle(cache, iota(100, 8));
  auto last_turn = running(cache, 1, iota(0, 16));
  std::move(last_turn).finish(Reuse::none);
  CHECK(cache.stats().idle == 6);
  auto const newcomer = running(cache, 2, iota(200, 12));
  CHECK(cache.match(cache.hash(iota(100, 9))) == 8);
  CHECK(cache.match(cache.hash(iota(0, 17))) == 4);
  CHECK_VERIFIED(cache);
}

TEST_CASE("finish: Reuse::none spares what others have used") {
  kv::KvCache cache(pool_of(6));
  leave_idle(cache, iota(0, 8));                                  // a common beginning, two blocks
  leave_idle(cache, iota(100, 8));                                // younger than that
  auto seq = running(cache, 1, joined(iota(0, 8), iota(50, 8)));  // hits it, adds two
  CHECK(seq.cached() == 8);
  std::move(seq).finish(Reuse::none);
  auto const newcomer = running(cache, 2, iota(200, 8));
  CHECK(cache.match(cache.hash(iota(0, 9))) == 8);
  CHECK(cache.match(cache.hash(iota(100, 9))) == 8);
  CHECK(cache.match(cache.hash(joined(iota(0, 8), iota(50, 8)))) == 8);
}

TEST_CASE("finish: Reuse::resume counts a preemption and keeps the blocks as likely does") {
  kv::KvCache cache(pool_of(8));
  auto seq = running(cache, 1, iota(0, 10));
  std::move(seq).finish(Reuse::resume);
  CHECK(cache.stats().preemptions == 1);
  CHECK(cache.match(cache.hash(iota(0, 10))) == 8);
}

TEST_CASE("sequence: tokens and blocks that only this sequence has") {
  kv::KvCache cache(pool_of(16));
  leave_idle(cache, iota(0, 8));
  auto const seq = running(cache, 1, iota(0, 11));
  CHECK(seq.unshared_blocks() == 3);  // idle blocks were revived: no other row has them
  CHECK(seq.unshared_tokens() == 11);
  auto const other = running(cache, 2, iota(0, 9));
  CHECK(seq.unshared_blocks() == 1);
  CHECK(seq.unshared_tokens() == 3);
}

TEST_CASE("twins: kept by default, and they hold nothing") {
  kv::KvCache cache(pool_of(8));
  std::optional first = running(cache, 1, iota(0, 5));
  std::optional twin = running(cache, 2, iota(0, 5), {.read = false});
  auto const bearer = first->blocks()[0];
  auto const heir = twin->blocks()[0];
  CHECK(heir != bearer);
  CHECK_FALSE(cache.is_published(heir));
  CHECK(cache.references(bearer) == 1);
  CHECK(cache.references(heir) == 1);
  CHECK(twin->unshared_blocks() == 2);
  CHECK(cache.stats().twin_blocks == 1);
  first.reset();  // the twin bears the content from now on
  CHECK(cache.is_published(heir));
  CHECK_FALSE(cache.is_published(bearer));
  CHECK(twin->blocks()[0] == heir);
  CHECK(cache.stats().moved_blocks == 1);
  CHECK(cache.stats().used == 2);
  CHECK(cache.stats().free == 6);
  twin.reset();
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().idle == 1);
  CHECK_VERIFIED(cache);
}

TEST_CASE("twins: content that nobody references moves to the block that met it") {
  for (auto const twins : {kv::Twins::keep, kv::Twins::adopt}) {
    CAPTURE(int(twins));
    auto config = pool_of(8);
    config.twins = twins;
    kv::KvCache cache(config);
    leave_idle(cache, iota(0, 4));
    auto const seq = running(cache, 1, iota(0, 5), {.read = false});
    CHECK(cache.is_published(seq.blocks()[0]));
    CHECK(cache.stats().idle == 0);
    CHECK(cache.stats().used == 2);
    CHECK(cache.stats().twin_blocks == 1);
    CHECK(cache.stats().moved_blocks == 1);
    CHECK(cache.stats().adopted_blocks == 0);
    CHECK_VERIFIED(cache);
  }
}

TEST_CASE("twins: Twins::adopt switches the row, Twins::keep never does") {
  SECTION("Twins::adopt") {
    auto config = pool_of(8);
    config.twins = kv::Twins::adopt;
    kv::KvCache cache(config);
    auto const first = running(cache, 1, iota(0, 5));
    auto const twin = running(cache, 2, iota(0, 5), {.read = false});
    CHECK(twin.blocks()[0] == first.blocks()[0]);
    CHECK(cache.references(first.blocks()[0]) == 2);
    CHECK(cache.stats().adopted_blocks == 1);
    CHECK(cache.stats().used == 3);
  }
  SECTION("Twins::keep, and a full pool") {
    kv::KvCache cache(pool_of(4));
    auto const first = running(cache, 1, iota(0, 5));
    auto twin = running(cache, 2, iota(0, 5), {.read = false});
    auto const kept = twin.blocks()[0];
    CHECK(cache.available_blocks() == 0);
    CHECK(twin.would_fit(3));
    CHECK_FALSE(twin.would_fit(4));
    CHECK_FALSE(twin.append(iota(5, 4)).has_value());
    REQUIRE(twin.append(iota(5, 3)).has_value());
    CHECK(twin.blocks()[0] == kept);
    CHECK(tokens_of(twin) == iota(0, 8));
    CHECK_VERIFIED(cache);
  }
}

TEST_CASE("sequence: positions computed elsewhere are committed when they arrive") {
  kv::KvCache cache(pool_of(8));
  leave_idle(cache, iota(0, 4));
  auto const key = cache.hash(iota(0, 12));
  auto seq = cache.open(SequenceId{1}, key, {.external_tokens = 10});
  REQUIRE(seq.has_value());
  CHECK(seq->cached() == 4);
  CHECK(seq->size() == 10);
  CHECK(seq->committed() == 4);
  CHECK(seq->external_tokens() == 6);
  CHECK(tokens_of(*seq) == iota(0, 10));
  CHECK(cache.match(key) == 4);
  seq->commit(10);
  CHECK(cache.match(key) == 8);
  CHECK(cache.stats().external_tokens == 6);
  CHECK_THAT(refusal([&] { (void)cache.open(SequenceId{2}, key, {.external_tokens = 13}); }),
             contains_text("within the prompt"));
}

// SPDX-License-Identifier: Apache-2.0
// Contracts 10 and 11 under Reclaim::deferred: a block is fenced by the last step that used it.
#include "contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;

namespace {

/// A cache whose engine says with a `Batch` which sequences its steps use.
struct Device {
  explicit Device(std::int32_t num_blocks, kv::Twins twins = kv::Twins::keep)
      : cache([&] {
          auto config = small_pool(num_blocks);
          config.reclaim = kv::Reclaim::deferred;
          config.twins = twins;
          config.max_sequences = num_blocks + 4;
          return config;
        }()),
        batch(cache, {.max_sequences = 8, .max_tokens = 64, .max_blocks_per_sequence = 0}) {}

  /// A step of the last position of each of them, enqueued.
  kv::Tick step(std::initializer_list<kv::Sequence const*> sequences) {
    batch.begin_step();
    for (auto const* seq : sequences) REQUIRE(batch.add(*seq, {seq->size() - 1, 1}).has_value());
    return cache.end_step();
  }

  kv::KvCache cache;
  kv::Batch batch;
};

/// Takes every block that can be had, one by one: the content that is still found then.
std::vector<std::int32_t> found_while_taken(kv::KvCache& cache, Tokens const& prompt) {
  std::vector<std::int32_t> found;
  std::vector<kv::Sequence> holders;
  while (cache.available_blocks() > 0) {
    auto seq = cache.open(SequenceId{900}, Tokens{7777}, {.reserve = 1, .read = false});
    REQUIRE(seq.has_value());
    holders.push_back(std::move(*seq));
    found.push_back(cached_tokens(cache, prompt));
  }
  return found;
}

}  // namespace

TEST_CASE("contract 11: what a finished request gives back can be had at once") {
  // Its last step was reclaimed before it went: no empty step, though another step is open.
  Device device(4);
  auto& cache = device.cache;
  auto seq = std::optional(started(cache, 1, count_from(0, 10)));
  cache.reclaim(device.step({&*seq}));
  seq.reset();
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.available_blocks() == 4);
  CHECK(cache.stats().idle == 2);
  CHECK(cache.open(SequenceId{2}, count_from(50, 16), {.reserve = 16}).has_value());
}

TEST_CASE("contract 11: a sequence that no step used gives back at once") {
  Device device(4);
  auto& cache = device.cache;
  { auto const seq = started(cache, 1, count_from(0, 10)); }
  CHECK(cache.available_blocks() == 4);
  // Named without tokens, it isn't used either.
  {
    auto const seq = started(cache, 2, count_from(50, 10));
    device.batch.begin_step();
    REQUIRE(device.batch.add(seq, {10, 0}).has_value());
  }
  CHECK(cache.available_blocks() == 4);
}

TEST_CASE("contract 11: blocks wait for the last step that used them, not for the open one") {
  Device device(4);
  auto& cache = device.cache;
  auto seq = std::optional(started(cache, 1, count_from(0, 10)));
  auto const first = device.step({&*seq});
  auto const second = device.step({&*seq});
  auto const third = device.step({});
  seq.reset();  // the fourth step is open
  CHECK(cache.incoming_blocks() == 3);
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 3);
  cache.reclaim(second);
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.available_blocks() == 4);
  cache.reclaim(third);
}

TEST_CASE("contract 11: truncated blocks wait for the last step that used their sequence") {
  Device device(4);
  auto& cache = device.cache;
  auto seq = started(cache, 1, count_from(0, 12));
  auto const first = device.step({&seq});
  seq.truncate(4);
  CHECK(cache.incoming_blocks() == 2);
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 0);
  seq.truncate(0);
  CHECK(cache.available_blocks() == 4);
}

TEST_CASE(
    "contract 11: a shared block waits for every step that used it, in any order of its owners") {
  Device device(4);
  auto& cache = device.cache;
  auto batched = std::optional(started(cache, 1, count_from(0, 8)));
  auto other = std::optional(*batched->fork(SequenceId{2}));
  auto const first = device.step({&*batched});
  batched.reset();  // not the last owner
  CHECK(cache.incoming_blocks() == 0);
  other.reset();  // no step used this one
  CHECK(cache.incoming_blocks() == 2);
  CHECK(cached_tokens(cache, count_from(0, 9)) == 8);
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.stats().idle == 2);
}

TEST_CASE("contract 11: positions computed elsewhere fence their blocks until they are committed") {
  Device device(4);
  auto& cache = device.cache;
  Tokens const prompt = count_from(0, 8);
  auto const key = cache.hash(prompt);
  {
    auto const seq = cache.open(SequenceId{1}, key, {.external_tokens = 8});
    REQUIRE(seq.has_value());
  }
  // A transfer that the open step started may still write there.
  CHECK(cache.incoming_blocks() == 2);
  cache.reclaim(cache.end_step());
  CHECK(cache.incoming_blocks() == 0);
  {
    auto seq = cache.open(SequenceId{2}, key, {.external_tokens = 8});
    REQUIRE(seq.has_value());
    seq->commit(7);
  }
  CHECK(cache.incoming_blocks() == 2);
  cache.reclaim(cache.end_step());
  {
    auto seq = cache.open(SequenceId{3}, key, {.external_tokens = 8, .read = false});
    REQUIRE(seq.has_value());
    seq->commit(8);  // they have arrived
  }
  CHECK(cache.incoming_blocks() == 0);
}

TEST_CASE("contract 11: without a Batch and without used_by, blocks wait for the open step") {
  auto config = small_pool(4);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  auto seq = std::optional(started(cache, 1, count_from(0, 8)));
  cache.reclaim(cache.end_step());
  seq.reset();
  CHECK(cache.incoming_blocks() == 2);
  cache.reclaim(cache.end_step());
  CHECK(cache.incoming_blocks() == 0);
}

TEST_CASE("contract 11: used_by says which step uses a sequence without a Batch") {
  auto config = small_pool(8);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  auto used = std::optional(started(cache, 1, count_from(0, 8)));
  auto unused = std::optional(started(cache, 2, count_from(50, 8)));
  used->used_by(cache.open_tick());
  auto const first = cache.end_step();
  auto const second = cache.end_step();
  used->used_by(first);  // never earlier than before
  unused.reset();
  CHECK(cache.incoming_blocks() == 0);

  SECTION("in flight") {
    used.reset();
    CHECK(cache.incoming_blocks() == 2);
    cache.reclaim(first);
    CHECK(cache.incoming_blocks() == 0);
  }
  SECTION("a later step") {
    used->used_by(second);
    used->used_by(first);
    used.reset();
    cache.reclaim(first);
    CHECK(cache.incoming_blocks() == 2);
    cache.reclaim(second);
    CHECK(cache.incoming_blocks() == 0);
  }
  SECTION("reclaimed before it goes") {
    cache.reclaim(first);
    used.reset();
    CHECK(cache.incoming_blocks() == 0);
  }
  SECTION("a step that isn't open yet") {
    auto const misuse = outcome_of([&] { used->used_by(kv::Tick{cache.open_tick().value() + 1}); });
    CHECK(misuse.aborted);
  }
}

TEST_CASE("contract 11: used_by fences the open step of a stream, too") {
  kv::KvCache cache(small_pool(4));
  auto seq = std::optional(started(cache, 1, count_from(0, 8)));
  seq->used_by(cache.open_tick());
  seq.reset();
  CHECK(cache.incoming_blocks() == 2);
  cache.end_step();
  CHECK(cache.incoming_blocks() == 0);
}

TEST_CASE("contract 11: both ends of a copy are used by the step that took it") {
  Device device(8);
  auto& cache = device.cache;
  auto seq = std::optional(started(cache, 1, count_from(0, 6)));
  auto fork = std::optional(*seq->fork(SequenceId{2}));
  REQUIRE(fork->append(Tokens{7}).has_value());
  auto const taken = cache.take_copies();
  REQUIRE(taken.size() == 1);
  kv::BlockId const source = taken[0].src;
  // The source's owner mustn't write on while the step reads it.
  CHECK(cache.is_in_flight(source));
  CHECK(seq->blocks_needed(1) == 1);
  auto const copied = cache.end_step();
  seq.reset();
  fork.reset();
  CHECK(cache.incoming_blocks() == 2);
  CHECK(cache.stats().idle == 1);
  cache.reclaim(copied);
  CHECK(cache.incoming_blocks() == 0);
  CHECK_FALSE(cache.is_in_flight(source));
}

TEST_CASE("contract 11: a block that was found again still waits for the step that used it") {
  Device device(3);
  auto& cache = device.cache;
  auto gone = std::optional(started(cache, 1, count_from(0, 8)));
  auto const first = device.step({&*gone});
  gone.reset();
  auto heir = cache.open(SequenceId{2}, count_from(0, 9));
  REQUIRE(heir.has_value());
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.is_in_flight(heir->blocks()[0]));
  { auto const dropped = std::move(*heir); }
  CHECK(cache.incoming_blocks() == 2);  // not the heir's use: that of the first step
  cache.reclaim(first);
  CHECK(cache.stats().idle == 2);
}

TEST_CASE("contract 11: an idle block that is evicted is free at once") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    CAPTURE(int(reclaim));
    auto config = small_pool(4);
    config.reclaim = reclaim;
    kv::KvCache cache(config);
    Ids row;
    {
      auto const seq = started(cache, 1, count_from(0, 4));
      row = ids_of(seq);
    }
    cache.reclaim(cache.end_step());
    CHECK(cache.stats().idle == 1);
    CHECK(cache.evict(row) == 1);
    CHECK(cache.stats().free == 4);
    CHECK(cache.incoming_blocks() == 0);
  }
}

TEST_CASE("contract 11: a waiting block that is evicted waits on, without content") {
  Device device(4);
  auto& cache = device.cache;
  auto seq = std::optional(started(cache, 1, count_from(0, 4)));
  auto const row = ids_of(*seq);
  auto const first = device.step({&*seq});
  seq.reset();
  CHECK(cache.evict(row) == 1);
  CHECK(cached_tokens(cache, count_from(0, 5)) == 0);
  CHECK(cache.incoming_blocks() == 1);
  cache.reclaim(first);
  CHECK(cache.stats().free == 4);
}

TEST_CASE("contract 11: waiting blocks leave by the step they wait for, not by order of release") {
  Device device(8);
  auto& cache = device.cache;
  auto early = std::optional(started(cache, 1, count_from(0, 8)));
  auto late = std::optional(started(cache, 2, count_from(50, 8)));
  auto const first = device.step({&*early, &*late});
  auto const second = device.step({&*late});
  late.reset();
  early.reset();
  CHECK(cache.incoming_blocks() == 4);
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 2);
  CHECK(cache.stats().idle == 2);
  cache.reclaim(second);
  CHECK(cache.incoming_blocks() == 0);
  // What waited longer came back later: it is evicted later.
  auto const all = cache.open(SequenceId{3}, count_from(90, 24), {.reserve = 24});
  REQUIRE(all.has_value());
  CHECK(cached_tokens(cache, count_from(0, 9)) == 0);
  CHECK(cached_tokens(cache, count_from(50, 9)) == 8);
}

TEST_CASE("contract 10: deferred, a parent waits for its waiting child") {
  // The child's owner has a twin of the parent, so that nothing else makes the parent wait.
  Device device(8);
  auto& cache = device.cache;
  Tokens const prompt = count_from(0, 8);
  auto parent = std::optional(started(cache, 1, count_from(0, 4)));
  auto child = std::optional(started(cache, 2, prompt, {.read = false}));
  kv::BlockId const bearer = parent->blocks()[0];
  REQUIRE(cache.is_published(bearer));
  REQUIRE(cache.is_published(child->blocks()[1]));
  auto const first = device.step({&*child});
  child.reset();
  CHECK(cache.incoming_blocks() == 2);
  parent.reset();  // no step used it
  CHECK(cache.incoming_blocks() == 3);
  CHECK(cache.stats().idle == 0);
  CHECK(cache.verify());
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.stats().idle == 2);
  cache.end_step();
  auto const found = found_while_taken(cache, prompt + Tokens{9});
  REQUIRE(found.size() == 8);
  CHECK(found[5] == 8);  // six free blocks
  CHECK(found[6] == 4);
  CHECK(found[7] == 0);
}

TEST_CASE("contract 10: deferred, a parent waits for the step of a child that waited") {
  // The child's content goes while it waits; the parent keeps the fence that came with it.
  Device device(8);
  auto& cache = device.cache;
  auto parent = std::optional(started(cache, 1, count_from(0, 4)));
  auto child = std::optional(started(cache, 2, count_from(0, 8), {.read = false}));
  auto const row = ids_of(*child);
  auto const first = device.step({&*child});
  child.reset();
  CHECK(cache.evict(Ids{row[1]}) == 1);
  parent.reset();
  CHECK(cache.incoming_blocks() == 3);
  cache.reclaim(first);
  CHECK(cache.incoming_blocks() == 0);
  CHECK(cache.stats().idle == 1);
  CHECK(cache.verify());
}

TEST_CASE("contract 10: deferred, a parent waits for a child that a copy holds") {
  Device device(8);
  auto& cache = device.cache;
  Tokens const prompt = count_from(0, 12);
  kv::Tick copied;
  {
    auto seq = started(cache, 1, prompt);
    seq.truncate(10);
    REQUIRE(seq.append(Tokens{70}).has_value());
    REQUIRE(cache.take_copies().size() == 1);
    copied = cache.end_step();
  }
  CHECK(cache.incoming_blocks() == 4);  // both ends, and the two before the source
  cache.reclaim(copied);
  CHECK(cache.stats().idle == 3);
  auto const found = found_while_taken(cache, prompt + Tokens{9});
  REQUIRE(found.size() == 8);
  CHECK(found[4] == 12);
  CHECK(found[5] == 8);
  CHECK(found[6] == 4);
  CHECK(found[7] == 0);
}

TEST_CASE("contract 10: deferred, finish(none) leaves in front, deepest first, after its step") {
  Device device(8);
  auto& cache = device.cache;
  leave_cached(cache, 1, count_from(50, 8));  // older
  auto seq = started(cache, 2, count_from(0, 12));
  auto const first = device.step({&seq});
  std::move(seq).finish(kv::Reuse::none);
  CHECK(cache.incoming_blocks() == 3);
  cache.reclaim(first);
  CHECK(cache.stats().idle == 5);
  auto const taken = cache.open(SequenceId{3}, count_from(90, 20), {.reserve = 20});
  REQUIRE(taken.has_value());  // three free blocks and two idle ones
  CHECK(cached_tokens(cache, count_from(0, 13)) == 4);
  CHECK(cached_tokens(cache, count_from(50, 9)) == 8);
  CHECK(cache.verify());
}

TEST_CASE("contract 10: deferred, finish(none) puts no parent first that waits longer") {
  auto config = small_pool(5);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  Tokens const prompt = count_from(0, 8), branch = count_from(0, 4) + count_from(50, 4);
  auto owner = cache.open(SequenceId{1}, prompt);
  auto other = cache.open(SequenceId{2}, branch);
  fill(cache, *owner, prompt);
  fill(cache, *other, branch);  // a twin of the parent, and another child of it
  other->used_by(cache.open_tick());
  kv::BlockId const child = other->blocks()[1];
  other->truncate(2);
  REQUIRE(other->append(Tokens{9}).has_value());
  CHECK(cache.evict({&child, 1}) == 1);
  std::move(*owner).finish(kv::Reuse::none);  // its parent waits for the other child's step
  CHECK(cache.stats().idle == 1);
  cache.reclaim(cache.end_step());
  CHECK(cache.stats().idle == 2);
  CHECK(cache.verify());
  auto const taken = cache.open(SequenceId{3}, count_from(90, 12), {.reserve = 12});
  REQUIRE(taken.has_value());  // two free blocks and an idle one
  CHECK(cached_tokens(cache, prompt + Tokens{99}) == 4);
}

TEST_CASE("contract 11: a fence stays with the block when content moves to it") {
  auto config = small_pool(4);
  config.reclaim = kv::Reclaim::deferred;
  kv::KvCache cache(config);
  Tokens const prompt = count_from(0, 4);
  started(cache, 9, count_from(90, 1)).used_by(cache.open_tick());  // from now on unused is free
  cache.reclaim(cache.end_step());
  std::optional<kv::Sequence> bearer, twin;
  bearer.emplace(*cache.open(SequenceId{1}, prompt));
  twin.emplace(*cache.open(SequenceId{2}, prompt));
  fill(cache, *bearer, prompt);
  fill(cache, *twin, prompt);
  std::optional<kv::Sequence> fork(*twin->fork(SequenceId{3}));
  kv::BlockId const block = fork->blocks()[0];
  CHECK_FALSE(cache.is_published(block));
  twin->used_by(cache.open_tick());
  twin.reset();
  bearer.reset();
  CHECK(cache.is_published(block));
  CHECK(cache.available_blocks() == 3);
  fork.reset();
  CHECK(cache.incoming_blocks() == 1);
  cache.reclaim(cache.end_step());
  CHECK(cache.available_blocks() == 4);
  CHECK(cache.verify());
}

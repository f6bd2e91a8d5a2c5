// SPDX-License-Identifier: Apache-2.0
// Contract 16: after construction nothing is allocated, except inside PromptKey.
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/step/batch.hpp>

#include "catch.hpp"
#include "counting.hpp"

namespace kv = pagedkv;
using kv::SequenceId;
using pagedkv::testing::AllocationCount;

namespace {

class Counter final : public kv::CacheObserver {
 public:
  std::int64_t events = 0;
  void on_event(kv::CacheEvent const&) noexcept override { ++events; }
};

constexpr std::int32_t prompt_tokens = 40;
constexpr std::int32_t num_prompts = 12;
constexpr std::int32_t num_running = 6;

/// An engine's life with everything on: prefills, decodes, drafts that are rejected, forks,
/// cancellations, preemption, eviction. All its own memory is there before the first step.
class Engine {
 public:
  Engine(kv::KvCacheConfig const& config)
      : cache_(config),
        batch_(cache_, {.max_sequences = 16, .max_tokens = 512, .max_blocks_per_sequence = 0}) {
    for (std::int32_t p = 0; p < num_prompts; ++p) {
      std::vector<kv::TokenId> tokens(prompt_tokens);
      // Every third shares its beginning with another.
      std::iota(tokens.begin(), tokens.end(), p / 3 * 1000);
      for (std::size_t i = 22; i < tokens.size(); ++i) tokens[i] += p % 3;
      keys_.push_back(cache_.hash(tokens, {.salt = p % 5 == 0 ? "tenant" : "",
                                           .adapter = {},
                                           .adapter_generation = 0,
                                           .media = {}}));
    }
    slots_.resize(1024);
    numbers_.resize(4096);
    buffers_.slot_mapping = slots_;
    auto const part = [&](std::size_t i) { return std::span(numbers_).subspan(i * 512, 512); };
    buffers_.query_offsets = part(0);
    buffers_.sequence_lengths = part(1);
    buffers_.indptr = part(2);
    buffers_.indices = part(3);
    buffers_.last_block_len = part(4);
    buffers_.row_moves = moves_;
    buffers_.row_changes = changes_;
    buffers_.new_blocks = new_blocks_;
    buffers_.runs = runs_;
    buffers_.copies = copies_;
    table_.resize(32 * static_cast<std::size_t>(batch_.table_width()));
  }

  void step() {
    auto& place = running_[step_ % num_running];
    auto const& key = keys_[(step_ * 7) % keys_.size()];
    batch_.begin_step();
    if (place) leave(*place);
    place.reset();
    (void)cache_.match(key);
    (void)cache_.would_fit(key, {.reserve = prompt_tokens});
    (void)cache_.admission(key);
    kv::OpenOptions options;
    options.reserve = step_ % 2 == 0 ? prompt_tokens : 0;
    options.external_tokens = step_ % 5 == 0 ? 16 : 0;
    options.read = step_ % 3 != 0;
    if (auto opened = step_ % 7 == 0 ? cache_.open(SequenceId{step_}, key.tokens(), options)
                                     : cache_.open(SequenceId{step_}, key, options)) {
      place.emplace(std::move(*opened));
      prompts_[step_ % num_running] = key.tokens();
    }
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i]) grow(*running_[i], prompts_[i]);
    }
    batch_.pad_to(256, 12);
    if (!batch_.build(buffers_)) ++refused_;
    batch_.commit();
    if (step_ % 11 == 0) batch_.copy_table(table_);
    if (step_ % 3 == 0) drop_drafts();
    if (step_ % 13 == 0) (void)cache_.evict(std::array{kv::BlockId{1}, kv::BlockId{5}});
    if (step_ % 17 == 0) (void)cache_.unpublish(std::array{kv::BlockId{3}, kv::BlockId{9}});
    if (step_ % 97 == 96) cache_.reset();
    (void)cache_.take_copies();
    auto const tick = cache_.end_step();
    if (tick.value() > 2) cache_.reclaim(kv::Tick{tick.value() - 2});
    (void)cache_.stats();
    ++step_;
  }

  [[nodiscard]] std::int32_t refused() const { return refused_; }
  [[nodiscard]] kv::Stats stats() const { return cache_.stats(); }

 private:
  void leave(kv::Sequence& seq) {
    if (auto branch = seq.fork(SequenceId{1})) {
      (void)branch->append(std::array{1, 2, 3});
      std::move(*branch).finish(kv::Reuse::none);
    }
    if (step_ % 4 == 0) std::move(seq).finish(kv::Reuse::resume);
  }
  void grow(kv::Sequence& seq, std::span<kv::TokenId const> prompt) {
    std::int32_t const missing = prompt_tokens - seq.size();
    if (missing > 0) {
      auto const range = seq.reserve(missing);
      if (!range) return;
      seq.set_tokens(range->first, prompt.subspan(static_cast<std::size_t>(range->first)));
    } else if (!seq.append(std::array{static_cast<kv::TokenId>(step_), 7, 7})) {
      return;
    }
    seq.slot_mapping({seq.committed(), seq.size() - seq.committed()}, slots_);
    (void)seq.would_fit(10);
    if (step_ % 5 == 0) seq.used_by(cache_.open_tick());
    (void)seq.unshared_tokens();
    kv::TokenRange const query{seq.committed(), seq.size() - seq.committed()};
    if (!batch_.add(seq, query)) ++refused_;
  }
  void drop_drafts() {
    for (auto& seq : running_) {
      if (seq && seq->size() > prompt_tokens + 2) seq->truncate(seq->size() - 2);
    }
  }

  kv::KvCache cache_;
  kv::Batch batch_;
  std::vector<kv::PromptKey> keys_;
  std::array<std::optional<kv::Sequence>, num_running> running_;
  std::array<std::span<kv::TokenId const>, num_running> prompts_;
  std::vector<kv::Slot> slots_;
  std::vector<std::int32_t> numbers_, table_;
  std::array<kv::RowMove, 64> moves_;
  std::array<kv::RowChange, 512> changes_;
  std::array<kv::BlockId, 256> new_blocks_;
  std::array<kv::BlockRun, 512> runs_;
  std::array<kv::BlockCopy, 256> copies_;
  kv::BatchBuffers buffers_;
  std::uint64_t step_ = 0;
  std::int32_t refused_ = 0;
};

kv::KvCacheConfig config_of(kv::Reclaim reclaim, kv::Twins twins, bool partial_hits) {
  kv::KvCacheConfig config;
  config.block_tokens = 4;
  config.num_blocks = 120;
  config.max_sequences = 12;
  config.max_sequence_tokens = 128;
  config.reclaim = reclaim;
  config.twins = twins;
  config.partial_hits = partial_hits;
  return config;
}

}  // namespace

TEST_CASE("the counter counts") {
  AllocationCount const count;
  auto const one = std::make_unique<int>(1);
  CHECK(count() == 1);
  std::vector<int> const two(100, *one);
  CHECK(count() == 2);
}

TEST_CASE("contract 16: construction allocates and a thousand steps don't") {
  for (auto const reclaim : {kv::Reclaim::stream_ordered, kv::Reclaim::deferred}) {
    for (auto const twins : {kv::Twins::keep, kv::Twins::adopt}) {
      for (bool const partial_hits : {false, true}) {
        CAPTURE(int(reclaim), int(twins), partial_hits);
        Counter counter;
        auto config = config_of(reclaim, twins, partial_hits);
        config.observer = &counter;
        AllocationCount const all;
        Engine engine(config);
        CHECK(all() > 10);
        AllocationCount const steady;
        for (int i = 0; i < 1000; ++i) engine.step();
        CHECK(steady() == 0);
        // What was exercised, lest an idle engine pass.
        kv::Stats const s = engine.stats();
        CHECK(engine.refused() == 0);
        CHECK(counter.events > 1000);
        CHECK(s.opens > 500);
        CHECK(s.hit_blocks > 500);
        CHECK(s.evicted_blocks > 100);
        CHECK(s.copies > 100);
        CHECK(s.forks > 500);
        CHECK(s.twin_blocks > 100);
        CHECK(s.moved_blocks > 50);
        CHECK(s.unpublished_blocks > 10);
        CHECK(s.external_tokens > 100);
        CHECK((s.partial_hit_tokens > 100) == partial_hits);
        CHECK(s.resets > 5);
      }
    }
  }
}

TEST_CASE("contract 16: a failing call doesn't allocate") {
  kv::KvCache cache(config_of(kv::Reclaim::stream_ordered, kv::Twins::keep, false));
  std::vector<kv::TokenId> const tokens(100, 1);
  auto const key = cache.hash(tokens);
  std::vector<kv::Sequence> holders;
  holders.reserve(16);
  while (auto seq = cache.open(SequenceId{1}, key, {.reserve = 100, .read = false})) {
    holders.push_back(std::move(*seq));
  }
  AllocationCount const count;
  for (int i = 0; i < 100; ++i) {
    CHECK_FALSE(cache.open(SequenceId{1}, key, {.reserve = 100}).has_value());
    CHECK_FALSE(cache.open(SequenceId{1}, key, {.reserve = 1000}).has_value());
    CHECK_FALSE(holders[0].reserve(1000).has_value());
  }
  CHECK(count() == 0);
}

TEST_CASE("contract 16: pins don't allocate once there were as many") {
  kv::KvCache cache(config_of(kv::Reclaim::stream_ordered, kv::Twins::keep, false));
  std::vector<kv::TokenId> const tokens(100, 1);
  auto const key = cache.hash(tokens);
  {
    auto seq = cache.open(SequenceId{1}, key, {.reserve = 100});
    REQUIRE(seq.has_value());
    seq->commit(100);
  }
  { auto const warm = cache.pin(key); }
  AllocationCount const count;
  for (int i = 0; i < 100; ++i) {
    auto const pin = cache.pin(key);
    if (!pin || pin->num_tokens() != 100) FAIL("not pinned");
  }
  CHECK(count() == 0);
}

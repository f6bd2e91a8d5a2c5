// SPDX-License-Identifier: Apache-2.0
/// \file
/// Whatever the blocks, the batches and the pool, the engine computes what a plain cache computes.
#include <array>

#include "engine_helpers.hpp"
#include "random.hpp"

namespace {

namespace kv = pagedkv;
using engine::Random;

std::int32_t between(Random& random, std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(high) -
                                                      static_cast<std::uint64_t>(low) + 1));
}
bool one_in(Random& random, std::uint64_t n) { return random.below(n) == 0; }

/// Models that differ in everything that a cache sees.
std::vector<engine::Model> const& models() {
  static std::vector<engine::Model> const all = [] {
    std::vector<engine::Model> made;
    auto config = testing::tiny_config();
    made.push_back(engine::random_model(config, 1));
    config.rope_pairs = engine::RopePairs::halves;
    config.num_kv_heads = 1;
    config.head_dim = 16;
    made.push_back(engine::random_model(config, 2, false));
    config.num_heads = config.num_kv_heads = 3;
    config.head_dim = 10;
    config.num_layers = 3;
    made.push_back(engine::random_model(config, 3));
    return made;
  }();
  return all;
}

/// What a schedule brought about: a test whose schedules never preempt shows nothing of preemption.
struct Coverage {
  std::uint64_t forks = 0, preemptions = 0, hits = 0, partial = 0, evicted = 0, copies = 0;
  std::int64_t cancelled = 0;

  void add(engine::Engine const& engine) {
    auto const stats = engine.cache().stats();
    forks += stats.forks;
    preemptions += stats.preemptions;
    hits += stats.prefix_hit_tokens;
    partial += stats.partial_hit_tokens;
    evicted += stats.evicted_blocks;
    copies += stats.copies;
    cancelled += engine.numbers().cancelled;
  }
};

engine::EngineOptions random_options(Random& random) {
  constexpr std::array<std::int32_t, 5> block_sizes = {1, 2, 4, 16, 32};
  engine::EngineOptions options;
  options.block_tokens = block_sizes[random.below(block_sizes.size())];
  // From hardly more than the longest request to room for all.
  std::int32_t const tokens = between(random, 64, one_in(random, 3) ? 600 : 140);
  options.num_blocks = kv::blocks_for(tokens, options.block_tokens);
  options.limits.max_num_seqs = between(random, 1, 8);
  options.limits.max_num_batched_tokens = options.limits.max_num_seqs + between(random, 0, 40);
  options.limits.max_prefill_tokens = one_in(random, 3) ? between(random, 1, 20) : 0;
  options.limits.chunked_prefill = !one_in(random, 6);
  options.limits.admission_window = between(random, 1, 8);
  options.limits.max_overtaking = between(random, 0, 4);
  options.layout.block = one_in(random, 2) ? kv::BlockOrder::nhd : kv::BlockOrder::hnd;
  options.layout.pool = one_in(random, 2) ? kv::PoolOrder::layer_major : kv::PoolOrder::block_major;
  options.twins = one_in(random, 2) ? kv::Twins::keep : kv::Twins::adopt;
  options.partial_hits = one_in(random, 2);
  options.threads = one_in(random, 10) ? 2 : 1;
  return options;
}

engine::Request random_request(Random& random, std::string id, std::int32_t vocab) {
  engine::Request request;
  request.id = std::move(id);
  // A beginning that others have too, then tokens of its own.
  Random shared(random.below(3));
  for (std::int32_t i = between(random, 0, 40); i > 0; --i) {
    request.prompt.push_back(between(shared, 0, vocab - 1));
  }
  for (std::int32_t i = between(random, request.prompt.empty() ? 1 : 0, 14); i > 0; --i) {
    request.prompt.push_back(between(random, 0, vocab - 1));
  }
  request.max_tokens = between(random, 1, one_in(random, 8) ? 60 : 16);
  request.n = one_in(random, 3) ? between(random, 2, 4) : 1;
  if (one_in(random, 4)) request.temperature = 0.8F;
  if (one_in(random, 6)) request.cancel_after = between(random, 0, 8);
  request.seed = random.next();
  return request;
}

/// Requests come in while others run; now and then what is cached is dropped.
void run_schedule(std::uint64_t seed, testing::Compared& seen, Coverage& coverage) {
  Random random(seed);
  auto const& model = models()[random.below(models().size())];
  testing::Recorder recorder;
  engine::Engine engine(model, random_options(random), recorder);
  std::int32_t const num_requests = between(random, 1, 9);
  std::int32_t answers = 0;
  for (std::int32_t i = 0; i < num_requests; ++i) {
    auto request = random_request(random, std::to_string(i), model.config.vocab_size);
    answers += request.n;
    engine.submit(std::move(request));
    for (std::int32_t steps = between(random, 0, 6); steps > 0; --steps) (void)engine.step();
    if (one_in(random, 12)) engine.reset_cache();
  }
  engine.run();
  REQUIRE(static_cast<std::int32_t>(recorder.answers.size()) == answers);
  testing::require_no_leak(engine);
  testing::compare_with_reference(model, recorder, seen);
  coverage.add(engine);
}

}  // namespace

TEST_CASE("any schedule gives the logits and greedy ids of a contiguous cache") {
  int const schedules = testing::count_from("PAGEDKV_ENGINE_SCHEDULES", 1000);
  auto const first = static_cast<std::uint64_t>(testing::count_from("PAGEDKV_ENGINE_SEED", 1));
  testing::Compared seen;
  Coverage coverage;
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(schedules); ++seed) {
    INFO("schedule of seed " << seed);
    run_schedule(seed, seen, coverage);
    REQUIRE(seen.not_finite == 0);
    REQUIRE(seen.wrong_ids == 0);
    REQUIRE(seen.largest_error <= 1e-4);
  }
  if (testing::count_from("PAGEDKV_ENGINE_VERBOSE", 0) != 0) {
    WARN("tokens " << seen.tokens << ", ties " << seen.ties << ", largest error "
                   << seen.largest_error << ", forks " << coverage.forks << ", preemptions "
                   << coverage.preemptions << ", hits " << coverage.hits << ", partial "
                   << coverage.partial << ", evicted " << coverage.evicted << ", copies "
                   << coverage.copies << ", cancelled " << coverage.cancelled);
  }
  // Most margins are wide enough for the ids to count.
  CHECK(seen.ties * 20 < seen.tokens);
  if (schedules < 200) return;
  CHECK(coverage.forks > 0);
  CHECK(coverage.preemptions > 0);
  CHECK(coverage.hits > 0);
  CHECK(coverage.partial > 0);
  CHECK(coverage.evicted > 0);
  CHECK(coverage.copies > 0);
  CHECK(coverage.cancelled > 0);
}

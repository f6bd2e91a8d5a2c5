// SPDX-License-Identifier: Apache-2.0
/// \file
/// Pools of a few blocks, contexts that are full at once, answers that end before they begin: what
/// fits is right, what doesn't is refused, nothing is left behind.
#include <optional>

#include "engine_helpers.hpp"

namespace {

namespace kv = pagedkv;
using engine::Finish;
using testing::request;
using testing::tiny;
using testing::tokens;

/// How a request ends.
struct End {
  std::optional<std::int32_t> cancel_after;
  bool stops_at_once = false;
};

/// What becomes of a request that has the pool's size, or the context's, as its only bound.
std::vector<kv::TokenId> expected_output(engine::Request const& r, std::int32_t pool_tokens) {
  auto const prompt = static_cast<std::int32_t>(r.prompt.size());
  // The last token is never fed back: it needs no place in the pool.
  std::int32_t const room = std::min(pool_tokens + 1, tiny().config.max_positions) - prompt;
  std::int32_t most = std::min(r.max_tokens, room);
  if (r.cancel_after) most = std::min(most, *r.cancel_after);
  return most > 0 ? engine::greedy_reference(tiny(), r.prompt, most, r.stop_ids)
                  : std::vector<kv::TokenId>();
}

/// Requests of every length that matters, all at once.
void serve(std::int32_t num_blocks, std::int32_t block_tokens, std::int32_t samples,
           End const& end) {
  auto o = testing::options(block_tokens, num_blocks * block_tokens);
  o.limits.max_num_batched_tokens = 16;
  testing::Recorder recorder;
  engine::Engine engine(tiny(), o, recorder);
  std::int32_t const pool_tokens = num_blocks * block_tokens;
  for (std::int32_t length = 1; length <= pool_tokens + 1; ++length) {
    auto r = request(std::to_string(length), tokens(3, length), 9);
    r.n = samples;
    r.cancel_after = end.cancel_after;
    if (end.stops_at_once) r.stop_ids = engine::greedy_reference(tiny(), r.prompt, 1, {});
    engine.submit(std::move(r));
  }
  engine.run();
  testing::require_no_leak(engine);
  REQUIRE(recorder.answers.size() == static_cast<std::size_t>((pool_tokens + 1) * samples));
  for (auto const& answer : recorder.answers) {
    auto const& r = *answer.request;
    INFO(num_blocks << " blocks of " << block_tokens << ", " << samples << " samples, prompt of "
                    << r.id << ", sample " << answer.index);
    bool const fits = static_cast<std::int32_t>(r.prompt.size()) < pool_tokens;
    REQUIRE((answer.finish == Finish::refused) == !fits);
    REQUIRE(answer.output == (fits ? expected_output(r, pool_tokens) : std::vector<kv::TokenId>()));
  }
}

}  // namespace

TEST_CASE("a pool of very few blocks serves what fits, however samples end") {
  for (std::int32_t const num_blocks : {1, 2, 3, 5}) {
    for (std::int32_t const block_tokens : {1, 4}) {
      for (std::int32_t const samples : {1, 3}) {
        for (auto const& after : std::vector<std::optional<std::int32_t>>{{}, 0, 1, 2}) {
          serve(num_blocks, block_tokens, samples, {after, false});
        }
        serve(num_blocks, block_tokens, samples, {{}, true});
      }
    }
  }
}

TEST_CASE("a prompt as long as the context has no answer, one shorter has one token") {
  std::int32_t const context = tiny().config.max_positions;
  for (std::int32_t const samples : {1, 3}) {
    testing::Recorder recorder;
    engine::Engine engine(tiny(), testing::options(16, 400), recorder);
    for (std::int32_t const length : {context - 2, context - 1, context, context + 1}) {
      auto r = request(std::to_string(length), tokens(4, length), 50);
      r.n = samples;
      engine.submit(std::move(r));
    }
    engine.run();
    testing::require_no_leak(engine);
    REQUIRE(recorder.answers.size() == static_cast<std::size_t>(4 * samples));
    for (auto const& answer : recorder.answers) {
      INFO("prompt of " << answer.request->id << ", sample " << answer.index);
      CHECK(answer.finish == Finish::length);
      CHECK(answer.output == expected_output(*answer.request, 400));
      auto const length = static_cast<std::int32_t>(answer.request->prompt.size());
      CHECK(answer.output.size() == static_cast<std::size_t>(std::max(0, context - length)));
    }
  }
}

TEST_CASE("samples are cancelled together after any step, once, and a neighbour doesn't notice") {
  auto const neighbour = request("neighbour", tokens(7, 11), 24);
  auto const alone = engine::greedy_reference(tiny(), neighbour.prompt, 24, {});
  int cancelled_early = 0;
  int cancelled_late = 0;
  for (std::int32_t const pool_tokens : {40, 400}) {
    for (int steps = 0; steps < 40; ++steps) {
      INFO("after " << steps << " steps of a pool of " << pool_tokens << " tokens");
      testing::Recorder recorder;
      auto o = testing::options(4, pool_tokens);
      o.limits.max_num_batched_tokens = 16;
      engine::Engine engine(tiny(), o, recorder);
      auto samples = request("samples", tokens(8, 21), 12);
      samples.n = 4;
      engine.submit(samples);
      engine.submit(neighbour);
      for (int i = 0; i < steps; ++i) (void)engine.step();
      auto const before = recorder.answers.size();
      bool const was_there = engine.cancel("samples");
      CHECK_FALSE(engine.cancel("samples"));
      (was_there ? cancelled_early : cancelled_late) += 1;
      for (std::size_t i = before; i < recorder.answers.size(); ++i) {
        CHECK(recorder.answers[i].finish == Finish::cancelled);
        CHECK(recorder.answers[i].request->id == "samples");
      }
      engine.run();
      testing::require_no_leak(engine);
      REQUIRE(recorder.answers.size() == 5);
      std::vector<std::int32_t> indices;
      for (auto const& answer : recorder.answers) {
        if (answer.request->id == "samples") indices.push_back(answer.index);
      }
      std::sort(indices.begin(), indices.end());
      CHECK(indices == std::vector<std::int32_t>{0, 1, 2, 3});
      CHECK(recorder.answer("neighbour").output == alone);
    }
  }
  CHECK(cancelled_early > 10);
  CHECK(cancelled_late > 10);
}

TEST_CASE("no tokens asked for, or every token a stop id: each sample has its empty answer") {
  testing::Recorder recorder;
  engine::Engine engine(tiny(), testing::options(4, 400), recorder);
  auto none = request("none", tokens(5, 9), 0);
  auto stopped = request("stopped", tokens(5, 9), 20);
  for (std::int32_t id = 0; id < tiny().config.vocab_size; ++id) stopped.stop_ids.push_back(id);
  stopped.temperature = 1.0F;
  none.n = stopped.n = 3;
  engine.submit(none);
  engine.submit(stopped);
  engine.run();
  testing::require_no_leak(engine);
  REQUIRE(recorder.answers.size() == 6);
  for (auto const& answer : recorder.answers) {
    CHECK(answer.output.empty());
    bool const stops = answer.request->id == "stopped";
    CHECK(answer.finish == (stops ? Finish::stop : Finish::length));
  }
  CHECK(engine.numbers().generated_tokens == 0);
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Requests that end early, fork, are refused or share: what is left behind, and what others see.
#include <set>

#include "engine_helpers.hpp"
#include "random.hpp"

namespace {

namespace kv = pagedkv;

using testing::options;
using testing::request;
using testing::tiny;
using testing::tokens;

/// 64 requests, a third of them with samples, over prompts that begin alike.
std::vector<engine::Request> crowd() {
  std::vector<engine::Request> all;
  engine::Random random(5);
  for (std::int32_t i = 0; i < 64; ++i) {
    auto prompt = tokens(random.below(2), static_cast<std::int32_t>(random.below(24)));
    auto const own = tokens(100 + static_cast<std::uint64_t>(i), 3 + i % 9);
    prompt.insert(prompt.end(), own.begin(), own.end());
    auto r = request(std::to_string(i), std::move(prompt), 8 + i % 20);
    r.n = i % 3 == 0 ? 3 : 1;
    r.temperature = i % 4 == 0 ? 0.7F : 0.0F;
    r.seed = static_cast<std::uint64_t>(i);
    all.push_back(std::move(r));
  }
  return all;
}

using Texts = std::map<std::pair<std::string, std::int32_t>, std::vector<kv::TokenId>>;

Texts texts_of(testing::Recorder const& recorder) {
  Texts texts;
  for (auto const& answer : recorder.answers) {
    texts[{answer.request->id, answer.index}] = answer.output;
  }
  return texts;
}

}  // namespace

TEST_CASE("cancelling half of 64 requests leaks nothing and changes no other text") {
  // Undisturbed: room for all.
  testing::Recorder calm;
  engine::Engine undisturbed(tiny(), options(4, 8000), calm);
  for (auto& r : crowd()) undisturbed.submit(std::move(r));
  undisturbed.run();
  Texts const expected = texts_of(calm);

  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    testing::Recorder recorder;
    // A pool in which few requests fit at once.
    engine::Engine engine(tiny(), options(seed % 2 == 0 ? 4 : 1, 160), recorder);
    for (auto& r : crowd()) engine.submit(std::move(r));
    engine::Random random(seed);
    std::set<std::string> cancelled;
    std::vector<std::string> victims;
    for (std::int32_t i = 0; i < 64; ++i) victims.push_back(std::to_string(i));
    for (std::size_t i = victims.size(); i > 1; --i)
      std::swap(victims[i - 1], victims[random.below(i)]);
    victims.resize(32);
    while (engine.step()) {
      while (!victims.empty() && random.below(2) == 0) {
        if (engine.cancel(victims.back())) cancelled.insert(victims.back());
        victims.pop_back();
        REQUIRE(static_cast<bool>(engine.cache().verify()));
      }
    }
    testing::require_no_leak(engine);
    CHECK(engine.cache().stats().preemptions > 0);
    CHECK(engine.cache().stats().forks > 0);
    CHECK(cancelled.size() > 16);
    Texts const texts = texts_of(recorder);
    REQUIRE(texts.size() == expected.size());
    for (auto const& [sample, text] : texts) {
      INFO("request " << sample.first << ", sample " << sample.second);
      auto const& whole = expected.at(sample);
      if (cancelled.contains(sample.first)) {
        // As far as it came.
        REQUIRE(text.size() <= whole.size());
        CHECK(std::equal(text.begin(), text.end(), whole.begin()));
      } else {
        CHECK(text == whole);
      }
    }
  }
}

TEST_CASE("a request is refused only when prompt and one token can't fit the pool") {
  testing::Recorder recorder;
  engine::Engine engine(tiny(), options(4, 32), recorder);
  engine.submit(request("31", tokens(1, 31), 50));
  engine.submit(request("32", tokens(2, 32), 50));
  engine.submit(request("5", tokens(3, 5), 70));
  engine.run();
  CHECK(recorder.answer("32").finish == engine::Finish::refused);
  // Cut by the pool: all positions but that of the last token, which is never fed back.
  CHECK(recorder.answer("31").output.size() == 2);
  CHECK(recorder.answer("31").finish == engine::Finish::length);
  CHECK(recorder.answer("5").output.size() == 28);
  CHECK(engine.numbers().refused == 1);
  testing::require_no_leak(engine);
}

TEST_CASE("a second prompt finds what the first computed, and says how much") {
  testing::Recorder recorder;
  engine::Engine engine(tiny(), options(4, 400), recorder);
  auto prompt = tokens(1, 21);
  engine.submit(request("first", prompt, 2));
  engine.run();
  engine.submit(request("again", prompt, 2));
  prompt[18] = (prompt[18] + 1) % 61;
  engine.submit(request("other tail", prompt, 2));
  engine.run();
  CHECK(recorder.answer("first").cached_tokens == 0);
  CHECK(recorder.answer("again").cached_tokens == 20);
  CHECK(recorder.answer("other tail").cached_tokens == 16);
  CHECK(recorder.answer("again").output == recorder.answer("first").output);
}

TEST_CASE("cached_tokens tells of the first admission, whatever comes later") {
  testing::Recorder preempted;
  engine::Engine small(tiny(), options(4, 60), preempted);
  for (std::uint64_t i = 0; i < 6; ++i) {
    small.submit(request(std::to_string(i), tokens(200 + i, 9), 24));
  }
  small.run();
  std::int32_t times = 0;
  for (auto const& answer : preempted.answers) {
    CHECK(answer.cached_tokens == 0);  // prompts have nothing in common
    times += answer.preempted;
  }
  CHECK(times > 0);

  // Samples tell of their prompt's admission: those that fork, and those that wait for their turn.
  auto o = options(4, 400);
  o.limits.max_num_seqs = 2;
  testing::Recorder recorder;
  engine::Engine engine(tiny(), o, recorder);
  auto prompt = tokens(1, 10);
  engine.submit(request("first", prompt, 2));
  engine.run();
  auto const more = tokens(300, 9);
  prompt.insert(prompt.end(), more.begin(), more.end());
  auto r = request("samples", prompt, 5);
  r.n = 5;
  engine.submit(r);
  engine.run();
  for (std::int32_t i = 0; i < 5; ++i) {
    INFO("sample " << i);
    CHECK(recorder.answer("samples", i).cached_tokens == 8);
  }
}

TEST_CASE("samples share the prompt's blocks, and those without room to run wait for their turn") {
  for (std::int32_t const seqs : {1, 2, 8}) {
    INFO("running at once: " << seqs);
    auto o = options(4, 400);
    o.limits.max_num_seqs = seqs;
    testing::Recorder recorder;
    engine::Engine engine(tiny(), o, recorder);
    auto r = request("samples", tokens(4, 18), 6);
    r.n = 5;
    engine.submit(r);
    engine.run();
    CHECK(recorder.answers.size() == 5);
    for (std::int32_t i = 1; i < 5; ++i) {
      CHECK(recorder.answer("samples", i).output == recorder.answer("samples").output);
    }
    CHECK(engine.cache().stats().forks == static_cast<std::uint64_t>(std::min(seqs, 5) - 1));
    testing::require_no_leak(engine);
  }
}

TEST_CASE("temperature draws are the request's own: the same alone and in a crowd") {
  auto const ask = [](bool crowded) {
    testing::Recorder recorder;
    engine::Engine engine(tiny(), options(4, crowded ? 100 : 4000), recorder);
    auto r = request("hot", tokens(9, 12), 20);
    r.temperature = 1.0F;
    r.n = 2;
    r.seed = 77;
    if (crowded) {
      for (auto& other : crowd()) engine.submit(std::move(other));
    }
    engine.submit(r);
    engine.run();
    return std::pair(recorder.answer("hot", 0).output, recorder.answer("hot", 1).output);
  };
  auto const alone = ask(false);
  CHECK(alone.first != alone.second);
  CHECK(ask(true) == alone);
}

TEST_CASE("the draws of one sample aren't another's, a few tokens later") {
  constexpr std::int32_t samples = 4;
  testing::Recorder recorder;
  engine::Engine engine(tiny(), options(4, 4000), recorder);
  auto r = request("hot", tokens(9, 12), 60);
  r.temperature = 1e6F;  // all tokens are as likely: a token is its draw
  r.n = samples;
  engine.submit(r);
  engine.run();
  for (std::int32_t a = 0; a < samples; ++a) {
    for (std::int32_t b = a + 1; b < samples; ++b) {
      auto const& one = recorder.answer("hot", a).output;
      auto const& other = recorder.answer("hot", b).output;
      for (std::size_t shift = 0; shift <= samples; ++shift) {
        INFO("samples " << a << " and " << b << ", shifted by " << shift);
        std::size_t equal = 0;
        for (std::size_t i = shift; i < 60; ++i) equal += one[i] == other[i - shift];
        CHECK(equal < 12);  // of 60; 1 by chance
      }
    }
  }
}

TEST_CASE("a client that leaves takes what was generated; one that leaves at once, nothing") {
  testing::Recorder recorder;
  engine::Engine engine(tiny(), options(4, 400), recorder);
  for (std::int32_t const after : {0, 1, 5}) {
    auto r = request(std::to_string(after), tokens(6, 30), 20);
    r.cancel_after = after;
    r.n = 2;
    engine.submit(std::move(r));
  }
  engine.run();
  REQUIRE(recorder.answers.size() == 6);
  for (auto const& answer : recorder.answers) {
    CHECK(answer.finish == engine::Finish::cancelled);
    CHECK(std::to_string(answer.output.size()) == answer.request->id);
  }
  testing::require_no_leak(engine);
}

TEST_CASE("a stop id ends the answer and isn't part of it") {
  auto const prompt = tokens(8, 10);
  auto const whole = engine::greedy_reference(tiny(), prompt, 20, {});
  auto const stop = whole[7];
  auto const expected = engine::greedy_reference(tiny(), prompt, 20, {stop});
  testing::Recorder recorder;
  engine::Engine engine(tiny(), options(16, 400), recorder);
  auto r = request("stop", prompt, 20);
  r.stop_ids = {stop};
  engine.submit(r);
  engine.run();
  CHECK(recorder.answer("stop").output == expected);
  CHECK(recorder.answer("stop").output.size() < 20);
  CHECK(recorder.answer("stop").finish == engine::Finish::stop);
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A trained model gives the same text whatever the pool.
#include <memory>
#include <optional>

#include "engine_helpers.hpp"
#include "llama2c.hpp"
#include "tokenizer.hpp"

namespace {

namespace kv = pagedkv;

constexpr char const* absent = "stories260K isn't there: tinyllamas/ of the shared data is missing";

struct Stories {
  engine::Model model;
  std::unique_ptr<engine::Tokenizer> tokenizer;
};

/// The model, or null, said aloud, where it isn't recorded.
Stories const* stories() {
  static std::optional<Stories> const loaded = []() -> std::optional<Stories> {
    auto const model = testing::recorded("tinyllamas/stories260K.bin");
    auto const tokenizer = testing::recorded("tinyllamas/tok512.bin");
    if (model.empty() || tokenizer.empty()) return std::nullopt;
    return Stories{engine::load_llama2c(model), engine::load_llama2c_tokenizer(tokenizer, 512)};
  }();
  if (!loaded) WARN(absent);
  return loaded ? &*loaded : nullptr;
}

std::vector<std::string> const prompts = {
    "",
    "Once upon a time",
    "One day, a little girl named Lily found a needle in her room.",
    "Tom and his dog went to the park",
    "The big red ball",
    "Once upon a time, there was a brave knight who",
    "One day, a little girl named Lily wanted to",
    "Mom said,",
};

std::vector<engine::Request> requests(Stories const& s, std::int32_t max_tokens) {
  std::vector<engine::Request> all;
  for (auto const& prompt : prompts) {
    engine::Request request;
    request.id = prompt;
    request.prompt = s.tokenizer->encode(prompt);
    request.max_tokens = max_tokens;
    request.stop_ids = s.tokenizer->end_ids();
    all.push_back(std::move(request));
  }
  return all;
}

}  // namespace

TEST_CASE("stories260K continues <s> as its data sheet says") {
  auto const* const s = stories();
  if (s == nullptr) return;
  auto const ids = engine::greedy_reference(s->model, {1}, 60, s->tokenizer->end_ids());
  CHECK(s->tokenizer->decode(ids, 1).starts_with(
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. One day, she saw a big, red ball."));
}

TEST_CASE("greedy texts are the reference's with every pool, block size and batch") {
  auto const* const s = stories();
  if (s == nullptr) return;
  constexpr std::int32_t max_tokens = 90;
  auto const asked = requests(*s, max_tokens);
  std::vector<std::vector<std::int32_t>> expected;
  for (auto const& request : asked) {
    expected.push_back(
        engine::greedy_reference(s->model, request.prompt, max_tokens, request.stop_ids));
  }
  std::uint64_t preemptions = 0;
  for (std::int32_t const block_tokens : {1, 4, 16, 32}) {
    for (std::int32_t const pool_tokens : {140, 260, 2000}) {
      engine::EngineOptions options;
      options.block_tokens = block_tokens;
      options.num_blocks = kv::blocks_for(pool_tokens, block_tokens);
      options.limits.max_num_seqs = 8;
      options.limits.max_num_batched_tokens = 8 + block_tokens;
      testing::Recorder recorder;
      engine::Engine engine(s->model, options, recorder);
      for (auto request : asked) engine.submit(std::move(request));
      engine.run();
      INFO("blocks of " << block_tokens << ", pool of " << pool_tokens << " tokens");
      for (std::size_t i = 0; i < asked.size(); ++i) {
        INFO("prompt: " << asked[i].id);
        CHECK(recorder.answer(asked[i].id).output == expected[i]);
      }
      testing::require_no_leak(engine);
      preemptions += engine.cache().stats().preemptions;
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("a context that is full cuts the answer") {
  auto const* const s = stories();
  if (s == nullptr) return;
  engine::EngineOptions options;
  options.num_blocks = 64;
  testing::Recorder recorder;
  engine::Engine engine(s->model, options, recorder);
  std::vector<kv::TokenId> const story = s->tokenizer->encode(std::string(400, 'a'));
  for (std::int32_t const length : {510, 511, 512, 600}) {
    engine::Request request;
    request.id = std::to_string(length);
    for (std::int32_t i = 0; i < length; ++i) {
      request.prompt.push_back(story[static_cast<std::size_t>(i) % story.size()]);
    }
    request.max_tokens = 100;
    engine.submit(std::move(request));
  }
  engine.run();
  CHECK(recorder.answer("510").output.size() == 2);
  CHECK(recorder.answer("511").output.size() == 1);
  CHECK(recorder.answer("512").output.empty());
  CHECK(recorder.answer("600").output.empty());
  CHECK(recorder.answer("600").finish == engine::Finish::length);
}

TEST_CASE("every format serves a story, and 8 bits a token and head tell the same one at first") {
  auto const* const s = stories();
  if (s == nullptr) return;
  auto const expected = engine::greedy_reference(s->model, {1}, 12, {});
  for (kv::Element const element : kv::all_elements) {
    for (kv::Granularity const granularity : kv::granularities_of(element)) {
      kv::KvFormat const format{element, granularity};
      INFO(kv::to_string(format));
      engine::EngineOptions options;
      options.format = format;
      options.num_blocks = 8;
      if (granularity == kv::Granularity::per_tensor) {
        options.static_scales.assign(5, {{0.05F}, {0.05F}});
      } else if (granularity == kv::Granularity::per_head) {
        options.static_scales.assign(5,
                                     {std::vector<float>(4, 0.05F), std::vector<float>(4, 0.05F)});
      }
      testing::Recorder recorder;
      engine::Engine engine(s->model, options, recorder);
      engine::Request request;
      request.id = "story";
      request.prompt = {1};
      request.max_tokens = 12;
      engine.submit(std::move(request));
      engine.run();
      auto const& output = recorder.answer("story").output;
      CHECK(output.size() == 12);
      if (element != kv::Element::int4) CHECK(output == expected);
      testing::require_no_leak(engine);
    }
  }
}

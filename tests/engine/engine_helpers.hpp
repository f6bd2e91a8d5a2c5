// SPDX-License-Identifier: Apache-2.0
/// \file
/// Models, a listener that remembers, and the comparison of an engine with the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "engine.hpp"
#include "random.hpp"
#include "reference.hpp"

namespace testing {

namespace kv = pagedkv;

/// A model of a few thousand weights: grouped queries, and heads of 8.
inline engine::ModelConfig tiny_config() {
  engine::ModelConfig c;
  c.dim = 32;
  c.hidden_dim = 48;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.vocab_size = 61;
  c.max_positions = 96;
  return c;
}

inline engine::Model const& tiny() {
  static engine::Model const model = engine::random_model(tiny_config(), 11);
  return model;
}

/// A pool of about so many tokens, 16 samples at once, 48 tokens a step.
inline engine::EngineOptions options(std::int32_t block_tokens, std::int32_t pool_tokens) {
  engine::EngineOptions o;
  o.block_tokens = block_tokens;
  o.num_blocks = kv::blocks_for(pool_tokens, block_tokens);
  o.limits.max_num_seqs = 16;
  o.limits.max_num_batched_tokens = 48;
  return o;
}

inline engine::Request request(std::string id, std::vector<kv::TokenId> prompt,
                               std::int32_t max_tokens) {
  engine::Request r;
  r.id = std::move(id);
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

/// Random ids of `tiny()`.
inline std::vector<kv::TokenId> tokens(std::uint64_t seed, std::int32_t count) {
  engine::Random random(seed);
  std::vector<kv::TokenId> ids;
  for (std::int32_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(random.below(61)));
  return ids;
}

/// The recorded file of this name; empty where it isn't.
inline std::string recorded(std::string const& name) {
  std::string const path = PAGEDKV_SOURCE_DIR "/../shared/data/" + name;
  return std::filesystem::exists(path) ? path : std::string();
}

inline int count_from(char const* variable, int by_default) {
  char const* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : by_default;
}

/// Remembers answers, and the logits that each token was chosen from.
struct Recorder : engine::Listener {
  using Key = std::tuple<std::string, std::int32_t, std::int32_t>;  ///< id, sample, output so far

  std::map<Key, std::vector<float>> logits;
  std::vector<engine::Answer> answers;

  void on_logits(engine::Request const& request, std::int32_t index, std::int32_t num_output,
                 std::span<float const> values) override {
    logits[{request.id, index, num_output}].assign(values.begin(), values.end());
  }
  void on_answer(engine::Answer const& answer) override { answers.push_back(answer); }

  [[nodiscard]] engine::Answer const& answer(std::string const& id, std::int32_t index = 0) const {
    for (auto const& a : answers) {
      if (a.request->id == id && a.index == index) return a;
    }
    FAIL("no answer of request " << id << ", sample " << index);
    return answers.front();
  }
};

/// What a comparison has seen.
struct Compared {
  std::int64_t tokens = 0;     ///< tokens whose logits were compared
  std::int64_t ties = 0;       ///< thereof with a margin of at most 1e-3: the id may differ
  double largest_error = 0;    ///< of a logit, as a share of the largest logit
  std::int64_t wrong_ids = 0;  ///< not the reference's, though its margin was larger
  std::int64_t not_finite = 0;
};

/// Feeds each answer to the reference and compares logits and, where greedy, ids.
inline void compare_with_reference(engine::Model const& model, Recorder const& recorder,
                                   Compared& seen) {
  std::int32_t const vocab = model.config.vocab_size;
  for (auto const& answer : recorder.answers) {
    auto const& request = *answer.request;
    engine::Reference reference(model);
    std::vector<float> const* expected = nullptr;
    if (answer.finish == engine::Finish::refused || answer.output.empty()) continue;
    for (kv::TokenId const token : request.prompt) expected = &reference.next(token);
    for (std::size_t i = 0; i < answer.output.size(); ++i) {
      auto const found =
          recorder.logits.find({request.id, answer.index, static_cast<std::int32_t>(i)});
      REQUIRE(found != recorder.logits.end());
      auto const& got = found->second;
      float largest = 0;
      for (float const x : *expected) largest = std::max(largest, std::abs(x));
      for (std::size_t v = 0; v < got.size(); ++v) {
        double const error = std::abs(double{got[v]} - (*expected)[v]) / largest;
        if (!(error < 1e9)) ++seen.not_finite;
        seen.largest_error = std::max(seen.largest_error, error);
      }
      auto sorted = *expected;
      std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
      bool const tie = sorted[0] - sorted[1] <= 1e-3F;
      std::int32_t const best = engine::argmax(expected->data(), vocab);
      ++seen.tokens;
      seen.ties += tie;
      if (!tie && request.temperature == 0.0F && answer.output[i] != best) ++seen.wrong_ids;
      if (i + 1 < answer.output.size()) expected = &reference.next(answer.output[i]);
    }
  }
}

/// No handle, no block in use, and every table agrees with every other.
inline void require_no_leak(engine::Engine const& engine) {
  auto const report = engine.cache().verify();
  INFO((report.broken != nullptr ? report.broken : ""));
  REQUIRE(static_cast<bool>(report));
  auto const stats = engine.cache().stats();
  REQUIRE(stats.sequences == 0);
  REQUIRE(stats.used == 0);
  REQUIRE(stats.free + stats.idle == stats.num_blocks);
}

}  // namespace testing

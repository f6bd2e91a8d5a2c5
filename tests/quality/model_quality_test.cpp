// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pagedkv/quant/scale_file.hpp>

#include "calibration.hpp"
#include "catch.hpp"
#include "formats.hpp"
#include "load_model.hpp"
#include "model_needle.hpp"
#include "model_quality.hpp"
#include "paged_sequence.hpp"
#include "random.hpp"
#include "reference.hpp"
#include "run_program.hpp"

namespace kv = pagedkv;

namespace {

constexpr kv::KvFormat f32{kv::Element::f32, kv::Granularity::none};

engine::ModelConfig small_config() {
  engine::ModelConfig config;
  config.dim = 48;
  config.hidden_dim = 64;
  config.num_layers = 3;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 64;
  config.max_positions = 128;
  return config;
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::int32_t vocab_size) {
  engine::Random random(11);
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) {
    token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab_size)));
  }
  return tokens;
}

/// All formats, static ones calibrated on the tokens.
std::vector<quality::ScaledFormat> all_scaled(engine::Model const& model,
                                              std::span<std::int32_t const> tokens) {
  auto formats = quality::all_formats();
  std::erase_if(formats, [](auto format) { return !quality::is_static(format); });
  auto const sets = quality::calibrate(model, "test", tokens, 100, formats);
  std::vector<quality::ScaledFormat> scaled;
  for (auto const format : quality::all_formats()) {
    scaled.push_back({format});
    for (auto const& set : sets) {
      if (set.format != format) continue;
      scaled.back().scales = quality::storage_scales(set, format, model.config.num_kv_heads);
    }
  }
  return scaled;
}

TEST_CASE("an f32 cache gives the reference's perplexity, whatever the chunks") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(100, 64);
  engine::Reference reference(model);
  double loss = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    auto const& logits = reference.next(tokens[i]);
    double sum = 0;
    for (float const logit : logits) sum += std::exp(static_cast<double>(logit));
    loss += std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(tokens[i + 1])]);
  }
  quality::QualityRun const run{"test", {{f32}}, {}, 100};
  auto const rows = quality::measure_quality(model, run, tokens, [](std::int64_t) {});
  REQUIRE(rows.size() == 1);
  CHECK_THAT(rows[0].perplexity, Catch::Matchers::WithinRel(std::exp(loss / 99), 1e-5));
}

TEST_CASE("f32 is 0 from itself, 16 bits are next, each format's divergence is as fine as it is") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(400, 64);
  quality::QualityRun const run{"test", all_scaled(model, tokens), {}, 100};
  std::int64_t last = 0;
  auto const rows = quality::measure_quality(model, run, tokens, [&](std::int64_t done) {
    CHECK(done == last + 100);
    last = done;
  });
  REQUIRE(rows.size() == 16);
  std::map<std::string, quality::QualityRow> by_name;
  for (auto const& row : rows) {
    INFO(kv::to_string(row.format));
    CHECK(std::isfinite(row.perplexity));
    CHECK(row.quality == "test");
    by_name[kv::to_string(row.format)] = row;
  }
  CHECK(by_name["f32"].kl == 0.0);
  CHECK(by_name["f32"].top1 == 1.0);
  CHECK(by_name["f32"].bytes_per_token == 3 * 2 * 2 * 8 * 4);
  CHECK(by_name["fp8_e4m3/per_tensor"].bytes_per_token == 3 * 2 * 2 * 8);
  CHECK(by_name["int4/per_token_head"].bytes_per_token == 3 * 2 * 2 * (4 + 8));
  auto const kl = [&](char const* name) { return by_name[name].kl; };
  CHECK(kl("f16") > 0.0);
  CHECK(kl("f16") < kl("bf16"));
  CHECK(kl("bf16") < kl("int8/per_token_head"));
  for (char const* name : {"fp8_e4m3/per_tensor", "fp8_e4m3/per_head", "fp8_e4m3/per_token_head",
                           "fp8_e4m3/per_block_head"}) {
    INFO(name);
    CHECK(kl("int8/per_token_head") < kl(name));
    CHECK(kl(name) < kl("fp8_e5m2/per_token_head"));
    CHECK(kl(name) < kl("int4/per_token_head"));
    // Divergence goes with the square of the rounding error: 2^-4 and 2^-11.
    CHECK(kl(name) < 2 * 16384 * kl("f16"));
  }
}

TEST_CASE("perplexity, divergence and agreement are those of the two caches' logits") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(100, 64);
  kv::KvFormat const coarse{kv::Element::int4, kv::Granularity::per_token_head};
  auto const logits_of = [&](kv::KvFormat format) {
    engine::Forward forward(model);
    quality::PagedSequence sequence(model.config, forward, 100, format);
    std::vector<float> all;
    for (auto const& [first, count] : {std::pair(0, 64), std::pair(64, 36)}) {
      std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
      std::iota(rows.begin(), rows.end(), 0);
      auto const part = sequence.run(
          std::span(tokens).subspan(static_cast<std::size_t>(first), rows.size()), rows);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  auto const log_shares = [](std::span<float const> logits) {
    double sum = 0;
    for (float const x : logits) sum += std::exp(double{x});
    std::vector<double> shares;
    for (float const x : logits) shares.push_back(double{x} - std::log(sum));
    return shares;
  };
  auto const base = logits_of(f32);
  auto const other = logits_of(coarse);
  double loss = 0, kl = 0, squares = 0;
  int agreed = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    auto const p = log_shares(std::span(base).subspan(i * 64, 64));
    auto const q = log_shares(std::span(other).subspan(i * 64, 64));
    auto const next = static_cast<std::size_t>(tokens[i + 1]);
    loss -= q[next];
    squares += (p[next] - q[next]) * (p[next] - q[next]);
    for (std::size_t t = 0; t < 64; ++t) kl += std::exp(p[t]) * (p[t] - q[t]);
    agreed += std::max_element(p.begin(), p.end()) - p.begin() ==
              std::max_element(q.begin(), q.end()) - q.begin();
  }
  CHECK(agreed < 99);
  quality::QualityRun const run{"test", {{f32}, {coarse}}, {}, 100};
  auto const row = quality::measure_quality(model, run, tokens, [](std::int64_t) {})[1];
  CHECK_THAT(row.perplexity, Catch::Matchers::WithinRel(std::exp(loss / 99), 1e-5));
  CHECK_THAT(row.kl, Catch::Matchers::WithinRel(kl / 99, 1e-3));
  CHECK(row.top1 == agreed / 99.0);
  CHECK_THAT(row.error, Catch::Matchers::WithinRel(std::sqrt(squares) / 99, 1e-3));
}

TEST_CASE("windows know nothing of each other, and what stands in front is not predicted") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(60, 64);
  auto const perplexity = [&](std::vector<std::int32_t> const& text, std::int32_t window,
                              std::vector<std::int32_t> first) {
    quality::QualityRun const run{"test", {{f32}}, std::move(first), window};
    return quality::measure_quality(model, run, text, [](std::int64_t) {})[0].perplexity;
  };
  std::vector<std::int32_t> twice = tokens;
  twice.insert(twice.end(), tokens.begin(), tokens.end());
  double const once = perplexity(tokens, 61, {7});
  CHECK_THAT(perplexity(twice, 61, {7}), Catch::Matchers::WithinRel(once, 1e-6));
  CHECK(std::abs(perplexity(twice, 121, {7}) - once) > 1e-3);
  // Two in front: the text's tokens are predicted, all of them, and nothing else.
  engine::Reference reference(model);
  (void)reference.next(9);
  auto const* logits = &reference.next(7);
  double loss = 0;
  for (auto const token : tokens) {
    double sum = 0;
    for (float const logit : *logits) sum += std::exp(static_cast<double>(logit));
    loss += std::log(sum) - static_cast<double>((*logits)[static_cast<std::size_t>(token)]);
    logits = &reference.next(token);
  }
  CHECK_THAT(perplexity(tokens, 62, {9, 7}),
             Catch::Matchers::WithinRel(std::exp(loss / static_cast<double>(tokens.size())), 1e-5));
}

TEST_CASE("of a long text windows at even distances are read") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(400, 64);
  auto const perplexity = [&](std::vector<std::int32_t> const& text, std::int64_t max_tokens,
                              std::int64_t read) {
    quality::QualityRun const run{"test", {{f32}}, {}, 50, max_tokens};
    std::int64_t done = 0;
    auto const rows =
        quality::measure_quality(model, run, text, [&](std::int64_t count) { done = count; });
    CHECK(done == read);
    return rows[0].perplexity;
  };
  std::vector<std::int32_t> picked(tokens.begin(), tokens.begin() + 50);
  picked.insert(picked.end(), tokens.begin() + 200, tokens.begin() + 250);
  CHECK(perplexity(tokens, 149, 100) == perplexity(picked, 1000, 100));
  picked.resize(30);
  CHECK(perplexity(tokens, 30, 30) == perplexity(picked, 1000, 30));
  (void)perplexity(tokens, 400, 400);
  (void)perplexity(picked, 30, 30);
}

TEST_CASE("rewinding forgets: the same tokens again give the same logits, in every format") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(60, 64);
  std::vector<std::int32_t> const last = {11};
  for (auto const& [format, scales] : all_scaled(model, tokens)) {
    INFO(kv::to_string(format));
    engine::Forward forward(model);
    quality::PagedSequence sequence(model.config, forward, 60, format, scales);
    std::span<std::int32_t const> const all(tokens);
    sequence.run(all.first(48), {});
    auto const first = sequence.run(all.subspan(48), last);
    std::vector<float> const logits(first.begin(), first.end());
    CHECK(sequence.rewind(50) == 48);
    auto const again = sequence.run(all.subspan(48), last);
    CHECK(std::vector<float>(again.begin(), again.end()) == logits);
  }
}

TEST_CASE("windows and texts that can't be are refused with what could") {
  auto const model = engine::random_model(small_config(), 5);
  auto const nothing = [](std::int64_t) {};
  auto const tokens = random_tokens(10, 64);
  CHECK_THROWS_WITH(quality::measure_quality(model, {"", {{f32}}, {}, 129}, tokens, nothing),
                    "a window of 129 tokens: the model takes 2 to 128");
  CHECK_THROWS_WITH(quality::measure_quality(model, {"", {{f32}}, {1}, 2}, tokens, nothing),
                    "a window of 2 tokens: the model takes 3 to 128");
  CHECK_THROWS_WITH(
      quality::measure_quality(model, {"", {{f32}}, {}, 64}, std::span(tokens).first(1), nothing),
      "the text has 1 tokens to read; at least 2 are needed");
}

TEST_CASE("static formats without scales are refused with what would help") {
  CHECK_THROWS_WITH(
      quality::find_scales({}, small_config(), {kv::Element::fp8_e4m3, kv::Granularity::per_head}),
      kv::testing::contains_text("fp8_e4m3/per_head is static and needs calibrated scales") &&
          kv::testing::contains_text("--calibrate"));
}

TEST_CASE("calibration takes the largest magnitudes, K's and V's apart") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(90, 64);
  engine::Forward forward(model);
  quality::PagedSequence sequence(model.config, forward, 90, f32);
  std::vector<float> k(3, 0.0F);
  std::vector<float> v(3, 0.0F);
  sequence.observe(
      [&](std::int32_t layer, std::span<float const> of_k, std::span<float const> of_v) {
        auto const l = static_cast<std::size_t>(layer);
        for (float const x : of_k) k[l] = std::max(k[l], std::abs(x));
        for (float const x : of_v) v[l] = std::max(v[l], std::abs(x));
      });
  sequence.run(tokens, {});
  kv::KvFormat const format{kv::Element::int8, kv::Granularity::per_tensor};
  auto const set = quality::calibrate(model, "m", tokens, 100, {format})[0];
  CHECK(set.model == "m");
  CHECK(set.made == "amax of 90 tokens");
  for (std::size_t layer = 0; layer < 3; ++layer) {
    CHECK_THAT(set.layers[layer].k[0] * 127, Catch::Matchers::WithinRel(k[layer], 1e-5F));
    CHECK_THAT(set.layers[layer].v[0] * 127, Catch::Matchers::WithinRel(v[layer], 1e-5F));
  }
}

TEST_CASE("of several files the one for the format serves, a tensor's for heads only if alone") {
  auto const model = engine::random_model(small_config(), 5);
  auto const tokens = random_tokens(90, 64);
  kv::KvFormat const heads{kv::Element::fp8_e4m3, kv::Granularity::per_head};
  kv::KvFormat const tensor{kv::Element::fp8_e4m3, kv::Granularity::per_tensor};
  auto const sets = quality::calibrate(model, "m", tokens, 100, {tensor, heads});
  kv::testing::TemporaryFolder const folder;
  std::vector<std::string> const paths = {folder.file("a.json"), folder.file("b.json")};
  for (std::size_t i = 0; i < 2; ++i) kv::quant::write_scale_file(paths[i], sets[i]);
  CHECK(quality::find_scales(paths, model.config, heads).scales == sets[1]);
  CHECK(quality::find_scales(paths, model.config, tensor).scales == sets[0]);
  auto const alone = quality::find_scales({paths[0]}, model.config, heads).scales;
  CHECK(alone.layers == sets[0].layers);
  auto const spread = quality::storage_scales(alone, heads, 2);
  CHECK(spread[0].k == std::vector<float>{sets[0].layers[0].k[0], sets[0].layers[0].k[0]});
  CHECK_THROWS_AS(quality::find_scales({paths[1]}, model.config, tensor), quality::MissingScales);
}

/// A token a byte, below 64.
class Letters : public engine::Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids = {1};
    for (char const c : text) ids.push_back(c & 63);
    return ids;
  }
  std::string_view piece(std::int32_t, std::int32_t) const override { return {}; }
  std::int32_t vocab_size() const override { return 64; }
};

TEST_CASE("a model's needle: prompts are as long as asked, the number stands where it should") {
  Letters const letters;
  quality::ModelNeedle const search{{}, {}, {40, 41, 42}, {1}};
  std::size_t last = 0;
  for (int depth = 0; depth <= 10; ++depth) {
    INFO("depth " << depth);
    auto const prompt = quality::make_needle_prompt(letters, search, 120, depth);
    CHECK(prompt.tokens.size() == 120);
    CHECK(prompt.tokens[0] == 1);
    CHECK(prompt.answer == 5);
    CHECK(prompt.needle >= last);
    last = prompt.needle;
    std::span<std::int32_t const> const all(prompt.tokens);
    auto const answer = all.last(5);
    auto const needle = all.subspan(prompt.needle, all.size() - prompt.needle - 5);
    CHECK(std::search(needle.begin(), needle.end(), answer.begin(), answer.end()) != needle.end());
  }
  CHECK(quality::make_needle_prompt(letters, search, 120, 0).needle == 1);
  CHECK_THROWS_WITH(quality::make_needle_prompt(letters, search, 90, 0),
                    "a needle needs a context of at least 103 tokens, not 90");
}

/// Says the same token whatever the text is.
class OneLetter : public Letters {
 public:
  explicit OneLetter(std::int32_t id) : id_(id) {}
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids(text.size() + 1, id_);
    ids[0] = 1;
    return ids;
  }

 private:
  std::int32_t id_;
};

TEST_CASE("a model's needle is found where greedy generation gives the number") {
  auto const model = engine::random_model(small_config(), 5);
  int found = 0;
  for (std::int32_t id = 2; id < 34; ++id) {
    INFO("token " << id);
    OneLetter const letter(id);
    // A haystack of the same token: some like to go on with it.
    quality::ModelNeedle const search{{{f32}}, {110, 300}, {id}, {1}};
    std::int64_t last = 0;
    auto const rows = quality::search_model_needles(model, letter, search,
                                                    [&](std::int64_t done) { last = done; });
    REQUIRE(rows.size() == 11);
    CHECK(last == 11);
    auto const prompt = quality::make_needle_prompt(letter, search, 110, 5);
    auto const end = prompt.tokens.end() - static_cast<std::ptrdiff_t>(prompt.answer);
    auto const output = engine::greedy_reference(model, {prompt.tokens.begin(), end}, 5, {});
    CHECK(rows[5].found == std::equal(output.begin(), output.end(), end));
    found += rows[5].found ? 1 : 0;
  }
  CHECK(found > 0);
  CHECK(found < 32);
}

TEST_CASE("a file for each format that is calibrated, or the one that is named") {
  kv::KvFormat const format{kv::Element::int8, kv::Granularity::per_head};
  CHECK(quality::scale_path("a/b.json", format, true) == "a/b.json");
  CHECK(quality::scale_path("a/b.json", format, false) == "a/b.int8.per_head.json");
}

/// A trained model and its text, where they are at hand.
TEST_CASE("stories260K: an f16 cache loses nothing, int8 little, and f32's loss is the known one") {
  std::string const data = PAGEDKV_SOURCE_DIR "/../shared/data";
  if (!std::ifstream(data + "/tinyllamas/stories260K.bin")) {
    WARN("skipped: there is no ../shared/data/tinyllamas");
    return;
  }
  auto const loaded =
      engine::load_model(data + "/tinyllamas/stories260K.bin", data + "/tinyllamas/tok512.bin");
  std::string const text =
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. One day, she saw a big red ball. She wanted to play with it. Her mom said yes and "
      "they played with the ball all day. Lily was very happy.";
  auto tokens = loaded.tokenizer->encode(text);
  tokens.erase(tokens.begin());
  quality::QualityRun const run{"stories260K",
                                {{f32},
                                 {{kv::Element::f16, kv::Granularity::none}},
                                 {{kv::Element::int8, kv::Granularity::per_token_head}}},
                                {1},
                                512};
  auto const rows = quality::measure_quality(loaded.model, run, tokens, [](std::int64_t) {});
  CHECK(rows[0].perplexity > 1.5);
  CHECK(rows[0].perplexity < 6.0);
  CHECK_THAT(rows[1].perplexity, Catch::Matchers::WithinRel(rows[0].perplexity, 1e-3));
  CHECK_THAT(rows[2].perplexity, Catch::Matchers::WithinRel(rows[0].perplexity, 1e-2));
}

}  // namespace

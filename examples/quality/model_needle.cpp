// SPDX-License-Identifier: Apache-2.0
#include "model_needle.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "needle_context.hpp"
#include "paged_sequence.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr std::size_t chunk_tokens = 128;
constexpr char const* sentence = " The secret number of the lighthouse is ";

using Tokens = std::vector<std::int32_t>;

/// Five digits, none of them 0 in front, others for each depth.
std::string secret(int depth) { return std::to_string(10000 + (7919 * (depth + 1) * 13) % 90000); }

/// Without what stands in front of prompts.
Tokens encode(engine::Tokenizer const& tokenizer, std::string const& text) {
  auto tokens = tokenizer.encode(text);
  auto const front = tokenizer.encode("").size();
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(front));
  return tokens;
}

void add_hay(Tokens& tokens, Tokens const& hay, std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) tokens.push_back(hay[i % hay.size()]);
}

class Search {
 public:
  Search(engine::Model const& model, engine::Tokenizer const& tokenizer, ModelNeedle const& search)
      : model_(model), tokenizer_(tokenizer), search_(search), forward_(model) {}

  std::vector<NeedleRow> of(ScaledFormat const& format, std::int32_t length,
                            std::function<void()> const& progress) {
    PagedSequence sequence(model_.config, forward_, length, format.format, format.scales);
    std::vector<NeedleRow> rows;
    for (int i = 0; i < num_needles; ++i) {
      double const depth = i / (num_needles - 1.0);
      auto const prompt = make_needle_prompt(tokenizer_, search_, length, i);
      rows.push_back({"model", format.format, length, depth, answers(sequence, prompt)});
      progress();
    }
    return rows;
  }

 private:
  /// Whether each token of the answer is the likeliest after those before it: what greedy
  /// generation would have given.
  bool answers(PagedSequence& sequence, NeedlePrompt const& prompt) {
    auto const shared = std::min(static_cast<std::int32_t>(prompt.needle), shared_length_);
    auto const begin = static_cast<std::size_t>(
        sequence.rewind(sequence.length() == 0 ? 0 : std::min(shared, sequence.length())));
    shared_length_ = static_cast<std::int32_t>(prompt.needle);
    std::span<std::int32_t const> const all(prompt.tokens);
    // The logits of the last `answer` tokens but one predict the answer.
    std::size_t const asked = all.size() - prompt.answer - 1;
    for (std::size_t at = begin; at < asked; at += chunk_tokens) {
      sequence.run(all.subspan(at, std::min(chunk_tokens, asked - at)), {});
    }
    Tokens outputs;
    for (std::size_t i = 0; i < prompt.answer; ++i) outputs.push_back(static_cast<std::int32_t>(i));
    auto const logits = sequence.run(all.subspan(asked, prompt.answer), outputs);
    auto const vocab = static_cast<std::size_t>(model_.config.vocab_size);
    for (std::size_t i = 0; i < prompt.answer; ++i) {
      auto const row = logits.subspan(i * vocab, vocab);
      auto const best = std::max_element(row.begin(), row.end()) - row.begin();
      if (best != all[asked + 1 + i]) return false;
    }
    return true;
  }

  engine::Model const& model_;
  engine::Tokenizer const& tokenizer_;
  ModelNeedle const& search_;
  engine::Forward forward_;
  std::int32_t shared_length_ = 0;
};

}  // namespace

NeedlePrompt make_needle_prompt(engine::Tokenizer const& tokenizer, ModelNeedle const& search,
                                std::int32_t length, int depth) {
  Tokens const front = encode(tokenizer, sentence);
  Tokens const question = encode(tokenizer, sentence + secret(depth));
  Tokens const statement = encode(tokenizer, sentence + secret(depth) + ".");
  std::size_t const others = search.first_tokens.size() + statement.size() + question.size();
  auto const all = static_cast<std::size_t>(length);
  if (all < others + num_needles) {
    throw std::invalid_argument("a needle needs a context of at least " +
                                std::to_string(others + num_needles) + " tokens, not " +
                                std::to_string(length));
  }
  std::size_t const hay = all - others;
  std::size_t const before = hay * static_cast<std::size_t>(depth) / (num_needles - 1);
  NeedlePrompt prompt;
  prompt.tokens = search.first_tokens;
  add_hay(prompt.tokens, search.haystack, 0, before);
  prompt.needle = prompt.tokens.size();
  prompt.tokens.insert(prompt.tokens.end(), statement.begin(), statement.end());
  add_hay(prompt.tokens, search.haystack, before, hay);
  prompt.tokens.insert(prompt.tokens.end(), question.begin(), question.end());
  // The number's own tokens begin where the sentence alone goes on otherwise, or ends.
  auto const differs = std::mismatch(front.begin(), front.end(), question.begin(), question.end());
  prompt.answer = static_cast<std::size_t>(question.end() - differs.second);
  return prompt;
}

std::string plain_haystack() {
  constexpr char const* sentences[] = {
      " The market opens early and the first carts come down the hill before the sun is up.",
      " Bread is baked in the old oven behind the square, and the smell reaches the harbour.",
      " In the afternoon the wind turns, and the boats that went out come back with their catch.",
      " A gardener waters the roses along the wall while two children count the passing clouds.",
      " The road to the next village follows the river for an hour and then climbs to a chapel.",
      " When it rains, people stand under the arches and talk about the harvest of last year.",
      " An old clock on the tower strikes every quarter, though it has never shown the right time.",
      " Letters arrive twice a week, and most of them are read aloud at the inn in the evening."};
  std::string text;
  for (char const* const line : sentences) text += line;
  return text;
}

std::vector<std::int32_t> lengths_within(engine::ModelConfig const& config,
                                         std::vector<std::int32_t> const& lengths) {
  std::vector<std::int32_t> within;
  for (auto const length : lengths) {
    if (length <= config.max_positions) within.push_back(length);
  }
  return within;
}

std::vector<NeedleRow> search_model_needles(engine::Model const& model,
                                            engine::Tokenizer const& tokenizer,
                                            ModelNeedle const& search,
                                            std::function<void(std::int64_t)> const& progress) {
  std::vector<NeedleRow> rows;
  std::int64_t done = 0;
  for (auto const& format : search.formats) {
    for (auto const length : lengths_within(model.config, search.lengths)) {
      auto const found =
          Search(model, tokenizer, search).of(format, length, [&] { progress(++done); });
      rows.insert(rows.end(), found.begin(), found.end());
    }
  }
  return rows;
}

}  // namespace quality

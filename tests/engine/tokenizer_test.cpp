// SPDX-License-Identifier: Apache-2.0
/// \file
/// Text to ids and back.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <pagedkv/types.hpp>

#include "engine_helpers.hpp"
#include "gguf.hpp"
#include "gguf_writer.hpp"
#include "merge.hpp"
#include "pre_tokenizer.hpp"
#include "random.hpp"
#include "run_program.hpp"
#include "tokenizer.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

/// Merging as the definition says: over and over, the best of all neighbours.
template <class MergeOf>
Ids merged_slowly(Ids ids, MergeOf const& merge) {
  for (;;) {
    engine::Merge best;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      auto const found = merge(ids[i], ids[i + 1]);
      if (found.id < 0 || (best.id >= 0 && found.priority >= best.priority)) continue;
      best = found;
      place = i;
    }
    if (best.id < 0) return ids;
    ids[place] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::vector<std::string> words(std::string const& name, std::string const& text) {
  std::vector<std::string> all;
  engine::PreTokenizer(name).cut(text, [&](std::string_view word) { all.emplace_back(word); });
  return all;
}

/// A byte-level vocabulary: all bytes, some merges, two named tokens.
std::unique_ptr<engine::Tokenizer> byte_level() {
  engine::Vocabulary v;
  auto const add = [&v](std::string piece, engine::TokenKind kind) {
    v.pieces.push_back(std::move(piece));
    v.kinds.push_back(kind);
    v.scores.push_back(0);
  };
  add("<|end|>", engine::TokenKind::control);
  add("<|end|>!", engine::TokenKind::added);
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    bool const itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::uint32_t const c = itself ? byte : next++;
    std::string spelled;
    if (c >= 0x80) spelled += static_cast<char>(0xC0 | c >> 6);
    spelled += static_cast<char>(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    add(spelled, engine::TokenKind::normal);
  }
  for (char const* piece : {"he", "ll", "hell", "\u0120w", "or", "\u0120wor", "hello"}) {
    add(piece, engine::TokenKind::normal);
  }
  engine::BytePairOptions options;
  options.end_ids = {0};
  return engine::make_byte_pairs(
      std::move(v), {"h e", "l l", "he ll", "\u0120 w", "o r", "\u0120w or", "hell o"}, options);
}

std::string random_text(engine::Random& random) {
  static std::vector<std::string> const parts = {
      "hello",      " wor", "ld", "'s",      "'ll",      " ",      "  ",           "\n",
      "\t",         "12",   "7",  "<|end|>", "<|en",     "\u00e9", "\u4e16\u754c", "\u00a0",
      "\U0001F600", "x",    "!?", "\xFF",    "\xE4\xB8", "\u0301"};
  std::string text;
  for (std::uint64_t n = random.below(12); n > 0; --n) text += parts[random.below(parts.size())];
  return text;
}

}  // namespace

TEST_CASE("merging with a queue is merging over and over") {
  engine::Random random(3);
  for (int round = 0; round < 300; ++round) {
    // Pairs of eight ids merge by a table; priorities repeat.
    std::vector<engine::Merge> table(24 * 24);
    for (auto& entry : table) {
      if (random.below(3) == 0) {
        entry = {static_cast<std::int32_t>(random.below(24)), static_cast<double>(random.below(5))};
      }
    }
    auto const merge = [&table](std::int32_t a, std::int32_t b) {
      return table[static_cast<std::size_t>(a * 24 + b)];
    };
    Ids ids;
    for (std::uint64_t n = random.below(40); n > 0; --n) {
      ids.push_back(static_cast<std::int32_t>(random.below(24)));
    }
    CHECK(engine::merge_neighbours(ids, merge) == merged_slowly(ids, merge));
  }
}

TEST_CASE("a text is cut into words as its vocabulary was made") {
  using Words = std::vector<std::string>;
  CHECK(words("gpt-2", "It's 2024,  isn't it?\n\nYes.") ==
        Words{"It", "'s", " 2024", ",", " ", " isn", "'t", " it", "?", "\n", "\n", "Yes", "."});
  // Digits alone, and what stands before one is cut as if the text ended there.
  CHECK(words("smollm", "It's 2024,  isn't it?") ==
        Words{"It", "'s", " ", "2", "0", "2", "4", ",", " ", " isn", "'t", " it", "?"});
  CHECK(words("gpt-2", "na\u00efve \u4e16\u754c") == Words{"na\u00efve", " \u4e16\u754c"});
  CHECK(words("gpt-2", "").empty());
  CHECK_THROWS_AS(engine::PreTokenizer("klingon"), engine::LoadError);
}

TEST_CASE("a byte-level vocabulary merges lowest rank first and names control tokens verbatim") {
  auto const tokenizer = byte_level();
  std::int32_t const first = 2 + 256;
  CHECK(tokenizer->encode("hello world") == Ids{first + 6, first + 5, 2 + 'l', 2 + 'd'});
  CHECK(tokenizer->encode("<|end|>he<|end|>!") == Ids{0, first, 1});
  CHECK(tokenizer->decode(Ids{0, first, 1}) == "he<|end|>!");
  CHECK(tokenizer->end_ids() == Ids{0});
}

TEST_CASE("any bytes survive a round trip") {
  auto const bytes = byte_level();
  engine::Random random(9);
  for (int i = 0; i < 500; ++i) {
    auto text = random_text(random);
    INFO(text);
    auto const ids = bytes->encode(text);
    // Control tokens are printed as nothing.
    for (std::size_t at; (at = text.find("<|end|>")) != std::string::npos && text[at + 7] != '!';) {
      text.erase(at, 7);
    }
    if (text.find("<|end|>") != std::string::npos) continue;
    CHECK(bytes->decode(ids) == text);
  }
}

TEST_CASE("streamed text comes in whole characters and is the whole text") {
  auto const tokenizer = byte_level();
  std::string const text = "h\u00e9llo \u4e16\u754c \U0001F600!";
  engine::StreamedText stream(*tokenizer);
  std::string all;
  for (auto const id : tokenizer->encode(text)) {
    auto const part = stream.push(id);
    if (!part.empty()) CHECK((static_cast<unsigned char>(part.front()) & 0xC0) != 0x80);
    all += part;
  }
  CHECK(all == text);
}

TEST_CASE("a sentence-piece vocabulary inside a GGUF file") {
  pagedkv::testing::TemporaryFolder const folder;
  testing::GgufWriter writer;
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> kinds = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  auto const add = [&](std::string const& token, std::int32_t kind, float score) {
    tokens.push_back(token);
    kinds.push_back(kind);
    scores.push_back(score);
  };
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    add(name, 6, 0);
  }
  for (char const* piece : {"\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"}) {
    add(piece, 1, -static_cast<float>(tokens.size()));
  }
  writer.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
  writer.integers("tokenizer.ggml.token_type", kinds).reals("tokenizer.ggml.scores", scores);
  testing::write_file(folder.file("t.gguf"), writer.bytes());
  engine::GgufFile const file(folder.file("t.gguf"));
  auto const tokenizer = engine::load_gguf_tokenizer(file);
  std::int32_t const space = 3 + 256;
  CHECK(tokenizer->encode("ab a") == Ids{1, space + 5, space + 3});
  CHECK(tokenizer->encode("c") == Ids{1, space, 3 + 'c'});
  CHECK(tokenizer->decode(Ids{1, space + 5, space + 3}) == "ab a");
  CHECK(tokenizer->decode(tokenizer->encode("\u00e9 b\n")) == "\u00e9 b\n");
  CHECK(tokenizer->end_ids() == Ids{2});
}

TEST_CASE("the stories' tokenizer follows its rule on recorded text") {
  auto const path = testing::recorded("tinyllamas/tok512.bin");
  auto const sample = testing::recorded("tinystories/tinystories_sample.txt");
  if (path.empty() || sample.empty()) {
    WARN("tinyllamas/ or tinystories/ of the shared data is missing");
    return;
  }
  auto const tokenizer = engine::load_llama2c_tokenizer(path, 512);
  CHECK(tokenizer->encode("") == Ids{1});
  CHECK(tokenizer->encode("Once upon a time") == Ids{1, 403, 407, 261, 378});
  std::ifstream file(sample, std::ios::binary);
  std::string const text((std::istreambuf_iterator<char>(file)), {});
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

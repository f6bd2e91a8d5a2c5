// SPDX-License-Identifier: Apache-2.0
#include "pre_tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>

#include "model.hpp"

namespace engine {

namespace {

/// Contractions, then words, numbers and signs with a space in front, then spaces; the last space
/// of a run belongs to the word behind it.
constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

/// A compiled expression.
class PreTokenizer::Pattern {
 public:
  explicit Pattern(std::string_view expression) {
    int error = 0;
    PCRE2_SIZE place = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &place, nullptr);
    if (code_ == nullptr) {
      throw LoadError("pre-tokenizer: PCRE2 error " + std::to_string(error) + " at character " +
                      std::to_string(place));
    }
    // Without just-in-time code it is slower and right.
    (void)pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(code_); }
  Pattern(Pattern const&) = delete;
  Pattern& operator=(Pattern const&) = delete;

  /// Calls `part` for each match, and for what lies between two.
  void cut(std::string_view text, std::function<void(std::string_view)> const& part) const {
    std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> const match(
        pcre2_match_data_create_from_pattern(code_, nullptr), &pcre2_match_data_free);
    auto const* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::size_t done = 0;
    while (done < text.size() &&
           pcre2_match(code_, subject, text.size(), done, 0, match.get(), nullptr) > 0) {
      PCRE2_SIZE const* const ends = pcre2_get_ovector_pointer(match.get());
      if (ends[1] <= ends[0]) break;
      if (ends[0] > done) part(text.substr(done, ends[0] - done));
      part(text.substr(ends[0], ends[1] - ends[0]));
      done = ends[1];
    }
    if (done < text.size()) part(text.substr(done));
  }

 private:
  pcre2_code* code_ = nullptr;
};

PreTokenizer::PreTokenizer(std::string const& name) {
  if (name == "smollm") {
    digits_ = std::make_unique<Pattern>(R"(\p{N})");
  } else if (name != "gpt-2" && name != "gpt2" && name != "default") {
    throw LoadError("pre-tokenizer '" + name + "' isn't known; expected gpt-2 or smollm");
  }
  words_ = std::make_unique<Pattern>(gpt2_words);
}

PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::cut(std::string_view text,
                       std::function<void(std::string_view)> const& word) const {
  if (digits_ == nullptr) return words_->cut(text, word);
  // A part is cut as if it stood alone: a space in front of a digit is a word.
  digits_->cut(text, [&](std::string_view part) { words_->cut(part, word); });
}

}  // namespace engine

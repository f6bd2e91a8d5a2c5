// SPDX-License-Identifier: Apache-2.0
/// \file
/// Text to token ids and back, as each model's own tokenizer does it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace engine {

class GgufFile;

/// Thread-safe once built.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// A prompt's ids, with what stands in front of every prompt. Any bytes are encoded.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// The bytes of a token that follows `previous` (-1: nothing). A character may take several
  /// tokens. Ids out of range and control tokens are nothing.
  [[nodiscard]] virtual std::string_view piece(std::int32_t previous, std::int32_t id) const = 0;
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  /// Ids that end an answer.
  [[nodiscard]] std::vector<std::int32_t> const& end_ids() const noexcept { return end_ids_; }

  /// The text of ids that follow `previous`.
  [[nodiscard]] std::string decode(std::span<std::int32_t const> ids,
                                   std::int32_t previous = -1) const;

 protected:
  std::vector<std::int32_t> end_ids_;
};

/// What a vocabulary says of each token.
enum class TokenKind : std::uint8_t {
  normal,
  control,  ///< found in a text verbatim, and printed as nothing
  added,    ///< found in a text verbatim, and printed
  byte,     ///< stands for one byte that no other token covers
};

struct Vocabulary {
  std::vector<std::string> pieces;  ///< bytes of each token
  std::vector<TokenKind> kinds;     ///< [pieces]
  std::vector<float> scores;        ///< [pieces], of sentence-piece vocabularies
};

/// Sentence-piece vocabularies: a space in front, characters (bytes where a character is no token),
/// then the neighbours whose merged token scores highest, until none is left.
struct SentencePieceOptions {
  std::int32_t first_id = 1;   ///< in front of every prompt; -1: nothing
  bool space_in_front = true;  ///< of a text that isn't empty
  std::vector<std::int32_t> end_ids = {1, 2};
};
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentence_piece(Vocabulary vocabulary,
                                                             SentencePieceOptions options);

/// Byte-level pairs: the text is cut by a regular expression; in each part the bytes' tokens are
/// merged, lowest rank first.
struct BytePairOptions {
  std::string pre_tokenizer = "gpt-2";  ///< "gpt-2" or "smollm"; anything else throws `LoadError`
  std::int32_t first_id = -1;
  std::vector<std::int32_t> end_ids;
};
/// `merges`: "left right" in the alphabet of byte-level vocabularies, as `pieces` are too.
[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_pairs(Vocabulary vocabulary,
                                                         std::vector<std::string> const& merges,
                                                         BytePairOptions const& options);

/// A llama2.c tokenizer file of `vocab_size` tokens. Throws `LoadError`.
[[nodiscard]] std::unique_ptr<Tokenizer> load_llama2c_tokenizer(std::string const& path,
                                                                std::int32_t vocab_size);
/// The tokenizer inside a GGUF file: `gpt2` or `llama`. Throws `LoadError`.
[[nodiscard]] std::unique_ptr<Tokenizer> load_gguf_tokenizer(GgufFile const& file);

/// Hands out a text piece by piece, whole characters only.
class StreamedText {
 public:
  /// `tokenizer` must outlive it. `previous`: the prompt's last id.
  explicit StreamedText(Tokenizer const& tokenizer, std::int32_t previous = -1)
      : tokenizer_(&tokenizer), previous_(previous) {}

  /// What can be printed now.
  [[nodiscard]] std::string push(std::int32_t id);

 private:
  Tokenizer const* tokenizer_;
  std::int32_t previous_;
  std::string held_;  // the beginning of a character
};

}  // namespace engine

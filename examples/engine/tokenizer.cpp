// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "gguf.hpp"
#include "mapped_file.hpp"
#include "merge.hpp"
#include "pre_tokenizer.hpp"
#include "utf8.hpp"

namespace engine {

namespace {

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

/// Pieces by their bytes; of equal ones the first.
class PieceIndex {
 public:
  void add(std::string const& piece, std::int32_t id) { ids_.emplace(piece, id); }
  [[nodiscard]] std::int32_t find(std::string const& piece) const {
    auto const found = ids_.find(piece);
    return found == ids_.end() ? -1 : found->second;
  }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
};

/// Pieces that a text names verbatim, such as <|im_start|>: they cut it before anything else does.
class VerbatimPieces {
 public:
  void add(std::string const& piece, std::int32_t id) {
    if (piece.empty()) return;
    pieces_.emplace_back(piece, id);
    begins_[static_cast<unsigned char>(piece.front())] = true;
  }
  /// Once all are there: the longest first, so that no piece hides another that begins with it.
  void sort() {
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](auto const& a, auto const& b) { return a.first.size() > b.first.size(); });
  }
  /// Calls `text(part)` and `token(id)` in order.
  template <class Text, class Token>
  void cut(std::string_view text, Text&& on_text, Token&& on_token) const {
    std::size_t from = 0;
    for (std::size_t i = 0; i < text.size();) {
      auto const* const found = piece_at(text.substr(i));
      if (found == nullptr) {
        ++i;
        continue;
      }
      if (i > from) on_text(text.substr(from, i - from));
      on_token(found->second);
      from = i += found->first.size();
    }
    if (from < text.size()) on_text(text.substr(from));
  }

 private:
  using Piece = std::pair<std::string, std::int32_t>;

  [[nodiscard]] Piece const* piece_at(std::string_view text) const {
    if (!begins_[static_cast<unsigned char>(text.front())]) return nullptr;
    for (auto const& piece : pieces_) {
      if (text.starts_with(piece.first)) return &piece;
    }
    return nullptr;
  }

  std::vector<Piece> pieces_;
  std::array<bool, 256> begins_{};
};

/// Pieces, and which of them a text may name.
class VocabularyTokenizer : public Tokenizer {
 public:
  VocabularyTokenizer(Vocabulary vocabulary, std::int32_t first_id,
                      std::vector<std::int32_t> end_ids)
      : vocabulary_(std::move(vocabulary)), first_id_(first_id) {
    end_ids_ = std::move(end_ids);
    for (std::int32_t id = 0; id < vocab_size(); ++id) {
      auto const& piece = vocabulary_.pieces[at(id)];
      switch (vocabulary_.kinds[at(id)]) {
        case TokenKind::normal: index_.add(piece, id); break;
        case TokenKind::control:
        case TokenKind::added: verbatim_.add(piece, id); break;
        case TokenKind::byte: bytes_[static_cast<unsigned char>(piece.front())] = id; break;
      }
    }
    verbatim_.sort();
  }

  [[nodiscard]] std::int32_t vocab_size() const final {
    return static_cast<std::int32_t>(vocabulary_.pieces.size());
  }
  [[nodiscard]] std::string_view piece(std::int32_t previous, std::int32_t id) const override {
    if (id < 0 || id >= vocab_size() || vocabulary_.kinds[at(id)] == TokenKind::control) return {};
    (void)previous;
    return vocabulary_.pieces[at(id)];
  }

 protected:
  [[nodiscard]] std::vector<std::int32_t> begin() const {
    return first_id_ >= 0 ? std::vector{first_id_} : std::vector<std::int32_t>();
  }

  Vocabulary vocabulary_;
  std::int32_t first_id_;
  PieceIndex index_;
  VerbatimPieces verbatim_;
  std::array<std::int32_t, 256> bytes_ = [] {
    std::array<std::int32_t, 256> none;
    none.fill(-1);
    return none;
  }();
};

class SentencePiece final : public VocabularyTokenizer {
 public:
  SentencePiece(Vocabulary vocabulary, SentencePieceOptions options)
      : VocabularyTokenizer(std::move(vocabulary), options.first_id, std::move(options.end_ids)),
        space_in_front_(options.space_in_front) {}

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    auto ids = begin();
    bool first = true;
    verbatim_.cut(
        text,
        [&](std::string_view part) {
          append(first && space_in_front_ ? " " + std::string(part) : std::string(part), ids);
          first = false;
        },
        [&](std::int32_t id) {
          ids.push_back(id);
          first = false;
        });
    return ids;
  }
  /// The space that was put in front of a text isn't printed.
  [[nodiscard]] std::string_view piece(std::int32_t previous, std::int32_t id) const override {
    auto const text = VocabularyTokenizer::piece(previous, id);
    bool const begins = space_in_front_ && (previous < 0 || previous == first_id_);
    return begins && text.starts_with(' ') ? text.substr(1) : text;
  }

 private:
  void append(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<std::int32_t> parts;
    while (!text.empty()) {
      auto const character = first_character(text);
      if (std::int32_t const id = index_.find(std::string(character)); id >= 0) {
        parts.push_back(id);
      } else {
        for (char const c : character) {
          // A vocabulary without bytes has `unknown`, 0, for what it doesn't know.
          parts.push_back(std::max(bytes_[static_cast<unsigned char>(c)], 0));
        }
      }
      text.remove_prefix(character.size());
    }
    auto const merged = merge_neighbours(parts, [this](std::int32_t left, std::int32_t right) {
      std::int32_t const id =
          index_.find(vocabulary_.pieces[at(left)] + vocabulary_.pieces[at(right)]);
      return id < 0 ? Merge{} : Merge{id, -double{vocabulary_.scores[at(id)]}};
    });
    ids.insert(ids.end(), merged.begin(), merged.end());
  }

  bool space_in_front_;
};

/// The alphabet of byte-level vocabularies: printable Latin-1 stands for itself, the other bytes
/// for the characters from U+0100 on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      bool const itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                          (byte >= 0xAE && byte <= 0xFF);
      byte_of_[itself ? byte : next++] = static_cast<char>(static_cast<unsigned char>(byte));
    }
  }
  /// The bytes that a piece spells; nothing when it has a character outside the alphabet.
  [[nodiscard]] std::optional<std::string> bytes(std::string_view spelled) const {
    std::string text;
    while (!spelled.empty()) {
      auto const character = first_character(spelled);
      auto const found = byte_of_.find(code_point(character));
      if (found == byte_of_.end()) return std::nullopt;
      text += found->second;
      spelled.remove_prefix(character.size());
    }
    return text;
  }

 private:
  static std::uint32_t code_point(std::string_view c) {
    auto const byte = [c](std::size_t i) {
      return std::uint32_t{static_cast<unsigned char>(c[i])};
    };
    if (c.size() == 1) return byte(0) < 0x80 ? byte(0) : 0xFFFFFFFF;
    if (c.size() == 2) return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    return 0xFFFFFFFF;  // no character of the alphabet is longer
  }

  std::unordered_map<std::uint32_t, char> byte_of_;
};

class BytePairs final : public VocabularyTokenizer {
 public:
  BytePairs(Vocabulary vocabulary, std::vector<std::string> const& merges,
            BytePairOptions const& options)
      : VocabularyTokenizer(std::move(vocabulary), options.first_id, options.end_ids),
        pre_tokenizer_(options.pre_tokenizer) {
    for (std::int32_t byte = 0; byte < 256; ++byte) {
      bytes_[at(byte)] =
          index_.find(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));
    }
    ByteAlphabet const alphabet;
    for (std::size_t rank = 0; rank < merges.size(); ++rank)
      add_merge(alphabet, merges[rank], rank);
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    auto ids = begin();
    verbatim_.cut(
        text,
        [&](std::string_view part) {
          pre_tokenizer_.cut(part, [&](std::string_view word) { append(word, ids); });
        },
        [&](std::int32_t id) { ids.push_back(id); });
    return ids;
  }

 private:
  void add_merge(ByteAlphabet const& alphabet, std::string const& merge, std::size_t rank) {
    auto const space = merge.find(' ', 1);
    if (space == std::string::npos) return fail(merge);
    auto const left = alphabet.bytes(std::string_view(merge).substr(0, space));
    auto const right = alphabet.bytes(std::string_view(merge).substr(space + 1));
    if (!left || !right) return fail(merge);
    std::int32_t const left_id = index_.find(*left);
    std::int32_t const right_id = index_.find(*right);
    std::int32_t const merged = index_.find(*left + *right);
    if (left_id < 0 || right_id < 0 || merged < 0) return fail(merge);
    merges_.emplace(key(left_id, right_id), Merge{merged, static_cast<double>(rank)});
  }
  static void fail(std::string const& merge) {
    throw LoadError("merge '" + merge + "': expected two tokens that make a third");
  }
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  void append(std::string_view word, std::vector<std::int32_t>& ids) const {
    std::vector<std::int32_t> parts;
    for (char const c : word) {
      // A byte that the vocabulary lacks is dropped: there is no token to say it with.
      std::int32_t const id = bytes_[static_cast<unsigned char>(c)];
      if (id >= 0) parts.push_back(id);
    }
    auto const merged = merge_neighbours(parts, [this](std::int32_t left, std::int32_t right) {
      auto const found = merges_.find(key(left, right));
      return found == merges_.end() ? Merge{} : found->second;
    });
    ids.insert(ids.end(), merged.begin(), merged.end());
  }

  PreTokenizer pre_tokenizer_;
  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace

std::string Tokenizer::decode(std::span<std::int32_t const> ids, std::int32_t previous) const {
  std::string text;
  for (std::int32_t const id : ids) {
    text += piece(previous, id);
    previous = id;
  }
  return text;
}

std::string StreamedText::push(std::int32_t id) {
  held_ += tokenizer_->piece(std::exchange(previous_, id), id);
  std::size_t const whole = whole_characters(held_);
  std::string text = held_.substr(0, whole);
  held_.erase(0, whole);
  return text;
}

std::unique_ptr<Tokenizer> make_sentence_piece(Vocabulary vocabulary,
                                               SentencePieceOptions options) {
  return std::make_unique<SentencePiece>(std::move(vocabulary), std::move(options));
}

std::unique_ptr<Tokenizer> make_byte_pairs(Vocabulary vocabulary,
                                           std::vector<std::string> const& merges,
                                           BytePairOptions const& options) {
  ByteAlphabet const alphabet;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    // Control and added tokens are spelled as they are.
    if (vocabulary.kinds[id] != TokenKind::normal) continue;
    if (auto bytes = alphabet.bytes(vocabulary.pieces[id])) vocabulary.pieces[id] = *bytes;
  }
  return std::make_unique<BytePairs>(std::move(vocabulary), merges, options);
}

namespace {

std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  auto const digit = [](char c) {
    auto const place = std::string_view("0123456789ABCDEF").find(c);
    return place == std::string_view::npos ? -1 : static_cast<int>(place);
  };
  int const high = digit(piece[3]);
  int const low = digit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(static_cast<unsigned char>(high * 16 + low));
}

/// U+2581 stands for a space.
std::string with_spaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    auto const character = first_character(piece);
    if (character == "\xE2\x96\x81") {
      text += ' ';
    } else {
      text += character;
    }
    piece.remove_prefix(character.size());
  }
  return text;
}

void add_piece(Vocabulary& vocabulary, std::string piece, float score, TokenKind kind) {
  if (kind == TokenKind::byte) {
    auto const byte = byte_of(piece);
    piece.assign(1, byte.value_or('?'));
    if (!byte) kind = TokenKind::normal;
  }
  vocabulary.pieces.push_back(std::move(piece));
  vocabulary.scores.push_back(score);
  vocabulary.kinds.push_back(kind);
}

}  // namespace

std::unique_ptr<Tokenizer> load_llama2c_tokenizer(std::string const& path,
                                                  std::int32_t vocab_size) {
  MappedFile const file(path);
  ByteReader in(file);
  auto const longest = in.read<std::int32_t>("longest token");
  if (vocab_size < 3) {
    in.fail("tokens", "expected at least 3 (unknown, begin and end), the model has " +
                          std::to_string(vocab_size));
  }
  Vocabulary vocabulary;
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    auto const what = "token " + std::to_string(id);
    auto const score = in.read<float>(what);
    auto const length = in.read<std::int32_t>(what);
    if (length < 0 || length > longest) {
      in.fail(what, "expected a length of 0 to " + std::to_string(longest) + ", is " +
                        std::to_string(length));
    }
    if (std::isnan(score)) in.fail(what, "the score isn't a number");
    auto const bytes = in.take(static_cast<std::uint64_t>(length), what);
    std::string piece(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    // 0 unknown, 1 and 2 begin and end; some files write a line break before and after them.
    TokenKind const kind = id < 3           ? TokenKind::control
                           : byte_of(piece) ? TokenKind::byte
                                            : TokenKind::normal;
    add_piece(vocabulary, std::move(piece), score, kind);
  }
  if (in.left() > 0) {
    in.fail("end", "expected " + std::to_string(vocab_size) + " tokens, and " +
                       std::to_string(in.left()) + " bytes follow them");
  }
  return make_sentence_piece(std::move(vocabulary), {});
}

namespace {

class GgufTokenizerReader {
 public:
  explicit GgufTokenizerReader(GgufFile const& file) : file_(file) {}

  std::unique_ptr<Tokenizer> read() {
    auto const& kind = file_.get<std::string>("tokenizer.ggml.model");
    if (kind == "gpt2") return byte_pairs();
    if (kind == "llama") return sentence_piece();
    file_.fail("tokenizer.ggml.model", "expected gpt2 or llama, is " + kind);
  }

 private:
  using Int = std::int64_t;

  Vocabulary vocabulary() const {
    auto const& tokens = file_.get<GgufFile::Strings>("tokenizer.ggml.tokens");
    if (tokens.empty()) file_.fail("tokenizer.ggml.tokens", "expected at least one token");
    auto const kinds = numbers("tokenizer.ggml.token_type", tokens.size());
    Vocabulary all;
    auto const scores = file_.get_or<std::vector<double>>("tokenizer.ggml.scores", {});
    if (!scores.empty() && scores.size() != tokens.size()) {
      file_.fail("tokenizer.ggml.scores", "expected " + std::to_string(tokens.size()) +
                                              " values, has " + std::to_string(scores.size()));
    }
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      auto const score = scores.empty() ? 0.0F : static_cast<float>(scores[id]);
      if (std::isnan(score)) file_.fail("tokenizer.ggml.scores", "a score isn't a number");
      add_piece(all, tokens[id], score, kinds.empty() ? TokenKind::normal : kind_of(kinds[id]));
    }
    return all;
  }
  std::vector<Int> numbers(std::string const& key, std::size_t count) const {
    auto const values = file_.get_or<std::vector<Int>>(key, {});
    if (!values.empty() && values.size() != count) {
      file_.fail(key, "expected " + std::to_string(count) + " values, has " +
                          std::to_string(values.size()));
    }
    return values;
  }
  static TokenKind kind_of(Int number) {
    switch (number) {
      case 2:  // unknown
      case 3: return TokenKind::control;
      case 4: return TokenKind::added;
      case 6: return TokenKind::byte;
      default: return TokenKind::normal;
    }
  }
  std::int32_t id_or(std::string const& key, std::int32_t fallback) const {
    auto const id = file_.get_or<Int>(key, fallback);
    auto const size = file_.get<GgufFile::Strings>("tokenizer.ggml.tokens").size();
    if (id < -1 || id >= static_cast<Int>(size)) {
      file_.fail(key,
                 "expected an id below " + std::to_string(size) + ", is " + std::to_string(id));
    }
    return static_cast<std::int32_t>(id);
  }
  std::int32_t first_id(bool by_default, std::int32_t fallback) const {
    bool const wanted = file_.get_or<bool>("tokenizer.ggml.add_bos_token", by_default);
    return wanted ? id_or("tokenizer.ggml.bos_token_id", fallback) : -1;
  }
  std::vector<std::int32_t> end_ids(std::int32_t fallback) const {
    std::vector<std::int32_t> ids;
    for (char const* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      std::int32_t const id = id_or(key, -1);
      if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    if (ids.empty() && fallback >= 0) ids.push_back(fallback);
    return ids;
  }
  std::unique_ptr<Tokenizer> byte_pairs() const {
    BytePairOptions options;
    options.pre_tokenizer = file_.get_or<std::string>("tokenizer.ggml.pre", "gpt-2");
    options.first_id = first_id(false, -1);
    options.end_ids = end_ids(-1);
    try {
      return make_byte_pairs(vocabulary(), file_.get<GgufFile::Strings>("tokenizer.ggml.merges"),
                             options);
    } catch (LoadError const& error) {
      std::string const message = error.what();
      if (message.starts_with(file_.path())) throw;
      file_.fail("tokenizer.ggml", message);
    }
  }
  std::unique_ptr<Tokenizer> sentence_piece() const {
    Vocabulary all = vocabulary();
    for (auto& piece : all.pieces) piece = with_spaces(piece);
    SentencePieceOptions options;
    options.first_id = first_id(true, 1);
    options.space_in_front = file_.get_or<bool>("tokenizer.ggml.add_space_prefix", true);
    options.end_ids = end_ids(2);
    return make_sentence_piece(std::move(all), std::move(options));
  }

  GgufFile const& file_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_gguf_tokenizer(GgufFile const& file) {
  return GgufTokenizerReader(file).read();
}

}  // namespace engine

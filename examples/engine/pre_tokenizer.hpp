// SPDX-License-Identifier: Apache-2.0
/// \file
/// Cuts a text into the words that a byte-level tokenizer merges within.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace engine {

/// Thread-safe.
class PreTokenizer {
 public:
  /// "gpt-2" (also "default" and "gpt2"), or "smollm": digits alone first, then as gpt-2. Throws
  /// `LoadError` for another name.
  explicit PreTokenizer(std::string const& name);
  ~PreTokenizer();

  /// Calls `word` with each part in order; together they are the text, any bytes.
  void cut(std::string_view text, std::function<void(std::string_view)> const& word) const;

 private:
  class Pattern;

  std::unique_ptr<Pattern> digits_;  // null where digits aren't cut apart
  std::unique_ptr<Pattern> words_;
};

}  // namespace engine

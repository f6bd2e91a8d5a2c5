// SPDX-License-Identifier: Apache-2.0
/// \file
/// As much UTF-8 as tokenizers need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace engine {

/// Bytes of the character that begins with `first`, 1 to 4; 1 for a byte that begins none.
[[nodiscard]] inline std::size_t character_bytes(char first) noexcept {
  auto const byte = static_cast<unsigned char>(first);
  if (byte >= 0xF0 && byte < 0xF8) return 4;
  if (byte >= 0xE0) return byte < 0xF0 ? 3 : 1;
  return byte >= 0xC0 ? 2 : 1;
}

/// The character at the front of a text that isn't empty; a byte that is part of none alone.
[[nodiscard]] inline std::string_view first_character(std::string_view text) noexcept {
  std::size_t const n = std::min(character_bytes(text.front()), text.size());
  for (std::size_t i = 1; i < n; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return text.substr(0, 1);
  }
  return text.substr(0, n);
}

/// Leading bytes of `text` that don't end in the middle of a character.
[[nodiscard]] inline std::size_t whole_characters(std::string_view text) noexcept {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    char const c = text[text.size() - back];
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    return character_bytes(c) > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Prompts on paper: explicit tokens and everything else that K and V depend on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"

namespace pagedkv::testing {

using Tokens = std::vector<TokenId>;

struct NaiveMedia {
  int first = 0;
  int count = 0;
  std::string id;
};

/// A prompt and everything else that its K and V depend on.
struct NaiveKey {
  Tokens tokens;
  std::string salt;
  std::string adapter;
  std::uint64_t adapter_generation = 0;
  std::vector<NaiveMedia> media;

  [[nodiscard]] int num_tokens() const { return static_cast<int>(tokens.size()); }

  /// What distinguishes block `j` beside its tokens and its parent. Salt and adapter key the first
  /// block; after it the parent carries them.
  [[nodiscard]] std::string extra_of(int j, int block_tokens) const {
    std::string out;
    if (j == 0 && !adapter.empty()) {
      out += join("a", adapter, "#", adapter_generation, ";");
    }
    if (j == 0 && !salt.empty()) out += join("s", salt, ";");
    int const begin = j * block_tokens;
    for (auto const& m : media) {
      int const end = std::min(m.first + m.count, begin + block_tokens);
      if (m.first < begin + block_tokens && end > begin) {
        out += join("m", m.first - begin, "-", end - begin, ":", m.id, ";");
      }
    }
    return out;
  }
};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6))) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 29)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 32);
}
inline std::uint64_t mix(std::uint64_t a, std::string const& text) {
  for (char const c : text) a = mix(a, static_cast<unsigned char>(c));
  return mix(a, text.size());
}

/// Stands for the K and V of a position: they depend on all tokens up to it, the adapter and the
/// media; the salt is in it because salted tenants must never meet.
inline std::uint64_t kv_before_first(NaiveKey const& key) {
  return mix(mix(mix(1, key.salt), key.adapter), key.adapter.empty() ? 0 : key.adapter_generation);
}
inline std::uint64_t kv_after(std::uint64_t before, NaiveKey const& key, int position,
                              TokenId token) {
  std::uint64_t kv = mix(before, static_cast<std::uint32_t>(token));
  for (auto const& m : key.media) {
    if (position >= m.first && position < m.first + m.count) {
      kv = mix(mix(kv, m.id), static_cast<std::uint64_t>(position - m.first));
    }
  }
  return kv;
}

}  // namespace pagedkv::testing

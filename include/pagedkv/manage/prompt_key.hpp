// SPDX-License-Identifier: Apache-2.0
/// \file
/// A prompt, ready to be looked up any number of times: its tokens, the chained hashes of its full
/// blocks and the extra keys that keep tenants, adapters and images apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <pagedkv/error.hpp>
#include <pagedkv/manage/block_hash.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Positions of the prompt whose embeddings come from an image, a sound, ...: equal token ids stand
/// for different content unless `id` (e.g. a digest of the content, in full) is equal as well.
struct MediaItem {
  TokenRange positions{};
  std::string_view id{};
};

/// What makes equal tokens different content. Each key is tagged and length-prefixed, so that a
/// salt never equals an adapter of the same name.
struct ExtraKeys {
  std::string_view salt{};               ///< keeps tenants apart, also in timing
  std::string_view adapter{};            ///< e.g. a LoRA's name
  std::uint64_t adapter_generation = 0;  ///< raise it when weights change under the same name
  std::span<MediaItem const> media{};    ///< each keys the blocks that it overlaps
};

namespace detail {

/// The encoded extra keys of a prompt, block by block. Salt and adapter key block 0 only: the chain
/// carries them to all others.
class ExtraKeyTable {
 public:
  ExtraKeyTable(ExtraKeys const& keys, std::int32_t num_tokens, std::int32_t block_tokens) {
    std::int32_t const num_blocks = blocks_for(std::max(num_tokens, 1), block_tokens);
    offsets_.reserve(static_cast<std::size_t>(num_blocks) + 1);
    offsets_.push_back(0);
    for (std::int32_t j = 0; j < num_blocks; ++j) {
      if (j == 0) encode_root(keys);
      for (MediaItem const& item : keys.media) {
        encode_media(item, TokenRange{j * block_tokens, block_tokens});
      }
      offsets_.push_back(bytes_.size());
      if (offsets_[offsets_.size() - 2] != bytes_.size()) num_blocks_with_keys_ = j + 1;
    }
  }

  /// The first block from `from` on that has extra keys, at most `end`.
  [[nodiscard]] std::int32_t next_keyed(std::int32_t from, std::int32_t end) const noexcept {
    std::int32_t const last = std::min(end, num_blocks_with_keys_);
    for (std::int32_t j = from; j < last; ++j) {
      if (!block(j).empty()) return j;
    }
    return end;
  }
  /// Empty for blocks without extra keys, and after the prompt.
  [[nodiscard]] std::span<std::byte const> block(std::int32_t j) const noexcept {
    auto const i = static_cast<std::size_t>(j);
    if (i + 1 >= offsets_.size()) return {};
    return std::span(bytes_).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  [[nodiscard]] std::size_t longest() const noexcept {
    std::size_t most = 0;
    for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
      most = std::max(most, offsets_[i + 1] - offsets_[i]);
    }
    return most;
  }

 private:
  enum class Tag : std::uint8_t { salt = 1, adapter = 2, media = 3 };

  void encode_root(ExtraKeys const& keys) {
    if (!keys.salt.empty()) put(Tag::salt, keys.salt);
    if (!keys.adapter.empty()) {
      put(Tag::adapter, keys.adapter);
      put_bytes(&keys.adapter_generation, sizeof keys.adapter_generation);
    }
  }
  void encode_media(MediaItem const& item, TokenRange block) {
    if (item.positions.first >= block.end() || item.positions.end() <= block.first) return;
    put(Tag::media, item.id);
    std::int32_t const offset = item.positions.first - block.first;  // negative: began earlier
    std::int32_t const end = std::min(item.positions.end(), block.end()) - block.first;
    put_bytes(&offset, sizeof offset);
    put_bytes(&end, sizeof end);
  }
  void put(Tag tag, std::string_view text) {
    bytes_.push_back(static_cast<std::byte>(tag));
    auto const length = static_cast<std::uint32_t>(text.size());
    put_bytes(&length, sizeof length);
    put_bytes(text.data(), text.size());
  }
  void put_bytes(void const* from, std::size_t n) {
    auto const* bytes = static_cast<std::byte const*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + n);
  }

  std::vector<std::byte> bytes_;
  std::vector<std::size_t> offsets_;
  std::int32_t num_blocks_with_keys_ = 0;  ///< none after them
};

/// What a look-up needs, owned by its caller.
struct PromptView {
  std::span<TokenId const> tokens;
  ExtraKeyTable const* extra = nullptr;

  [[nodiscard]] std::span<std::byte const> extra_of(std::int32_t block) const noexcept {
    return extra != nullptr ? extra->block(block) : std::span<std::byte const>{};
  }
  [[nodiscard]] std::int32_t next_keyed(std::int32_t from, std::int32_t end) const noexcept {
    return extra != nullptr ? extra->next_keyed(from, end) : end;
  }
  [[nodiscard]] std::int32_t num_tokens() const noexcept {
    return static_cast<std::int32_t>(tokens.size());
  }
};

}  // namespace detail

/// Made by `cache.hash(tokens, keys)`, once per request; every retry reuses it. Immutable, cheap to
/// copy (shared data), usable from any thread, and with any cache of the same block_tokens, seed
/// and hash policy. Stays valid across `reset()`.
class PromptKey {
 public:
  [[nodiscard]] std::int32_t num_tokens() const noexcept {
    return static_cast<std::int32_t>(data_->tokens.size());
  }
  [[nodiscard]] std::span<TokenId const> tokens() const noexcept { return data_->tokens; }
  /// Chained hashes of the full blocks, [num_tokens / block_tokens].
  [[nodiscard]] std::span<Hash128 const> hashes() const noexcept { return data_->hashes; }
  /// Bytes of the longest encoded extra keys of a block; above max_extra_key_bytes, `open` and
  /// `pin` answer Errc::extra_keys_too_long.
  [[nodiscard]] std::size_t longest_extra_key_bytes() const noexcept {
    return data_->extra ? data_->extra->longest() : 0;
  }

 private:
  template <class>
  friend class BasicKvCache;

  struct Data {
    std::vector<TokenId> tokens;
    std::vector<Hash128> hashes;
    std::shared_ptr<detail::ExtraKeyTable const> extra;
    std::uint64_t seed = 0;
    std::int32_t block_tokens = 0;
  };
  explicit PromptKey(std::shared_ptr<Data const> data) noexcept : data_(std::move(data)) {}

  [[nodiscard]] detail::PromptView view() const noexcept {
    return {data_->tokens, data_->extra.get()};
  }

  std::shared_ptr<Data const> data_;
};

PAGEDKV_NAMESPACE_END

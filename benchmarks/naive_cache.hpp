// SPDX-License-Identifier: Apache-2.0
/// \file
/// The baseline: what an engine's author would write in an afternoon, after vLLM's design. A linked
/// list of blocks in eviction order, a hash map from chained block hashes to blocks, vectors in
/// each sequence. It is correct but for hash collisions (128 bits, no comparison), and has the part
/// of the library's interface that the benchmarks use, so that both run the same code.
///
/// It is kept fair: blocks move between lists by splicing, so no list node is allocated after
/// construction; a prompt's tokens aren't copied; a block is hashed once.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace bench {

namespace kv = pagedkv;

/// Reference counts, and unreferenced blocks in eviction order: free ones in front.
class NaivePool {
 public:
  explicit NaivePool(std::int32_t num_blocks) : blocks_(static_cast<std::size_t>(num_blocks)) {
    for (std::int32_t i = 0; i < num_blocks; ++i) {
      unused_.push_back(kv::BlockId{i});
      at(kv::BlockId{i}).place = std::prev(unused_.end());
    }
  }
  NaivePool(NaivePool const&) = delete;
  NaivePool& operator=(NaivePool const&) = delete;

  [[nodiscard]] std::size_t num_available() const noexcept { return unused_.size(); }
  [[nodiscard]] std::int32_t references(kv::BlockId b) const { return at(b).references; }

  /// Requires: num_available() > 0.
  kv::BlockId allocate() {
    kv::BlockId const b = unused_.front();
    used_.splice(used_.end(), unused_, unused_.begin());
    at(b).references = 1;
    return b;
  }
  void allocate(std::span<kv::BlockId> out) {
    for (kv::BlockId& b : out) b = allocate();
  }
  void acquire(kv::BlockId b) {
    if (at(b).references++ == 0) used_.splice(used_.end(), unused_, at(b).place);
  }
  /// `cached`: evicted last, otherwise reused first.
  void release(kv::BlockId b, bool cached) {
    if (--at(b).references != 0) return;
    unused_.splice(cached ? unused_.end() : unused_.begin(), used_, at(b).place);
  }
  void release(std::span<kv::BlockId const> blocks) {
    for (std::size_t j = blocks.size(); j-- > 0;) release(blocks[j], false);
  }
  /// An unreferenced block has lost its content.
  void reuse_first(kv::BlockId b) { unused_.splice(unused_.begin(), unused_, at(b).place); }

 private:
  struct Block {
    std::int32_t references = 0;
    std::list<kv::BlockId>::iterator place;
  };
  Block& at(kv::BlockId b) { return blocks_[static_cast<std::size_t>(b.value())]; }
  Block const& at(kv::BlockId b) const { return blocks_[static_cast<std::size_t>(b.value())]; }

  std::vector<Block> blocks_;
  std::list<kv::BlockId> unused_;
  std::list<kv::BlockId> used_;
};

/// The hash of a block is that of its parent's hash and its own tokens.
struct NaiveHash {
  using Tokens = std::span<kv::TokenId const>;

  [[nodiscard]] static kv::Hash128 chained(kv::Hash128 parent, Tokens tokens) {
    struct {
      kv::Hash128 parent;
      kv::TokenId tokens[16];
    } bytes{parent, {}};
    static_assert(sizeof bytes == 80);
    std::memcpy(bytes.tokens, tokens.data(), sizeof bytes.tokens);
    XXH128_hash_t const h = XXH3_128bits(&bytes, sizeof bytes);
    return {h.low64, h.high64};
  }
  std::size_t operator()(kv::Hash128 h) const noexcept { return static_cast<std::size_t>(h.low); }
};

class NaiveSequence;

class NaiveCache {
 public:
  using SequenceType = NaiveSequence;
  using Tokens = std::span<kv::TokenId const>;
  static constexpr std::int32_t block_tokens = 16;

  explicit NaiveCache(kv::KvCacheConfig const& config)
      : pool_(config.num_blocks), contents_(static_cast<std::size_t>(config.num_blocks)) {
    assert(config.block_tokens == block_tokens);
    by_hash_.reserve(contents_.size());
  }
  NaiveCache(NaiveCache const&) = delete;
  NaiveCache& operator=(NaiveCache const&) = delete;

  std::optional<NaiveSequence> open(kv::SequenceId, Tokens prompt,
                                    kv::OpenOptions const& options = {});
  std::vector<kv::BlockCopy> take_copies() { return std::exchange(copies_, {}); }
  void end_step() {}
  std::int32_t evict(std::span<kv::BlockId const> blocks) {
    std::int32_t evicted = 0;
    for (kv::BlockId const b : blocks) {
      if (pool_.references(b) != 0 || !content(b)) continue;
      forget(b);
      pool_.reuse_first(b);
      ++evicted;
    }
    return evicted;
  }
  [[nodiscard]] bool is_published(kv::BlockId b) const { return content(b).has_value(); }
  [[nodiscard]] std::int32_t references(kv::BlockId b) const { return pool_.references(b); }
  /// The blocks by state and the counters that are kept. O(pool).
  [[nodiscard]] kv::Stats stats() const {
    kv::Stats s = stats_;
    s.num_blocks = static_cast<std::int32_t>(contents_.size());
    for (std::int32_t i = 0; i < s.num_blocks; ++i) {
      kv::BlockId const b{i};
      ++(pool_.references(b) != 0 ? s.used : content(b) ? s.idle : s.free);
    }
    return s;
  }

 private:
  friend class NaiveSequence;

  std::optional<kv::Hash128>& content(kv::BlockId b) {
    return contents_[static_cast<std::size_t>(b.value())];
  }
  std::optional<kv::Hash128> const& content(kv::BlockId b) const {
    return contents_[static_cast<std::size_t>(b.value())];
  }
  void forget(kv::BlockId b) {
    by_hash_.erase(*content(b));
    content(b).reset();
    ++stats_.evicted_blocks;
  }
  kv::BlockId allocate() {
    kv::BlockId const b = pool_.allocate();
    if (content(b)) forget(b);
    return b;
  }
  void release(std::span<kv::BlockId const> blocks) {
    for (std::size_t j = blocks.size(); j-- > 0;) {
      pool_.release(blocks[j], content(blocks[j]).has_value());
    }
  }
  /// A second block with the same content stays unknown.
  void publish(kv::BlockId b, kv::Hash128 hash) {
    if (!by_hash_.emplace(hash, b).second) return;
    content(b) = hash;
    ++stats_.published_blocks;
  }

  NaivePool pool_;
  std::vector<std::optional<kv::Hash128>> contents_;
  std::unordered_map<kv::Hash128, kv::BlockId, NaiveHash> by_hash_;
  std::vector<kv::BlockCopy> copies_;
  kv::Stats stats_;
};

/// Keeps the hashes of its full blocks and the tokens behind them.
class NaiveSequence {
 public:
  NaiveSequence(NaiveSequence&& other) noexcept { swap(other); }
  NaiveSequence& operator=(NaiveSequence&& other) noexcept {
    swap(other);
    return *this;
  }
  ~NaiveSequence() {
    if (cache_ != nullptr) cache_->release(blocks_);
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  [[nodiscard]] std::int32_t cached() const noexcept { return cached_; }
  [[nodiscard]] std::span<kv::BlockId const> blocks() const noexcept { return blocks_; }
  /// Returns the lowest column that no batch has listed; now one has.
  std::size_t take_first_changed() noexcept {
    return std::exchange(first_changed_, blocks_.size());
  }

  std::optional<kv::TokenRange> reserve(std::int32_t n) {
    std::int32_t const end = kv::blocks_for(size_ + n, NaiveCache::block_tokens);
    bool const copies = n > 0 && size_ % NaiveCache::block_tokens != 0 &&
                        cache_->pool_.references(blocks_.back()) > 1;
    std::size_t const needed = static_cast<std::size_t>(end) - blocks_.size() + (copies ? 1 : 0);
    if (needed > cache_->pool_.num_available()) return std::nullopt;
    if (copies) copy_tail();
    first_changed_ = std::min(first_changed_, blocks_.size());
    while (blocks_.size() < static_cast<std::size_t>(end)) blocks_.push_back(cache_->allocate());
    size_ += n;
    return kv::TokenRange{size_ - n, n};
  }
  std::optional<kv::TokenRange> append(NaiveCache::Tokens ids) {
    auto const range = reserve(static_cast<std::int32_t>(ids.size()));
    if (range) know(ids);
    return range;
  }
  void commit(std::int32_t n) {
    auto const end = static_cast<std::size_t>(n / NaiveCache::block_tokens);
    for (; published_ < end; ++published_)
      cache_->publish(blocks_[published_], hashes_[published_]);
  }
  /// Requires: n is a multiple of block_tokens.
  void truncate(std::int32_t n) {
    assert(n % NaiveCache::block_tokens == 0);
    auto const keep = static_cast<std::size_t>(n / NaiveCache::block_tokens);
    cache_->release(blocks().subspan(keep));
    blocks_.resize(keep);
    first_changed_ = std::min(first_changed_, keep);
    hashes_.resize(std::min(hashes_.size(), keep));
    tail_.clear();
    published_ = std::min(published_, keep);
    size_ = n;
  }
  std::optional<NaiveSequence> fork(kv::SequenceId) const {
    NaiveSequence child(*cache_);
    child.blocks_ = blocks_;
    child.hashes_ = hashes_;
    child.tail_ = tail_;
    child.published_ = published_;
    child.size_ = child.cached_ = size_;
    for (kv::BlockId const b : blocks_) cache_->pool_.acquire(b);
    return child;
  }

 private:
  friend class NaiveCache;

  explicit NaiveSequence(NaiveCache& cache) : cache_(&cache) {}
  void swap(NaiveSequence& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(blocks_, other.blocks_);
    std::swap(hashes_, other.hashes_);
    std::swap(tail_, other.tail_);
    std::swap(published_, other.published_);
    std::swap(first_changed_, other.first_changed_);
    std::swap(size_, other.size_);
    std::swap(cached_, other.cached_);
  }
  /// The next tokens are these.
  void know(NaiveCache::Tokens ids) {
    for (kv::TokenId const id : ids) {
      tail_.push_back(id);
      if (tail_.size() < NaiveCache::block_tokens) continue;
      kv::Hash128 const parent = hashes_.empty() ? kv::Hash128{} : hashes_.back();
      hashes_.push_back(NaiveHash::chained(parent, tail_));
      tail_.clear();
    }
  }
  void copy_tail() {
    first_changed_ = std::min(first_changed_, blocks_.size() - 1);
    kv::BlockId const old = blocks_.back();
    blocks_.back() = cache_->allocate();
    cache_->copies_.push_back({old, blocks_.back(), size_ % NaiveCache::block_tokens});
    cache_->release({&old, 1});
  }

  NaiveCache* cache_ = nullptr;
  std::vector<kv::BlockId> blocks_;
  std::vector<kv::Hash128> hashes_;
  std::vector<kv::TokenId> tail_;
  std::size_t published_ = 0;
  std::size_t first_changed_ = 0;  ///< lowest column that no batch has listed
  std::int32_t size_ = 0;
  std::int32_t cached_ = 0;
};

inline std::optional<NaiveSequence> NaiveCache::open(kv::SequenceId, Tokens prompt,
                                                     kv::OpenOptions const& options) {
  std::size_t const full = prompt.size() / block_tokens;
  NaiveSequence seq(*this);
  seq.hashes_.reserve(full);
  kv::Hash128 chain;
  for (std::size_t j = 0; j < full; ++j) {
    chain = NaiveHash::chained(chain, prompt.subspan(j * block_tokens, block_tokens));
    seq.hashes_.push_back(chain);
  }

  std::size_t const limit = prompt.empty() ? 0 : (prompt.size() - 1) / block_tokens;
  for (; seq.blocks_.size() < limit; ++seq.published_) {
    auto const found = by_hash_.find(seq.hashes_[seq.published_]);
    if (found == by_hash_.end()) break;
    pool_.acquire(found->second);
    seq.blocks_.push_back(found->second);
  }
  seq.size_ = seq.cached_ = static_cast<std::int32_t>(seq.blocks_.size()) * block_tokens;
  if (options.reserve > seq.size_ && !seq.reserve(options.reserve - seq.size_)) {
    return std::nullopt;
  }

  std::size_t const known = std::min(prompt.size(), static_cast<std::size_t>(seq.size_));
  seq.hashes_.resize(known / block_tokens);
  auto const tail = prompt.subspan(seq.hashes_.size() * block_tokens, known % block_tokens);
  seq.tail_.assign(tail.begin(), tail.end());
  return seq;
}

/// The step's arrays, written anew each time but for the rows' changes.
class NaiveBatch {
 public:
  NaiveBatch(NaiveCache&, kv::BatchLimits const&) {}

  void begin_step() { entries_.clear(); }
  std::optional<std::int32_t> add(NaiveSequence& seq, kv::TokenRange query) {
    entries_.push_back({&seq, query});
    return static_cast<std::int32_t>(entries_.size()) - 1;
  }
  std::optional<kv::BatchStep> build(kv::BatchBuffers const& out) {
    kv::BatchStep step;
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      auto const& [seq, query] = entries_[e];
      out.query_offsets[e] = step.num_tokens;
      out.indptr[e] = step.num_indices;
      out.sequence_lengths[e] = query.end();
      out.last_block_len[e] = (query.end() - 1) % NaiveCache::block_tokens + 1;
      for (kv::BlockId const b : seq->blocks()) {
        out.indices[static_cast<std::size_t>(step.num_indices++)] = b.value();
      }
      for (std::int32_t p = query.first; p < query.end(); ++p) {
        write_token(*seq, p, step, out);
      }
      write_changes(e, *seq, step, out);
    }
    step.num_sequences = static_cast<std::int32_t>(entries_.size());
    out.query_offsets[entries_.size()] = step.num_tokens;
    out.indptr[entries_.size()] = step.num_indices;
    return step;
  }
  void commit() {
    for (auto const& [seq, query] : entries_) seq->commit(query.end());
  }

 private:
  static void write_token(NaiveSequence const& seq, std::int32_t p, kv::BatchStep& step,
                          kv::BatchBuffers const& out) {
    kv::BlockId const b = seq.blocks()[static_cast<std::size_t>(p / NaiveCache::block_tokens)];
    std::int32_t const offset = p % NaiveCache::block_tokens;
    out.slot_mapping[static_cast<std::size_t>(step.num_tokens)] =
        kv::Slot{b.value()} * NaiveCache::block_tokens + offset;
    // One token a sequence in the benchmark: each is a run.
    out.runs[static_cast<std::size_t>(step.num_runs++)] = {b, offset, 1, step.num_tokens};
    ++step.num_tokens;
  }
  static void write_changes(std::size_t e, NaiveSequence& seq, kv::BatchStep& step,
                            kv::BatchBuffers const& out) {
    auto const blocks = seq.blocks();
    for (std::size_t j = seq.take_first_changed(); j < blocks.size(); ++j) {
      out.row_changes[static_cast<std::size_t>(step.num_row_changes++)] = {
          static_cast<std::int32_t>(e), static_cast<std::int32_t>(j), blocks[j].value()};
      out.new_blocks[static_cast<std::size_t>(step.num_new_blocks++)] = blocks[j];
    }
  }

  std::vector<std::pair<NaiveSequence*, kv::TokenRange>> entries_;
};

}  // namespace bench

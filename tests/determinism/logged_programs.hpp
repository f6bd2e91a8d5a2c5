// SPDX-License-Identifier: Apache-2.0
/// \file
/// Random programs over the public verbs alone, and everything that can be seen of them, as text.
/// They need no model, so that their text changes when the cache does and at no other time.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/step/batch.hpp>

namespace pagedkv::testing {

/// A line of text: words and numbers.
class Line {
 public:
  template <class... Parts>
  explicit Line(Parts const&... parts) {
    (add(parts), ...);
  }
  void add(char const* word) { (text.empty() ? text : text += ' ') += word; }
  template <class Number>
  requires std::integral<Number>
  void add(Number n) { add(std::to_string(n).c_str()); }
  void add(BlockId b) { add(b.value()); }
  void add(Hash128 const& h) {
    add(h.high);
    add(h.low);
  }
  template <class Range>
  requires requires(Range const& r) { r.begin(); }
  void add(Range const& range) {
    for (auto const& item : range) add(item);
  }

  std::string text;
};

class LoggedProgram final : public CacheObserver {
 public:
  struct Options {
    bool has_twins = false;
    bool adopts = false;
    bool is_deferred = false;
  };

  LoggedProgram(std::uint64_t seed, Options const& options) : options_(options), random_(seed) {
    config_.block_tokens = pick({1, 2, 3, 4, 16});
    config_.num_blocks = pick({7, 24, 64});
    config_.max_sequences = below(8) + 2;
    config_.max_sequence_tokens = config_.num_blocks * config_.block_tokens;
    config_.max_pins = 2;
    config_.partial_hits = below(2) == 0;
    config_.twins = options.adopts ? Twins::adopt : Twins::keep;
    config_.reclaim = options.is_deferred ? Reclaim::deferred : Reclaim::stream_ordered;
    config_.observer = this;
    log("program", seed, "block_tokens", config_.block_tokens, "num_blocks", config_.num_blocks,
        "partial_hits", config_.partial_hits ? 1 : 0);
  }

  void on_event(CacheEvent const& e) noexcept override {
    switch (e.kind) {
      case CacheEvent::Kind::stored:
        log("stored", e.number, e.block, e.generation, "hash", e.hash, "parent", e.parent,
            e.parent_generation, e.parent_hash, "tokens", e.tokens);
        break;
      case CacheEvent::Kind::removed:
        log("removed", e.number, e.block, e.generation, "hash", e.hash);
        break;
      case CacheEvent::Kind::cleared: log("cleared", e.number); break;
      case CacheEvent::Kind::moved:
        log("moved", e.number, e.block, e.generation, "from", e.from, e.from_generation, "hash",
            e.hash);
        break;
    }
  }

  void run(int steps) {
    Cache cache(config_);
    Batch batch(cache, {.max_sequences = 4, .max_tokens = 4096, .max_blocks_per_sequence = 0});
    std::vector<Sequence> live;
    std::vector<Pin> pins;
    for (int i = 0; i < steps; ++i) step(cache, batch, live, pins);
    pins.clear();
    live.clear();
    copies(cache);
    cache.reclaim(cache.end_step());
    stats(cache);
    twin_blocks = cache.stats().twin_blocks;
  }

  std::vector<std::string> lines;
  std::uint64_t twin_blocks = 0;

 private:
  using Cache = KvCache;
  using Tokens = std::vector<TokenId>;

  template <class... Parts>
  void log(Parts const&... parts) {
    lines.push_back(Line(parts...).text);
  }
  std::int32_t below(std::uint64_t n) { return static_cast<std::int32_t>(random_() % n); }
  std::int32_t pick(std::initializer_list<std::int32_t> of) { return of.begin()[below(of.size())]; }
  /// Tokens that no other sequence has; where there are to be twins, tokens that many have.
  Tokens own_tokens(std::int32_t n) {
    Tokens tokens(static_cast<std::size_t>(n));
    for (TokenId& t : tokens) t = options_.has_twins ? below(2) : next_token_++;
    return tokens;
  }
  /// One of a few paths, and a token of its own.
  Tokens prompt() {
    std::int32_t const bt = config_.block_tokens;
    Tokens tokens(static_cast<std::size_t>(below(static_cast<std::uint64_t>(5 * bt + 4))));
    std::int32_t const path = below(3);
    std::int32_t const turn = below(2) * (2 * bt + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      bool const turned = turn > 0 && static_cast<std::int32_t>(i) >= turn;
      tokens[i] = path * 100 + static_cast<TokenId>(i % 7) + (turned ? 50 : 0);
    }
    auto const end = own_tokens(1);
    tokens.insert(tokens.end(), end.begin(), end.end());
    return tokens;
  }

  void copies(Cache& cache) {
    for (BlockCopy const& c : cache.take_copies()) log("copy", c.src, c.dst, c.num_tokens);
  }
  void stats(Cache const& cache) {
    Stats const s = cache.stats();
    log("now", s.free, s.idle, s.used, s.quarantined, s.retained, "waste", s.wasted_slots, "opens",
        s.opens, s.resumed_opens, "hits", s.prefix_hit_tokens, s.resumed_hit_tokens,
        s.partial_hit_tokens, s.hit_blocks, "blocks", s.published_blocks, s.evicted_blocks,
        s.unpublished_blocks, "copies", s.copies, s.dropped_copies, "forks", s.forks, s.preemptions,
        "ends", s.hit_ends.counts);
  }
  void show(Sequence const& seq) {
    log("row", seq.id().value(), seq.size(), seq.committed(), seq.cached(), "blocks", seq.blocks(),
        "unshared", seq.unshared_blocks(), seq.unshared_tokens());
  }
  void compute(Cache& cache, Sequence& seq, Tokens const& tokens) {
    log("append", seq.id().value(), tokens, "needs",
        seq.blocks_needed(static_cast<std::int32_t>(tokens.size())), "fits",
        seq.would_fit(static_cast<std::int32_t>(tokens.size())) ? 1 : 0);
    if (auto const range = seq.append(tokens); !range) log("error", to_string(range.error()));
    copies(cache);
    seq.commit(seq.size());
    show(seq);
  }

  void step(Cache& cache, Batch& batch, std::vector<Sequence>& live, std::vector<Pin>& pins) {
    std::int32_t const verb = below(100);
    if (live.empty() || verb < 25) return open(cache, live);
    auto const at = static_cast<std::size_t>(below(live.size()));
    Sequence& seq = live[at];
    if (verb < 45) {
      compute(cache, seq,
              own_tokens(below(static_cast<std::uint64_t>(2 * config_.block_tokens + 2))));
    } else if (verb < 55) {
      std::int32_t const n = below(static_cast<std::uint64_t>(seq.size()) + 1);
      log("truncate", seq.id().value(), n);
      seq.truncate(n);
      show(seq);
    } else if (verb < 63) {
      auto child = seq.fork(SequenceId{++next_id_});
      log("fork", seq.id().value(), child ? "as" : to_string(child.error()), next_id_);
      if (child) live.push_back(*std::move(child));
    } else if (verb < 75) {
      Reuse const reuse =
          std::initializer_list<Reuse>{Reuse::likely, Reuse::none, Reuse::resume}.begin()[below(3)];
      log("finish", seq.id().value(), static_cast<int>(reuse));
      std::move(seq).finish(reuse);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (verb < 78) {
      evict(cache);
    } else if (verb < 81) {
      pin(cache, pins);
    } else if (verb < 90) {
      add_to_step(batch, live);
    } else if (verb < 99) {
      if (options_.has_twins && below(3) == 0) {
        log("used", seq.id().value());
        seq.used_by(cache.open_tick());
      }
      Tick const tick = cache.end_step();
      log("step", tick.value());
      if (tick.value() > 2) cache.reclaim(Tick{tick.value() - 2});
      stats(cache);
    } else if (below(8) == 0) {
      log("reset");
      cache.reset();
    }
  }
  void open(Cache& cache, std::vector<Sequence>& live) {
    Tokens const tokens = prompt();
    auto const key = cache.hash(tokens);
    bool const whole = below(2) == 0;
    OpenOptions const options{.reserve = whole ? static_cast<std::int32_t>(tokens.size()) : 0,
                              .read = !options_.has_twins || below(4) != 0,
                              .resumed = below(8) == 0};
    Admission const admission = cache.admission(key, options);
    log("open", ++next_id_, tokens, "reserve", options.reserve, "cached", admission.cached_tokens,
        "needs", admission.blocks_needed, "fits", cache.would_fit(key, options) ? 1 : 0, "hashes",
        key.hashes());
    auto seq = cache.open(SequenceId{next_id_}, key, options);
    if (!seq) return log("error", to_string(seq.error()));
    show(*seq);
    auto const rest = static_cast<std::ptrdiff_t>(seq->size());
    compute(cache, *seq, Tokens(tokens.begin() + rest, tokens.end()));
    live.push_back(*std::move(seq));
  }
  void evict(Cache& cache) {
    std::vector<BlockId> blocks;
    for (std::int32_t i = below(3); i >= 0; --i) {
      blocks.push_back(BlockId{below(static_cast<std::uint64_t>(config_.num_blocks))});
    }
    if (options_.has_twins && below(2) == 0) return unpublish(cache, blocks);
    log("evict", blocks);
    log("evicted", cache.evict(blocks));
  }
  void unpublish(Cache& cache, std::vector<BlockId>& blocks) {
    std::erase_if(blocks, [&](BlockId b) { return !cache.is_published(b); });
    log("unpublish", blocks);
    log("unpublished", cache.unpublish(blocks));
  }
  void pin(Cache& cache, std::vector<Pin>& pins) {
    if (!pins.empty() && below(2) == 0) {
      log("unpin");
      return pins.clear();
    }
    auto pin = cache.pin(cache.hash(prompt()));
    if (!pin) return log("pin", to_string(pin.error()));
    log("pin", pin->blocks());
    pins.push_back(*std::move(pin));
  }
  void add_to_step(Batch& batch, std::vector<Sequence> const& live) {
    batch.begin_step();
    for (Sequence const& seq : live) {
      if (seq.size() == 0 || below(3) == 0) continue;
      auto const row = batch.add(seq, {seq.size() - 1, 1});
      log("add", seq.id().value(), row ? *row : -1);
    }
    std::vector<RowChange> changes(4096);
    std::vector<RowMove> moves(64);
    std::vector<BlockId> new_blocks(4096);
    BatchBuffers buffers;
    buffers.row_changes = changes;
    buffers.row_moves = moves;
    buffers.new_blocks = new_blocks;
    auto const built = batch.build(buffers);
    if (!built) return log("build", to_string(built.error()));
    log("build", built->num_row_changes, built->num_row_moves);
    for (std::int32_t i = 0; i < built->num_row_changes; ++i) {
      auto const& c = changes[static_cast<std::size_t>(i)];
      log("change", c.row, c.column, c.block);
    }
    new_blocks.resize(static_cast<std::size_t>(built->num_new_blocks));
    log("new", new_blocks);
  }

  Options options_;
  std::mt19937_64 random_;
  KvCacheConfig config_;
  std::uint64_t next_id_ = 0;
  TokenId next_token_ = 1000;
};

/// Hands the lines of each program to `take(lines)`. With neither twins nor late reclaim, they are
/// the lines of version 0.1, to the byte.
template <class Take>
void write_plain_log(Take&& take) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    LoggedProgram program(seed, {});
    program.run(400);
    if (program.twin_blocks != 0) program.lines.push_back("mismatch: there are twins");
    take(program.lines);
  }
}

/// Programs that do have twins, kept or adopted, with both kinds of reclaim.
template <class Take>
void write_twin_log(Take&& take) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    LoggedProgram program(
        1000 + seed, {.has_twins = true, .adopts = seed % 2 == 0, .is_deferred = seed % 4 < 2});
    program.run(400);
    take(program.lines);
  }
}

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// A random program: verbs with random arguments against the library and the naive model at once.
/// After every verb the two are compared, and a simulated device is read back: whatever a sequence
/// reads through its block table must be its own history.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

#include "check.hpp"
#include "choices.hpp"
#include "event_map.hpp"
#include "naive_batch.hpp"
#include "naive_cache.hpp"

namespace pagedkv::testing {

/// What kind of cache a program runs on. Everything else is decided by its choices.
struct Shape {
  int block_tokens = 16;
  int num_blocks = 64;
};

/// The device: what stands in each slot. A value names the whole history of a position.
class Device {
 public:
  static constexpr std::uint64_t garbage = 0xDEAD;
  Device(int num_blocks, int block_tokens)
      : block_tokens_(block_tokens), cells_(std::size_t(num_blocks) * std::size_t(block_tokens)) {}

  std::uint64_t& at(int block, int offset) {
    return cells_[std::size_t(block) * std::size_t(block_tokens_) + std::size_t(offset)];
  }
  std::uint64_t& at(Slot slot) { return cells_.at(std::size_t(slot)); }
  void fill(int block, std::uint64_t value) {
    for (int i = 0; i < block_tokens_; ++i) at(block, i) = value;
  }
  void copy(int src, int dst, int num_tokens) {
    for (int i = 0; i < num_tokens; ++i) at(dst, i) = at(src, i);
  }

 private:
  int block_tokens_;
  std::vector<std::uint64_t> cells_;
};

template <class Policy>
class Program {
  using Cache = BasicKvCache<Policy>;
  using Sequence = BasicSequence<Policy>;
  using Pin = BasicPin<Policy>;
  using Batch = BasicBatch<Policy>;

  struct Live {
    std::optional<Sequence> handle;
    NaiveSequence model;
    std::vector<std::uint64_t> kv;  ///< of the leading positions whose ids are known
    int written = 0;                ///< leading positions whose K and V are on the device
    Tokens goal;                    ///< what it likes to append next
  };
  struct LivePin {
    Pin handle;
    NaivePin model;
  };

 public:
  Program(Shape const& shape, Choices choices)
      : choices_(std::move(choices)),
        config_(configure(shape)),
        model_(config_),
        device_(config_.num_blocks, config_.block_tokens) {
    cache_.emplace(config_);
    batch_.emplace(*cache_, limits_);
    naive_batch_.configure(limits_, batch_->table_width());
  }
  ~Program() = default;
  Program(Program const&) = delete;
  Program& operator=(Program const&) = delete;

  /// Lines that say what happened, for a person.
  std::vector<std::string>* log = nullptr;
  /// How often everything is compared; 1: after every verb.
  int full_check_every = 1;

  [[nodiscard]] std::int64_t num_steps() const { return step_; }
  /// What has happened, as the model counts it.
  [[nodiscard]] Stats const& happened() const { return model_.stats; }

  /// Runs `steps` verbs, or until the choices are exhausted, then drops everything.
  void run(std::int64_t steps) {
    heard_.log = log;
    note(describe_config());
    for (std::int64_t i = 0; i < steps && !choices_.exhausted(); ++i) step();
    finish();
  }

  void step() {
    ++step_;
    choices_.begin_step();
    begin_verb();
    int const verb = choices_.below(1000);
    if (verb < 150 || (live_.empty() && verb < 850)) {
      open();
    } else if (verb < 160) {
      ask();
    } else if (verb < 370) {
      append();
    } else if (verb < 430) {
      reserve();
    } else if (verb < 490) {
      set_tokens();
    } else if (verb < 515) {
      take_copies();
    } else if (verb < 550) {
      write();
    } else if (verb < 680) {
      commit();
    } else if (verb < 740) {
      truncate();
    } else if (verb < 785) {
      fork();
    } else if (verb < 865) {
      close();
    } else if (verb < 875) {
      pin();
    } else if (verb < 885) {
      unpin();
    } else if (verb < 897) {
      evict();
    } else if (verb < 900) {
      reset();
    } else if (verb < 930) {
      end_step();
    } else if (verb < 945) {
      reclaim();
    } else {
      batch_verb();
    }
    compare(nullptr, step_ % full_check_every == 0);
  }

  /// Everything is given back; nothing may be missing.
  void finish() {
    begin_verb();
    while (!live_.empty()) close(live_.size() - 1, Reuse::likely);
    while (!pins_.empty()) unpin(pins_.size() - 1);
    run_copies();
    end_step();
    model_.reclaim(model_.open_tick - 1);
    cache_->reclaim(Tick{model_.open_tick - 1});
    compare(nullptr, true);
    expect_equal(model_.available(), config_.num_blocks, "model: blocks that came back");
    expect_equal(cache_->available_blocks(), config_.num_blocks, "free and idle at the end");
    batch_.reset();
    cache_.reset();
  }

 private:
  // -------------------------------------------------------------------------------- parameters

  KvCacheConfig configure(Shape const& shape) {
    choices_.begin_step();
    KvCacheConfig c;
    c.block_tokens = shape.block_tokens;
    c.num_blocks = shape.num_blocks;
    c.max_sequences = shape.num_blocks > 64 ? 64 : choices_.between(2, 10);
    int const widest = std::min(shape.num_blocks + 1, shape.num_blocks > 64 ? 100 : 70);
    c.max_sequence_tokens = shape.block_tokens * widest + choices_.between(-1, 1);
    if (c.max_sequence_tokens < 1) c.max_sequence_tokens = 1;
    c.reclaim = choices_.one_in(2) ? Reclaim::deferred : Reclaim::stream_ordered;
    c.twins = choices_.one_in(3) ? Twins::adopt : Twins::keep;
    c.partial_hits = choices_.one_in(2);
    c.max_partial_candidates = choices_.between(1, 4);
    c.max_extra_key_bytes = 40;
    c.max_pins = choices_.between(0, 4);
    c.observer = &heard_;
    alphabet_ = choices_.between(1, 3);
    // Long prompts now and then; short ones collide more and are faster.
    int const usual = shape.block_tokens == 1 ? 12 : shape.block_tokens == 2 ? 8 : 5;
    longest_usual_ = shape.block_tokens * std::min(usual, shape.num_blocks);
    if (shape.num_blocks > 64) {  // so many that they fill up
      longest_usual_ = shape.block_tokens * 60;
      alphabet_ = 40;
    }
    longest_ = std::max(1, std::min(c.max_sequence_tokens + 1, shape.block_tokens * (widest + 1)));
    limits_.max_sequences = choices_.between(1, c.max_sequences);
    limits_.max_tokens = choices_.one_in(4) ? shape.block_tokens : 4 * longest_usual_;
    limits_.max_blocks_per_sequence = 0;
    return c;
  }

  // ------------------------------------------------------------------------------------- verbs

  void open() {
    auto const key = make_prompt();
    OpenOptions o;
    switch (choices_.below(6)) {
      case 0: break;
      case 1: o.reserve = key->num_tokens(); break;
      case 2: o.reserve = choices_.below(longest_usual_ + 1); break;
      case 3: o.reserve = key->num_tokens() + choices_.below(2 * config_.block_tokens); break;
      case 4: o.reserve = (key->num_tokens() + 1) / 2; break;
      case 5: o.external_tokens = choices_.below(key->num_tokens() + 1); break;
    }
    o.read = !choices_.one_in(6);
    o.publish = !choices_.one_in(12);
    o.resumed = choices_.one_in(8);
    bool const long_salt = choices_.one_in(100);
    note("open tokens=", text(key->tokens), " keys=", key->extra_of(0, config_.block_tokens),
         " reserve=", o.reserve, " external=", o.external_tokens, o.read ? "" : " read=false",
         o.publish ? "" : " publish=false", long_salt ? " long salt" : "");

    std::vector<MediaItem> media;
    auto keys = extra_keys(*key, media);
    std::string const too_long(std::size_t(config_.max_extra_key_bytes), 'x');
    if (long_salt) keys.salt = too_long;
    PromptKey const prompt = cache_->hash(key->tokens, keys);
    NaiveAdmission admission = model_.admission(*key, o);
    if (long_salt) {
      auto const refused = cache_->open(SequenceId{1}, prompt, o);
      expect(!refused.has_value() && refused.error() == Errc::extra_keys_too_long,
             "extra keys that are too long are refused");
      return;
    }
    ask_about(prompt, *key, o, admission);
    bool const fits = !model_.never_fits(NaiveCache::longest(*key, o)) &&
                      admission.blocks_needed <= model_.available();
    bool const plain = keys.salt.empty() && keys.adapter.empty() && media.empty();
    // The short form now and then.
    auto opened = plain && choices_.one_in(4)
                      ? cache_->open(SequenceId{++last_uid_}, key->tokens, o)
                      : cache_->open(SequenceId{++last_uid_}, prompt, o);
    if (model_.never_fits(NaiveCache::longest(*key, o))) return refused(opened, Errc::never_fits);
    if (int(live_.size()) == config_.max_sequences) {
      return refused(opened, Errc::no_free_sequences);
    }
    if (!fits) return refused(opened, Errc::no_free_blocks);
    if (!opened) mismatch("open failed: ", to_string(opened.error()), "; the model says it fits");

    auto live = std::make_unique<Live>();
    live->handle.emplace(std::move(*opened));
    live->model.uid = last_uid_;
    live->model.key = *key;
    live->goal = goal_for(*key);
    model_.open(live->model, admission, o, row_of(*live));
    learn(*live);
    live->written = admission.hit.tokens;
    poison();
    live_.push_back(std::move(live));
    note(" -> ", describe(*live_.back()));
    compare(live_.back().get(), false);
  }

  /// Questions change nothing.
  void ask() {
    auto const key = make_prompt();
    OpenOptions o;
    o.reserve = choices_.below(2 * longest_usual_);
    o.read = !choices_.one_in(4);
    std::vector<MediaItem> media;
    PromptKey const prompt = cache_->hash(key->tokens, extra_keys(*key, media));
    ask_about(prompt, *key, o, model_.admission(*key, o));
  }
  void ask_about(PromptKey const& prompt, NaiveKey const& key, OpenOptions const& o,
                 NaiveAdmission const& admission) {
    expect_equal(cache_->match(prompt), model_.match(key, true).tokens, "match");
    auto const got = cache_->admission(prompt, o);
    expect_equal(got.cached_tokens, admission.hit.tokens, "admission: cached_tokens");
    expect_equal(got.blocks_needed, admission.blocks_needed, "admission: blocks_needed");
    expect_equal(cache_->would_fit(prompt, o),
                 !model_.never_fits(NaiveCache::longest(key, o)) &&
                     admission.blocks_needed <= model_.available(),
                 "would_fit of a prompt");
  }

  void append() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const n = growth();
    Tokens const ids = next_tokens(*s, n);
    note("append to ", s->model.uid, " ", text(ids));
    auto const g = ask_about_growth(*s, n);
    auto const range = s->handle->append(ids);
    if (!g.fits) return refused(range, g.why, s);
    grown(*s, range, n);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      s->model.tokens[std::size_t(range->first) + i] = ids[i];
    }
    learn(*s);
    compare(s, false);
  }
  void reserve() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const n = growth();
    note("reserve ", n, " for ", s->model.uid);
    auto const g = ask_about_growth(*s, n);
    auto const range = s->handle->reserve(n);
    if (!g.fits) return refused(range, g.why, s);
    grown(*s, range, n);
    compare(s, false);
  }
  NaiveCache::Growth ask_about_growth(Live const& s, int n) {
    auto const g = model_.growth(s.model, n);
    expect_equal(s.handle->would_fit(n), g.fits, "would_fit of a sequence");
    if (g.fits || g.why != Errc::never_fits) {
      expect_equal(s.handle->blocks_needed(n), g.blocks, "blocks_needed");
    }
    return g;
  }
  void grown(Live& s, Result<TokenRange> const& range, int n) {
    if (!range) mismatch("reserve failed: ", to_string(range.error()), "; the model says it fits");
    expect_equal(range->first, s.model.size(), "reserve: first position");
    expect_equal(range->count, n, "reserve: positions");
    model_.grow(s.model, n, row_of(s));
    note(" -> ", describe(s));
    poison();
  }

  void set_tokens() {
    Live* const s = any_live();
    if (s == nullptr || s->model.size() == s->model.committed) return;
    int const room = s->model.size() - s->model.committed;
    // Mostly what is missing, in order; sometimes anything, also a second time.
    int first = int(s->kv.size());
    if (first >= s->model.size() || choices_.one_in(4)) {
      first = s->model.committed + choices_.below(room);
    }
    int const n =
        choices_.one_in(3) ? choices_.between(1, s->model.size() - first) : s->model.size() - first;
    Tokens const ids = next_tokens(*s, n);
    note("set_tokens of ", s->model.uid, " from ", first, " ", text(ids));
    s->handle->set_tokens(first, ids);
    for (int i = 0; i < n; ++i) s->model.tokens[std::size_t(first + i)] = ids[std::size_t(i)];
    forget_from(*s, first);
    learn(*s);
    compare(s, false);
  }

  void take_copies() {
    note("take_copies");
    run_copies();
  }
  /// What the data plane does with a step's copies.
  void run_copies() { check_and_run_copies(cache_->take_copies()); }
  void check_and_run_copies(std::span<BlockCopy const> got) {
    auto const expected = model_.take_copies();
    expect_equal(got.size(), expected.size(), "copies handed out");
    for (auto const& copy : expected) {
      bool const found = std::any_of(got.begin(), got.end(), [&](BlockCopy const& c) {
        return c.src.value() == copy.src && c.dst.value() == copy.dst &&
               c.num_tokens == copy.num_tokens;
      });
      if (!found) {
        mismatch("copy ", copy.src, " -> ", copy.dst, " of ", copy.num_tokens,
                 " tokens is missing from the plan");
      }
      for (auto const& other : expected) {
        expect(&other == &copy || other.dst != copy.dst, "two copies into one block");
        expect(other.src != copy.dst, "a destination is a source");
      }
    }
    for (auto const& copy : got) {
      note("copy ", copy.src.value(), " -> ", copy.dst.value(), " of ", copy.num_tokens);
      unreported_.erase(copy.dst.value());
      device_.copy(copy.src.value(), copy.dst.value(), copy.num_tokens);
    }
  }

  void write() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const n = choices_.between(s->written, int(s->kv.size()));
    note("write ", s->model.uid, " up to ", n);
    write_up_to(*s, n);
  }
  /// Copies first, then the step's writes, as the data plane does it.
  void write_up_to(Live& s, int n) {
    if (n <= s.written) return;
    run_copies();
    TokenRange const range{s.written, n - s.written};
    std::vector<Slot> slots(std::size_t(range.count));
    s.handle->slot_mapping(range, slots);
    int last_block = -1;
    for (int p = s.written; p < n; ++p) {
      int const block = s.model.blocks[std::size_t(p / config_.block_tokens)];
      int const offset = p % config_.block_tokens;
      Slot const slot = slots[std::size_t(p - s.written)];
      expect_equal(slot, Slot{block} * config_.block_tokens + offset, "slot");
      if (block != std::exchange(last_block, block)) {
        expect_equal(cache_->references(BlockId{block}), 1U, "owners of a block that is written");
        expect(!cache_->is_published(BlockId{block}), "a published block is written");
      }
      device_.at(slot) = s.kv[std::size_t(p)];
    }
    s.written = n;
  }

  void commit() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const known = int(s->kv.size());
    // All of it most of the time; nothing new and going back change nothing.
    int const n = choices_.one_in(3) ? choices_.between(0, known) : known;
    commit_up_to(*s, n);
  }
  void commit_up_to(Live& s, int n) {
    write_up_to(s, n);
    // A copy into a block that is only extended by what stood there already.
    if (n > s.model.committed) run_copies();
    note("commit ", s.model.uid, " up to ", n);
    s.handle->commit(n);
    model_.commit(s.model, n);
    compare(&s, false);
  }

  void truncate() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const size = s->model.size();
    int n = 0;
    switch (choices_.below(4)) {
      case 0: n = size - std::min(size, choices_.below(3)); break;
      case 1: n = s->model.committed; break;
      case 2: n = size / config_.block_tokens * config_.block_tokens; break;
      case 3: n = choices_.between(0, size); break;
    }
    note("truncate ", s->model.uid, " to ", n);
    s->handle->truncate(n);
    model_.truncate(s->model, n);
    forget_from(*s, n);
    compare(s, false);
  }
  void fork() {
    Live* const s = any_live();
    if (s == nullptr) return;
    if (choices_.one_in(2)) commit_up_to(*s, int(s->kv.size()));
    note("fork ", s->model.uid, " as ", last_uid_ + 1);
    begin_verb();
    auto forked = s->handle->fork(SequenceId{++last_uid_});
    if (s->model.committed != s->model.size()) return refused(forked, Errc::uncommitted, s);
    if (int(live_.size()) == config_.max_sequences) {
      return refused(forked, Errc::no_free_sequences, s);
    }
    if (!forked) mismatch("fork failed: ", to_string(forked.error()));
    auto child = std::make_unique<Live>();
    child->handle.emplace(std::move(*forked));
    child->model.uid = last_uid_;
    model_.fork(s->model, child->model);
    child->kv = s->kv;
    child->written = s->written;
    child->goal = s->goal;
    live_.push_back(std::move(child));
    compare(live_.back().get(), false);
  }
  void close() {
    if (live_.empty()) return;
    auto const i = std::size_t(choices_.below(int(live_.size())));
    int const how = choices_.below(6);
    close(i, how < 2 ? Reuse::none : how == 2 ? Reuse::resume : Reuse::likely);
  }
  void close(std::size_t i, Reuse reuse) {
    auto const s = std::move(live_[i]);
    live_.erase(live_.begin() + std::ptrdiff_t(i));
    note("close ", s->model.uid, reuse == Reuse::none ? " (none)" : "",
         reuse == Reuse::resume ? " (resume)" : "");
    if (reuse == Reuse::likely && s->model.uid % 2 == 0) {
      s->handle.reset();
    } else {
      std::move(*s->handle).finish(reuse);
    }
    model_.close(s->model, reuse);
    naive_batch_.gone(s->model.uid);
  }

  void pin() {
    auto const key = make_prompt();
    note("pin ", text(key->tokens));
    std::vector<MediaItem> media;
    auto pinned = cache_->pin(cache_->hash(key->tokens, extra_keys(*key, media)));
    if (int(pins_.size()) == config_.max_pins) return refused(pinned, Errc::no_free_sequences);
    if (!pinned) mismatch("pin failed: ", to_string(pinned.error()));
    NaivePin const model = model_.pin(*key);
    expect_equal(pinned->num_tokens(), int(model.blocks.size()) * config_.block_tokens,
                 "tokens pinned");
    pins_.push_back({std::move(*pinned), model});
  }
  void unpin() {
    if (pins_.empty()) return;
    unpin(std::size_t(choices_.below(int(pins_.size()))));
  }
  void unpin(std::size_t i) {
    note("unpin");
    auto const pin = std::move(pins_[i]);
    pins_.erase(pins_.begin() + std::ptrdiff_t(i));
    model_.unpin(pin.model);
  }

  void evict() {
    std::vector<BlockId> list;
    std::vector<int> same;
    for (int n = choices_.between(1, 4); n > 0; --n) {
      same.push_back(choices_.below(config_.num_blocks));
      list.push_back(BlockId{same.back()});
    }
    note("evict ", same.size(), " blocks from ", same[0]);
    int const got = cache_->evict(list);
    expect_equal(got, model_.evict(same), "blocks evicted");
  }
  void reset() {
    if (!choices_.one_in(4)) return;
    note("reset");
    cache_->reset();
    model_.reset();
  }

  void end_step() {
    note("end_step ", model_.open_tick);
    expect_equal(cache_->open_tick().value(), model_.open_tick, "open tick");
    auto const tick = cache_->end_step();
    expect_equal(tick.value(), model_.open_tick, "closed tick");
    model_.end_step();
  }
  void reclaim() {
    if (model_.open_tick == 1) return;
    // Old ticks again, and ticks skipped over, are both fine.
    std::uint64_t const back = std::uint64_t(choices_.below(4));
    std::uint64_t const last = model_.open_tick - 1;
    std::uint64_t const tick = last > back ? last - back : 1;
    note("reclaim ", tick);
    cache_->reclaim(Tick{tick});
    model_.reclaim(tick);
  }

  // --------------------------------------------------------------------------------- the batch

  void batch_verb() {
    switch (choices_.below(16)) {
      case 0:
      case 1:
      case 2: begin_batch(); break;
      case 3: remove_from_batch(); break;
      case 4:
      case 5:
      case 6:
      case 7: build_batch(); break;
      case 8:
      case 9: commit_batch(); break;
      case 10: copy_table(); break;
      default: add_to_batch(); break;
    }
    expect_equal(batch_->num_sequences(), naive_batch_.num_sequences(), "batch: sequences");
    expect_equal(batch_->num_tokens(), naive_batch_.num_tokens, "batch: tokens");
    for (auto const& live : live_) {
      expect_equal(batch_->row_of(*live->handle), naive_batch_.row_of(live->model.uid),
                   "batch: row of a sequence");
    }
  }
  void begin_batch() {
    note("batch: begin_step");
    batch_->begin_step();
    naive_batch_.begin_step();
    pad_tokens_ = pad_sequences_ = 0;
  }
  void add_to_batch() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const end = choices_.one_in(4) ? choices_.between(0, s->model.size()) : s->model.size();
    int first = std::min(end, s->model.committed);
    if (choices_.one_in(6)) first = choices_.between(0, end);
    add_to_batch(*s, {first, end - first});
  }
  void add_to_batch(Live& s, TokenRange query) {
    note("batch: add ", s.model.uid, " [", query.first, ", ", query.end(), ")");
    auto const row = batch_->add(*s.handle, query);
    int const expected = naive_batch_.add(s.model.uid, int(s.model.blocks.size()), query);
    if (expected < 0) {
      expect(!row.has_value() && row.error() == Errc::batch_full, "the batch is full");
      return;
    }
    expect(row.has_value(), "the batch has room");
    expect_equal(*row, expected, "batch: row");
    if (query.count > 0) model_.mark_batched(s.model);
  }
  void remove_from_batch() {
    Live* const s = any_live();
    if (s == nullptr) return;
    note("batch: remove ", s->model.uid);
    expect_equal(batch_->remove(*s->handle), naive_batch_.remove(s->model.uid), "batch: removed");
  }
  Live& entry_of(NaiveEntry const& e) {
    for (auto& live : live_) {
      if (live->model.uid == e.uid) return *live;
    }
    mismatch("model: an entry without a sequence");
  }

  /// The arrays of one `build`, each left out, long enough, or one element too short.
  struct Arrays {
    std::vector<Slot> slot_mapping;
    std::vector<std::int32_t> query_offsets, sequence_lengths, indptr, indices, last_block_len;
    std::vector<RowMove> row_moves;
    std::vector<RowChange> row_changes;
    std::vector<BlockId> new_blocks;
    std::vector<BlockRun> runs;
    std::vector<BlockCopy> copies;

    [[nodiscard]] BatchBuffers buffers() {
      BatchBuffers out;
      out.slot_mapping = slot_mapping;
      out.query_offsets = query_offsets;
      out.sequence_lengths = sequence_lengths;
      out.indptr = indptr;
      out.indices = indices;
      out.last_block_len = last_block_len;
      out.row_moves = row_moves;
      out.row_changes = row_changes;
      out.new_blocks = new_blocks;
      out.runs = runs;
      out.copies = copies;
      return out;
    }
  };
  Arrays arrays_for(BatchStep const& need) {
    auto const n = std::size_t(need.padded_sequences);
    auto const t = std::size_t(need.padded_tokens);
    Arrays a;
    a.slot_mapping.resize(t + 1, 77);
    a.query_offsets.resize(n + 1, 77);
    a.sequence_lengths.resize(n + 1, 77);
    a.indptr.resize(n + 1, 77);
    a.indices.resize(std::size_t(need.num_indices) + 1, 77);
    a.last_block_len.resize(n + 1, 77);
    a.row_moves.resize(std::size_t(need.num_row_moves) + 1);
    a.row_changes.resize(std::size_t(need.num_row_changes) + 1);
    a.new_blocks.resize(std::size_t(need.num_new_blocks) + 1);
    a.runs.resize(std::size_t(need.num_runs) + 1);
    a.copies.resize(std::size_t(need.num_copies) + 1);
    return a;
  }

  /// What was truncated since it was added is added again, as far as it goes.
  void add_truncated_again() {
    for (auto const& e : std::vector<NaiveEntry>(naive_batch_.entries)) {
      if (e.gone || e.query.count == 0) continue;
      Live& s = entry_of(e);
      if (e.query.end() <= s.model.size()) continue;
      int const first = std::min(e.query.first, s.model.size());
      add_to_batch(s, {first, s.model.size() - first});
      // More blocks than the table is wide, and the like: then without tokens.
      if (naive_batch_.entries[std::size_t(naive_batch_.row_of(e.uid))].query.end() >
          s.model.size()) {
        batch_->remove(*s.handle);
        naive_batch_.remove(e.uid);
      }
    }
  }
  void clip_lengths() {
    for (auto& e : naive_batch_.entries) e.length = std::min(e.length, entry_of(e).model.size());
  }
  void build_batch() {
    add_truncated_again();
    if (choices_.one_in(3)) {
      pad_tokens_ = naive_batch_.num_tokens + choices_.below(4);
      pad_sequences_ = naive_batch_.num_sequences() + choices_.below(3);
      batch_->pad_to(pad_tokens_, pad_sequences_);
    }
    note("batch: build");
    BatchStep const need = batch_->required();
    naive_batch_.drop_gone();
    clip_lengths();
    Arrays arrays = arrays_for(need);
    if (choices_.one_in(4)) {
      build_too_short(need, arrays);
      return;
    }
    BatchBuffers buffers = arrays.buffers();
    bool const follows = !naive_batch_.moves_were_lost() && !choices_.one_in(5);
    if (!follows) buffers.row_moves = {}, buffers.row_changes = {};
    bool const takes_copies = !choices_.one_in(3);
    if (!takes_copies) buffers.copies = {};
    bool const takes_new = !choices_.one_in(3);
    if (!takes_new) buffers.new_blocks = {};
    auto const step = batch_->build(buffers);
    if (!step) mismatch("build failed with ", to_string(step.error()));
    note(" -> ", step->num_tokens, " tokens, ", step->num_indices, " blocks, ", step->num_row_moves,
         " moves, ", step->num_row_changes, " changes, ", step->num_new_blocks, " new, ",
         step->num_runs, " runs");
    check_step(*step, arrays);
    if (takes_new) zero_new_blocks(arrays, step->num_new_blocks);
    if (takes_copies) {
      check_and_run_copies({arrays.copies.data(), std::size_t(step->num_copies)});
    } else {
      run_copies();
    }
    if (follows) {
      follow(*step, arrays);
    } else {
      copy_table();
    }
  }
  void build_too_short(BatchStep const& need, Arrays& arrays) {
    auto const cut = [](auto& array, int n) {
      // An empty span means left out, so that only what needs two elements can be too short.
      if (n >= 2) array.resize(std::size_t(n) - 1);
      return n >= 2;
    };
    bool shortened = false;
    switch (choices_.below(8)) {
      case 0: shortened = cut(arrays.slot_mapping, need.padded_tokens); break;
      case 1: shortened = cut(arrays.query_offsets, need.padded_sequences + 1); break;
      case 2: shortened = cut(arrays.indices, need.num_indices); break;
      case 3: shortened = cut(arrays.row_moves, need.num_row_moves); break;
      case 4: shortened = cut(arrays.row_changes, need.num_row_changes); break;
      case 5: shortened = cut(arrays.new_blocks, need.num_new_blocks); break;
      case 6: shortened = cut(arrays.runs, need.num_runs); break;
      case 7: shortened = cut(arrays.copies, need.num_copies); break;
    }
    if (!shortened) return;
    auto const refused_step = batch_->build(arrays.buffers());
    expect(!refused_step.has_value() && refused_step.error() == Errc::batch_full,
           "too short a span is refused");
    expect(batch_->required() == need, "a refused build hands out nothing");
  }

  void check_step(BatchStep const& step, Arrays const& a) {
    int const bt = config_.block_tokens;
    auto const& entries = naive_batch_.entries;
    int const n = int(entries.size());
    int const padded = std::max(n, pad_sequences_);
    expect_equal(step.num_sequences, n, "build: num_sequences");
    expect_equal(step.num_tokens, naive_batch_.num_tokens, "build: num_tokens");
    expect_equal(step.padded_sequences, padded, "build: padded_sequences");
    expect_equal(step.padded_tokens, std::max(naive_batch_.num_tokens, pad_tokens_),
                 "build: padded_tokens");
    int tokens = 0;
    std::size_t indices = 0;
    std::vector<Slot> slots;
    int common = -1;
    for (int row = 0; row < n; ++row) {
      NaiveEntry const& e = entries[std::size_t(row)];
      NaiveSequence const& s = entry_of(e).model;
      auto const at = std::size_t(row);
      int const used = (e.length + bt - 1) / bt;
      expect_equal(a.query_offsets[at], tokens, "build: query_offsets");
      expect_equal(a.sequence_lengths[at], e.length, "build: sequence_lengths");
      expect_equal(a.indptr[at], int(indices), "build: indptr");
      expect_equal(a.last_block_len[at], used == 0 ? 0 : e.length - (used - 1) * bt,
                   "build: last_block_len");
      for (int j = 0; j < used; ++j) {
        expect_equal(a.indices[indices + std::size_t(j)], s.blocks[std::size_t(j)],
                     "build: indices");
      }
      for (int p = e.query.first; p < e.query.end(); ++p) {
        slots.push_back(Slot{s.blocks[std::size_t(p / bt)]} * bt + p % bt);
      }
      tokens += e.query.count;
      indices += std::size_t(used);
      if (e.query.count > 0) common = common_with_others(s, e.length / bt, common);
    }
    for (int row = n; row <= padded; ++row) {
      auto const at = std::size_t(row);
      expect_equal(a.query_offsets[at], tokens, "build: query_offsets at the end");
      expect_equal(a.indptr[at], int(indices), "build: indptr at the end");
      if (row == padded) break;
      expect_equal(a.sequence_lengths[at], 0, "build: length of padding");
      expect_equal(a.last_block_len[at], 0, "build: last_block_len of padding");
    }
    expect_equal(step.num_indices, int(indices), "build: num_indices");
    for (int i = 0; i < step.padded_tokens; ++i) {
      Slot const want = i < tokens ? slots[std::size_t(i)] : padding_slot;
      expect_equal(a.slot_mapping[std::size_t(i)], want, "build: slot_mapping");
    }
    check_runs(step, a, slots);
    expect_equal(step.common_prefix_blocks, std::max(common, 0), "build: common prefix");
    // One behind each array: nothing was written there.
    expect_equal(a.slot_mapping[std::size_t(step.padded_tokens)], 77, "build: behind the slots");
    expect_equal(a.sequence_lengths[std::size_t(padded)], 77, "build: behind the lengths");
    expect_equal(a.indices[indices], 77, "build: behind the indices");
  }
  /// Full blocks that this sequence and the earlier ones with tokens have in common.
  int common_with_others(NaiveSequence const& s, int full, int before) {
    if (before < 0) {
      common_row_ = s.blocks;
      return full;
    }
    int same = 0;
    while (same < std::min(full, before) &&
           s.blocks[std::size_t(same)] == common_row_[std::size_t(same)]) {
      ++same;
    }
    return same;
  }
  void check_runs(BatchStep const& step, Arrays const& a, std::vector<Slot> const& slots) {
    std::vector<Slot> from_runs;
    for (int i = 0; i < step.num_runs; ++i) {
      BlockRun const& run = a.runs[std::size_t(i)];
      expect_equal(run.first_token, int(from_runs.size()), "build: first_token of a run");
      expect(run.count > 0 && run.offset + run.count <= config_.block_tokens,
             "build: a run lies in its block");
      for (int k = 0; k < run.count; ++k) {
        from_runs.push_back(Slot{run.block.value()} * config_.block_tokens + run.offset + k);
      }
    }
    expect(from_runs == slots, "build: the runs cover the slots");
  }
  /// New blocks are zeroed before the copies and writes: none may hold anything of use, and none
  /// that was handed out since may be missing.
  void zero_new_blocks(Arrays const& a, int n) {
    std::vector<int> zeroed;
    for (int i = 0; i < n; ++i) {
      int const b = a.new_blocks[std::size_t(i)].value();
      if (model_.at(b).node >= 0) mismatch("block ", b, " is new and findable");
      for (auto const& copy : model_.taken) {
        expect(copy.src != b && copy.dst != b, "a new block is an end of a copy that was taken");
      }
      zeroed.push_back(b);
    }
    for (auto& live : live_) {
      auto const& s = live->model;
      for (int j = 0; j < int(s.blocks.size()); ++j) {
        int const b = s.blocks[std::size_t(j)];
        bool const is_new = std::find(zeroed.begin(), zeroed.end(), b) != zeroed.end();
        int const first = j * config_.block_tokens;
        if (is_new && first < s.committed && !filled_by_copy(b)) {
          mismatch("block ", b, " is new and holds committed positions of ", s.uid);
        }
        if (!is_new && unreported_.count(b) != 0 && first >= s.committed) {
          mismatch("block ", b, " of ", s.uid, " is new and isn't reported");
        }
        // Drafts written before the build are lost; the engine writes them after it.
        if (is_new && !filled_by_copy(b)) live->written = std::min(live->written, first);
      }
    }
    for (int const b : zeroed) device_.fill(b, 0);
    unreported_.clear();
  }
  [[nodiscard]] bool filled_by_copy(int b) const {
    return std::any_of(model_.planned.begin(), model_.planned.end(),
                       [&](NaiveCopy const& c) { return c.dst == b; });
  }
  void follow(BatchStep const& step, Arrays const& a) {
    expect_equal(step.num_row_moves, naive_batch_.undelivered_moves, "build: row moves");
    for (int i = 0; i < step.num_row_moves; ++i) {
      naive_batch_.move_row(a.row_moves[std::size_t(i)]);
    }
    for (int i = 0; i < step.num_row_changes; ++i) {
      naive_batch_.change(a.row_changes[std::size_t(i)]);
    }
    naive_batch_.undelivered_moves = 0;
    check_table();
  }
  void check_table() {
    for (int row = 0; row < naive_batch_.num_sequences(); ++row) {
      naive_batch_.expect_row(row, entry_of(naive_batch_.entries[std::size_t(row)]).model.blocks);
    }
    int const padded = std::min(pad_sequences_, limits_.max_sequences);
    for (int row = naive_batch_.num_sequences(); row < padded; ++row) {
      naive_batch_.expect_row(row, {});
    }
  }
  void copy_table() {
    add_truncated_again();
    note("batch: copy_table");
    naive_batch_.drop_gone();
    clip_lengths();
    int const n = naive_batch_.num_sequences();
    int const rows = std::max({pad_sequences_, n, limits_.max_sequences});
    // Not a row more, if a row has room for it.
    std::size_t const behind = naive_batch_.width > 1 ? 1 : 0;
    auto const written = std::size_t(rows) * std::size_t(naive_batch_.width);
    std::vector<std::int32_t> out(written + behind, 77);
    batch_->copy_table(out);
    if (behind != 0) expect_equal(out.back(), 77, "copy_table: behind the table");
    auto const size = std::min(written, naive_batch_.table.size());
    std::copy_n(out.begin(), size, naive_batch_.table.begin());
    expect(std::all_of(out.begin() + std::ptrdiff_t(size), out.begin() + std::ptrdiff_t(written),
                       [](std::int32_t b) { return b == 0; }),
           "copy_table: padding is block 0");
    naive_batch_.undelivered_moves = 0;
    check_table();
    for (int row = 0; row < n; ++row) {
      std::vector<std::int32_t> one(std::size_t(naive_batch_.width));
      batch_->copy_row(row, one);
      expect(std::equal(one.begin(), one.end(),
                        naive_batch_.table.begin() + std::ptrdiff_t(row) * naive_batch_.width),
             "copy_row: the row of the table");
    }
  }
  void commit_batch() {
    // Every query's tokens must be known and computed; those of the cancelled don't matter.
    for (auto const& e : naive_batch_.entries) {
      if (e.gone || e.query.count == 0) continue;
      if (e.query.end() > int(entry_of(e).kv.size())) return begin_batch();
    }
    run_copies();
    for (auto const& e : naive_batch_.entries) {
      if (!e.gone && e.query.count > 0) write_up_to(entry_of(e), e.query.end());
    }
    note("batch: commit");
    batch_->commit();
    for (auto const& e : naive_batch_.entries) {
      if (!e.gone && e.query.count > 0) model_.commit(entry_of(e).model, e.query.end());
    }
  }

  // ------------------------------------------------------------------------------- comparing

  template <class T>
  void refused(Result<T> const& got, Errc expected, Live const* s = nullptr) {
    if (got.has_value()) mismatch("succeeded; the model says ", to_string(expected));
    if (got.error() != expected) {
      mismatch("failed with ", to_string(got.error()), "; the model says ", to_string(expected));
    }
    note(" -> ", to_string(expected));
    if (s != nullptr) compare(s, false);
    compare(nullptr, true);  // all or nothing
  }

  std::string describe_config() const {
    return join("max_sequences ", config_.max_sequences, ", max_sequence_tokens ",
                config_.max_sequence_tokens, model_.deferred() ? ", deferred" : ", stream_ordered",
                config_.twins == Twins::adopt ? ", adopt" : ", keep",
                config_.partial_hits ? ", partial_hits" : "");
  }
  void begin_verb() {
    model_.begin_verb();
    heard_.begin_verb();
  }
  void compare_events() {
    if (!heard_.broken.empty()) mismatch("events: ", heard_.broken);
    expect_equal(heard_.heard.size(), model_.events.size(), "number of events");
    for (std::size_t i = 0; i < heard_.heard.size(); ++i) {
      expect_equal(int(heard_.heard[i].kind), int(model_.events[i].kind), "kind of event");
      if (heard_.heard[i].kind != CacheEvent::Kind::cleared) {
        expect_equal(heard_.heard[i].block, model_.events[i].block, "block of event");
      }
      if (heard_.heard[i].kind == CacheEvent::Kind::stored) compare_stored(model_.events[i]);
    }
  }
  void compare_stored(NaiveEvent const& event) {
    auto const in_map = heard_.stored.find(event.block);
    auto const node = model_.nodes.find(event.node);
    if (in_map == heard_.stored.end() || node == model_.nodes.end()) return;  // gone since
    expect(in_map->second.tokens == node->second.tokens, "tokens of a stored block");
    int const parent = node->second.parent == 0 ? -1 : model_.nodes.at(node->second.parent).block;
    expect_equal(in_map->second.parent, parent, "parent of a stored block");
    auto const [bytes, is_new] = extra_bytes_.try_emplace(node->second.extra, in_map->second.extra);
    expect(bytes->second == in_map->second.extra, "equal extra keys, different bytes");
    auto const [text, new_bytes] =
        extra_texts_.try_emplace(in_map->second.extra, node->second.extra);
    expect(text->second == node->second.extra, "different extra keys, equal bytes");
  }

  void compare(Live const* s, bool everything) {
    if (s != nullptr) compare_sequence(*s);
    compare_events();
    if (!everything) return;
    compare_counters();
    for (int b = 0; b < config_.num_blocks; ++b) {
      NaiveBlock const& block = model_.at(b);
      if (cache_->references(BlockId{b}) != std::uint32_t(block.refs)) {
        mismatch("block ", b, ": ", cache_->references(BlockId{b}), " references, the model says ",
                 block.refs);
      }
      expect_equal(cache_->is_published(BlockId{b}), block.node >= 0, "published");
      auto const in_map = heard_.stored.find(b);
      expect_equal(in_map != heard_.stored.end(), block.node >= 0, "the map has the block");
      if (block.node >= 0) {
        expect_equal(in_map->second.generation, cache_->generation(BlockId{b}), "generation");
      }
    }
    for (auto const& live : live_) compare_sequence(*live);
    bool const read = config_.num_blocks * config_.block_tokens <= 256 || step_ % 16 == 0;
    if (read) {
      for (auto const& live : live_) read_back(*live);
    }
    auto const report = cache_->verify();
    if (!report) mismatch("verify: ", report.broken, ", block ", report.block.value());
  }
  void compare_counters() {
    Stats const got = cache_->stats();
    Stats want = model_.stats;
    want.num_blocks = config_.num_blocks;
    want.free = model_.count(State::free);
    want.idle = model_.count(State::idle);
    want.used = model_.count(State::used);
    want.quarantined = model_.count(State::quarantined);
    want.retained = model_.count(State::retained);
    want.sequences = int(live_.size());
    want.pins = int(pins_.size());
    for (auto const& live : live_) {
      auto const slots = std::int64_t(live->model.blocks.size()) * config_.block_tokens;
      want.owned_slots += slots;
      want.wasted_slots += slots - live->model.size();
    }
    // Whether a first block is cached under other keys the library knows by a hint only.
    auto const other = got.hit_ends[HitEnd::salt_or_adapter];
    expect(other <= model_.maybe_other_keys, "hits that ended at other keys");
    want.hit_ends[HitEnd::salt_or_adapter] = other;
    want.hit_ends[HitEnd::no_block] -= other;
    if (got == want) return;
    auto const differ = [](char const* name, auto a, auto b) {
      if (a != b) mismatch("stats: ", name, " is ", a, ", the model says ", b);
    };
    differ("free", got.free, want.free);
    differ("idle", got.idle, want.idle);
    differ("used", got.used, want.used);
    differ("quarantined", got.quarantined, want.quarantined);
    differ("retained", got.retained, want.retained);
    differ("sequences", got.sequences, want.sequences);
    differ("pins", got.pins, want.pins);
    differ("owned_slots", got.owned_slots, want.owned_slots);
    differ("wasted_slots", got.wasted_slots, want.wasted_slots);
    differ("opens", got.opens, want.opens);
    differ("resumed_opens", got.resumed_opens, want.resumed_opens);
    differ("prefix_query_tokens", got.prefix_query_tokens, want.prefix_query_tokens);
    differ("prefix_hit_tokens", got.prefix_hit_tokens, want.prefix_hit_tokens);
    differ("resumed_query_tokens", got.resumed_query_tokens, want.resumed_query_tokens);
    differ("resumed_hit_tokens", got.resumed_hit_tokens, want.resumed_hit_tokens);
    differ("partial_hit_tokens", got.partial_hit_tokens, want.partial_hit_tokens);
    differ("external_tokens", got.external_tokens, want.external_tokens);
    differ("hit_blocks", got.hit_blocks, want.hit_blocks);
    differ("published_blocks", got.published_blocks, want.published_blocks);
    differ("twin_blocks", got.twin_blocks, want.twin_blocks);
    differ("adopted_blocks", got.adopted_blocks, want.adopted_blocks);
    differ("evicted_blocks", got.evicted_blocks, want.evicted_blocks);
    differ("unpublished_blocks", got.unpublished_blocks, want.unpublished_blocks);
    differ("copies", got.copies, want.copies);
    differ("dropped_copies", got.dropped_copies, want.dropped_copies);
    differ("forks", got.forks, want.forks);
    differ("preemptions", got.preemptions, want.preemptions);
    differ("resets", got.resets, want.resets);
    for (std::size_t i = 0; i < num_hit_ends; ++i) {
      differ(to_string(HitEnd(i)), got.hit_ends.counts[i], want.hit_ends.counts[i]);
    }
    mismatch("stats differ");
  }
  void compare_sequence(Live const& s) {
    auto const& h = *s.handle;
    expect_equal(h.size(), s.model.size(), "size");
    expect_equal(h.committed(), s.model.committed, "committed");
    expect_equal(h.cached(), s.model.cached, "cached");
    expect_equal(h.external_tokens(), s.model.external, "external_tokens");
    expect_equal(h.num_blocks(), int(s.model.blocks.size()), "num_blocks");
    auto const row = h.blocks();
    expect_equal(row.size(), s.model.blocks.size(), "length of the block table");
    for (std::size_t j = 0; j < row.size(); ++j) {
      expect_equal(row[j].value(), s.model.blocks[j], "block table entry");
    }
    if (config_.num_blocks > 64 && step_ % 16 != 0) return;
    expect_equal(h.unshared_blocks(), model_.unshared_blocks(s.model), "unshared_blocks");
    expect_equal(h.unshared_tokens(), model_.unshared_tokens(s.model), "unshared_tokens");
    for (int p = 0; p < s.model.size(); p += 1 + config_.block_tokens / 4) {
      expect_equal(h.token(p), s.model.tokens[std::size_t(p)], "token");
    }
  }
  /// Every position whose K and V were computed reads back its own history.
  void read_back(Live const& s) {
    for (int p = 0; p < s.written; ++p) {
      int block = s.model.blocks[std::size_t(p / config_.block_tokens)];
      int const offset = p % config_.block_tokens;
      for (auto const& copy : model_.planned) {
        if (copy.dst == block && offset < copy.num_tokens) {
          block = copy.src;
          break;
        }
      }
      if (device_.at(block, offset) != s.kv[std::size_t(p)]) {
        mismatch("sequence ", s.model.uid, " reads another history at position ", p, ", block ",
                 block);
      }
    }
  }
  /// A block that takes new content holds nothing of use.
  void poison() {
    for (int const b : model_.allocated) {
      device_.fill(b, Device::garbage);
      unreported_.insert(b);
    }
  }

  // ----------------------------------------------------------------------------------- prompts

  std::shared_ptr<NaiveKey const> make_prompt() {
    // The very same prompt again: retries, resumed requests, twins.
    if (!histories_.empty() && choices_.one_in(4)) return choices_.pick(histories_);
    auto key = std::make_shared<NaiveKey>();
    int const limit = choices_.one_in(24) ? longest_ : longest_usual_;
    if (!histories_.empty() && !choices_.one_in(6)) {
      *key = *choices_.pick(histories_);
      int cut = choices_.between(0, key->num_tokens());
      if (choices_.one_in(3)) cut -= cut % config_.block_tokens;
      if (choices_.one_in(4)) cut = key->num_tokens();
      key->tokens.resize(std::size_t(cut));
      std::erase_if(key->media, [&](NaiveMedia const& m) { return m.first + m.count > cut; });
    }
    if (choices_.one_in(8)) {
      static char const* const names[] = {"", "a", "b"};
      key->salt = names[choices_.below(3)];
      key->adapter = names[choices_.below(3)];
      key->adapter_generation = key->adapter.empty() ? 0 : std::uint64_t(choices_.below(2));
    }
    int const room = std::max(0, limit - key->num_tokens());
    int const tail = choices_.between(0, room);
    bool const monotone = choices_.one_in(2);
    int token = choices_.below(alphabet_);
    for (int i = 0; i < tail; ++i) {
      if (!monotone) token = choices_.below(alphabet_);
      key->tokens.push_back(token);
    }
    if (choices_.one_in(10) && key->num_tokens() > 0) {
      // The extent belongs to the item's name.
      NaiveMedia m;
      m.count = choices_.between(1, std::min(3, key->num_tokens()));
      m.id = std::string(1, char('p' + choices_.below(2))) + std::to_string(m.count);
      m.first = choices_.between(0, key->num_tokens() - m.count);
      if (key->media.empty()) key->media.push_back(m);
    }
    if (key->tokens.empty() && !choices_.one_in(8)) key->tokens.push_back(0);
    if (histories_.size() < 24) {
      histories_.push_back(key);
    } else {
      histories_[std::size_t(choices_.below(24))] = key;
    }
    return key;
  }
  static ExtraKeys extra_keys(NaiveKey const& key, std::vector<MediaItem>& media) {
    for (auto const& m : key.media) media.push_back({{m.first, m.count}, m.id});
    return {key.salt, key.adapter, key.adapter_generation, media};
  }
  Tokens goal_for(NaiveKey const& key) {
    if (!choices_.one_in(3)) return key.tokens;
    return choices_.pick(histories_)->tokens;
  }
  int growth() {
    switch (choices_.below(8)) {
      case 0: return 0;
      case 1: return config_.block_tokens;
      case 2: return choices_.below(2 * config_.block_tokens + 1);
      case 3: return choices_.below(longest_usual_ + 1);
      default: return 1;
    }
  }
  /// The prompt first, then what others say as well, sometimes something new.
  Tokens next_tokens(Live const& s, int n) {
    Tokens out;
    bool const obedient = !choices_.one_in(8);
    int const other = choices_.below(alphabet_);
    int const from = int(s.kv.size());
    for (int i = 0; i < n; ++i) {
      bool const has_goal = obedient && from + i < int(s.goal.size());
      out.push_back(has_goal ? s.goal[std::size_t(from + i)] : other);
    }
    return out;
  }

  Live* any_live() {
    if (live_.empty()) return nullptr;
    return live_[std::size_t(choices_.below(int(live_.size())))].get();
  }
  std::vector<int> row_of(Live const& s) const {
    std::vector<int> out;
    for (auto const b : s.handle->blocks()) out.push_back(b.value());
    return out;
  }
  void forget_from(Live& s, int n) {
    if (int(s.kv.size()) > n) s.kv.resize(std::size_t(n));
    s.written = std::min(s.written, n);
  }
  /// Works out what the known positions stand for.
  void learn(Live& s) {
    auto const& tokens = s.model.tokens;
    for (int p = int(s.kv.size()); p < s.model.size(); ++p) {
      if (tokens[std::size_t(p)] == unknown_token) return;
      std::uint64_t const before = p == 0 ? kv_before_first(s.model.key) : s.kv.back();
      s.kv.push_back(kv_after(before, s.model.key, p, tokens[std::size_t(p)]));
    }
  }

  template <class... Parts>
  void note(Parts const&... parts) {
    if (log == nullptr) return;
    log->push_back(join(step_, ": ", parts...));
  }
  std::string text(Tokens const& tokens) const {
    if (log == nullptr) return {};
    std::string out = join("[", tokens.size(), ":");
    for (std::size_t i = 0; i < tokens.size() && i < 40; ++i) {
      out += join(" ", tokens[i]);
    }
    out += "]";
    return out;
  }
  std::string describe(Live const& s) const {
    if (log == nullptr) return {};
    std::string out = join("sequence ", s.model.uid, " size ", s.model.size(), " cached ",
                           s.model.cached, " blocks");
    for (int const b : s.model.blocks) out += join(" ", b);
    return out;
  }

  Choices choices_;
  EventMap heard_;
  int alphabet_ = 2;
  int longest_usual_ = 0;
  int longest_ = 0;
  BatchLimits limits_;
  KvCacheConfig config_;
  NaiveCache model_;
  Device device_;
  std::optional<Cache> cache_;
  std::optional<Batch> batch_;
  NaiveBatch naive_batch_;
  int pad_tokens_ = 0;
  int pad_sequences_ = 0;
  std::vector<int> common_row_;
  std::set<int> unreported_;  ///< blocks handed out since the last build that listed new ones
  std::vector<std::unique_ptr<Live>> live_;
  std::vector<LivePin> pins_;
  std::vector<std::shared_ptr<NaiveKey const>> histories_;
  std::map<std::string, std::string> extra_bytes_;
  std::map<std::string, std::string> extra_texts_;
  std::uint64_t last_uid_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace pagedkv::testing

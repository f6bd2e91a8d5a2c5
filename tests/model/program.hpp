// SPDX-License-Identifier: Apache-2.0
/// \file
/// A random program: verbs with random arguments against the library and the naive model at once.
/// After every verb the two are compared, and a simulated device is read back: all that a sequence
/// reads through its block table must be its own history. The verbs: program_verbs.hpp and
/// program_batch.hpp; what is compared: program_compare.hpp; what is said: program_prompts.hpp.
#pragma once

#include <algorithm>
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
#include "device.hpp"
#include "event_map.hpp"
#include "naive_batch.hpp"
#include "naive_cache.hpp"

namespace pagedkv::testing {

/// What kind of cache a program runs on. Everything else is decided by its choices.
struct Shape {
  int block_tokens = 16;
  int num_blocks = 64;
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
    std::vector<int> row;           ///< as last compared
    int copied = -1;                ///< the column whose block a copy has replaced since
  };
  /// How the cache hears which sequences a step uses.
  enum class Naming : std::uint8_t { nobody_says, used_by, batch };
  struct LivePin {
    Pin handle;
    NaivePin model;
  };

 public:
  Program(Shape const& shape, Choices choices)
      : choices_(std::move(choices)),
        config_(configure(shape)),
        model_(config_),
        device_(config_.num_blocks, config_.block_tokens, config_.reclaim) {
    cache_.emplace(config_);
    if (naming_ != Naming::batch) return;
    batch_.emplace(*cache_, limits_);
    model_.steps_are_named = true;
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
  void run(std::int64_t steps);

  void step();
  bool sequence_verb(int verb);

  /// Everything is given back; nothing may be missing.
  void finish();

 private:
  // -------------------------------------------------------------------------------- parameters

  KvCacheConfig configure(Shape const& shape);
  void choose_lengths(Shape const& shape);

  // ------------------------------------------------------------------------------------- verbs

  void open();
  OpenOptions make_options(NaiveKey const& key);
  void open_refused(PromptKey const& prompt, OpenOptions const& o);
  void opened(Sequence&& handle, NaiveKey const& key, OpenOptions const& o,
              NaiveAdmission const& admission);

  /// Questions change nothing.
  void ask();
  void ask_about(PromptKey const& prompt, NaiveKey const& key, OpenOptions const& o,
                 NaiveAdmission const& admission);

  void append();
  void reserve();
  NaiveCache::Growth ask_about_growth(Live const& s, int n);
  void grown(Live& s, Result<TokenRange> const& range, int n);

  void set_tokens();

  void take_copies();
  /// What the data plane does with a step's copies.
  void run_copies();
  void check_and_run_copies(std::span<BlockCopy const> got);
  void run_copy(BlockCopy const& copy);

  void write();
  /// Copies first, then the step's writes, as the data plane does it.
  void write_up_to(Live& s, int n);

  void commit();
  void commit_up_to(Live& s, int n);

  void truncate();
  void fork();
  void close();
  void close(std::size_t i, Reuse reuse);

  void pin();
  void unpin();
  void unpin(std::size_t i);

  std::vector<BlockId> some_blocks();
  void evict();
  void unpublish();
  void reset();

  void end_step();
  void reclaim();

  // ----------------------------------------------------------- what steps in flight use

  void used_by();
  /// Step `tick` reads what stands in the leading positions of the sequence.
  void use(Live const& s, std::uint64_t tick, int num_positions);
  /// Blocks from `keep` on are given back while a transfer may still write into them.
  void use_until_transferred(Live const& s, int keep);

  // --------------------------------------------------------------------------------- the batch

  void batch_verb();
  void begin_batch();
  void add_to_batch();
  void add_to_batch(Live& s, TokenRange query);
  void remove_from_batch();
  Live& entry_of(NaiveEntry const& e);

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
  Arrays arrays_for(BatchStep const& need);
  void build_once(Arrays& arrays);

  /// What was truncated since it was added is added again, as far as it goes.
  void add_truncated_again();
  void clip_lengths();
  void build_batch();
  void build_too_short(BatchStep const& need, Arrays& arrays);

  void check_step(BatchStep const& step, Arrays const& a);
  void check_rows(BatchStep const& step, Arrays const& a);
  void check_padding(BatchStep const& step, Arrays const& a, std::vector<Slot> const& slots,
                     int indices);
  /// Full blocks that this sequence and the earlier ones with tokens have in common.
  int common_with_others(NaiveSequence const& s, int full, int before);
  void check_runs(BatchStep const& step, Arrays const& a, std::vector<Slot> const& slots);
  /// New blocks are zeroed before the copies and writes: none may hold anything of use, and none
  /// that was handed out since may be missing.
  void zero_new_blocks(Arrays const& a, int n);
  [[nodiscard]] bool filled_by_copy(int b) const;
  void follow(BatchStep const& step, Arrays const& a);
  void check_table();
  void copy_table();
  void commit_batch();

  // ------------------------------------------------------------------------------- comparing

  template <class T>
  void refused(Result<T> const& got, Errc expected, Live* s = nullptr);

  std::string describe_config() const;
  void begin_verb();
  void compare_events();
  /// What one `unpublish` removes comes in any order.
  void sort_removed();
  void compare_stored(NaiveEvent const& event);

  void compare(Live* s, bool everything);
  void compare_blocks();
  void compare_counters();
  [[nodiscard]] Stats expected_stats(Stats const& got) const;
  void compare_sequence(Live& s);
  /// `Twins::keep`: no entry of a row changes except by truncate and by the copy of its tail.
  void check_promise(Live& s);
  /// Every position whose K and V were computed reads back its own history.
  void read_back(Live const& s);
  /// A block that takes new content holds nothing of use.
  void poison();

  // ----------------------------------------------------------------------------------- prompts

  std::shared_ptr<NaiveKey const> make_prompt();
  void cut_prompt(NaiveKey& key);
  static void drop_media_behind(NaiveKey& key, int end);
  void lengthen_prompt(NaiveKey& key);
  void name_prompt(NaiveKey& key);
  void remember(std::shared_ptr<NaiveKey const> key);
  static ExtraKeys extra_keys(NaiveKey const& key, std::vector<MediaItem>& media);
  Tokens goal_for(NaiveKey const& key);
  int growth();
  /// The prompt first, then what others say as well, sometimes something new.
  Tokens next_tokens(Live const& s, int n);
  [[nodiscard]] TokenId greedy_token(Tokens const& before) const;

  Live* any_live();
  std::vector<int> row_of(Live const& s) const;
  void forget_from(Live& s, int n);
  /// Works out what the known positions stand for.
  void learn(Live& s);

  template <class... Parts>
  void note(Parts const&... parts);
  std::string text(Tokens const& tokens) const;
  std::string describe(Live const& s) const;

  Choices choices_;
  EventMap heard_;
  int alphabet_ = 2;
  Naming naming_ = Naming::batch;
  bool greedy_ = false;   ///< equal texts are continued equally
  bool aligned_ = false;  ///< prompts end at the end of a block
  int longest_usual_ = 0;
  int longest_ = 0;
  bool any_order_ = false;  ///< the verb's removed events
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

template <class Policy>
void Program<Policy>::run(std::int64_t steps) {
  heard_.log = log;
  note(describe_config());
  for (std::int64_t i = 0; i < steps && !choices_.exhausted(); ++i) step();
  finish();
}

template <class Policy>
void Program<Policy>::step() {
  ++step_;
  choices_.begin_step();
  begin_verb();
  int const verb = choices_.below(1000);
  if (verb < 865) {
    if (!sequence_verb(live_.empty() ? 0 : verb)) open();
  } else if (verb < 875) {
    pin();
  } else if (verb < 885) {
    unpin();
  } else if (verb < 892) {
    evict();
  } else if (verb < 898) {
    unpublish();
  } else if (verb < 900) {
    reset();
  } else if (verb < 930) {
    end_step();
  } else if (verb < 945) {
    reclaim();
  } else if (naming_ == Naming::batch) {
    batch_verb();
  } else if (choices_.one_in(4)) {
    choices_.one_in(2) ? end_step() : reclaim();
  } else {
    used_by();
  }
  compare(nullptr, step_ % full_check_every == 0);
}

/// False: not one of these.
template <class Policy>
bool Program<Policy>::sequence_verb(int verb) {
  if (verb < 150) return false;
  if (verb < 160) {
    ask();
  } else if (verb < 370) {
    append();
  } else if (verb < 430) {
    reserve();
  } else if (verb < 490) {
    set_tokens();
  } else if (verb < 515) {
    take_copies();
  } else if (verb < 542) {
    write();
  } else if (verb < 550) {
    used_by();
  } else if (verb < 680) {
    commit();
  } else if (verb < 740) {
    truncate();
  } else if (verb < 785) {
    fork();
  } else {
    close();
  }
  return true;
}

template <class Policy>
void Program<Policy>::finish() {
  begin_verb();
  while (!live_.empty()) close(live_.size() - 1, Reuse::likely);
  while (!pins_.empty()) unpin(pins_.size() - 1);
  run_copies();
  end_step();
  model_.reclaim(model_.open_tick - 1);
  cache_->reclaim(Tick{model_.open_tick - 1});
  device_.finish(model_.open_tick - 1);
  compare(nullptr, true);
  expect_equal(model_.available(), config_.num_blocks, "model: blocks that came back");
  expect_equal(cache_->available_blocks(), config_.num_blocks, "free and idle at the end");
  batch_.reset();
  cache_.reset();
}

template <class Policy>
KvCacheConfig Program<Policy>::configure(Shape const& shape) {
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
  int const naming = choices_.below(6);
  naming_ = naming == 0 ? Naming::nobody_says : naming == 1 ? Naming::used_by : Naming::batch;
  greedy_ = choices_.one_in(3);
  aligned_ = choices_.one_in(3);
  choose_lengths(shape);
  longest_ = std::max(1, std::min(c.max_sequence_tokens + 1, shape.block_tokens * (widest + 1)));
  limits_.max_sequences = choices_.between(1, c.max_sequences);
  limits_.max_tokens = choices_.one_in(4) ? shape.block_tokens : 4 * longest_usual_;
  limits_.max_blocks_per_sequence = 0;
  return c;
}

template <class Policy>
void Program<Policy>::choose_lengths(Shape const& shape) {
  alphabet_ = choices_.between(1, 3);
  // Long prompts now and then; short ones collide more and are faster.
  int const usual = shape.block_tokens == 1 ? 12 : shape.block_tokens == 2 ? 8 : 5;
  longest_usual_ = shape.block_tokens * std::min(usual, shape.num_blocks);
  if (shape.num_blocks > 64) {  // so many that they fill up
    longest_usual_ = shape.block_tokens * 60;
    alphabet_ = 40;
  }
}

}  // namespace pagedkv::testing

#include "program_batch.hpp"
#include "program_compare.hpp"
#include "program_prompts.hpp"
#include "program_verbs.hpp"

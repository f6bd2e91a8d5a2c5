// SPDX-License-Identifier: Apache-2.0
/// \file
/// The step's sequences as arrays for the kernels: slots, block table, CSR form, changes since the
/// last step. Nothing is allocated after construction.
///
///     batch.begin_step();
///     for (each scheduled sequence) batch.add(seq, *seq.append(ids));
///     batch.build(buffers);      // zero new blocks, run the copies, then the layers
///     batch.commit();
///     cache.end_step();
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <pagedkv/fwd.hpp>
#include <pagedkv/manage/kv_cache.hpp>
#include <pagedkv/manage/sequence.hpp>
#include <pagedkv/step/batch_arrays.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// Row b of every array is entry b. Entries stay until removed, so that a device-resident table
/// follows by moves and changes alone; an entry without tokens this step has an empty query range.
/// Removal moves the last row into the gap. A sequence belongs to one batch.
///
/// From `add` to `end_step`, blocks that an added sequence gives up aren't handed to another.
/// Must not outlive the cache. One writer, the cache's.
template <class Policy>
class BasicBatch {
  using Core = detail::CacheCore<Policy>;

 public:
  /// Raises `Error` when a limit isn't positive. Memory: max_sequences * width * 4 bytes, as
  /// touched.
  BasicBatch(BasicKvCache<Policy>& cache, BatchLimits const& limits)
      : core_(&cache.core_),
        limits_(checked(limits, cache.table_width())),
        entries_(),
        entry_of_(static_cast<std::size_t>(core_->config().max_sequences), -1),
        stride_(detail::row_stride(limits_.max_blocks_per_sequence)),
        table_(static_cast<std::size_t>(limits_.max_sequences) * stride_),
        filled_(static_cast<std::size_t>(limits_.max_sequences)) {
    entries_.reserve(filled_.size());
    moves_.reserve(filled_.size());
    core_->attach_batch();
  }

  [[nodiscard]] std::int32_t num_sequences() const noexcept {
    return static_cast<std::int32_t>(entries_.size());
  }
  [[nodiscard]] std::int32_t num_tokens() const noexcept { return num_tokens_; }
  /// Columns of the table.
  [[nodiscard]] std::int32_t table_width() const noexcept {
    return limits_.max_blocks_per_sequence;
  }
  /// The entry's row now, or -1.
  [[nodiscard]] std::int32_t row_of(BasicSequence<Policy> const& seq) const {
    std::int32_t const e = entry_of_[static_cast<std::size_t>(seq.row_)];
    return e >= 0 && is_current(entries_[static_cast<std::size_t>(e)]) ? e : -1;
  }

  /// Forgets the last step's queries and padding, and entries whose sequence is gone.
  void begin_step() {
    drop_gone();
    for (Entry& e : entries_) e.query.count = 0;
    num_tokens_ = num_runs_ = 0;
    pad_tokens_ = pad_sequences_ = 0;
  }

  /// The positions of `query` get their K and V in this step; the sequence's length in it is
  /// `query.end()`. Returns the row. A known sequence keeps its row and its earlier query is
  /// replaced. Requires: the positions exist. Errors: batch_full (rows, tokens or columns). O(1).
  Result<std::int32_t> add(BasicSequence<Policy> const& seq, TokenRange query) {
    PAGEDKV_ASSERT(&seq.core() == core_, "Batch::add: the sequence belongs to another cache");
    PAGEDKV_ASSERT(query.first >= 0 && query.count >= 0 && query.first <= seq.size() - query.count,
                   "Batch::add: the positions must exist");
    std::int32_t row = row_of(seq);
    std::int32_t const before = row >= 0 ? entries_[static_cast<std::size_t>(row)].query.count : 0;
    if (num_tokens_ - before > limits_.max_tokens - query.count ||
        seq.num_blocks() > limits_.max_blocks_per_sequence) {
      return Unexpected{Errc::batch_full};
    }
    if (row < 0) {
      if (num_sequences() == limits_.max_sequences) drop_gone();
      if (num_sequences() == limits_.max_sequences) return Unexpected{Errc::batch_full};
      row = insert(seq.row_);
    }
    Entry& entry = entries_[static_cast<std::size_t>(row)];
    if (before != 0) num_runs_ -= runs_of(entry.query);
    num_tokens_ += query.count - before;
    num_runs_ += runs_of(query);
    entry.query = query;
    set_length(entry, query.end());
    if (query.count > 0) core_->mark_batched(seq.row_);
    return row;
  }
  /// False if it has no entry. The last row moves into its place. O(row).
  bool remove(BasicSequence<Policy> const& seq) {
    std::int32_t const row = row_of(seq);
    if (row < 0) return false;
    erase(static_cast<std::size_t>(row));
    return true;
  }

  /// This step's arrays are filled up to these sizes, for captured graphs: slot -1, length 0,
  /// offsets repeated, block 0 in the table.
  void pad_to(std::int32_t tokens, std::int32_t sequences) noexcept {
    pad_tokens_ = tokens;
    pad_sequences_ = sequences;
  }

  /// What `build` would write now: the lengths its spans need (new blocks: at most). O(sequences).
  [[nodiscard]] BatchStep required() { return survey().step; }

  /// Writes the step's arrays, hands out new blocks and copies, and counts moves and changes as
  /// delivered. Errors: batch_full when a span is neither empty nor long enough (`required()` says
  /// how long), a row outgrew the table, or more rows moved than there are (`copy_table` mends
  /// that); then nothing is handed out. O(tokens + blocks of the sequences).
  Result<BatchStep> build(BatchBuffers const& out) {
    Survey const now = survey();
    BatchStep step = now.step;
    PAGEDKV_ASSERT(now.queries_exist,
                   "Batch::build: a query's positions were truncated; add it again");
    if (!now.rows_fit || !fits(step, out)) return Unexpected{Errc::batch_full};
    write_rows(step, out);
    if (now.rows_changed) write_changes(out.row_changes);
    if (out.row_changes.empty()) step.num_row_changes = 0;
    step.num_row_moves = write_moves(out.row_moves);
    step.num_new_blocks = write_new_blocks(out.new_blocks);
    step.num_copies = write_copies(out.copies);
    return step;
  }

  /// Commits every sequence with a query up to `query.end()`. The same as their `commit`, one after
  /// the other, in one pass that looks ahead. O(sequences + new full blocks).
  void commit() {
    // Passes over a window, so that each finds its lines on the way.
    constexpr std::size_t window = 32;
    std::int32_t waiting[window];
    std::size_t n = 0;
    auto const publish_waiting = [&] {
      for (std::size_t i = 0; i < n; ++i) core_->prefetch_runs(waiting[i]);
      for (std::size_t i = 0; i < n; ++i) core_->publish(waiting[i]);
      n = 0;
    };
    bool const all_current = ended_ == core_->sequences().num_ended();
    for (Entry const& entry : entries_) {
      if (entry.query.count == 0 || (!all_current && !is_current(entry))) continue;
      if (!core_->advance(entry.sequence, entry.query.end())) continue;
      core_->prefetch_blocks(entry.sequence);
      waiting[n++] = entry.sequence;
      if (n == window) publish_waiting();
    }
    publish_waiting();
    detail::check(*core_);
  }

  /// Row `row` as it is now, [table_width()]; the columns after its end are block 0.
  void copy_row(std::int32_t row, std::span<std::int32_t> out) const {
    PAGEDKV_ASSERT(row >= 0 && row < num_sequences() && out.size() >= width(),
                   "copy_row: the row must exist and out hold table_width() elements");
    auto const blocks = blocks_of(entries_[static_cast<std::size_t>(row)]);
    auto const end = std::transform(blocks.begin(), blocks.end(), out.begin(),
                                    [](BlockId b) { return b.value(); });
    std::fill(end, out.begin() + static_cast<std::ptrdiff_t>(width()), 0);
  }
  /// The whole table, as many rows as `out` holds: [max(num_sequences(), padding) or more,
  /// table_width()]; rows without an entry are block 0. Pass all rows that the device has: pending
  /// moves and changes count as delivered, so a row left out keeps there what it had.
  void copy_table(std::span<std::int32_t> out) {
    drop_gone();
    std::size_t const rows = out.size() / width();
    PAGEDKV_ASSERT(rows >= static_cast<std::size_t>(std::max(pad_sequences_, num_sequences())),
                   "copy_table: out must hold rows * table_width() elements");
    if (survey().rows_changed) write_changes({});
    write_moves({});
    auto to = out.begin();
    for (std::size_t e = 0; e < rows; ++e) {
      bool const exists = e < filled_.size();
      to = exists ? std::copy_n(table_row(e), width(), to) : std::fill_n(to, width(), 0);
    }
  }

 private:
  struct Entry {
    std::int32_t sequence;  ///< its row in the cache
    std::uint32_t generation;
    TokenRange query;
    std::int32_t length = 0;          ///< positions that the kernels may read
    std::int32_t num_blocks = 0;      ///< of `length`
    std::int32_t last_block_len = 0;  ///< of `length`
    std::int32_t shared_blocks = -1;  ///< leading columns equal to those of the base; -1: unknown
  };
  struct Nothing {
    void operator()(std::int32_t, std::int32_t) const noexcept {}
  };

  static BatchLimits checked(BatchLimits limits, std::int32_t cache_width) {
    detail::require_term(limits.max_sequences >= 1, "BatchLimits.max_sequences",
                         limits.max_sequences, "must be at least 1", 1);
    detail::require_term(limits.max_tokens >= 1, "BatchLimits.max_tokens", limits.max_tokens,
                         "must be at least 1", 1);
    detail::require_term(limits.max_blocks_per_sequence >= 0, "BatchLimits.max_blocks_per_sequence",
                         limits.max_blocks_per_sequence, "can't be negative", 0);
    if (limits.max_blocks_per_sequence == 0) limits.max_blocks_per_sequence = cache_width;
    return limits;
  }
  std::size_t width() const noexcept {
    return static_cast<std::size_t>(limits_.max_blocks_per_sequence);
  }
  std::int32_t* table_row(std::size_t e) noexcept { return &table_[e * stride_]; }
  std::span<BlockId const> blocks_of(Entry const& e) const noexcept {
    return core_->row(e.sequence);
  }
  bool is_current(Entry const& e) const noexcept {
    return core_->state(e.sequence).generation == e.generation;
  }

  std::int32_t runs_of(TokenRange query) const noexcept {
    if (query.count <= 1) return query.count;
    return core_->shape().block(query.end() - 1) - core_->shape().block(query.first) + 1;
  }
  void set_length(Entry& entry, std::int32_t length) noexcept {
    std::int32_t const blocks = core_->shape().blocks(length);
    num_indices_ += blocks - entry.num_blocks;
    entry.length = length;
    entry.num_blocks = blocks;
    entry.last_block_len = blocks == 0 ? 0 : length - (blocks - 1) * core_->shape().tokens();
  }

  std::int32_t insert(std::int32_t sequence) {
    auto const row = num_sequences();
    core_->mark_unseen(sequence);
    entries_.push_back({sequence, core_->state(sequence).generation, {}});
    entry_of_[static_cast<std::size_t>(sequence)] = row;
    vacated_ = std::max(vacated_, entries_.size());
    return row;
  }
  void erase(std::size_t e) {
    std::size_t const last = entries_.size() - 1;
    num_tokens_ -= entries_[e].query.count;
    num_runs_ -= runs_of(entries_[e].query);
    num_indices_ -= entries_[e].num_blocks;
    std::int32_t& place = entry_of_[static_cast<std::size_t>(entries_[e].sequence)];
    if (place == static_cast<std::int32_t>(e)) place = -1;
    if (e != last) {
      std::copy_n(table_row(last), std::max(filled_[e], filled_[last]), table_row(e));
      filled_[e] = filled_[last];
      entries_[e] = entries_[last];
      std::int32_t& moved = entry_of_[static_cast<std::size_t>(entries_[e].sequence)];
      if (moved == static_cast<std::int32_t>(last)) moved = static_cast<std::int32_t>(e);
      push_move({static_cast<std::int32_t>(last), static_cast<std::int32_t>(e)});
    }
    entries_.pop_back();
  }
  void push_move(RowMove move) {
    // More moves in one step than rows: the table must be copied whole.
    if (moves_.size() == moves_.capacity()) {
      moves_.clear();
      lost_moves_ = true;
    }
    moves_.push_back(move);
  }
  void drop_gone() {
    if (ended_ == core_->sequences().num_ended()) return;
    ended_ = core_->sequences().num_ended();
    for (std::size_t e = entries_.size(); e-- > 0;) {
      if (!is_current(entries_[e])) erase(e);
    }
  }

  static bool has_changed(detail::SequenceState const& s) noexcept {
    return s.first_changed != detail::SequenceState::unchanged;
  }
  /// Calls `change(column, block)` where the row differs from the table; returns how often.
  template <class Change>
  std::int32_t for_each_change(std::size_t e, Change&& change) {
    Entry const& entry = entries_[e];
    auto const blocks = blocks_of(entry);
    auto const end = static_cast<std::int32_t>(blocks.size());
    std::int32_t const* const table = table_row(e);
    std::int32_t n = 0;
    std::int32_t j = std::min(core_->state(entry.sequence).first_changed, end);
    for (; j < end; ++j) {
      std::int32_t const block = blocks[static_cast<std::size_t>(j)].value();
      if (table[j] == block && j < filled_[e]) continue;
      change(j, block);
      ++n;
    }
    for (; j < filled_[e]; ++j, ++n) change(j, 0);
    return n;
  }

  struct Survey {
    BatchStep step;
    bool rows_fit = true;
    bool rows_changed = false;
    bool queries_exist = true;
  };
  /// One pass over the entries. Common prefix: all are compared with one of them, the base, and the
  /// result is kept from step to step, so that only columns that changed are compared again.
  Survey survey() {
    drop_gone();
    Survey now;
    BatchStep& step = now.step;
    std::size_t const base = choose_base();
    bool const base_changed =
        base < entries_.size() && has_changed(core_->state(entries_[base].sequence));
    std::int32_t common = base < entries_.size() ? INT32_MAX : 0;
    for (std::size_t e = 0, n = entries_.size(); e < n; ++e) {
      Entry& entry = entries_[e];
      auto const& s = core_->state(entry.sequence);
      if (entry.length > s.size) {  // truncated since it was added
        now.queries_exist = now.queries_exist && entry.query.count == 0;
        set_length(entry, s.size);
      }
      bool const changed = has_changed(s);
      if (changed || base_changed || entry.shared_blocks < 0) compare_with(base, entry);
      if (changed) {
        now.rows_changed = true;
        now.rows_fit = now.rows_fit && s.num_blocks <= limits_.max_blocks_per_sequence;
        if (now.rows_fit) step.num_row_changes += for_each_change(e, Nothing{});
      }
      if (entry.query.count == 0) continue;
      bool const last_is_full = entry.last_block_len == core_->shape().tokens();
      common = std::min(common, entry.shared_blocks);
      common = std::min(common, entry.num_blocks - (last_is_full ? 0 : 1));
    }
    for (std::size_t e = entries_.size(); e < vacated_; ++e) {
      now.rows_changed = true;
      step.num_row_changes += filled_[e];
    }
    step.num_sequences = num_sequences();
    step.num_tokens = num_tokens_;
    step.padded_sequences = std::max(pad_sequences_, step.num_sequences);
    step.padded_tokens = std::max(pad_tokens_, step.num_tokens);
    step.num_indices = num_indices_;
    step.num_runs = num_runs_;
    step.num_row_moves = static_cast<std::int32_t>(moves_.size());
    step.num_new_blocks = core_->pool().new_blocks().size();
    step.num_copies = core_->copies().num_pending();
    step.common_prefix_blocks = common;
    return now;
  }
  /// The first entry with tokens. A new one is compared with all others afresh; so is the one after
  /// a survey without any, in which none was compared.
  std::size_t choose_base() {
    auto const base = std::find_if(entries_.begin(), entries_.end(),
                                   [](Entry const& e) { return e.query.count > 0; });
    if (base == entries_.end()) {
      base_sequence_ = -1;
      return entries_.size();
    }
    if (base->sequence != base_sequence_ || base->generation != base_generation_) {
      for (Entry& entry : entries_) entry.shared_blocks = -1;
      base_sequence_ = base->sequence;
      base_generation_ = base->generation;
    }
    return static_cast<std::size_t>(base - entries_.begin());
  }
  void compare_with(std::size_t base, Entry& entry) const noexcept {
    if (base == entries_.size()) {
      entry.shared_blocks = -1;
      return;
    }
    auto const first = blocks_of(entries_[base]);
    auto const blocks = blocks_of(entry);
    auto shared = static_cast<std::size_t>(
        std::max(0, std::min({entry.shared_blocks, core_->state(entry.sequence).first_changed,
                              core_->state(entries_[base].sequence).first_changed})));
    std::size_t const end = std::min(first.size(), blocks.size());
    while (shared < end && blocks[shared] == first[shared]) ++shared;
    entry.shared_blocks = static_cast<std::int32_t>(shared);
  }

  bool fits(BatchStep const& step, BatchBuffers const& out) const noexcept {
    auto const holds = [](auto const& span, std::int32_t n) {
      return span.empty() || span.size() >= static_cast<std::size_t>(n);
    };
    return !(lost_moves_ && !out.row_moves.empty()) &&
           holds(out.slot_mapping, step.padded_tokens) &&
           holds(out.query_offsets, step.padded_sequences + 1) &&
           holds(out.sequence_lengths, step.padded_sequences) &&
           holds(out.indptr, step.padded_sequences + 1) && holds(out.indices, step.num_indices) &&
           holds(out.last_block_len, step.padded_sequences) &&
           holds(out.row_moves, step.num_row_moves) &&
           holds(out.row_changes, step.num_row_changes) &&
           holds(out.new_blocks, step.num_new_blocks) && holds(out.runs, step.num_runs) &&
           holds(out.copies, step.num_copies);
  }

  // Array by array: each loop keeps what it needs in registers.
  void write_rows(BatchStep const& step, BatchBuffers const& out) {
    auto const rows = static_cast<std::size_t>(step.padded_sequences);
    write_values(out.sequence_lengths, rows, [](Entry const& e) { return e.length; });
    write_values(out.last_block_len, rows, [](Entry const& e) { return e.last_block_len; });
    write_offsets(out.query_offsets, rows, [](Entry const& e) { return e.query.count; });
    write_offsets(out.indptr, rows, [](Entry const& e) { return e.num_blocks; });
    if (!out.indices.empty()) write_indices(out.indices.data());
    write_queries(out.slot_mapping.data(), out.runs.data());
    if (!out.slot_mapping.empty()) {
      std::fill_n(out.slot_mapping.data() + step.num_tokens, step.padded_tokens - step.num_tokens,
                  padding_slot);
    }
  }
  /// One value a row; padding: 0.
  template <class Value>
  void write_values(std::span<std::int32_t> out, std::size_t rows, Value&& value) const {
    if (out.empty()) return;
    auto const end = std::transform(entries_.begin(), entries_.end(), out.begin(), value);
    std::fill(end, out.begin() + static_cast<std::ptrdiff_t>(rows), 0);
  }
  /// Where each row's items begin and the last one's end; padding: the end.
  template <class Count>
  void write_offsets(std::span<std::int32_t> out, std::size_t rows, Count&& count) const {
    if (out.empty()) return;
    std::int32_t* to = out.data();
    std::int32_t offset = 0;
    for (Entry const& entry : entries_) {
      *to++ = offset;
      offset += count(entry);
    }
    std::fill(to, out.data() + rows + 1, offset);
  }
  void write_indices(std::int32_t* to) const {
    static_assert(sizeof(BlockId) == sizeof(std::int32_t));
    Entry const* const end = entries_.data() + entries_.size();
    for (Entry const* entry = entries_.data(); entry != end; ++entry) {
      if (end - entry > 2) {  // rows are far apart: the hardware doesn't see them coming
        detail::prefetch_read(core_->sequences().columns(entry[2].sequence));
      }
      auto const used = static_cast<std::size_t>(entry->num_blocks);
      std::memcpy(to, core_->sequences().columns(entry->sequence), used * sizeof(BlockId));
      to += used;
    }
  }
  /// Either may be null.
  void write_queries(Slot* slots, BlockRun* runs) const {
    if (slots == nullptr && runs == nullptr) return;
    detail::BlockShape const shape = core_->shape();
    std::int32_t tokens = 0;
    auto const piece = [&](BlockId b, std::int32_t offset, std::int32_t count) {
      Slot const first = Slot{b.value()} * shape.tokens() + offset;
      if (slots != nullptr) {
        for (std::int32_t i = 0; i < count; ++i) *slots++ = first + i;
      }
      if (runs != nullptr) *runs++ = {b, offset, count, tokens};
      tokens += count;
    };
    for (Entry const& entry : entries_) {
      BlockId const* const blocks = core_->sequences().columns(entry.sequence);
      if (entry.query.count == 1) {  // decoding: the last position, no loops
        piece(blocks[entry.num_blocks - 1], entry.last_block_len - 1, 1);
      } else {
        for_each_piece(shape, {blocks, static_cast<std::size_t>(entry.num_blocks)}, entry.query,
                       piece);
      }
    }
  }

  void write_changes(std::span<RowChange> out) {
    std::size_t written = 0;
    auto const report = [&](std::size_t e, std::int32_t column, std::int32_t block) {
      table_row(e)[column] = block;
      if (!out.empty()) out[written++] = {static_cast<std::int32_t>(e), column, block};
    };
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      Entry const& entry = entries_[e];
      auto const& s = core_->state(entry.sequence);
      if (!has_changed(s)) continue;
      for_each_change(e, [&](std::int32_t j, std::int32_t b) { report(e, j, b); });
      filled_[e] = s.num_blocks;
      core_->mark_seen(entry.sequence);
    }
    for (std::size_t e = entries_.size(); e < vacated_; ++e) {
      for (std::int32_t j = 0; j < filled_[e]; ++j) report(e, j, 0);
      filled_[e] = 0;
    }
    vacated_ = entries_.size();
  }
  std::int32_t write_moves(std::span<RowMove> out) {
    std::size_t const n = out.empty() ? 0 : moves_.size();
    std::copy_n(moves_.begin(), n, out.begin());
    moves_.clear();
    lost_moves_ = false;
    return static_cast<std::int32_t>(n);
  }
  std::int32_t write_new_blocks(std::span<BlockId> out) {
    if (out.empty()) return 0;
    std::size_t n = 0;
    core_->take_new_blocks([&](BlockId b) { out[n++] = b; });
    return static_cast<std::int32_t>(n);
  }
  std::int32_t write_copies(std::span<BlockCopy> out) {
    if (out.empty()) return 0;
    auto const taken = core_->take_copies();
    std::copy(taken.begin(), taken.end(), out.begin());
    return static_cast<std::int32_t>(taken.size());
  }

  Core* core_;
  BatchLimits limits_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> entry_of_;     ///< by the sequence's row in the cache; may be stale
  std::size_t stride_;                     ///< places between two rows of the table
  detail::LazyArray<std::int32_t> table_;  ///< what a device that followed every step has
  std::vector<std::int32_t> filled_;       ///< columns in use, per row
  std::vector<RowMove> moves_;
  std::int32_t base_sequence_ = -1;  ///< the others are compared with it
  std::uint32_t base_generation_ = 0;
  std::uint64_t ended_ = 0;  ///< sequences that had ended when entries were last looked through
  std::size_t vacated_ = 0;  ///< rows from here on are empty in the table
  std::int32_t num_tokens_ = 0;
  std::int32_t num_runs_ = 0;
  std::int32_t num_indices_ = 0;
  std::int32_t pad_tokens_ = 0;
  std::int32_t pad_sequences_ = 0;
  bool lost_moves_ = false;
};

#ifdef PAGEDKV_COMPILED
extern template class BasicBatch<DefaultPolicy>;
#endif

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The step's batch in a random program: what a device that follows its arrays would see.
#pragma once

#include "program.hpp"

namespace pagedkv::testing {

template <class Policy>
void Program<Policy>::batch_verb() {
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

template <class Policy>
void Program<Policy>::begin_batch() {
  note("batch: begin_step");
  batch_->begin_step();
  naive_batch_.begin_step();
  pad_tokens_ = pad_sequences_ = 0;
}

template <class Policy>
void Program<Policy>::add_to_batch() {
  Live* const s = any_live();
  if (s == nullptr) return;
  int const end = choices_.one_in(4) ? choices_.between(0, s->model.size()) : s->model.size();
  int first = std::min(end, s->model.committed);
  if (choices_.one_in(6)) first = choices_.between(0, end);
  add_to_batch(*s, {first, end - first});
}

template <class Policy>
void Program<Policy>::add_to_batch(Live& s, TokenRange query) {
  note("batch: add ", s.model.uid, " [", query.first, ", ", query.end(), ")");
  auto const row = batch_->add(*s.handle, query);
  int const expected = naive_batch_.add(s.model.uid, int(s.model.blocks.size()), query);
  if (expected < 0) {
    expect(!row.has_value() && row.error() == Errc::batch_full, "the batch is full");
    return;
  }
  expect(row.has_value(), "the batch has room");
  expect_equal(*row, expected, "batch: row");
  if (query.count > 0) model_.mark_used(s.model, model_.open_tick);
}

template <class Policy>
void Program<Policy>::remove_from_batch() {
  Live* const s = any_live();
  if (s == nullptr) return;
  note("batch: remove ", s->model.uid);
  expect_equal(batch_->remove(*s->handle), naive_batch_.remove(s->model.uid), "batch: removed");
}

template <class Policy>
auto Program<Policy>::entry_of(NaiveEntry const& e) -> Live& {
  for (auto& live : live_) {
    if (live->model.uid == e.uid) return *live;
  }
  mismatch("model: an entry without a sequence");
}

template <class Policy>
auto Program<Policy>::arrays_for(BatchStep const& need) -> Arrays {
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

template <class Policy>
void Program<Policy>::add_truncated_again() {
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

template <class Policy>
void Program<Policy>::clip_lengths() {
  for (auto& e : naive_batch_.entries) e.length = std::min(e.length, entry_of(e).model.size());
}

template <class Policy>
void Program<Policy>::build_batch() {
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
  build_once(arrays);
  for (auto const& e : naive_batch_.entries) {
    Live const& s = entry_of(e);
    if (e.query.count == 0 || s.model.used != model_.open_tick) continue;
    use(s, model_.open_tick, std::min(e.length, s.written));
  }
}

template <class Policy>
void Program<Policy>::build_once(Arrays& arrays) {
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

template <class Policy>
void Program<Policy>::build_too_short(BatchStep const& need, Arrays& arrays) {
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

template <class Policy>
void Program<Policy>::check_step(BatchStep const& step, Arrays const& a) {
  int const n = naive_batch_.num_sequences();
  expect_equal(step.num_sequences, n, "build: num_sequences");
  expect_equal(step.num_tokens, naive_batch_.num_tokens, "build: num_tokens");
  expect_equal(step.padded_sequences, std::max(n, pad_sequences_), "build: padded_sequences");
  expect_equal(step.padded_tokens, std::max(naive_batch_.num_tokens, pad_tokens_),
               "build: padded_tokens");
  check_rows(step, a);
}

template <class Policy>
void Program<Policy>::check_rows(BatchStep const& step, Arrays const& a) {
  int const bt = config_.block_tokens;
  std::size_t indices = 0;
  std::vector<Slot> slots;
  int common = -1;
  for (std::size_t at = 0; at < naive_batch_.entries.size(); ++at) {
    NaiveEntry const& e = naive_batch_.entries[at];
    NaiveSequence const& s = entry_of(e).model;
    int const used = model_.blocks_of(e.length);
    expect_equal(a.query_offsets[at], int(slots.size()), "build: query_offsets");
    expect_equal(a.sequence_lengths[at], e.length, "build: sequence_lengths");
    expect_equal(a.indptr[at], int(indices), "build: indptr");
    expect_equal(a.last_block_len[at], used == 0 ? 0 : e.length - (used - 1) * bt,
                 "build: last_block_len");
    for (int j = 0; j < used; ++j) {
      expect_equal(a.indices[indices++], s.blocks[std::size_t(j)], "build: indices");
    }
    for (int p = e.query.first; p < e.query.end(); ++p) {
      slots.push_back(Slot{s.blocks[std::size_t(p / bt)]} * bt + p % bt);
    }
    if (e.query.count > 0) common = common_with_others(s, e.length / bt, common);
  }
  check_padding(step, a, slots, int(indices));
  check_runs(step, a, slots);
  expect_equal(step.common_prefix_blocks, std::max(common, 0), "build: common prefix");
}

template <class Policy>
void Program<Policy>::check_padding(BatchStep const& step, Arrays const& a,
                                    std::vector<Slot> const& slots, int indices) {
  int const tokens = int(slots.size());
  int const padded = step.padded_sequences;
  for (int row = naive_batch_.num_sequences(); row <= padded; ++row) {
    auto const at = std::size_t(row);
    expect_equal(a.query_offsets[at], tokens, "build: query_offsets at the end");
    expect_equal(a.indptr[at], indices, "build: indptr at the end");
    if (row == padded) break;
    expect_equal(a.sequence_lengths[at], 0, "build: length of padding");
    expect_equal(a.last_block_len[at], 0, "build: last_block_len of padding");
  }
  expect_equal(step.num_indices, indices, "build: num_indices");
  for (int i = 0; i < step.padded_tokens; ++i) {
    Slot const want = i < tokens ? slots[std::size_t(i)] : padding_slot;
    expect_equal(a.slot_mapping[std::size_t(i)], want, "build: slot_mapping");
  }
  // One after each array: nothing was written there.
  expect_equal(a.slot_mapping[std::size_t(step.padded_tokens)], 77, "build: after the slots");
  expect_equal(a.sequence_lengths[std::size_t(padded)], 77, "build: after the lengths");
  expect_equal(a.indices[std::size_t(indices)], 77, "build: after the indices");
}

template <class Policy>
int Program<Policy>::common_with_others(NaiveSequence const& s, int full, int before) {
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

template <class Policy>
void Program<Policy>::check_runs(BatchStep const& step, Arrays const& a,
                                 std::vector<Slot> const& slots) {
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

template <class Policy>
void Program<Policy>::zero_new_blocks(Arrays const& a, int n) {
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
  for (int const b : zeroed) {
    std::vector<std::uint64_t> owners;
    for (auto const& live : live_) {
      if (live->model.has(b)) owners.push_back(live->model.uid);
    }
    device_.zero(b, owners);
  }
  unreported_.clear();
}

template <class Policy>
bool Program<Policy>::filled_by_copy(int b) const {
  return std::any_of(model_.planned.begin(), model_.planned.end(),
                     [&](NaiveCopy const& c) { return c.dst == b; });
}

template <class Policy>
void Program<Policy>::follow(BatchStep const& step, Arrays const& a) {
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

template <class Policy>
void Program<Policy>::check_table() {
  for (int row = 0; row < naive_batch_.num_sequences(); ++row) {
    naive_batch_.expect_row(row, entry_of(naive_batch_.entries[std::size_t(row)]).model.blocks);
  }
  int const padded = std::min(pad_sequences_, limits_.max_sequences);
  for (int row = naive_batch_.num_sequences(); row < padded; ++row) {
    naive_batch_.expect_row(row, {});
  }
}

template <class Policy>
void Program<Policy>::copy_table() {
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
  if (behind != 0) expect_equal(out.back(), 77, "copy_table: after the table");
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

template <class Policy>
void Program<Policy>::commit_batch() {
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

}  // namespace pagedkv::testing

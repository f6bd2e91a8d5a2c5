// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/step/batch.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace kv::testing;
using kv::Batch;
using kv::BatchBuffers;
using kv::BatchStep;
using kv::BlockCopy;
using kv::BlockId;
using kv::BlockRun;
using kv::Errc;
using kv::RowChange;
using kv::RowMove;
using kv::SequenceId;
using kv::Slot;
using kv::TokenRange;

namespace {

using Numbers = std::vector<std::int32_t>;

/// Memory for a step's arrays, filled with what no kernel could use.
struct Arrays {
  static constexpr std::size_t room = 512;
  std::vector<Slot> slot_mapping = std::vector<Slot>(room, -77);
  Numbers query_offsets = Numbers(room, -77);
  Numbers sequence_lengths = Numbers(room, -77);
  Numbers indptr = Numbers(room, -77);
  Numbers indices = Numbers(room, -77);
  Numbers last_block_len = Numbers(room, -77);
  std::vector<RowMove> row_moves = std::vector<RowMove>(room);
  std::vector<RowChange> row_changes = std::vector<RowChange>(room);
  Blocks new_blocks = Blocks(room);
  std::vector<BlockRun> runs = std::vector<BlockRun>(room);
  std::vector<BlockCopy> copies = std::vector<BlockCopy>(room);

  BatchBuffers buffers() {
    return {.slot_mapping = slot_mapping,
            .query_offsets = query_offsets,
            .sequence_lengths = sequence_lengths,
            .indptr = indptr,
            .indices = indices,
            .last_block_len = last_block_len,
            .row_moves = row_moves,
            .row_changes = row_changes,
            .new_blocks = new_blocks,
            .runs = runs,
            .copies = copies};
  }
};
template <class T>
std::vector<T> first(std::vector<T> const& array, std::int32_t n) {
  if (n < static_cast<std::int32_t>(array.size())) {
    if constexpr (std::is_same_v<T, std::int32_t> || std::is_same_v<T, Slot>) {
      CHECK(array[static_cast<std::size_t>(n)] == -77);  // nothing is written after the end
    }
  }
  return {array.begin(), array.begin() + n};
}

/// The block table of a device that gets nothing but each step's moves and changes.
struct Mirror {
  std::int32_t width;
  Numbers table;

  Mirror(std::int32_t rows, std::int32_t columns)
      : width(columns), table(static_cast<std::size_t>(rows * columns)) {}
  std::int32_t* row(std::int32_t r) { return &table[static_cast<std::size_t>(r * width)]; }
  void apply(Arrays const& arrays, BatchStep const& step) {
    for (std::int32_t i = 0; i < step.num_row_moves; ++i) {
      auto const& move = arrays.row_moves[static_cast<std::size_t>(i)];
      std::copy_n(row(move.from), width, row(move.to));
    }
    for (std::int32_t i = 0; i < step.num_row_changes; ++i) {
      auto const& change = arrays.row_changes[static_cast<std::size_t>(i)];
      REQUIRE((change.column >= 0 && change.column < width));
      row(change.row)[change.column] = change.block;
    }
  }
  /// Row r as the sequence's table says: its blocks, then zeros.
  bool shows(std::int32_t r, kv::Sequence const& seq) {
    auto const blocks = seq.blocks();
    for (std::int32_t j = 0; j < width; ++j) {
      auto const expected = j < seq.num_blocks() ? blocks[static_cast<std::size_t>(j)].value() : 0;
      if (row(r)[j] != expected) return false;
    }
    return true;
  }
};

BatchStep built(Batch& batch, Arrays& arrays) {
  arrays = {};
  auto const step = batch.build(arrays.buffers());
  REQUIRE(step.has_value());
  return *step;
}
template <class Code>
std::string refusal(Code&& code) {
  auto const outcome = outcome_of(std::forward<Code>(code));
  return outcome.aborted ? outcome.message : "";
}

}  // namespace

TEST_CASE("batch: every array of a step") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4, .max_tokens = 64, .max_blocks_per_sequence = 8});
  CHECK(batch.table_width() == 8);
  auto a = running(cache, 1, iota(0, 6));
  auto b = running(cache, 2, iota(50, 9));
  Arrays arrays;
  batch.begin_step();
  CHECK(batch.add(a, *a.append(Tokens{6, 7, 8})).value() == 0);  // positions 6, 7 and 8
  CHECK(batch.add(b, {8, 1}).value() == 1);
  CHECK(batch.num_sequences() == 2);
  CHECK(batch.num_tokens() == 4);
  auto const step = built(batch, arrays);

  auto const block = [](kv::Sequence const& s, std::size_t j) { return s.blocks()[j].value(); };
  CHECK(step.num_sequences == 2);
  CHECK(step.num_tokens == 4);
  CHECK(step.padded_sequences == 2);
  CHECK(step.padded_tokens == 4);
  CHECK(first(arrays.slot_mapping, 4) == std::vector<Slot>{block(a, 1) * 4 + 2, block(a, 1) * 4 + 3,
                                                           block(a, 2) * 4, block(b, 2) * 4});
  CHECK(first(arrays.query_offsets, 3) == Numbers{0, 3, 4});
  CHECK(first(arrays.sequence_lengths, 2) == Numbers{9, 9});
  CHECK(first(arrays.indptr, 3) == Numbers{0, 3, 6});
  CHECK(step.num_indices == 6);
  CHECK(first(arrays.indices, 6) ==
        Numbers{block(a, 0), block(a, 1), block(a, 2), block(b, 0), block(b, 1), block(b, 2)});
  CHECK(first(arrays.last_block_len, 2) == Numbers{1, 1});
  CHECK(step.num_runs == 3);
  CHECK(first(arrays.runs, 3) == std::vector<BlockRun>{{a.blocks()[1], 2, 2, 0},
                                                       {a.blocks()[2], 0, 1, 2},
                                                       {b.blocks()[2], 0, 1, 3}});
  CHECK(step.num_copies == 0);
  CHECK(step.num_row_moves == 0);
  CHECK(step.num_row_changes == 6);
  Mirror mirror(4, 8);
  mirror.apply(arrays, step);
  CHECK(mirror.shows(0, a));
  CHECK(mirror.shows(1, b));
  CHECK(step.common_prefix_blocks == 0);
}

TEST_CASE("batch: lengths are those of this step, whatever is reserved ahead") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4});
  auto a = running(cache, 1, iota(0, 8));
  REQUIRE(a.reserve(9).has_value());
  Arrays arrays;
  batch.begin_step();
  REQUIRE(batch.add(a, {0, 8}).has_value());
  auto const step = built(batch, arrays);
  CHECK(first(arrays.sequence_lengths, 1) == Numbers{8});
  CHECK(first(arrays.indptr, 2) == Numbers{0, 2});
  CHECK(first(arrays.last_block_len, 1) == Numbers{4});
  CHECK(step.num_row_changes == 5);  // the table shows all blocks that the sequence has
}

TEST_CASE("batch: padding for a captured graph") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4, .max_tokens = 64});
  auto a = running(cache, 1, iota(0, 5));
  auto b = running(cache, 2, iota(50, 6));
  Arrays arrays;
  batch.begin_step();
  REQUIRE(batch.add(a, {3, 2}).has_value());
  REQUIRE(batch.add(b, {5, 1}).has_value());
  batch.pad_to(8, 5);
  auto const step = built(batch, arrays);
  CHECK(step.num_sequences == 2);
  CHECK(step.num_tokens == 3);
  CHECK(step.padded_sequences == 5);
  CHECK(step.padded_tokens == 8);
  auto const slots = first(arrays.slot_mapping, 8);
  CHECK(slots[2] >= 0);
  CHECK(std::count(slots.begin() + 3, slots.end(), kv::padding_slot) == 5);
  CHECK(first(arrays.query_offsets, 6) == Numbers{0, 2, 3, 3, 3, 3});
  CHECK(first(arrays.sequence_lengths, 5) == Numbers{5, 6, 0, 0, 0});
  CHECK(first(arrays.indptr, 6) == Numbers{0, 2, 4, 4, 4, 4});
  CHECK(first(arrays.last_block_len, 5) == Numbers{1, 2, 0, 0, 0});
  Numbers table(static_cast<std::size_t>(5 * batch.table_width()), -77);
  batch.copy_table(table);
  auto const padded = table.begin() + 2 * batch.table_width();
  CHECK(std::count(padded, table.end(), 0) == 3 * batch.table_width());
  // Padding is a step's own.
  batch.begin_step();
  CHECK(built(batch, arrays).padded_sequences == 2);
  // Never less than what is there.
  REQUIRE(batch.add(a, {3, 2}).has_value());
  batch.pad_to(1, 1);
  CHECK(built(batch, arrays).padded_tokens == 2);
}

TEST_CASE("batch: entries stay from step to step, and one without tokens has an empty query") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4});
  auto a = running(cache, 1, iota(0, 6));
  auto b = running(cache, 2, iota(50, 6));
  Arrays arrays;
  batch.begin_step();
  REQUIRE(batch.add(a, {0, 6}).has_value());
  REQUIRE(batch.add(b, {0, 6}).has_value());
  built(batch, arrays);
  cache.end_step();
  batch.begin_step();
  CHECK(batch.add(b, *b.append(Tokens{56})).value() == 1);
  auto const step = built(batch, arrays);
  CHECK(step.num_sequences == 2);
  CHECK(first(arrays.query_offsets, 3) == Numbers{0, 0, 1});
  CHECK(first(arrays.sequence_lengths, 2) == Numbers{6, 7});
  CHECK(step.num_row_changes == 0);  // no block has changed
  // Adding again replaces the query.
  CHECK(batch.add(b, {6, 1}).value() == 1);
  CHECK(batch.num_tokens() == 1);
}

TEST_CASE("batch: the last row moves into a gap") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4});
  auto a = running(cache, 1, iota(0, 9));
  auto b = running(cache, 2, iota(50, 5));
  auto c = running(cache, 3, iota(90, 6));
  Mirror mirror(4, batch.table_width());
  Arrays arrays;
  batch.begin_step();
  for (auto* seq : {&a, &b, &c}) REQUIRE(batch.add(*seq, {0, 5}).has_value());
  mirror.apply(arrays, built(batch, arrays));
  CHECK(batch.remove(a));
  CHECK_FALSE(batch.remove(a));
  CHECK(batch.row_of(a) == -1);
  CHECK(batch.row_of(b) == 1);
  CHECK(batch.row_of(c) == 0);
  CHECK(batch.num_tokens() == 10);
  auto const step = built(batch, arrays);
  CHECK(first(arrays.row_moves, step.num_row_moves) == std::vector<RowMove>{{2, 0}});
  mirror.apply(arrays, step);
  CHECK(mirror.shows(0, c));
  CHECK(mirror.shows(1, b));
  // The row that became free is zero again, so that a padded entry never names a block.
  CHECK(std::count(mirror.row(2), mirror.row(2) + mirror.width, 0) == mirror.width);
}

TEST_CASE("batch: a sequence that is gone leaves by itself") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 2});
  Arrays arrays;
  auto keeps = running(cache, 2, iota(50, 5));
  {
    auto const a = running(cache, 1, iota(0, 5));
    batch.begin_step();
    REQUIRE(batch.add(a, {4, 1}).has_value());
    REQUIRE(batch.add(keeps, {4, 1}).has_value());
    built(batch, arrays);
  }
  // Its handle's place in the cache goes to another: that is another sequence.
  auto other = running(cache, 3, iota(90, 5));
  CHECK(batch.row_of(other) == -1);
  batch.begin_step();
  CHECK(batch.num_sequences() == 1);
  CHECK(batch.row_of(keeps) == 0);
  CHECK(batch.add(other, {4, 1}).value() == 1);
}

TEST_CASE("batch: copy-on-write appears as a new block, a copy into it, and a change") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4});
  auto a = running(cache, 1, iota(0, 6));
  Mirror mirror(4, batch.table_width());
  Arrays arrays;
  batch.begin_step();
  REQUIRE(batch.add(a, {0, 6}).has_value());
  mirror.apply(arrays, built(batch, arrays));
  cache.end_step();

  auto forked = a.fork(SequenceId{2});
  REQUIRE(forked.has_value());
  auto& b = *forked;
  auto const shared = a.blocks()[1];
  batch.begin_step();
  REQUIRE(batch.add(a, *a.append(Tokens{6, 7, 8})).has_value());
  REQUIRE(batch.add(b, *b.append(Tokens{96})).has_value());
  auto const step = built(batch, arrays);
  mirror.apply(arrays, step);
  CHECK(mirror.shows(0, a));
  CHECK(mirror.shows(1, b));
  REQUIRE(step.num_copies == 1);
  CHECK(arrays.copies[0] == BlockCopy{shared, a.blocks()[1], 2});
  // Zeroed first: the copy fills only its leading positions.
  auto const fresh = first(arrays.new_blocks, step.num_new_blocks);
  CHECK(std::set(fresh.begin(), fresh.end()) == std::set{a.blocks()[1], a.blocks()[2]});
  CHECK(step.common_prefix_blocks == 1);
  auto const again = built(batch, arrays);
  CHECK(again.num_copies == 0);
  CHECK(again.num_new_blocks == 0);
  CHECK(cache.take_copies().empty());
}

TEST_CASE("batch: blocks are new once, and not when something final is in them") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 4});
  Arrays arrays;
  auto const fresh = [&] {
    auto const step = built(batch, arrays);
    auto blocks = first(arrays.new_blocks, step.num_new_blocks);
    std::sort(blocks.begin(), blocks.end());
    return blocks;
  };
  auto a = running(cache, 1, iota(0, 6));  // committed before the first question
  CHECK(fresh().empty());
  REQUIRE(a.reserve(7).has_value());
  CHECK(fresh() == Blocks{a.blocks()[2], a.blocks()[3]});
  CHECK(fresh().empty());
  // Taking the copies apart from the batch: what they fill mustn't be zeroed afterwards.
  a.truncate(6);
  auto b = a.fork(SequenceId{2});
  REQUIRE(a.reserve(1).has_value());
  CHECK(cache.take_copies().size() == 1);
  CHECK(fresh().empty());
}

TEST_CASE("batch: truncated and adopted blocks are changes") {
  auto config = pool_of(32);
  config.twins = kv::Twins::adopt;
  kv::KvCache cache(config);
  Batch batch(cache, {.max_sequences = 4});
  Mirror mirror(4, batch.table_width());
  Arrays arrays;
  auto first_seq = running(cache, 1, iota(0, 9));
  auto twin = cache.open(SequenceId{2}, iota(0, 9), {.reserve = 12, .read = false});
  REQUIRE(twin.has_value());
  batch.begin_step();
  REQUIRE(batch.add(*twin, {0, 9}).has_value());
  mirror.apply(arrays, built(batch, arrays));
  CHECK(mirror.shows(0, *twin));
  batch.commit();
  CHECK(twin->blocks()[0] == first_seq.blocks()[0]);
  cache.end_step();
  batch.begin_step();
  auto const adopted = built(batch, arrays);
  CHECK(adopted.num_row_changes == 2);
  mirror.apply(arrays, adopted);
  CHECK(mirror.shows(0, *twin));
  twin->truncate(3);
  auto const truncated = built(batch, arrays);
  CHECK(truncated.num_row_changes == 2);
  mirror.apply(arrays, truncated);
  CHECK(mirror.shows(0, *twin));
  CHECK(first(arrays.sequence_lengths, 1) == Numbers{3});
}

TEST_CASE("batch: commit makes every query final, as one commit a sequence would") {
  kv::KvCache batched(pool_of(64));
  kv::KvCache single(pool_of(64));
  Batch batch(batched, {.max_sequences = 8});
  std::vector<kv::Sequence> ours;
  std::vector<kv::Sequence> theirs;
  for (std::int32_t i = 0; i < 5; ++i) {
    // Some twins among them, and one that ends in the middle of a block.
    auto const prompt = iota(100 * (i / 2), 8 + i % 2);
    for (auto* cache : {&batched, &single}) {
      auto seq = cache->open(SequenceId{1}, prompt, {.reserve = 9 + i % 2, .read = false});
      REQUIRE(seq.has_value());
      (cache == &batched ? ours : theirs).push_back(*std::move(seq));
    }
  }
  batch.begin_step();
  for (auto& seq : ours) {
    auto const n = seq.size() - 1;
    REQUIRE(batch.add(seq, {0, n}).has_value());
  }
  batch.commit();
  for (auto& seq : theirs) seq.commit(seq.size() - 1);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CHECK(ours[i].committed() == theirs[i].committed());
    CHECK(blocks_of(ours[i]) == blocks_of(theirs[i]));
    for (BlockId const b : ours[i].blocks()) {
      CHECK(batched.is_published(b) == single.is_published(b));
      CHECK(batched.references(b) == single.references(b));
    }
  }
  CHECK(batched.stats() == single.stats());
  CHECK_VERIFIED(batched);
}

TEST_CASE("batch: the common prefix is that of the sequences with tokens") {
  kv::KvCache cache(pool_of(64));
  Batch batch(cache, {.max_sequences = 8});
  Arrays arrays;
  auto const document = iota(0, 12);
  std::vector<kv::Sequence> users;
  for (std::uint64_t i = 0; i < 3; ++i) {
    users.push_back(running(cache, i, joined(document, iota(100 * static_cast<int>(i + 1), 5))));
  }
  auto stranger = running(cache, 9, iota(900, 17));
  auto const common = [&] { return built(batch, arrays).common_prefix_blocks; };
  batch.begin_step();
  CHECK(common() == 0);
  REQUIRE(batch.add(stranger, {17, 0}).has_value());
  for (auto const& user : users) REQUIRE(batch.add(user, {16, 1}).has_value());
  CHECK(common() == 3);
  REQUIRE(batch.add(stranger, {16, 1}).has_value());
  CHECK(common() == 0);
  batch.begin_step();
  REQUIRE(batch.add(users[1], {16, 1}).has_value());
  CHECK(common() == 4);  // alone: all its full blocks
  // Full blocks of this step's length only.
  REQUIRE(batch.add(users[2], {4, 3}).has_value());
  CHECK(common() == 1);
}

TEST_CASE("batch: a row that changed while nobody had tokens is compared again") {
  for (bool const by_table : {false, true}) {
    CAPTURE(by_table);
    kv::KvCache cache(pool_of(32));
    Batch batch(cache, {.max_sequences = 4});
    auto a = running(cache, 1, iota(0, 16));
    auto b = a.fork(SequenceId{2});
    REQUIRE(b.has_value());
    Arrays arrays;
    REQUIRE(batch.add(a, {15, 1}).has_value());
    REQUIRE(batch.add(*b, {15, 1}).has_value());
    CHECK(built(batch, arrays).common_prefix_blocks == a.num_blocks());
    a.truncate(0);
    REQUIRE(a.append(iota(500, 16)).has_value());
    batch.begin_step();
    if (by_table) {
      Numbers table(static_cast<std::size_t>(4 * batch.table_width()));
      batch.copy_table(table);
    } else {
      (void)built(batch, arrays);
      batch.begin_step();
    }
    REQUIRE(batch.add(a, {0, 16}).has_value());
    REQUIRE(batch.add(*b, {15, 1}).has_value());
    CHECK(built(batch, arrays).common_prefix_blocks == 0);
  }
}

TEST_CASE("batch: a copied table has no rows that nobody has any more") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 2});
  auto const a = running(cache, 1, iota(0, 16));
  auto b = std::optional(running(cache, 2, iota(50, 16)));
  auto const width = static_cast<std::size_t>(batch.table_width());
  Numbers device(2 * width);
  REQUIRE(batch.add(a, {0, 16}).has_value());
  REQUIRE(batch.add(*b, {0, 16}).has_value());
  batch.copy_table(device);
  b.reset();
  batch.copy_table(device);
  auto const c = running(cache, 3, iota(90, 1));
  REQUIRE(batch.add(c, {0, 1}).has_value());
  Arrays arrays;
  auto const step = built(batch, arrays);
  for (auto const& [row, column, block] : first(arrays.row_changes, step.num_row_changes)) {
    device[static_cast<std::size_t>(row) * width + static_cast<std::size_t>(column)] = block;
  }
  Numbers expected(width);
  expected[0] = c.blocks()[0].value();
  CHECK(std::equal(expected.begin(), expected.end(),
                   device.begin() + static_cast<std::ptrdiff_t>(width)));
}

TEST_CASE("batch: too little room says batch_full and hands nothing out") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 2, .max_tokens = 8, .max_blocks_per_sequence = 3});
  auto a = running(cache, 1, iota(0, 6));
  auto forked = a.fork(SequenceId{2});
  REQUIRE(forked.has_value());
  auto wide = running(cache, 3, iota(50, 13));
  batch.begin_step();
  REQUIRE(batch.add(a, *a.append(Tokens{6})).has_value());
  CHECK(batch.add(wide, {0, 1}).error() == Errc::batch_full);  // four columns
  CHECK(batch.add(*forked, {0, 6}).has_value());
  CHECK(batch.add(a, {0, 7}).error() == Errc::batch_full);  // thirteen tokens
  CHECK(batch.num_tokens() == 7);
  wide.truncate(4);
  CHECK(batch.add(wide, {0, 1}).error() == Errc::batch_full);  // three rows

  Arrays arrays;
  auto const need = batch.required();
  REQUIRE(need.num_copies == 1);
  REQUIRE(need.num_runs == 3);
  auto const refuses = [&](auto shorten) {
    auto buffers = arrays.buffers();
    shorten(buffers);
    auto const step = batch.build(buffers);
    REQUIRE_FALSE(step.has_value());
    CHECK(step.error() == Errc::batch_full);
  };
  auto const shorter = [](auto& span, std::int32_t n) {
    span = span.first(static_cast<std::size_t>(n - 1));
  };
  refuses([&](BatchBuffers& b) { shorter(b.slot_mapping, need.num_tokens); });
  refuses([&](BatchBuffers& b) { shorter(b.query_offsets, need.num_sequences + 1); });
  refuses([&](BatchBuffers& b) { shorter(b.sequence_lengths, need.num_sequences); });
  refuses([&](BatchBuffers& b) { shorter(b.indptr, need.num_sequences + 1); });
  refuses([&](BatchBuffers& b) { shorter(b.indices, need.num_indices); });
  refuses([&](BatchBuffers& b) { shorter(b.last_block_len, need.num_sequences); });
  refuses([&](BatchBuffers& b) { shorter(b.row_changes, need.num_row_changes); });
  refuses([&](BatchBuffers& b) { shorter(b.runs, need.num_runs); });
  auto const step = built(batch, arrays);
  CHECK(step.num_copies == 1);
  CHECK(step.num_row_changes == need.num_row_changes);
}

TEST_CASE("batch: empty spans are skipped and nothing of theirs is handed out") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 2});
  auto a = running(cache, 1, iota(0, 6));
  auto forked = a.fork(SequenceId{2});
  REQUIRE(a.append(iota(6, 3)).has_value());
  batch.begin_step();
  REQUIRE(batch.add(a, {6, 3}).has_value());
  Arrays arrays;
  BatchBuffers only_slots;
  only_slots.slot_mapping = arrays.slot_mapping;
  auto const step = batch.build(only_slots);
  REQUIRE(step.has_value());
  CHECK(step->num_copies == 0);
  CHECK(step->num_new_blocks == 0);
  CHECK(first(arrays.slot_mapping, 3).size() == 3);
  CHECK(cache.take_copies().size() == 1);
}

TEST_CASE("batch: rows and tables are copied whole on request") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 3, .max_tokens = 64, .max_blocks_per_sequence = 4});
  auto a = running(cache, 1, iota(0, 6));
  auto b = running(cache, 2, iota(50, 9));
  batch.begin_step();
  REQUIRE(batch.add(a, {0, 6}).has_value());
  REQUIRE(batch.add(b, {0, 9}).has_value());
  Numbers row(4, -77);
  batch.copy_row(1, row);
  CHECK(row == Numbers{b.blocks()[0].value(), b.blocks()[1].value(), b.blocks()[2].value(), 0});
  Numbers table(8, -77);
  batch.copy_table(table);
  CHECK(Numbers(table.begin() + 4, table.end()) == row);
  Arrays arrays;
  CHECK(built(batch, arrays).num_row_changes == 0);  // the table has told them
  CHECK_THAT(refusal([&] { batch.copy_row(2, row); }), contains_text("the row must exist"));
  CHECK_THAT(refusal([&] { batch.copy_table(row); }), contains_text("rows * table_width()"));
}

TEST_CASE("batch: more moves than rows are told by copying the table") {
  kv::KvCache cache(pool_of(32));
  Batch batch(cache, {.max_sequences = 2});
  auto a = running(cache, 1, iota(0, 5));
  auto b = running(cache, 2, iota(50, 5));
  for (int i = 0; i < 5; ++i) {
    REQUIRE(batch.add(a, {0, 1}).has_value());
    REQUIRE(batch.add(b, {0, 1}).has_value());
    batch.remove(a);
    batch.remove(b);
  }
  REQUIRE(batch.add(a, {0, 1}).has_value());
  Arrays arrays;
  CHECK(batch.build(arrays.buffers()).error() == Errc::batch_full);
  Numbers table(static_cast<std::size_t>(2 * batch.table_width()));
  batch.copy_table(table);
  CHECK(batch.build(arrays.buffers()).has_value());
}

TEST_CASE("batch: blocks that a batched sequence gives up wait for the end of the step") {
  kv::KvCache cache(pool_of(3));
  Batch batch(cache, {.max_sequences = 2});
  {
    auto const a = running(cache, 1, iota(0, 12));
    batch.begin_step();
    REQUIRE(batch.add(a, {11, 1}).has_value());
  }
  CHECK(cache.available_blocks() == 0);
  CHECK(cache.incoming_blocks() == 3);
  CHECK(cache.open(SequenceId{2}, iota(50, 3), {.reserve = 3}).error() == Errc::no_free_blocks);
  cache.end_step();
  CHECK(cache.open(SequenceId{2}, iota(50, 3), {.reserve = 3}).has_value());
}

TEST_CASE("batch: limits and misuse are told") {
  kv::KvCache cache(pool_of(8));
  kv::KvCache other(pool_of(8));
  auto const complaint = [&](kv::BatchLimits const& limits) {
    try {
      Batch const batch(cache, limits);
    } catch (kv::Error const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(complaint({.max_sequences = 0}), contains_text("max_sequences"));
  CHECK_THAT(complaint({.max_tokens = 0}), contains_text("max_tokens"));
  CHECK_THAT(complaint({.max_blocks_per_sequence = -1}), contains_text("max_blocks_per_sequence"));
  CHECK(complaint({}).empty());
  Batch batch(cache, {});
  auto seq = running(cache, 1, iota(0, 3));
  auto const stranger = running(other, 1, iota(0, 3));
  CHECK_THAT(refusal([&] { (void)batch.add(seq, {2, 2}); }), contains_text("must exist"));
  CHECK_THAT(refusal([&] { (void)batch.add(stranger, {0, 1}); }), contains_text("another cache"));
  REQUIRE(batch.add(seq, {2, 1}).has_value());
  seq.truncate(1);
  CHECK_THAT(refusal([&] { (void)batch.build({}); }), contains_text("truncated"));
}

TEST_CASE("batch: moves and changes alone keep a device's table right, whatever happens") {
  auto const twins = GENERATE(kv::Twins::keep, kv::Twins::adopt);
  auto const max_rows = 6;
  std::mt19937 random(3);
  auto config = pool_of(60);
  config.max_sequences = 10;
  config.max_sequence_tokens = 48;
  config.twins = twins;
  kv::KvCache cache(config);
  Batch batch(cache, {.max_sequences = max_rows, .max_tokens = 256});
  Mirror mirror(max_rows, batch.table_width());
  std::vector<kv::Sequence> live;
  Arrays arrays;
  auto const tokens = [&] {
    Tokens out(1 + random() % 9);
    for (auto& t : out) t = static_cast<kv::TokenId>(random() % 2);
    return out;
  };
  auto const some = [&]() -> kv::Sequence& { return live[random() % live.size()]; };
  for (int step = 0; step < 1500; ++step) {
    batch.begin_step();
    // At most a few changes a step, so that moves never outnumber the rows.
    for (int i = 0; i < 3; ++i) {
      switch (random() % 6) {
        case 0:
          if (auto seq = cache.open(SequenceId{1}, tokens(), {.read = random() % 2 == 0})) {
            live.push_back(*std::move(seq));
          }
          break;
        case 1:
          if (!live.empty()) {
            auto& seq = some();
            seq.truncate(
                static_cast<std::int32_t>(random() % static_cast<unsigned>(seq.size() + 1)));
          }
          break;
        case 2:
          if (!live.empty())
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
          break;
        case 3:
          if (!live.empty()) (void)batch.remove(some());
          break;
        case 4:
          if (!live.empty()) {
            if (auto fork = some().fork(SequenceId{2})) live.push_back(*std::move(fork));
          }
          break;
        default: break;
      }
    }
    for (auto& seq : live) {
      if (random() % 4 == 0) continue;
      if (auto const range = seq.append(tokens())) (void)batch.add(seq, *range);
    }
    // What wasn't taken into the batch is computed apart.
    auto const result = built(batch, arrays);
    mirror.apply(arrays, result);
    Numbers table(static_cast<std::size_t>(max_rows * batch.table_width()));
    for (std::int32_t r = 0; r < batch.num_sequences(); ++r) {
      batch.copy_row(r,
                     std::span(table).subspan(static_cast<std::size_t>(r * batch.table_width())));
    }
    // Rows in use show their sequence, all others are zero.
    REQUIRE(mirror.table == table);
    for (auto const& seq : live) {
      if (batch.row_of(seq) >= 0) REQUIRE(mirror.shows(batch.row_of(seq), seq));
    }
    for (auto& seq : live) seq.commit(seq.size());
    if (step % 10 == 0) REQUIRE(static_cast<bool>(cache.verify()));
    cache.end_step();
  }
}

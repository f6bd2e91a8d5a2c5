// SPDX-License-Identifier: Apache-2.0
/// \file
/// What is compared after the verbs of a random program.
#pragma once

#include "program.hpp"

namespace pagedkv::testing {

/// Throws with the first number that differs.
inline void explain(Stats const& got, Stats const& want) {
  auto const differ = [](char const* name, auto a, auto b) {
    if (a != b) mismatch("stats: ", name, " is ", a, ", the model says ", b);
  };
#define PAGEDKV_DIFFER(name) differ(#name, got.name, want.name)
  PAGEDKV_DIFFER(free);
  PAGEDKV_DIFFER(idle);
  PAGEDKV_DIFFER(used);
  PAGEDKV_DIFFER(quarantined);
  PAGEDKV_DIFFER(retained);
  PAGEDKV_DIFFER(sequences);
  PAGEDKV_DIFFER(pins);
  PAGEDKV_DIFFER(owned_slots);
  PAGEDKV_DIFFER(wasted_slots);
  PAGEDKV_DIFFER(opens);
  PAGEDKV_DIFFER(resumed_opens);
  PAGEDKV_DIFFER(prefix_query_tokens);
  PAGEDKV_DIFFER(prefix_hit_tokens);
  PAGEDKV_DIFFER(resumed_query_tokens);
  PAGEDKV_DIFFER(resumed_hit_tokens);
  PAGEDKV_DIFFER(partial_hit_tokens);
  PAGEDKV_DIFFER(external_tokens);
  PAGEDKV_DIFFER(hit_blocks);
  PAGEDKV_DIFFER(published_blocks);
  PAGEDKV_DIFFER(twin_blocks);
  PAGEDKV_DIFFER(adopted_blocks);
  PAGEDKV_DIFFER(moved_blocks);
  PAGEDKV_DIFFER(evicted_blocks);
  PAGEDKV_DIFFER(unpublished_blocks);
  PAGEDKV_DIFFER(copies);
  PAGEDKV_DIFFER(dropped_copies);
  PAGEDKV_DIFFER(forks);
  PAGEDKV_DIFFER(preemptions);
  PAGEDKV_DIFFER(resets);
#undef PAGEDKV_DIFFER
  for (std::size_t i = 0; i < num_hit_ends; ++i) {
    differ(to_string(HitEnd(i)), got.hit_ends.counts[i], want.hit_ends.counts[i]);
  }
  mismatch("stats differ");
}

template <class Policy>
template <class T>
void Program<Policy>::refused(Result<T> const& got, Errc expected, Live* s) {
  if (got.has_value()) mismatch("succeeded; the model says ", to_string(expected));
  if (got.error() != expected) {
    mismatch("failed with ", to_string(got.error()), "; the model says ", to_string(expected));
  }
  note(" -> ", to_string(expected));
  if (s != nullptr) compare(s, false);
  compare(nullptr, true);  // all or nothing
}

template <class Policy>
std::string Program<Policy>::describe_config() const {
  return join("max_sequences ", config_.max_sequences, ", max_sequence_tokens ",
              config_.max_sequence_tokens, model_.deferred() ? ", deferred" : ", stream_ordered",
              config_.twins == Twins::adopt ? ", adopt" : ", keep",
              config_.partial_hits ? ", partial_hits" : "",
              naming_ == Naming::batch     ? ", batch"
              : naming_ == Naming::used_by ? ", used_by"
                                           : "");
}

template <class Policy>
void Program<Policy>::begin_verb() {
  model_.begin_verb();
  heard_.begin_verb();
  any_order_ = false;
}

/// Moves that follow each other come in any order.
template <class Event>
void sort_moved(std::vector<Event>& events) {
  auto const moved = [](Event const& e) { return e.kind == CacheEvent::Kind::moved; };
  auto const by_block = [](Event const& a, Event const& b) { return a.block < b.block; };
  for (auto first = events.begin(); first != events.end();) {
    first = std::find_if(first, events.end(), moved);
    auto const last = std::find_if_not(first, events.end(), moved);
    std::sort(first, last, by_block);
    first = last;
  }
}

template <class Policy>
void Program<Policy>::compare_events() {
  if (!heard_.broken.empty()) mismatch("events: ", heard_.broken);
  if (any_order_) sort_removed();
  sort_moved(heard_.heard);
  sort_moved(model_.events);
  expect_equal(heard_.heard.size(), model_.events.size(), "number of events");
  for (std::size_t i = 0; i < heard_.heard.size(); ++i) {
    auto const& got = heard_.heard[i];
    NaiveEvent const& want = model_.events[i];
    expect_equal(int(got.kind), int(want.kind), "kind of event");
    if (got.kind == CacheEvent::Kind::cleared) continue;
    expect_equal(got.block, want.block, "block of event");
    if (got.kind == CacheEvent::Kind::moved) expect_equal(got.from, want.from, "from of event");
    if (got.kind == CacheEvent::Kind::stored) compare_stored(want);
  }
}

template <class Policy>
void Program<Policy>::sort_removed() {
  auto const by_block = [](auto const& a, auto const& b) { return a.block < b.block; };
  std::sort(heard_.heard.begin(), heard_.heard.end(), by_block);
  std::sort(model_.events.begin(), model_.events.end(), by_block);
}

template <class Policy>
void Program<Policy>::compare_stored(NaiveEvent const& event) {
  auto const* const in_map = heard_.borne_by(event.block);
  // Gone since, or borne by another block.
  if (in_map == nullptr || model_.at(event.block).node != event.node) return;
  NaiveNode const& node = model_.content.at(event.node);
  expect(in_map->tokens == node.tokens, "tokens of a stored block");
  int const parent = node.parent == 0 ? -1 : model_.content.at(node.parent).block;
  expect_equal(heard_.parent_of(*in_map), parent, "parent of a stored block");
  auto const [bytes, is_new] = extra_bytes_.try_emplace(node.extra, in_map->extra);
  expect(bytes->second == in_map->extra, "equal extra keys, different bytes");
  auto const [text, new_bytes] = extra_texts_.try_emplace(in_map->extra, node.extra);
  expect(text->second == node.extra, "different extra keys, equal bytes");
}

template <class Policy>
void Program<Policy>::compare(Live* s, bool everything) {
  if (s != nullptr) compare_sequence(*s);
  compare_events();
  if (!everything) return;
  compare_counters();
  compare_blocks();
  for (auto const& live : live_) compare_sequence(*live);
  bool const read = config_.num_blocks * config_.block_tokens <= 256 || step_ % 16 == 0;
  if (read) {
    for (auto const& live : live_) read_back(*live);
  }
  auto const report = cache_->verify();
  if (!report) mismatch("verify: ", report.broken, ", block ", report.block.value());
}

template <class Policy>
void Program<Policy>::compare_blocks() {
  for (int b = 0; b < config_.num_blocks; ++b) {
    NaiveBlock const& block = model_.at(b);
    if (cache_->references(BlockId{b}) != std::uint32_t(block.refs)) {
      mismatch("block ", b, ": ", cache_->references(BlockId{b}), " references, the model says ",
               block.refs);
    }
    expect_equal(cache_->is_published(BlockId{b}), block.node >= 0, "published");
    if (block.refs > 0) {
      expect_equal(cache_->is_in_flight(BlockId{b}), model_.is_in_flight(b), "in flight");
    }
    auto const* const in_map = heard_.borne_by(b);
    expect_equal(in_map != nullptr, block.node >= 0, "the map has the block");
    if (in_map != nullptr) {
      expect_equal(in_map->generation, cache_->generation(BlockId{b}), "generation");
    }
  }
}

template <class Policy>
void Program<Policy>::compare_counters() {
  Stats const got = cache_->stats();
  Stats const want = expected_stats(got);
  if (got == want) return;
  explain(got, want);
}

template <class Policy>
Stats Program<Policy>::expected_stats(Stats const& got) const {
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
  return want;
}

template <class Policy>
void Program<Policy>::compare_sequence(Live& s) {
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
  check_promise(s);
  if (config_.num_blocks > 64 && step_ % 16 != 0) return;
  expect_equal(h.unshared_blocks(), model_.unshared_blocks(s.model), "unshared_blocks");
  expect_equal(h.unshared_tokens(), model_.unshared_tokens(s.model), "unshared_tokens");
  for (int p = 0; p < s.model.size(); p += 1 + config_.block_tokens / 4) {
    expect_equal(h.token(p), s.model.tokens[std::size_t(p)], "token");
  }
}

template <class Policy>
void Program<Policy>::check_promise(Live& s) {
  auto const row = s.handle->blocks();
  std::size_t const both = std::min(row.size(), s.row.size());
  for (std::size_t j = 0; j < both && config_.twins == Twins::keep; ++j) {
    if (row[j].value() == s.row[j] || int(j) == s.copied) continue;
    mismatch("sequence ", s.model.uid, ": entry ", j, " of its row changed");
  }
  s.copied = -1;
  s.row.clear();
  for (BlockId const b : row) s.row.push_back(b.value());
}

template <class Policy>
void Program<Policy>::read_back(Live const& s) {
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

template <class Policy>
void Program<Policy>::poison() {
  for (int const b : model_.allocated) {
    device_.hand_out(b);
    unreported_.insert(b);
  }
}

}  // namespace pagedkv::testing

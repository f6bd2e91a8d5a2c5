// SPDX-License-Identifier: Apache-2.0
/// \file
/// The verbs of a random program: each runs on the library and on the model.
#pragma once

#include "program.hpp"

namespace pagedkv::testing {

template <class Policy>
OpenOptions Program<Policy>::make_options(NaiveKey const& key) {
  OpenOptions o;
  switch (choices_.below(6)) {
    case 0: break;
    case 1: o.reserve = key.num_tokens(); break;
    case 2: o.reserve = choices_.below(longest_usual_ + 1); break;
    case 3: o.reserve = key.num_tokens() + choices_.below(2 * config_.block_tokens); break;
    case 4: o.reserve = (key.num_tokens() + 1) / 2; break;
    case 5: o.external_tokens = choices_.below(key.num_tokens() + 1); break;
  }
  o.read = !choices_.one_in(6);
  o.publish = !choices_.one_in(12);
  o.resumed = choices_.one_in(8);
  return o;
}

template <class Policy>
void Program<Policy>::open() {
  auto const key = make_prompt();
  OpenOptions const o = make_options(*key);
  bool const long_salt = choices_.one_in(100);
  note("open tokens=", text(key->tokens), " keys=", key->extra_of(0, config_.block_tokens),
       " reserve=", o.reserve, " external=", o.external_tokens, o.read ? "" : " read=false",
       o.publish ? "" : " publish=false", long_salt ? " long salt" : "");

  std::vector<MediaItem> media;
  auto keys = extra_keys(*key, media);
  std::string const too_long(std::size_t(config_.max_extra_key_bytes), 'x');
  if (long_salt) keys.salt = too_long;
  PromptKey const prompt = cache_->hash(key->tokens, keys);
  if (long_salt) return open_refused(prompt, o);
  NaiveAdmission const admission = model_.admission(*key, o);
  ask_about(prompt, *key, o, admission);
  bool const plain = keys.salt.empty() && keys.adapter.empty() && media.empty();
  // The short form now and then.
  auto got = plain && choices_.one_in(4) ? cache_->open(SequenceId{++last_uid_}, key->tokens, o)
                                         : cache_->open(SequenceId{++last_uid_}, prompt, o);
  if (model_.never_fits(NaiveCache::longest(*key, o))) return refused(got, Errc::never_fits);
  if (int(live_.size()) == config_.max_sequences) return refused(got, Errc::no_free_sequences);
  if (admission.blocks_needed > model_.available()) return refused(got, Errc::no_free_blocks);
  if (!got) mismatch("open failed: ", to_string(got.error()), "; the model says it fits");
  opened(std::move(*got), *key, o, admission);
}

template <class Policy>
void Program<Policy>::open_refused(PromptKey const& prompt, OpenOptions const& o) {
  auto const got = cache_->open(SequenceId{1}, prompt, o);
  expect(!got.has_value() && got.error() == Errc::extra_keys_too_long,
         "extra keys that are too long are refused");
}

template <class Policy>
void Program<Policy>::opened(Sequence&& handle, NaiveKey const& key, OpenOptions const& o,
                             NaiveAdmission const& admission) {
  auto live = std::make_unique<Live>();
  live->handle.emplace(std::move(handle));
  live->model.uid = last_uid_;
  live->model.key = key;
  live->goal = goal_for(key);
  model_.open(live->model, admission, o, row_of(*live));
  learn(*live);
  live->written = admission.hit.tokens;
  poison();
  live_.push_back(std::move(live));
  note(" -> ", describe(*live_.back()));
  compare(live_.back().get(), false);
}

template <class Policy>
void Program<Policy>::ask() {
  auto const key = make_prompt();
  OpenOptions o;
  o.reserve = choices_.below(2 * longest_usual_);
  o.read = !choices_.one_in(4);
  std::vector<MediaItem> media;
  PromptKey const prompt = cache_->hash(key->tokens, extra_keys(*key, media));
  ask_about(prompt, *key, o, model_.admission(*key, o));
}

template <class Policy>
void Program<Policy>::ask_about(PromptKey const& prompt, NaiveKey const& key, OpenOptions const& o,
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

template <class Policy>
void Program<Policy>::append() {
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

template <class Policy>
void Program<Policy>::reserve() {
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

template <class Policy>
NaiveCache::Growth Program<Policy>::ask_about_growth(Live const& s, int n) {
  auto const g = model_.growth(s.model, n);
  expect_equal(s.handle->would_fit(n), g.fits, "would_fit of a sequence");
  if (g.fits || g.why != Errc::never_fits) {
    expect_equal(s.handle->blocks_needed(n), g.blocks, "blocks_needed");
  }
  return g;
}

template <class Policy>
void Program<Policy>::grown(Live& s, Result<TokenRange> const& range, int n) {
  if (!range) mismatch("reserve failed: ", to_string(range.error()), "; the model says it fits");
  expect_equal(range->first, s.model.size(), "reserve: first position");
  expect_equal(range->count, n, "reserve: positions");
  auto const tail =
      s.model.size() % config_.block_tokens == 0 ? -1 : int(s.model.blocks.size()) - 1;
  int const before = tail < 0 ? -1 : s.model.blocks.back();
  model_.grow(s.model, n, row_of(s));
  if (tail >= 0 && s.model.blocks[std::size_t(tail)] != before) s.copied = tail;
  note(" -> ", describe(s));
  poison();
}

template <class Policy>
void Program<Policy>::set_tokens() {
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

template <class Policy>
void Program<Policy>::take_copies() {
  note("take_copies");
  run_copies();
}

template <class Policy>
void Program<Policy>::run_copies() {
  check_and_run_copies(cache_->take_copies());
}

template <class Policy>
void Program<Policy>::check_and_run_copies(std::span<BlockCopy const> got) {
  std::vector<int> targets;
  for (auto const& copy : got) targets.push_back(copy.dst.value());
  auto const expected = model_.take_copies(targets);
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
    run_copy(copy);
  }
}

template <class Policy>
void Program<Policy>::run_copy(BlockCopy const& copy) {
  std::uint64_t owner = Device::no_sequence;
  int stays = copy.num_tokens;
  for (auto const& live : live_) {
    auto const& blocks = live->model.blocks;
    if (live->model.has(copy.dst.value())) owner = live->model.uid;
    auto const at = std::find(blocks.begin(), blocks.end(), copy.src.value());
    if (at == blocks.end()) continue;
    // An append in place before the copy was taken: what follows there may be written any time.
    int const first = int(at - blocks.begin()) * config_.block_tokens;
    stays = std::min(stays, std::max(0, live->written - first));
  }
  device_.copy(copy.src.value(), copy.dst.value(), copy.num_tokens, owner, stays);
}

template <class Policy>
void Program<Policy>::write() {
  Live* const s = any_live();
  if (s == nullptr) return;
  int const n = choices_.between(s->written, int(s->kv.size()));
  note("write ", s->model.uid, " up to ", n);
  write_up_to(*s, n);
}

template <class Policy>
void Program<Policy>::write_up_to(Live& s, int n) {
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
    device_.write(block, offset, s.kv[std::size_t(p)], s.model.uid);
  }
  s.written = n;
}

template <class Policy>
void Program<Policy>::commit() {
  Live* const s = any_live();
  if (s == nullptr) return;
  int const known = int(s->kv.size());
  // All of it most of the time; nothing new and going back change nothing.
  int const n = choices_.one_in(3) ? choices_.between(0, known) : known;
  commit_up_to(*s, n);
}

template <class Policy>
void Program<Policy>::commit_up_to(Live& s, int n) {
  write_up_to(s, n);
  // A copy into a block that is only extended by what stood there already.
  if (n > s.model.committed) run_copies();
  note("commit ", s.model.uid, " up to ", n);
  s.handle->commit(n);
  model_.commit(s.model, n);
  compare(&s, false);
}

template <class Policy>
void Program<Policy>::truncate() {
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
  use_until_transferred(*s, model_.blocks_of(n));
  s->handle->truncate(n);
  model_.truncate(s->model, n);
  s->row.resize(std::min(s->row.size(), s->model.blocks.size()));
  forget_from(*s, n);
  compare(s, false);
}

template <class Policy>
void Program<Policy>::fork() {
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

template <class Policy>
void Program<Policy>::close() {
  if (live_.empty()) return;
  auto const i = std::size_t(choices_.below(int(live_.size())));
  int const how = choices_.below(6);
  close(i, how < 2 ? Reuse::none : how == 2 ? Reuse::resume : Reuse::likely);
}

template <class Policy>
void Program<Policy>::close(std::size_t i, Reuse reuse) {
  auto const s = std::move(live_[i]);
  live_.erase(live_.begin() + std::ptrdiff_t(i));
  note("close ", s->model.uid, reuse == Reuse::none ? " (none)" : "",
       reuse == Reuse::resume ? " (resume)" : "");
  use_until_transferred(*s, 0);
  if (reuse == Reuse::likely && s->model.uid % 2 == 0) {
    s->handle.reset();
  } else {
    std::move(*s->handle).finish(reuse);
  }
  model_.close(s->model, reuse);
  naive_batch_.gone(s->model.uid);
  if (!greedy_ || s->kv.empty()) return;
  // The next turn of a dialogue.
  auto next = std::make_shared<NaiveKey>(s->model.key);
  next->tokens.assign(s->model.tokens.begin(),
                      s->model.tokens.begin() + std::ptrdiff_t(s->kv.size()));
  drop_media_behind(*next, next->num_tokens());
  if (next->num_tokens() <= longest_usual_) remember(std::move(next));
}

template <class Policy>
void Program<Policy>::pin() {
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

template <class Policy>
void Program<Policy>::unpin() {
  if (pins_.empty()) return;
  unpin(std::size_t(choices_.below(int(pins_.size()))));
}

template <class Policy>
void Program<Policy>::unpin(std::size_t i) {
  note("unpin");
  auto const pin = std::move(pins_[i]);
  pins_.erase(pins_.begin() + std::ptrdiff_t(i));
  model_.unpin(pin.model);
}

template <class Policy>
std::vector<BlockId> Program<Policy>::some_blocks() {
  std::vector<BlockId> list;
  Live* const s = choices_.one_in(2) ? any_live() : nullptr;
  for (int n = choices_.between(1, 4); n > 0; --n) {
    bool const owned = s != nullptr && !s->model.blocks.empty();
    list.push_back(
        BlockId{owned ? choices_.pick(s->model.blocks) : choices_.below(config_.num_blocks)});
  }
  return list;
}

inline std::vector<int> numbers_of(std::vector<BlockId> const& list) {
  std::vector<int> out;
  for (BlockId const b : list) out.push_back(b.value());
  return out;
}

template <class Policy>
void Program<Policy>::evict() {
  auto const list = some_blocks();
  note("evict ", list.size(), " blocks from ", list[0].value());
  int const got = cache_->evict(list);
  expect_equal(got, model_.evict(numbers_of(list)), "blocks evicted");
}

template <class Policy>
void Program<Policy>::unpublish() {
  auto list = some_blocks();
  std::string which;
  for (BlockId const b : list) which += join(" ", b.value());
  note("unpublish", which);
  any_order_ = true;
  int const got = cache_->unpublish(list);
  std::vector<std::vector<int>> rows;
  for (auto const& live : live_) rows.push_back(live->model.blocks);
  expect_equal(got, model_.unpublish(numbers_of(list), rows), "blocks unpublished");
}

template <class Policy>
void Program<Policy>::reset() {
  if (!choices_.one_in(3)) return;
  note("reset");
  cache_->reset();
  model_.reset();
}

template <class Policy>
void Program<Policy>::end_step() {
  note("end_step ", model_.open_tick);
  if (naming_ == Naming::nobody_says && model_.deferred()) {
    for (auto const& live : live_) use(*live, model_.open_tick, live->written);
  }
  expect_equal(cache_->open_tick().value(), model_.open_tick, "open tick");
  auto const tick = cache_->end_step();
  expect_equal(tick.value(), model_.open_tick, "closed tick");
  model_.end_step();
  device_.open_tick = model_.open_tick;
  if (!model_.deferred()) device_.finish(model_.open_tick - 1);
}

template <class Policy>
void Program<Policy>::reclaim() {
  if (model_.open_tick == 1) return;
  // Old ticks again, and ticks skipped over, are both fine.
  std::uint64_t const back = std::uint64_t(choices_.below(4));
  std::uint64_t const last = model_.open_tick - 1;
  std::uint64_t const tick = last > back ? last - back : 1;
  note("reclaim ", tick);
  cache_->reclaim(Tick{tick});
  model_.reclaim(tick);
  if (model_.deferred()) device_.finish(tick);
}

// What steps in flight use -------------------------------------------------------------------

template <class Policy>
void Program<Policy>::used_by() {
  Live* const s = any_live();
  if (s == nullptr || naming_ == Naming::nobody_says) return;
  // Mostly the open step; one in flight may be named late.
  std::uint64_t const back = choices_.one_in(4) ? std::uint64_t(choices_.below(3)) : 0;
  std::uint64_t const tick = model_.open_tick > back ? model_.open_tick - back : 1;
  run_copies();
  note("used_by ", s->model.uid, " tick ", tick);
  s->handle->used_by(Tick{tick});
  model_.steps_are_named = true;
  model_.mark_used(s->model, tick);
  use(*s, tick, s->written);
}

template <class Policy>
void Program<Policy>::use(Live const& s, std::uint64_t tick, int num_positions) {
  for (int p = 0; p < num_positions; p += config_.block_tokens) {
    int const block = s.model.blocks[std::size_t(p / config_.block_tokens)];
    if (filled_by_copy(block)) return;  // in a later step
    device_.use(tick, s.model.uid, block, std::min(config_.block_tokens, num_positions - p));
  }
}

template <class Policy>
void Program<Policy>::use_until_transferred(Live const& s, int keep) {
  int const end = s.model.cached + s.model.external;
  if (!model_.deferred() || s.model.external == 0 || s.model.committed >= end) return;
  // What is committed has arrived.
  int const begin = std::max(s.model.cached, s.model.committed);
  for (int j = std::max(keep, begin / config_.block_tokens);
       j < std::min(int(s.model.blocks.size()), model_.blocks_of(end)); ++j) {
    int const first = j * config_.block_tokens;
    int const block = s.model.blocks[std::size_t(j)];
    if (batch_ && unreported_.count(block) != 0) continue;  // its transfer hasn't begun
    device_.use(model_.open_tick, s.model.uid, block, std::min(config_.block_tokens, end - first),
                std::max(0, begin - first));
  }
}

}  // namespace pagedkv::testing

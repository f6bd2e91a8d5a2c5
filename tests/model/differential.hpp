// SPDX-License-Identifier: Apache-2.0
/// \file
/// A random program that runs on the library and on version 0.1 at once. After each verb everything
/// that a caller can see must be equal.
///
/// Without `Options::allow_twins` no commit publishes what is findable already. The program asks
/// before each commit (`match` of the row's own tokens) and, if the next block would be a twin,
/// stops short of it or gives one of its uncommitted positions a token that no other row has.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "choices.hpp"
#include "differential_options.hpp"
#include "differential_systems.hpp"

namespace pagedkv::testing::differential {

using Tokens = std::vector<TokenId>;

struct Media {
  TokenRange positions;
  std::string id;
};
struct Extras {
  std::string salt;
  std::string adapter;
  std::uint64_t adapter_generation = 0;
  std::vector<Media> media;

  [[nodiscard]] bool empty() const { return salt.empty() && adapter.empty() && media.empty(); }
};

template <class S>
typename S::PromptKey key_of(Side<S> const& side, std::span<TokenId const> tokens,
                             Extras const& extras) {
  std::vector<typename S::MediaItem> media;
  for (auto const& m : extras.media) media.push_back({m.positions, m.id});
  typename S::ExtraKeys keys;
  keys.salt = extras.salt;
  keys.adapter = extras.adapter;
  keys.adapter_generation = extras.adapter_generation;
  keys.media = media;
  return side.cache->hash(tokens, keys);
}

/// What a verb answered: an error, or numbers.
struct Answer {
  int error = -1;
  std::int64_t first = 0;
  std::int64_t second = 0;

  friend bool operator==(Answer const&, Answer const&) = default;
  [[nodiscard]] bool ok() const { return error < 0; }
};
template <class T>
Answer failed(Result<T> const& result) {
  return {static_cast<int>(result.error()), 0, 0};
}
inline Answer answer(Result<TokenRange> const& range) {
  return range ? Answer{-1, range->first, range->count} : failed(range);
}

inline std::string text(Answer const& a) {
  return a.ok() ? join(a.first, ", ", a.second) : to_string(static_cast<Errc>(a.error));
}
inline std::string text(std::int64_t value) { return std::to_string(value); }
template <class List>
std::string text_of_list(List const& list, std::size_t from = 0) {
  std::string out = join("[", list.size(), ":");
  for (std::size_t i = from; i < list.size() && i < from + 40; ++i) out += join(" ", list[i]);
  return out + "]";
}

/// How often what happened, beside what the caches count.
struct Happened {
  std::int64_t steps = 0;
  std::int64_t refused = 0;         ///< opens, appends, forks, pins: with an error
  std::int64_t drained = 0;         ///< blocks allocated when everything had been given back
  std::int64_t private_tokens = 0;  ///< twins avoided by a token,
  std::int64_t stopped_short = 0;   ///< and by committing less
  std::int64_t builds = 0;
  std::int64_t events = 0;
  Counters counted{};

  void add(Happened const& other) {
    steps += other.steps;
    refused += other.refused;
    drained += other.drained;
    private_tokens += other.private_tokens;
    stopped_short += other.stopped_short;
    builds += other.builds;
    events += other.events;
    for (std::size_t i = 0; i < num_counters; ++i) counted[i] += other.counted[i];
  }
  [[nodiscard]] std::int64_t of(std::string const& name) const {
    auto const at = std::find(counter_names.begin(), counter_names.end(), name);
    return at == counter_names.end() ? -1 : counted[std::size_t(at - counter_names.begin())];
  }
};

template <class Library, class Oracle>
class Program {
  struct Prompt {
    Tokens tokens;
    std::shared_ptr<Extras const> extras;
    std::tuple<std::optional<typename Library::PromptKey>,
               std::optional<typename Oracle::PromptKey>>
        keys;

    template <class S>
    typename S::PromptKey const& key() const {
      return *std::get<std::optional<typename S::PromptKey>>(keys);
    }
  };
  using PromptPtr = std::shared_ptr<Prompt const>;

  /// A sequence of both sides, and what neither of them says.
  struct Live {
    std::size_t slot = 0;
    std::uint64_t uid = 0;
    std::shared_ptr<Extras const> extras;
    bool publishes = true;
    std::uint64_t epoch = 0;
    Tokens tokens;  ///< `unknown_token` where none is set
    Tokens goal;    ///< what it likes to append next
    bool in_batch = false;
    TokenRange query;
  };

 public:
  Program(Options const& options, Choices choices)
      : options_(options), choices_(std::move(choices)) {
    choices_.begin_step();
    drawn_ = draw(options_, choices_);
    each([&](auto& side) { side.start(drawn_); });
  }
  Program(Program const&) = delete;
  Program& operator=(Program const&) = delete;

  std::vector<std::string>* log = nullptr;
  [[nodiscard]] Happened const& happened() const { return happened_; }

  /// Large pools take more to fill.
  [[nodiscard]] std::int64_t length(std::int64_t steps) const {
    return drawn_.num_blocks > 600 ? 4 * steps : steps;
  }
  /// All verbs were run: what is done now has a group of decisions of its own, the last one.
  [[nodiscard]] bool is_finishing() const { return finishing_; }

  /// Runs `steps` verbs, or until the choices are exhausted, and gives everything back.
  void run(std::int64_t steps) {
    note(describe());
    for (std::int64_t i = 0; i < steps && !choices_.exhausted(); ++i) step();
    finish();
    happened_.counted = counters(oracle_.cache->stats());
  }

 private:
  // -------------------------------------------------------------------------------- both sides

  template <class F>
  void each(F&& f) {
    f(library_);
    f(oracle_);
  }
  /// Asks both and compares what they say.
  template <class F>
  auto both(char const* what, F&& f) {
    auto const got = f(library_);
    auto const want = f(oracle_);
    if (!(got == want)) mismatch(what, ": got ", text(got), ", version 0.1 says ", text(want));
    return want;
  }
  /// `f(side)` fills `side.words`.
  template <class F>
  void both_lists(char const* what, F&& f) {
    each([&](auto& side) {
      side.words.clear();
      f(side);
    });
    compare_words(what, library_.words, oracle_.words);
  }
  static void compare_words(char const* what, Words const& got, Words const& want) {
    if (got == want) return;
    std::size_t i = 0;
    while (i < got.size() && i < want.size() && got[i] == want[i]) ++i;
    std::size_t const from = i > 12 ? i - 12 : 0;
    mismatch(what, ": differ at number ", i, "; from ", from, " on got ", text_of_list(got, from),
             ", version 0.1 says ", text_of_list(want, from));
  }
  /// The sequence's handle on one side.
  template <class S>
  static auto& handle(Side<S>& side, Live const& s) {
    return *side.sequences[s.slot];
  }
  auto& known_by_oracle(Live const& s) { return *oracle_.sequences[s.slot]; }
  int size_of(Live const& s) const { return int(s.tokens.size()); }
  int committed(Live const& s) { return known_by_oracle(s).committed(); }

  // -------------------------------------------------------------------------------------- steps

  void step() {
    ++happened_.steps;
    choices_.begin_step();
    touched_ = nullptr;
    int const verb = choices_.below(1000);
    if (verb < 130 || (live_.empty() && verb < 810)) {
      open();
    } else if (verb < 140) {
      ask();
    } else if (verb < 620) {
      grow_verb(verb - 140);
    } else if (verb < 815) {
      row_verb(verb - 620);
    } else {
      cache_verb(verb - 815);
    }
    compare();
  }
  void grow_verb(int verb) {  // 0 .. 479
    if (verb < 160) return append();
    if (verb < 220) return reserve();
    if (verb < 280) return set_tokens();
    commit();
  }
  void row_verb(int verb) {  // 0 .. 194
    if (verb < 60) return truncate();
    if (verb < 105) return fork();
    if (verb < 180) return close();
    take_copies();
  }
  void cache_verb(int verb) {  // 0 .. 184
    if (verb < 12) return pin();
    if (verb < 20) return unpin();
    if (verb < 34) return evict();
    if (verb < 37) return reset();
    if (verb < 72) return end_step();
    if (verb < 85) return reclaim();
    if (!drawn_.batched) return append();
    if (verb < 165) return batch_verb();
    serve();
  }

  // ----------------------------------------------------------------------------------- opening

  struct Opening {
    int reserve = 0;
    int external = 0;
    bool read = true;
    bool publish = true;
    bool resumed = false;
    bool by_tokens = false;

    template <class S>
    typename S::OpenOptions as() const {
      typename S::OpenOptions o;
      o.reserve = reserve;
      o.external_tokens = external;
      o.read = read;
      o.publish = publish;
      o.resumed = resumed;
      return o;
    }
  };
  Opening draw_opening(Prompt const& prompt) {
    int const tokens = int(prompt.tokens.size());
    Opening o;
    switch (choices_.below(8)) {
      case 0: break;
      case 1: o.reserve = choices_.below(drawn_.usual + 1); break;
      case 2: o.reserve = tokens + choices_.below(2 * drawn_.block_tokens); break;
      case 3: o.reserve = (tokens + 1) / 2; break;
      case 4: o.external = choices_.below(tokens + 1); break;
      default: o.reserve = tokens; break;
    }
    o.read = !choices_.one_in(8);
    o.publish = !choices_.one_in(16);
    o.resumed = choices_.one_in(8);
    o.by_tokens = prompt.extras->empty() && choices_.one_in(3);
    return o;
  }

  void open() {
    if (int(live_.size()) == drawn_.max_sequences && !choices_.one_in(8)) close();
    PromptPtr const prompt = choices_.one_in(100) ? prompt_of_long_salt() : make_prompt();
    Opening const o = draw_opening(*prompt);
    note("open ", last_uid_ + 1, " ", text_of(prompt->tokens), " keys ", prompt->extras->salt, "/",
         prompt->extras->adapter, "/", prompt->extras->adapter_generation, "/",
         prompt->extras->media.size(), " reserve ", o.reserve, " external ", o.external,
         o.read ? "" : " read=false", o.publish ? "" : " publish=false",
         o.by_tokens ? " by tokens" : "");
    ask_about(*prompt, o);
    std::size_t const slot = free_slot();
    Answer const got = both("open", [&](auto& side) { return open_on(side, *prompt, o, slot); });
    if (!got.ok()) return refused(got);
    auto live = std::make_unique<Live>();
    live->slot = slot;
    live->uid = last_uid_;
    live->extras = prompt->extras;
    live->publishes = o.publish;
    live->epoch = epoch_;
    bool const other = !prompts_.empty() && choices_.one_in(3);
    live->goal = other ? choices_.pick(prompts_)->tokens : prompt->tokens;
    auto const size = std::size_t(oracle_.sequences[slot]->size());
    live->tokens = prompt->tokens;
    live->tokens.resize(size, unknown_token);
    live_.push_back(std::move(live));
    touched_ = live_.back().get();
  }
  template <class S>
  Answer open_on(Side<S>& side, Prompt const& prompt, Opening const& o, std::size_t slot) {
    SequenceId const id{last_uid_ += std::is_same_v<S, Library> ? 1 : 0};
    auto const options = o.template as<S>();
    auto opened = o.by_tokens ? side.cache->open(id, prompt.tokens, options)
                              : side.cache->open(id, prompt.template key<S>(), options);
    if (!opened) return failed(opened);
    side.sequences[slot].emplace(std::move(*opened));
    return {-1, side.sequences[slot]->size(), side.sequences[slot]->cached()};
  }
  std::size_t free_slot() const {
    auto const& slots = oracle_.sequences;
    auto const free =
        std::find_if(slots.begin(), slots.end(), [](auto const& s) { return !s.has_value(); });
    return std::size_t(free - slots.begin());
  }
  void ask() {
    PromptPtr const prompt = make_prompt();
    note("ask about ", text_of(prompt->tokens));
    ask_about(*prompt, draw_opening(*prompt));
  }
  void ask_about(Prompt const& prompt, Opening const& o) {
    both_lists("match, admission, would_fit", [&](auto& side) {
      using S = typename std::decay_t<decltype(side)>::System;
      auto const& key = prompt.template key<S>();
      auto const options = o.template as<S>();
      auto const admission = side.cache->admission(key, options);
      put(side.words, side.cache->match(key), admission.cached_tokens, admission.blocks_needed,
          side.cache->would_fit(key, options), key.hashes().size());
      for (auto const& hash : key.hashes()) put(side.words, hash.low, hash.high);
    });
  }

  // ----------------------------------------------------------------------------------- growing

  void append() {
    Live* const s = any_live();
    if (s != nullptr) append(*s, draw_growth());
  }
  void append(Live& row, int n) {
    Live* const s = &row;
    Tokens const ids = next_tokens(*s, n);
    note("append to ", s->uid, " ", text_of(ids));
    ask_about_growth(*s, n);
    Answer const got =
        both("append", [&](auto& side) { return answer(handle(side, *s).append(ids)); });
    if (!got.ok()) return refused(got);
    s->tokens.insert(s->tokens.end(), ids.begin(), ids.end());
  }
  void reserve() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const n = draw_growth();
    note("reserve ", n, " for ", s->uid);
    ask_about_growth(*s, n);
    Answer const got =
        both("reserve", [&](auto& side) { return answer(handle(side, *s).reserve(n)); });
    if (!got.ok()) return refused(got);
    s->tokens.resize(s->tokens.size() + std::size_t(n), unknown_token);
  }
  void ask_about_growth(Live const& s, int n) {
    both("would_fit and blocks_needed of a row", [&](auto& side) {
      return Answer{-1, handle(side, s).would_fit(n), handle(side, s).blocks_needed(n)};
    });
  }
  void set_tokens() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const from = committed(*s);
    int const size = size_of(*s);
    if (from == size) return;
    int first = known(*s);
    if (first >= size || choices_.one_in(4)) first = choices_.between(from, size - 1);
    int const n = choices_.one_in(3) ? choices_.between(1, size - first) : size - first;
    set_tokens(*s, first, next_tokens(*s, n));
  }
  void set_tokens(Live& s, int first, Tokens const& ids) {
    note("set_tokens of ", s.uid, " from ", first, " ", text_of(ids));
    each([&](auto& side) { handle(side, s).set_tokens(first, ids); });
    std::copy(ids.begin(), ids.end(), s.tokens.begin() + first);
  }
  int draw_growth() {
    switch (choices_.below(8)) {
      case 0: return choices_.below(2);
      case 1: return drawn_.block_tokens;
      case 2: return choices_.below(2 * drawn_.block_tokens + 1);
      case 3: return choices_.below(drawn_.usual + 1);
      default: return 1;
    }
  }
  /// What the prompt says, then what others say as well, sometimes something else.
  Tokens next_tokens(Live const& s, int n) {
    bool const obedient = !choices_.one_in(8);
    int const other = choices_.below(drawn_.alphabet);
    auto const from = std::size_t(known_from(s));
    Tokens out;
    for (std::size_t i = from; i < from + std::size_t(n); ++i) {
      out.push_back(obedient && i < s.goal.size() ? s.goal[i] : other);
    }
    return out;
  }

  // -------------------------------------------------------------------------------- committing

  /// Leading positions with ids.
  int known(Live const& s) { return known_behind(s, committed(s)); }
  int known_from(Live const& s) { return known(s); }
  static int known_behind(Live const& s, int n) {
    while (n < int(s.tokens.size()) && s.tokens[std::size_t(n)] != unknown_token) ++n;
    return n;
  }
  void commit() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const all = known(*s);
    int n = choices_.one_in(4) ? choices_.between(0, all) : all;
    n = avoid_twin(*s, n, true);
    // Only a tail with committed positions can be the target of an untaken copy.
    if (n > committed(*s) && (committed(*s) % drawn_.block_tokens != 0 || choices_.one_in(3))) {
      take_copies();
    }
    note("commit ", s->uid, " up to ", n);
    each([&](auto& side) { handle(side, *s).commit(n); });
  }

  bool may_publish(Live const& s) const { return s.publishes && s.epoch == epoch_; }
  /// The column that a commit up to `n` would publish first, or -1.
  int next_published(Live const& s, int n) {
    int const column = committed(s) / drawn_.block_tokens;
    return may_publish(s) && n / drawn_.block_tokens > column ? column : -1;
  }
  /// Whether the content of a column is findable already. One more token than that is asked for,
  /// for the last one is never a hit.
  bool is_findable(Live& s, int column) {
    auto const end = std::size_t(column + 1) * std::size_t(drawn_.block_tokens);
    bool const borrow = s.tokens.size() == end;
    if (borrow) s.tokens.push_back(0);
    std::span<TokenId const> const tokens{s.tokens.data(), end + 1};
    auto const found = both("match of a row", [&](auto& side) {
      return std::int64_t{side.cache->match(key_of(side, tokens, *s.extras))};
    });
    if (borrow) s.tokens.pop_back();
    return found >= std::int64_t(end);
  }
  /// Up to where a commit up to `n` is allowed; may change a token instead.
  int avoid_twin(Live& s, int n, bool may_stop_short) {
    if (options_.allow_twins) return n;
    int const column = next_published(s, n);
    if (column < 0 || !is_findable(s, column)) return n;
    if (may_stop_short && choices_.one_in(2)) {
      ++happened_.stopped_short;
      return (column + 1) * drawn_.block_tokens - 1;
    }
    make_private(s, column);
    return n;
  }
  void make_private(Live& s, int column) {
    ++happened_.private_tokens;
    int const begin = std::max(committed(s), column * drawn_.block_tokens);
    int const position = choices_.between(begin, (column + 1) * drawn_.block_tokens - 1);
    set_tokens(s, position, {++last_private_});
  }

  // --------------------------------------------------------------- shrinking, forking, leaving

  void truncate() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const size = size_of(*s);
    int n = 0;
    switch (choices_.below(4)) {
      case 0: n = size - std::min(size, choices_.below(3)); break;
      case 1: n = committed(*s); break;
      case 2: n = size / drawn_.block_tokens * drawn_.block_tokens; break;
      default: n = choices_.between(0, size); break;
    }
    note("truncate ", s->uid, " to ", n);
    each([&](auto& side) { handle(side, *s).truncate(n); });
    s->tokens.resize(std::size_t(n));
  }
  void fork() {
    Live* const s = any_live();
    if (s == nullptr) return;
    if (choices_.one_in(2) && committed(*s) != size_of(*s)) {
      note("truncate ", s->uid, " to what is committed");
      int const n = committed(*s);
      each([&](auto& side) { handle(side, *s).truncate(n); });
      s->tokens.resize(std::size_t(n));
    }
    note("fork ", s->uid, " as ", ++last_uid_);
    std::size_t const slot = free_slot();
    Answer const got = both("fork", [&](auto& side) {
      auto forked = handle(side, *s).fork(SequenceId{last_uid_});
      if (!forked) return failed(forked);
      side.sequences[slot].emplace(std::move(*forked));
      return Answer{};
    });
    if (!got.ok()) return refused(got);
    auto child = std::make_unique<Live>(*s);
    child->slot = slot;
    child->uid = last_uid_;
    child->in_batch = false;
    child->query = {};
    live_.push_back(std::move(child));
    also_touched_ = live_.back().get();
  }
  void close() {
    if (live_.empty()) return;
    int const how = choices_.below(6);
    close(std::size_t(choices_.below(int(live_.size()))), how);
  }
  void close(std::size_t i, int how) {
    auto const s = std::move(live_[i]);
    live_.erase(live_.begin() + std::ptrdiff_t(i));
    note("close ", s->uid, how < 2 ? " (none)" : how == 2 ? " (resume)" : "");
    auto const row = known_by_oracle(*s).blocks();
    gone_.assign(row.begin(), row.end());
    s->tokens.resize(std::size_t(committed(*s)));
    if (choices_.one_in(3) && !s->tokens.empty()) remember_row(*s);
    each([&](auto& side) {
      using S = typename std::decay_t<decltype(side)>::System;
      auto& slot = side.sequences[s->slot];
      if (how < 3) std::move(*slot).finish(how < 2 ? S::Reuse::none : S::Reuse::resume);
      if (how == 3) std::move(*slot).finish(S::Reuse::likely);
      slot.reset();
    });
  }

  // ---------------------------------------------------------------------- pins, steps, upkeep

  void pin() {
    PromptPtr const prompt = choices_.one_in(16) ? prompt_of_long_salt() : make_prompt();
    note("pin ", text_of(prompt->tokens));
    std::size_t slot = 0;
    while (oracle_.pins[slot].has_value()) ++slot;
    Answer const got = both("pin", [&](auto& side) {
      using S = typename std::decay_t<decltype(side)>::System;
      auto pinned = side.cache->pin(prompt->template key<S>());
      if (!pinned) return failed(pinned);
      side.pins[slot].emplace(std::move(*pinned));
      return Answer{-1, side.pins[slot]->num_tokens(), 0};
    });
    if (!got.ok()) return refused(got);
    both_lists("blocks of a pin", [&](auto& side) {
      for (auto const b : side.pins[slot]->blocks()) put(side.words, b.value());
    });
  }
  void unpin() {
    std::size_t const slot = std::size_t(choices_.below(int(oracle_.pins.size())));
    if (!oracle_.pins[slot].has_value()) return;
    note("unpin");
    each([&](auto& side) { side.pins[slot].reset(); });
  }
  void take_copies() {
    note("take_copies");
    both_lists("copies", [&](auto& side) {
      for (auto const& c : side.cache->take_copies()) {
        put(side.words, c.src.value(), c.dst.value(), c.num_tokens);
      }
    });
  }
  void evict() {
    std::vector<BlockId> blocks;
    for (int n = choices_.between(1, 4); n > 0; --n) {
      bool const known = !gone_.empty() && choices_.one_in(2);
      blocks.push_back(known ? choices_.pick(gone_) : BlockId{choices_.below(drawn_.num_blocks)});
    }
    note("evict ", blocks.size(), " blocks from ", blocks[0].value());
    both("evict", [&](auto& side) { return std::int64_t{side.cache->evict(blocks)}; });
  }
  void reset() {
    if (!choices_.one_in(4)) return;
    note("reset");
    each([&](auto& side) { side.cache->reset(); });
    ++epoch_;
  }
  void end_step() {
    note("end_step");
    both("end_step", [&](auto& side) { return std::int64_t(side.cache->end_step().value()); });
  }
  void reclaim() {
    std::uint64_t const open = oracle_.cache->open_tick().value();
    if (open == 1) return;
    // Old ticks again, and ticks skipped over, are both fine.
    auto const back = std::uint64_t(choices_.below(4));
    Tick const tick{open - 1 > back ? open - 1 - back : 1};
    note("reclaim ", tick.value());
    each([&](auto& side) { side.cache->reclaim(tick); });
  }

  // ---------------------------------------------------------------------------------- the batch

  void batch_verb() {
    switch (choices_.below(16)) {
      case 0:
      case 1:
      case 2: return begin_batch();
      case 3: return remove_from_batch();
      case 4:
      case 5:
      case 6:
      case 7: return build();
      case 8:
      case 9: return commit_batch();
      case 10: return copy_table();
      default: return add_to_batch();
    }
  }
  void begin_batch() {
    note("batch: begin_step");
    each([](auto& side) { side.batch->begin_step(); });
    for (auto& live : live_) live->query = {};
    pad_sequences_ = 0;
  }
  void add_to_batch() {
    Live* const s = any_live();
    if (s == nullptr) return;
    int const size = size_of(*s);
    int const end = choices_.one_in(4) ? choices_.between(0, size) : size;
    int first = std::min(end, committed(*s));
    if (choices_.one_in(6)) first = choices_.between(0, end);
    add_to_batch(*s, {first, end - first});
  }
  void add_to_batch(Live& s, TokenRange query) {
    note("batch: add ", s.uid, " [", query.first, ", ", query.end(), ")");
    Answer const got = both("batch: add", [&](auto& side) {
      auto const row = side.batch->add(handle(side, s), query);
      return row ? Answer{-1, *row, 0} : failed(row);
    });
    if (!got.ok()) return refused(got);
    s.in_batch = true;
    s.query = query;
  }
  void remove_from_batch() {
    Live* const s = any_live();
    if (s == nullptr) return;
    remove_from_batch(*s);
  }
  void remove_from_batch(Live& s) {
    note("batch: remove ", s.uid);
    both("batch: remove",
         [&](auto& side) { return std::int64_t{side.batch->remove(handle(side, s))}; });
    s.in_batch = false;
    s.query = {};
  }
  /// What was truncated since it was added is added again, as far as it goes.
  void add_truncated_again() {
    for (auto& s : live_) {
      if (s->query.count == 0 || s->query.end() <= size_of(*s)) continue;
      int const first = std::min(s->query.first, size_of(*s));
      add_to_batch(*s, {first, size_of(*s) - first});
      if (s->query.end() > size_of(*s)) remove_from_batch(*s);
    }
  }
  void build() {
    add_truncated_again();
    if (choices_.one_in(3)) {
      int const tokens = oracle_.batch->num_tokens() + choices_.below(4);
      pad_sequences_ = oracle_.batch->num_sequences() + choices_.below(3);
      each([&](auto& side) { side.batch->pad_to(tokens, pad_sequences_); });
    }
    constexpr int left_out = -1'000'000;
    std::array<int, 11> extra{};
    for (int& e : extra) e = choices_.one_in(10) ? left_out : 1;
    if (choices_.one_in(6)) extra[std::size_t(choices_.below(11))] = -1;
    note("batch: build");
    ++happened_.builds;
    both_lists("batch: build", [&](auto& side) {
      using S = typename std::decay_t<decltype(side)>::System;
      auto const need = side.batch->required();
      put_step(side.words, need);
      Arrays<S> arrays(need, [&](int i) { return extra[std::size_t(i)]; });
      auto const step = side.batch->build(arrays.buffers());
      put(side.words, step.has_value());
      step ? put_step(side.words, *step) : put(side.words, step.error());
      arrays.put_all(side.words);
    });
  }
  void commit_batch() {
    // Every query's tokens must be known.
    for (auto const& s : live_) {
      if (s->query.count > 0 && s->query.end() > known(*s)) return begin_batch();
    }
    take_copies();
    if (!options_.allow_twins) avoid_twins_of_batch();
    note("batch: commit");
    each([](auto& side) { side.batch->commit(); });
  }
  /// Nor may two of its sequences publish the same content.
  void avoid_twins_of_batch() {
    std::vector<std::pair<Live*, int>> publishing;
    for (auto& s : live_) {
      if (s->query.count == 0) continue;
      (void)avoid_twin(*s, s->query.end(), false);
      int const column = next_published(*s, s->query.end());
      if (column < 0) continue;
      auto const same = [&](auto const& other) {
        auto const n = std::ptrdiff_t(column + 1) * drawn_.block_tokens;
        return other.second == column &&
               std::equal(s->tokens.begin(), s->tokens.begin() + n, other.first->tokens.begin());
      };
      if (std::any_of(publishing.begin(), publishing.end(), same)) make_private(*s, column);
      publishing.emplace_back(s.get(), column);
    }
  }
  /// A step as an engine does it: each sequence gets some tokens, then the next step is open.
  void serve() {
    note("serve");
    begin_batch();
    int const chunk = choices_.one_in(4) ? drawn_.block_tokens + 1 : 1;
    for (auto& s : live_) {
      if (choices_.one_in(8)) continue;
      if (known(*s) == size_of(*s)) append(*s, chunk);
      int const end = known(*s);
      add_to_batch(*s, {committed(*s), end - committed(*s)});
    }
    compare();
    build();
    compare();
    commit_batch();
    compare();
    end_step();
  }
  void copy_table() {
    if (drawn_.batch_width != 0) return;  // rows may have outgrown it
    add_truncated_again();
    note("batch: copy_table");
    int const rows = std::max(pad_sequences_, drawn_.batch_sequences) + choices_.below(2);
    both_lists("batch: copy_table", [&](auto& side) {
      std::vector<std::int32_t> out(std::size_t(rows) * std::size_t(side.batch->table_width()));
      side.batch->copy_table(out);
      side.words.assign(out.begin(), out.end());
      if (side.batch->num_sequences() == 0) return;
      std::vector<std::int32_t> row(std::size_t(side.batch->table_width()));
      side.batch->copy_row(side.batch->num_sequences() - 1, row);
      side.words.insert(side.words.end(), row.begin(), row.end());
    });
  }

  // ------------------------------------------------------------------------------------ the end

  /// Everything is given back; then, in some programs, the order in which blocks go is looked at.
  void finish() {
    finishing_ = true;
    touched_ = also_touched_ = nullptr;
    choices_.begin_step();
    bool const drained = !choices_.one_in(3);
    while (!live_.empty()) {
      close(choices_.one_in(2) ? live_.size() - 1 : 0, choices_.below(6));
      compare();
    }
    for (std::size_t i = 0; i < oracle_.pins.size(); ++i) {
      each([&](auto& side) { side.pins[i].reset(); });
    }
    take_copies();
    end_step();
    Tick const last{oracle_.cache->open_tick().value() - 1};
    each([&](auto& side) { side.cache->reclaim(last); });
    if (drained) drain();
    compare();
    compare_all();
  }
  /// Takes all blocks, few at a time.
  void drain() {
    note("drain");
    PromptPtr const empty = make_prompt({}, std::make_shared<Extras const>());
    Opening unread;
    unread.read = false;
    for (int i = 0; i < drawn_.max_sequences; ++i) {
      auto const slot = std::size_t(i);
      both("open", [&](auto& side) { return open_on(side, *empty, unread, slot); });
      for (bool more = true; more;) {
        int const most = drawn_.num_blocks > 80 ? 70 : 2;
        int const n = drawn_.block_tokens * choices_.between(1, most);
        more = both("reserve", [&](auto& side) {
                 return answer(side.sequences[slot]->reserve(n));
               }).ok();
        happened_.drained += more ? n / drawn_.block_tokens : 0;
        compare_events();
      }
      compare_row(slot);
    }
    compare_blocks();
    each([](auto& side) {
      for (auto& s : side.sequences) s.reset();
    });
  }

  // ---------------------------------------------------------------------------------- comparing

  void refused(Answer const& got) {
    ++happened_.refused;
    note(" -> ", text(got));
  }
  void compare() {
    compare_events();
    compare_numbers();
    std::int64_t const n = happened_.steps;
    bool const small = drawn_.num_blocks <= 600;
    for (Live const* s : {touched_, also_touched_}) {
      if (s == nullptr || !is_live(s)) continue;
      compare_row(s->slot);
      compare_sequence(*s);
      if (!small) compare_blocks_of(*s);
    }
    touched_ = also_touched_ = nullptr;
    if (small || n % 64 == 0) compare_rows();
    if (small || n % 64 == 0) compare_blocks();
    if (n % (small ? 16 : 256) == 0) compare_all();
    if (!options_.allow_twins && oracle_.cache->stats().twin_blocks != 0) {
      mismatch("the program itself is wrong: it was to draw no twins");
    }
  }
  bool is_live(Live const* s) const {
    return std::any_of(live_.begin(), live_.end(), [&](auto const& l) { return l.get() == s; });
  }
  void compare_all() {
    compare_rows();
    compare_blocks();
    for (auto const& live : live_) compare_sequence(*live);
    if (char const* const rule = Library::broken(*library_.cache)) mismatch("verify: ", rule);
  }
  void compare_events() {
    Words& got = library_.recorder.words;
    Words& want = oracle_.recorder.words;
    compare_words("events", got, want);
    happened_.events += want.empty() ? 0 : 1;
    got.clear();
    want.clear();
  }
  void compare_numbers() {
    auto const got = counters(library_.cache->stats());
    auto const want = counters(oracle_.cache->stats());
    for (std::size_t i = 0; i < num_counters; ++i) {
      if (got[i] == want[i]) continue;
      mismatch("stats: ", counter_names[i], " is ", got[i], ", version 0.1 says ", want[i]);
    }
    both("available and incoming", [](auto& side) {
      return Answer{-1, side.cache->available_blocks(), side.cache->incoming_blocks()};
    });
    both("open tick", [](auto& side) { return std::int64_t(side.cache->open_tick().value()); });
    if (!drawn_.batched) return;
    both("batch: sequences and tokens", [](auto& side) {
      return Answer{-1, side.batch->num_sequences(), side.batch->num_tokens()};
    });
    for (auto const& s : live_) {
      both("batch: row of a sequence",
           [&](auto& side) { return std::int64_t{side.batch->row_of(handle(side, *s))}; });
    }
  }
  void compare_rows() {
    for (auto const& live : live_) compare_row(live->slot);
  }
  void compare_row(std::size_t slot) {
    auto const& got = *library_.sequences[slot];
    auto const& want = *oracle_.sequences[slot];
    auto const a = got.blocks();
    auto const b = want.blocks();
    if (got.size() == want.size() && got.committed() == want.committed() &&
        got.cached() == want.cached() && got.external_tokens() == want.external_tokens() &&
        got.num_blocks() == want.num_blocks() && got.id() == want.id() &&
        std::equal(a.begin(), a.end(), b.begin(), b.end())) {
      return;
    }
    both_lists("a row (id, size, committed, cached, external, blocks)", [&](auto& side) {
      auto const& s = *side.sequences[slot];
      put(side.words, s.id().value(), s.size(), s.committed(), s.cached(), s.external_tokens(),
          s.num_blocks());
      for (auto const block : s.blocks()) put(side.words, block.value());
    });
  }
  /// What takes longer: tokens, slots, and what is shared.
  void compare_sequence(Live const& s) {
    both("unshared blocks and tokens", [&](auto& side) {
      return Answer{-1, handle(side, s).unshared_blocks(), handle(side, s).unshared_tokens()};
    });
    int const size = size_of(s);
    int const from = std::max(0, size - 2 * drawn_.block_tokens - 1);
    for (int p = happened_.steps % 16 == 0 ? 0 : from; p < size; ++p) {
      both("token", [&](auto& side) { return std::int64_t{handle(side, s).token(p)}; });
    }
    if (happened_.steps % 16 != 0) return;
    both_lists("slots", [&](auto& side) {
      std::vector<Slot> slots(std::size_t(size - from));
      handle(side, s).slot_mapping({from, size - from}, slots);
      side.words.assign(slots.begin(), slots.end());
    });
  }
  void compare_blocks_of(Live const& s) {
    auto const row = known_by_oracle(s).blocks();
    for (BlockId const b : row.last(std::min<std::size_t>(row.size(), 8))) compare_block(b);
  }
  void compare_blocks() {
    for (int b = 0; b < drawn_.num_blocks; ++b) compare_block(BlockId{b});
  }
  void compare_block(BlockId b) {
    auto const& got = *library_.cache;
    auto const& want = *oracle_.cache;
    if (got.references(b) == want.references(b) && got.is_published(b) == want.is_published(b) &&
        got.generation(b) == want.generation(b) && got.is_in_flight(b) == want.is_in_flight(b)) {
      return;
    }
    mismatch("block ", b.value(), ": references ", got.references(b), ", published ",
             got.is_published(b), ", generation ", got.generation(b), ", in flight ",
             got.is_in_flight(b), "; version 0.1 says ", want.references(b), ", ",
             want.is_published(b), ", ", want.generation(b), ", ", want.is_in_flight(b));
  }

  // ------------------------------------------------------------------------------------ prompts

  PromptPtr make_prompt(Tokens tokens, std::shared_ptr<Extras const> extras) {
    auto prompt = std::make_shared<Prompt>();
    std::get<0>(prompt->keys).emplace(key_of(library_, tokens, *extras));
    std::get<1>(prompt->keys).emplace(key_of(oracle_, tokens, *extras));
    prompt->tokens = std::move(tokens);
    prompt->extras = std::move(extras);
    return prompt;
  }
  PromptPtr prompt_of_long_salt() {
    auto extras = std::make_shared<Extras>();
    extras->salt = std::string(std::size_t(choices_.between(34, 41)), 'x');
    return make_prompt(Tokens(std::size_t(choices_.between(0, drawn_.usual)), 1),
                       std::move(extras));
  }
  void remember(PromptPtr prompt) {
    if (prompts_.size() < 24) {
      prompts_.push_back(std::move(prompt));
    } else {
      prompts_[std::size_t(choices_.below(24))] = std::move(prompt);
    }
  }
  /// What a sequence had is a prompt to come. Media lie within their prompt: a row's own keys end
  /// with it.
  void remember_row(Live const& s) {
    auto extras = std::make_shared<Extras>(*s.extras);
    leave_out_beyond(*extras, size_of(s));
    remember(make_prompt(s.tokens, std::move(extras)));
  }
  static void leave_out_beyond(Extras& extras, int n) {
    std::erase_if(extras.media, [&](Media const& m) { return m.positions.end() > n; });
  }
  /// The very same prompt again, or the beginning of one, or of what a sequence has, and a tail.
  PromptPtr make_prompt() {
    if (!prompts_.empty() && choices_.one_in(4)) return choices_.pick(prompts_);
    Tokens tokens;
    auto extras = std::make_shared<Extras>();
    if (!live_.empty() && choices_.one_in(4)) {
      auto const& s = *live_[std::size_t(choices_.below(int(live_.size())))];
      tokens.assign(s.tokens.begin(), s.tokens.begin() + known_behind(s, 0));
      *extras = *s.extras;
    } else if (!prompts_.empty() && !choices_.one_in(6)) {
      auto const& prompt = *choices_.pick(prompts_);
      tokens = prompt.tokens;
      *extras = *prompt.extras;
    }
    cut(tokens, *extras);
    draw_tail(tokens);
    draw_extras(*extras, int(tokens.size()));
    if (tokens.empty() && !choices_.one_in(8)) tokens.push_back(0);
    PromptPtr prompt = make_prompt(std::move(tokens), std::move(extras));
    remember(prompt);
    return prompt;
  }
  void cut(Tokens& tokens, Extras& extras) {
    int n = std::min(int(tokens.size()), drawn_.longest);
    if (!choices_.one_in(3)) n = choices_.between(0, n);
    if (choices_.one_in(3)) n -= n % drawn_.block_tokens;
    tokens.resize(std::size_t(n));
    leave_out_beyond(extras, n);
  }
  /// Few draws a block: one token, and another one from somewhere on.
  void draw_tail(Tokens& tokens) {
    int const limit = choices_.one_in(24) ? drawn_.longest : drawn_.usual;
    int left = choices_.between(0, std::max(0, limit - int(tokens.size())));
    if (choices_.one_in(4)) left = std::min(left, choices_.below(drawn_.block_tokens + 1));
    while (left > 0) {
      int const n = std::min(left, choices_.between(1, drawn_.block_tokens));
      tokens.insert(tokens.end(), std::size_t(n), choices_.below(drawn_.alphabet));
      left -= n;
    }
  }
  void draw_extras(Extras& extras, int num_tokens) {
    static char const* const names[] = {"", "a", "b"};
    if (choices_.one_in(10)) {
      extras.salt = names[choices_.below(3)];
      extras.adapter = names[choices_.below(3)];
      extras.adapter_generation = std::uint64_t(choices_.below(2));
    }
    if (num_tokens == 0 || !extras.media.empty() || !choices_.one_in(12)) return;
    int const count = choices_.between(1, std::min(3, num_tokens));
    int const first = choices_.between(0, num_tokens - count);
    extras.media.push_back({{first, count}, std::string(1, char('p' + choices_.below(2)))});
  }

  Live* any_live() {
    if (live_.empty()) return nullptr;
    return touched_ = live_[std::size_t(choices_.below(int(live_.size())))].get();
  }

  template <class... Parts>
  void note(Parts const&... parts) {
    if (log != nullptr) log->push_back(join(happened_.steps, ": ", parts...));
  }
  std::string text_of(Tokens const& tokens) const {
    return log == nullptr ? std::string() : text_of_list(tokens);
  }
  std::string describe() const {
    Drawn const& d = drawn_;
    return join("block_tokens ", d.block_tokens, ", num_blocks ", d.num_blocks, ", max_sequences ",
                d.max_sequences, ", max_sequence_tokens ", d.max_sequence_tokens, ", max_pins ",
                d.max_pins, d.partial_hits ? ", partial hits of " : ", no partial hits of ",
                d.max_partial_candidates, d.deferred ? ", deferred" : "", d.adopt ? ", adopt" : "",
                d.observed ? "" : ", no observer", d.batched ? ", batch of " : ", no batch of ",
                d.batch_sequences, " by ", d.batch_tokens, " by ", d.batch_width);
  }

  Options options_;
  Choices choices_;
  Drawn drawn_;
  Side<Library> library_;
  Side<Oracle> oracle_;
  std::vector<std::unique_ptr<Live>> live_;
  std::vector<PromptPtr> prompts_;
  std::vector<BlockId> gone_;  ///< the row that was closed last
  Live* touched_ = nullptr;
  Live* also_touched_ = nullptr;
  std::uint64_t last_uid_ = 0;
  std::uint64_t epoch_ = 0;
  TokenId last_private_ = 1000;
  int pad_sequences_ = 0;
  bool finishing_ = false;
  Happened happened_;
};

}  // namespace pagedkv::testing::differential

// SPDX-License-Identifier: Apache-2.0
// What `Twins::keep` promises to an engine whose workers keep their own rows: new blocks come at
// the end, a truncation says so, a copy replaces the tail, and nothing else ever changes. Each slot
// remembers the text that was written to it; before a step computes, every position that it reads
// must hold its own text.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "choices.hpp"
#include "naive_keys.hpp"
#include "run_programs.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

namespace {

/// What a step says about one sequence.
struct Row {
  std::uint64_t id = 0;
  int keep = 0;           ///< leading blocks of what the worker has
  std::vector<int> more;  ///< after them
  kv::TokenRange query;
  std::vector<std::uint64_t> texts;  ///< of the positions up to the end of the query
};
struct Step {
  std::uint64_t tick = 0;
  std::vector<std::uint64_t> finished;
  std::vector<kv::BlockCopy> copies;
  std::vector<Row> rows;
};

/// Rows of its own, changed by messages alone.
class Worker {
 public:
  Worker(int num_blocks, int block_tokens, bool reads_again)
      : block_tokens_(block_tokens),
        reads_again_(reads_again),
        slots_(std::size_t(num_blocks) * std::size_t(block_tokens), 0) {}

  std::int64_t positions = 0;  ///< that were read

  void run(Step const& step) {
    for (auto const id : step.finished) rows_.erase(id);
    for (auto const& copy : step.copies) {
      for (int i = 0; i < copy.num_tokens; ++i) {
        at(copy.dst.value(), i) = at(copy.src.value(), i);
      }
    }
    for (Row const& message : step.rows) {
      auto& row = rows_[message.id];
      row.resize(std::size_t(message.keep));
      row.insert(row.end(), message.more.begin(), message.more.end());
      read(message, row);
      if (reads_again_) in_flight_.push_back({step.tick, message, row});
    }
    for (Row const& message : step.rows) write(message);
  }
  /// Steps up to `tick` are over: what they have read is what it was.
  void finish(std::uint64_t tick) {
    for (; !in_flight_.empty() && in_flight_.front().tick <= tick; in_flight_.pop_front()) {
      read(in_flight_.front().message, in_flight_.front().row);
    }
  }

 private:
  struct Read {
    std::uint64_t tick = 0;
    Row message;
    std::vector<int> row;
  };
  std::uint64_t& at(int block, int offset) {
    return slots_[std::size_t(block) * std::size_t(block_tokens_) + std::size_t(offset)];
  }
  void read(Row const& message, std::vector<int> const& row) {
    for (int p = 0; p < message.query.first; ++p) {
      int const block = row.at(std::size_t(p / block_tokens_));
      if (at(block, p % block_tokens_) != message.texts[std::size_t(p)]) {
        mismatch("sequence ", message.id, " reads another text at position ", p, ", block ", block);
      }
    }
    positions += message.query.first;
  }
  void write(Row const& message) {
    auto const& row = rows_[message.id];
    for (int p = message.query.first; p < message.query.end(); ++p) {
      at(row.at(std::size_t(p / block_tokens_)), p % block_tokens_) = message.texts[std::size_t(p)];
    }
  }

  int block_tokens_;
  bool reads_again_;
  std::vector<std::uint64_t> slots_;
  std::map<std::uint64_t, std::vector<int>> rows_;
  std::deque<Read> in_flight_;
};

struct Request {
  std::uint64_t id = 0;
  Tokens tokens;  ///< prompt and answer as far as it is known
  std::vector<std::uint64_t> texts;
  int length = 0;  ///< it ends there
  std::uint64_t salt = 0;
  std::optional<kv::Sequence> sequence;
  int accepted = 0;  ///< positions that stay
  int end = 0;       ///< positions after the open step
  int sent = 0;      ///< blocks that the worker has
  bool drafts = false;
  bool added = false;
};

class Engine {
 public:
  Engine(kv::Twins twins, kv::Reclaim reclaim, std::uint64_t seed)
      : choices_(Choices::from_seed(seed)),
        config_(configure(twins, reclaim)),
        cache_(config_),
        batch_(cache_, {.max_sequences = config_.max_sequences,
                        .max_tokens = config_.max_sequences * config_.max_sequence_tokens}),
        worker_(config_.num_blocks, config_.block_tokens, reads_again_) {}

  std::int64_t preemptions = 0;
  [[nodiscard]] std::int64_t positions() const { return worker_.positions; }
  [[nodiscard]] kv::Stats stats() const { return cache_.stats(); }

  void run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) step();
    for (auto& r : running_) finish(*r, kv::Reuse::likely);
  }

 private:
  kv::KvCacheConfig configure(kv::Twins twins, kv::Reclaim reclaim) {
    kv::KvCacheConfig c;
    c.block_tokens = choices_.between(1, 5);
    c.num_blocks = choices_.between(24, 160);
    c.max_sequences = choices_.between(4, 24);
    c.max_sequence_tokens = c.block_tokens * (c.num_blocks / 2);
    c.reclaim = reclaim;
    c.twins = twins;
    c.partial_hits = choices_.one_in(2);
    lag_ = choices_.between(1, 2);
    reads_again_ = reclaim == kv::Reclaim::deferred && choices_.one_in(2);
    alphabet_ = choices_.between(1, 3);
    return c;
  }

  // ----------------------------------------------------------------------------------- requests

  std::unique_ptr<Request> make_request() {
    auto r = std::make_unique<Request>();
    int const bt = config_.block_tokens;
    int const longest = config_.max_sequence_tokens / 2;
    if (!texts_.empty() && !choices_.one_in(4)) {
      r->tokens = choices_.pick(texts_);
      int const keep = choices_.between(1, int(r->tokens.size()));
      if (choices_.one_in(2)) r->tokens.resize(std::size_t(std::max(keep - keep % bt, 1)));
    }
    int size = std::max(int(r->tokens.size()), choices_.between(1, longest));
    if (!choices_.one_in(3)) size = std::min(longest, (size + bt - 1) / bt * bt);
    int const token = choices_.below(alphabet_);
    while (int(r->tokens.size()) < size) r->tokens.push_back(token);
    if (int(r->tokens.size()) > longest) r->tokens.resize(std::size_t(longest));
    if (texts_.size() < 8) texts_.push_back(r->tokens);
    r->salt = choices_.one_in(4) ? 1 + std::uint64_t(choices_.below(3)) : 0;  // else greedy
    r->length = std::min(config_.max_sequence_tokens - 4,
                         int(r->tokens.size()) + choices_.between(1, 6 * bt));
    r->id = ++last_id_;
    return r;
  }
  /// The next token of the answer: equal texts go on alike, except those that are sampled.
  void say(Request& r) const {
    std::uint64_t const text = mix(r.tokens.size() / 3, std::uint64_t(r.tokens.back()));
    r.tokens.push_back(kv::TokenId(mix(text, r.salt) % std::uint64_t(alphabet_)));
  }
  static void name_texts(Request& r) {
    while (r.texts.size() < r.tokens.size()) {
      std::uint64_t const before = r.texts.empty() ? 1 : r.texts.back();
      r.texts.push_back(mix(before, std::uint64_t(r.tokens[r.texts.size()]) + 1));
    }
  }

  // -------------------------------------------------------------------------------------- steps

  void step() {
    batch_.begin_step();
    message_ = Step{};
    message_.tick = cache_.open_tick().value();
    message_.finished = std::exchange(finished_, {});
    while (choices_.one_in(2) && waiting_.size() < 4) waiting_.push_back(make_request());
    admit();
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!choices_.one_in(6)) schedule(i);
    }
    send();
    for (auto& r : running_) settle(*r);
    std::erase_if(running_, [](auto const& r) { return !r->sequence; });
    end_step();
  }
  void admit() {
    while (!waiting_.empty() && int(running_.size()) < config_.max_sequences) {
      Request& r = *waiting_.front();
      name_texts(r);
      auto opened = cache_.open(kv::SequenceId{r.id}, cache_.hash(r.tokens),
                                {.reserve = int(r.tokens.size()), .resumed = r.accepted > 0});
      if (!opened) return;
      r.sequence.emplace(std::move(*opened));
      r.accepted = r.sequence->cached();
      r.sent = 0;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      if (choices_.one_in(6)) branch(*running_.back());
    }
  }
  /// A second sample of a prompt that is cached as a whole, except its last token.
  void branch(Request& from) {
    if (int(running_.size()) == config_.max_sequences || from.accepted == 0) return;
    from.sequence->truncate(from.accepted);
    auto forked = from.sequence->fork(kv::SequenceId{last_id_ + 1});
    if (!forked) return;
    auto r = std::make_unique<Request>();
    r->id = ++last_id_;
    r->tokens = from.tokens;
    r->length = from.length;
    r->salt = 1 + std::uint64_t(choices_.below(3));
    r->accepted = from.accepted;
    r->sequence.emplace(std::move(*forked));
    name_texts(*r);
    running_.push_back(std::move(r));
  }

  /// One more chunk or token of it; others are preempted for that.
  void schedule(std::size_t i) {
    Request& r = *running_[i];
    if (!r.sequence) return;
    int const first = r.accepted;
    if (first == int(r.tokens.size())) say(r);
    name_texts(r);
    r.end = choices_.one_in(3) ? choices_.between(first + 1, int(r.tokens.size()))
                               : int(r.tokens.size());
    int const more = r.end - r.sequence->size();
    if (more > 0 && !grow(i, more)) return;
    auto const row = batch_.add(*r.sequence, {first, r.end - first});
    expect(row.has_value(), "the batch has room");
    r.added = true;
  }
  bool grow(std::size_t i, int more) {
    Request& r = *running_[i];
    int const size = r.sequence->size();
    // Drafts now and then: positions that will be rejected.
    r.drafts = choices_.one_in(6) && r.sequence->would_fit(more + 2);
    for (std::size_t victim = running_.size(); !r.sequence->would_fit(more);) {
      if (r.sequence->blocks_needed(more) <= cache_.available_blocks() + cache_.incoming_blocks()) {
        return false;
      }
      do {
        if (victim-- == 0) return false;
      } while (victim == i || !running_[victim]->sequence);
      preempt(*running_[victim]);
    }
    Tokens ids(r.tokens.begin() + size, r.tokens.begin() + size + more);
    if (r.drafts) ids.resize(ids.size() + 2, 0);
    expect(r.sequence->append(ids).has_value(), "what fits can be appended");
    // The tail may be another block now: a copy of what it was.
    r.sent = std::min(r.sent, size / config_.block_tokens);
    return true;
  }
  void preempt(Request& r) {
    ++preemptions;
    if (std::exchange(r.added, false)) batch_.remove(*r.sequence);
    auto again = std::make_unique<Request>();
    again->id = ++last_id_;
    again->tokens = r.tokens;
    again->length = r.length;
    again->salt = r.salt;
    again->accepted = r.accepted;
    finish(r, kv::Reuse::resume);
    waiting_.push_front(std::move(again));
  }
  void finish(Request& r, kv::Reuse reuse) {
    finished_.push_back(r.id);
    std::move(*r.sequence).finish(reuse);
    r.sequence.reset();
  }

  void send() {
    kv::BatchStep const need = batch_.required();
    message_.copies.resize(std::size_t(need.num_copies));
    kv::BatchBuffers buffers;
    buffers.copies = message_.copies;
    expect(batch_.build(buffers).has_value(), "the batch is built");
    if (need.num_copies == 0) expect(cache_.take_copies().empty(), "copies are counted");
    for (auto& r : running_) {
      if (!r->added) continue;
      Row row{r->id, r->sent, {}, {r->accepted, r->end - r->accepted}, r->texts};
      auto const blocks = r->sequence->blocks();
      for (auto const b : blocks.subspan(std::size_t(r->sent))) row.more.push_back(b.value());
      r->sent = int(blocks.size());
      message_.rows.push_back(std::move(row));
    }
    queue_.push_back(std::move(message_));
  }
  /// After the step is enqueued: its positions are final, its drafts are rejected.
  void settle(Request& r) {
    if (!r.sequence || !std::exchange(r.added, false)) return;
    r.accepted = r.end;
    r.sequence->commit(r.accepted);
    if (std::exchange(r.drafts, false)) {
      r.sequence->truncate(r.accepted);
      r.sent = std::min(r.sent, r.sequence->num_blocks());
    }
    bool const done = int(r.tokens.size()) >= r.length && r.accepted == int(r.tokens.size());
    if (done || choices_.one_in(40)) finish(r, kv::Reuse::likely);
  }
  /// The worker runs steps late, or at once and reads again before a step is reclaimed.
  void end_step() {
    std::uint64_t const tick = cache_.end_step().value();
    bool const behind = !reads_again_ && tick <= std::uint64_t(lag_);
    if (!behind) worker_.run(queue_.front());
    if (!behind) queue_.pop_front();
    if (config_.reclaim == kv::Reclaim::stream_ordered || tick <= std::uint64_t(lag_)) return;
    std::uint64_t const over = tick - std::uint64_t(lag_);
    if (reads_again_) worker_.finish(over);
    cache_.reclaim(kv::Tick{over});
  }

  Choices choices_;
  int lag_ = 1;
  bool reads_again_ = false;  ///< else it computes late
  int alphabet_ = 2;
  kv::KvCacheConfig config_;
  kv::KvCache cache_;
  kv::Batch batch_;
  Worker worker_;
  Step message_;
  std::deque<Step> queue_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;
  std::vector<std::uint64_t> finished_;
  std::vector<Tokens> texts_;
  std::uint64_t last_id_ = 0;
};

constexpr int steps_of_one = 120;

struct Outcome {
  std::int64_t steps = 0;
  std::int64_t positions = 0;  ///< that were read
  std::uint64_t last_seed = 0;
  std::string mismatch;
};

Outcome run_engines(kv::Twins twins, kv::Reclaim reclaim, RunLimits const& limits) {
  ThrowOnMisuse const guard;
  Clock const clock;
  Outcome out;
  std::int64_t preemptions = 0;
  kv::Stats sum;
  for (std::uint64_t seed = limits.first_seed;
       out.steps < limits.steps && clock.seconds() < limits.seconds; ++seed) {
    out.last_seed = seed;
    Engine engine(twins, reclaim, seed);
    try {
      engine.run(steps_of_one);
    } catch (Mismatch const& m) {
      out.mismatch = join("seed ", seed, ": ", m.what());
      return out;
    }
    out.steps += steps_of_one;
    out.positions += engine.positions();
    preemptions += engine.preemptions;
    add(sum, engine.stats());
  }
  std::printf(
      "%lld positions read; %lld hit blocks, %lld twins, %lld moves, %lld preemptions, %lld "
      "copies\n",
      static_cast<long long>(out.positions), static_cast<long long>(sum.hit_blocks),
      static_cast<long long>(sum.twin_blocks), static_cast<long long>(sum.moved_blocks),
      static_cast<long long>(preemptions), static_cast<long long>(sum.copies));
  return out;
}

void check_engines(char const* name, kv::Reclaim reclaim) {
  RunLimits const limits = RunLimits::from_environment(3);
  auto const out = run_engines(kv::Twins::keep, reclaim, limits);
  print_run(name, out.steps, limits.first_seed, out.last_seed, !out.mismatch.empty());
  CHECK(out.mismatch == "");
  if (out.steps >= 6'000) CHECK(out.positions >= 1'000'000);
}

}  // namespace

TEST_CASE("Twins::keep: a worker that is told of appends only reads the right text") {
  check_engines("worker, stream_ordered", kv::Reclaim::stream_ordered);
}
TEST_CASE("Twins::keep: a worker that is told of appends only, with steps in flight") {
  check_engines("worker, deferred", kv::Reclaim::deferred);
}
TEST_CASE("Twins::adopt: a worker that is told of appends only reads another text") {
  RunLimits const limits{.steps = 20'000};
  CHECK(run_engines(kv::Twins::adopt, kv::Reclaim::stream_ordered, limits).mismatch != "");
  CHECK(run_engines(kv::Twins::adopt, kv::Reclaim::deferred, limits).mismatch != "");
}

// SPDX-License-Identifier: Apache-2.0
// Speculative decoding by an engine that keeps two steps in flight: while the device verifies one
// step's drafts, the next step is already on its way, built on the hope that all are right. When
// they aren't, `truncate` drops what was built on them, although the device still writes there:
// with Reclaim::deferred no other sequence gets these blocks before `reclaim` says that the last
// step that uses them is over. Which step that is, a `Batch` tells the cache; here `used_by` does.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;

constexpr int block_tokens = 4;
constexpr int num_blocks = 64;
constexpr int num_drafts = 6;

// The model, and a cheap guess at it that is wrong now and then.
kv::TokenId model(kv::TokenId t) { return (t * 31 + 7) % 1009; }
kv::TokenId guess(kv::TokenId t) { return t % 11 == 0 ? 0 : model(t); }

struct Step {
  kv::Tick tick;
  kv::TokenRange range;
  std::vector<kv::TokenId> tokens;
  std::vector<kv::Slot> slots;
  bool dropped = false;  // built on a draft that was wrong: its result is ignored
};

int main() {
  kv::KvCache cache{{.block_tokens = block_tokens,
                     .num_blocks = num_blocks,
                     .max_sequences = 1,
                     .max_sequence_tokens = 256,
                     .reclaim = kv::Reclaim::deferred}};
  std::vector<kv::TokenId> rows(std::size_t{num_blocks} * block_tokens);  // the device's memory
  std::deque<Step> in_flight;

  auto seq = cache.open(kv::SequenceId{1}, std::vector<kv::TokenId>{5}, {.reserve = 1});
  if (!seq) return 1;
  seq->commit(1);

  // Queues a step: `first`, then drafts that follow from it. Returns what to hope for next.
  auto const launch = [&](kv::TokenId first) {
    Step step;
    for (int i = 0; i < num_drafts; ++i, first = guess(first)) step.tokens.push_back(first);
    step.range = seq->append(step.tokens).value();
    step.slots.resize(step.tokens.size());
    seq->slot_mapping(step.range, step.slots);
    seq->used_by(cache.open_tick());
    step.tick = cache.end_step();  // enqueued; committed once its drafts are verified
    in_flight.push_back(step);
    return first;
  };
  int wrong = 0, most_incoming = 0;
  for (kv::TokenId next = model(5); seq->committed() < 200;) {
    next = launch(next);
    if (in_flight.size() < 2) continue;

    // The device ends the older step: its rows are written, its drafts verified.
    Step const done = in_flight.front();
    in_flight.pop_front();
    for (std::size_t i = 0; i < done.slots.size(); ++i) {
      rows[static_cast<std::size_t>(done.slots[i])] = done.tokens[i];
    }
    cache.reclaim(done.tick);
    if (done.dropped) continue;

    int end = done.range.first;
    while (end < done.range.end() && seq->token(end) == model(seq->token(end - 1))) ++end;
    if (end < done.range.end()) {  // forget the rest of this step, and the step that builds on it
      seq->truncate(end);
      in_flight.front().dropped = true;
      next = model(seq->token(end - 1));
      ++wrong;
    }
    seq->commit(end);
    most_incoming = std::max(most_incoming, cache.incoming_blocks());
  }
  std::printf("%d tokens; %d times a draft was wrong\n", seq->committed(), wrong);
  std::printf("at most %d dropped blocks waited for a step in flight\n", most_incoming);

  // Every final position holds the row of its token, though dropped steps wrote here and there.
  for (int p = 1; p < seq->committed(); ++p) {
    kv::Slot slot = 0;
    seq->slot_mapping({p, 1}, {&slot, 1});
    auto const row = rows[static_cast<std::size_t>(slot)];
    if (row != seq->token(p) || row != model(seq->token(p - 1))) return 1;
  }
  std::move(*seq).finish(kv::Reuse::likely);
  int const waiting = cache.incoming_blocks();
  cache.reclaim(cache.end_step());
  int const left = cache.incoming_blocks();
  std::printf("finished: %d blocks wait; %d after the last step\n", waiting, left);
  return most_incoming > 0 && waiting > 0 && left == 0 && wrong > 0 ? 0 : 1;
}

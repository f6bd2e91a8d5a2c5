// SPDX-License-Identifier: Apache-2.0
// A user closes the window in the middle of an answer. Cancelling is destroying the handle: its
// blocks are back at once, and the request that waited for them starts.
#include <cstdio>
#include <map>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;

void show(char const* when, kv::Stats const& s) {
  std::printf("%-34s used %2d, idle %2d, free %2d, requests %d\n", when, s.used, s.idle, s.free,
              s.sequences);
}

int main() {
  kv::KvCache cache{
      {.block_tokens = 16, .num_blocks = 32, .max_sequences = 8, .max_sequence_tokens = 512}};
  // Running requests. Erasing an entry ends its request, wherever it stands.
  std::map<int, kv::Sequence> running;

  auto const start = [&](int request) -> kv::Result<void> {
    std::vector<kv::TokenId> const prompt(160, request);
    auto seq = cache.open(kv::SequenceId{static_cast<unsigned>(request)}, prompt, {.reserve = 160});
    if (!seq) return kv::Unexpected{seq.error()};
    seq->commit(seq->size());
    running.emplace(request, *std::move(seq));
    return {};
  };
  auto const generate = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      for (auto& [request, seq] : running) {
        std::vector<kv::TokenId> const token{request * 1000 + i};
        if (!seq.append(token)) return false;
        seq.commit(seq.size());
      }
      cache.end_step();
    }
    return true;
  };

  if (!start(1) || !start(2) || !generate(40)) return 1;
  show("two requests, 40 tokens each:", cache.stats());

  auto const refused = start(3);
  if (refused) return 1;
  std::printf("request 3 (10 blocks): %s\n", kv::to_string(refused.error()));

  // Cancelled between two steps, with a position reserved for a token that never comes.
  if (!running.at(1).reserve(1)) return 1;
  auto const held = running.at(1).unshared_blocks();
  auto const before = cache.stats();
  running.erase(1);
  auto const after = cache.stats();
  show("request 1 cancelled:", after);
  std::printf("%d blocks back; %d of them hold its finished blocks, still findable\n",
              before.used - after.used, after.idle);
  bool holds = before.used - after.used == held && after.sequences == 1;

  holds = holds && start(3).has_value() && generate(8);
  show("request 3 started:", cache.stats());

  running.clear();
  auto const end = cache.stats();
  show("all cancelled:", end);
  holds = holds && end.used == 0 && end.free + end.idle == end.num_blocks;
  return holds && static_cast<bool>(cache.verify()) ? 0 : 1;
}

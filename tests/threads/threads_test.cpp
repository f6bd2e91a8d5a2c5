// SPDX-License-Identifier: Apache-2.0
// Contract 18. Says most under the thread sanitizer.
#include <atomic>
#include <thread>

#include "../contract/contract_support.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using kv::SequenceId;

TEST_CASE("contract 18: const calls of one cache run together") {
  auto config = small_pool(64);
  config.partial_hits = true;
  kv::KvCache cache(config);
  leave_cached(cache, 1, count_from(0, 40));
  auto const seq = started(cache, 2, count_from(100, 30));
  auto const shared_key = cache.hash(count_from(0, 38));
  std::atomic<int> wrong = 0;
  auto const ask = [&](int thread) {
    for (int i = 0; i < 200; ++i) {
      auto const own_key = cache.hash(count_from(0, 9 + thread));
      bool ok = cache.match(shared_key) == 37 && cache.match(own_key) == 8 + thread;
      ok = ok && cache.would_fit(shared_key, {.reserve = 60});
      ok = ok && cache.admission(own_key).cached_tokens == 8 + thread;
      ok = ok && cache.stats().idle == 10 && bool(cache.verify());
      ok = ok && seq.would_fit(4) && seq.unshared_tokens() == 30 && seq.token(3) == 103;
      std::vector<kv::Slot> slots(30);
      seq.slot_mapping({0, 30}, slots);
      ok = ok && slots[0] == kv::Slot{seq.blocks()[0].value()} * block_tokens;
      if (!ok) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(ask, t);
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("contract 18: caches on different threads have nothing in common") {
  std::atomic<int> wrong = 0;
  auto const live = [&](int thread) {
    kv::KvCache cache(small_pool(32));
    for (std::uint64_t round = 0; round < 200; ++round) {
      auto seq = cache.open(SequenceId{round}, count_from(thread * 1000, 20));
      if (!seq || !seq->append(count_from(thread * 1000 + seq->size(), 20 - seq->size()))) {
        ++wrong;
        continue;
      }
      (void)cache.take_copies();
      seq->commit(20);
      if (round > 0 && seq->cached() != 16) ++wrong;
      cache.end_step();
    }
    if (!cache.verify() || cache.stats().used != 0) ++wrong;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(live, t);
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

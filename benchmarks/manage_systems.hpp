// SPDX-License-Identifier: Apache-2.0
/// \file
/// The systems that the benchmarks of the manager run the same code over.
#pragma once

#include <cstdint>

#include <pagedkv/pagedkv.hpp>

#include "bench_support.hpp"
#include "naive_cache.hpp"
#include "pool_adapter.hpp"

namespace bench {

struct Paged {
  using Cache = kv::KvCache;
  using Batch = kv::Batch;
  using Pool = PagedPool;
};
struct Naive {
  using Cache = NaiveCache;
  using Batch = NaiveBatch;
  using Pool = NaivePool;
};

inline kv::KvCacheConfig config_of(std::int32_t num_blocks, std::int32_t running = 8,
                                   std::int32_t longest = long_prompt_tokens) {
  kv::KvCacheConfig config;
  config.block_tokens = block_tokens;
  config.num_blocks = num_blocks;
  config.max_sequences = running;
  config.max_sequence_tokens = longest;
  return config;
}

}  // namespace bench

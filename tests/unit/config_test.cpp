// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/config.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cache_helpers.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using kv::KvCacheConfig;
using kv::testing::contains_text;

namespace {

constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();

KvCacheConfig valid() {
  KvCacheConfig config;
  config.num_blocks = 8;
  return config;
}
/// What a cache says to this config; empty if it takes it.
std::string complaint(KvCacheConfig const& config) {
  try {
    kv::validate(config);
  } catch (kv::Error const& error) {
    return error.what();
  }
  return {};
}

struct Term {
  char const* name;
  std::int32_t KvCacheConfig::*member;
  std::int32_t bad;
  std::int32_t nearest;
};
std::vector<Term> const bad_terms{
    {"block_tokens", &KvCacheConfig::block_tokens, 0, 1},
    {"block_tokens", &KvCacheConfig::block_tokens, -16, 1},
    {"block_tokens", &KvCacheConfig::block_tokens, 65537, 65536},
    {"num_blocks", &KvCacheConfig::num_blocks, 0, 1},
    {"num_blocks", &KvCacheConfig::num_blocks, largest, largest - 1 - 64 - 17 * 256},
    {"max_sequences", &KvCacheConfig::max_sequences, 0, 1},
    {"max_sequences", &KvCacheConfig::max_sequences, (1 << 20) + 1, 1 << 20},
    {"max_sequence_tokens", &KvCacheConfig::max_sequence_tokens, 0, 1},
    {"max_sequence_tokens", &KvCacheConfig::max_sequence_tokens, largest, largest - 65536},
    {"max_pins", &KvCacheConfig::max_pins, -1, 0},
    {"max_pins", &KvCacheConfig::max_pins, (1 << 20) + 1, 1 << 20},
    {"max_extra_key_bytes", &KvCacheConfig::max_extra_key_bytes, -1, 0},
    {"max_extra_key_bytes", &KvCacheConfig::max_extra_key_bytes, 65536, 65535},
    {"max_partial_candidates", &KvCacheConfig::max_partial_candidates, 0, 1},
};

}  // namespace

TEST_CASE("config: a term that can't work is named with its value and the nearest that does") {
  for (Term const& term : bad_terms) {
    auto config = valid();
    config.*term.member = term.bad;
    auto const message = complaint(config);
    CAPTURE(term.name, term.bad, message);
    CHECK_THAT(message, contains_text("KvCacheConfig." + std::string(term.name) + " = " +
                                      std::to_string(term.bad) + ":"));
    CHECK_THAT(message,
               contains_text("nearest value that works is " + std::to_string(term.nearest)));
    // And it does; one step back towards the bad one doesn't.
    config.*term.member = term.nearest;
    CHECK(complaint(config).empty());
    config.*term.member = term.nearest + (term.bad < term.nearest ? -1 : 1);
    CHECK_FALSE(complaint(config).empty());
  }
}

TEST_CASE("config: the defaults need nothing but a pool size") {
  CHECK_THAT(complaint({}), contains_text("KvCacheConfig.num_blocks = 0"));
  CHECK(complaint(valid()).empty());
}

TEST_CASE("config: defaults that the documentation promises") {
  KvCacheConfig const config;
  CHECK(config.block_tokens == 16);
  CHECK(config.max_sequences == 256);
  CHECK(config.max_sequence_tokens == 32768);
  CHECK(config.max_extra_key_bytes == 64);
  CHECK(config.reclaim == kv::Reclaim::stream_ordered);
  CHECK(config.twins == kv::Twins::keep);
  CHECK_FALSE(config.partial_hits);
  CHECK(config.max_partial_candidates == 4);
  CHECK(config.observer == nullptr);
  // Contract 15: runs repeat unless the config has another seed.
  CHECK(config.hash_seed == 0x9E3779B97F4A7C15ULL);
}

TEST_CASE("config: the cache refuses what validate refuses") {
  KvCacheConfig config = valid();
  config.block_tokens = 0;
  CHECK_THROWS_AS(kv::KvCache(config), kv::Error);
  kv::KvCache const cache(valid());
  CHECK(cache.config().num_blocks == 8);
}

TEST_CASE("config: a table is no wider than the pool or the longest sequence") {
  KvCacheConfig config = valid();
  config.max_sequence_tokens = 33;
  CHECK(kv::KvCache(config).table_width() == 3);
  config.max_sequence_tokens = 32768;
  CHECK(kv::KvCache(config).table_width() == 8);
}

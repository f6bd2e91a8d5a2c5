// SPDX-License-Identifier: Apache-2.0
// What the other files' requests are like: without sharing, padding and full blocks among them,
// their readers would agree with tables that are wrong.
#include "world.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

namespace {

struct Kinds {
  int empty_steps = 0;
  int padded_steps = 0;
  int shared_blocks = 0;
  int full_last_blocks = 0;
  int partial_last_blocks = 0;
  int without_query = 0;
  int decodes = 0;
  int pieces = 0;
  int copies = 0;
  int rows_apart = 0;  ///< a sequence's blocks aren't neighbours

  void count(StepSeen const& seen, std::int32_t block_tokens) {
    auto const& a = seen.arrays;
    empty_steps += seen.step.num_sequences == 0 ? 1 : 0;
    padded_steps += seen.step.padded_sequences > seen.step.num_sequences ? 1 : 0;
    copies += seen.step.num_copies;
    std::vector<std::int32_t> blocks;
    for (std::size_t b = 0; b < seen.request_of_row.size(); ++b) {
      bool const is_full = a.last_block_len[b] == block_tokens;
      full_last_blocks += is_full ? 1 : 0;
      partial_last_blocks += is_full ? 0 : 1;
      std::int32_t const queries = a.query_offsets[b + 1] - a.query_offsets[b];
      without_query += queries == 0 ? 1 : 0;
      decodes += queries == 1 ? 1 : 0;
      pieces += queries > 1 ? 1 : 0;
      for (std::int32_t i = a.indptr[b]; i < a.indptr[b + 1]; ++i) {
        std::int32_t const block = a.indices[static_cast<std::size_t>(i)];
        shared_blocks += std::count(blocks.begin(), blocks.end(), block) > 0 ? 1 : 0;
        if (i > a.indptr[b]) rows_apart += block != blocks.back() + 1 ? 1 : 0;
        blocks.push_back(block);
      }
    }
  }
};

}  // namespace

TEST_CASE("the random requests share, fork, pad, fill blocks and pause") {
  for (std::int32_t const block_tokens : {5, 16, 256}) {
    Kinds kinds;
    for (std::uint32_t seed = 1; seed <= 5; ++seed) {
      World world({.num_layers = 1,
                   .num_kv_heads = 1,
                   .head_dim_k = 8,
                   .head_dim_v = 8,
                   .block_tokens = block_tokens},
                  placements[0], seed);
      for (int i = 0; i < 20; ++i) {
        world.step([&](StepSeen const& seen) { kinds.count(seen, block_tokens); });
      }
    }
    INFO("blocks of " << block_tokens);
    CHECK(kinds.empty_steps > 0);
    CHECK(kinds.padded_steps > 5);
    CHECK(kinds.shared_blocks > 20);
    CHECK(kinds.full_last_blocks > 5);
    CHECK(kinds.partial_last_blocks > 50);
    CHECK(kinds.without_query > 5);
    CHECK(kinds.decodes > 20);
    CHECK(kinds.pieces > 10);
    CHECK(kinds.copies > 2);
    CHECK(kinds.rows_apart > 10);
  }
}

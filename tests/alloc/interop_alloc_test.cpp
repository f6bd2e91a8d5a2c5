// SPDX-License-Identifier: Apache-2.0
// What consumers are handed for a step is made without the heap.
#include <cstdint>
#include <span>
#include <vector>

#include <pagedkv/interop/flash_attention.hpp>
#include <pagedkv/interop/flashinfer.hpp>
#include <pagedkv/interop/vllm.hpp>
#include <pagedkv/pagedkv.hpp>

#include "catch.hpp"
#include "counting.hpp"

namespace kv = pagedkv;
namespace interop = pagedkv::interop;
using pagedkv::testing::AllocationCount;

TEST_CASE("a step's arguments allocate nothing, for any consumer") {
  kv::KvCache cache{
      {.block_tokens = 4, .num_blocks = 64, .max_sequences = 4, .max_sequence_tokens = 64}};
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64});
  std::vector<kv::Slot> slots(64);
  std::vector<std::int32_t> offsets(5), lengths(4), indptr(5), indices(64), last(4), cumulated(5);
  std::vector<std::int32_t> blocks(4 * static_cast<std::size_t>(batch.table_width()));
  kv::BatchBuffers const arrays{.slot_mapping = slots,
                                .query_offsets = offsets,
                                .sequence_lengths = lengths,
                                .indptr = indptr,
                                .indices = indices,
                                .last_block_len = last};
  kv::BlockTable const table{blocks.data(), batch.table_width(), 4, batch.table_width()};
  auto seq = cache.open(kv::SequenceId{1}, std::vector<kv::TokenId>(9, 7), {.reserve = 9});
  REQUIRE(seq.has_value());
  std::vector<kv::TokenId> const token = {8};
  std::int64_t seen = 0;
  AllocationCount const count;
  for (int i = 0; i < 40; ++i) {
    batch.begin_step();
    auto const range = i == 0 ? kv::TokenRange{0, 9} : *seq->append(token);
    if (!batch.add(*seq, range)) break;
    auto const step = batch.build(arrays);
    if (!step) break;
    batch.copy_table(blocks);
    auto const maxima = interop::maxima_of(*step, arrays);
    seen += interop::flashinfer::page_table(*step, arrays).kv_indices.num_elements();
    if (!interop::flash_attention::cumulate_lengths(*step, arrays, cumulated)) break;
    seen += interop::flash_attention::fa2_decode(*step, arrays, table).block_table.shape[0];
    seen +=
        interop::flash_attention::fa2_varlen(*step, arrays, table, cumulated, maxima).max_seqlen_k;
    seen += interop::flash_attention::fa3_step(*step, arrays, table, maxima).max_seqlen_q;
    seen += interop::vllm::flash_metadata(*step, arrays, table, maxima).max_seq_len;
    batch.commit();
    cache.end_step();
  }
  std::int64_t const allocated = count();
  CHECK(allocated == 0);
  CHECK(seq->size() == 48);
  CHECK(seen > 40 * 30);  // none of the calls was left out
}

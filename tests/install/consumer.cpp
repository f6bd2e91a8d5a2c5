// SPDX-License-Identifier: Apache-2.0
// A stranger's program. Every check runs in every consumer project of this folder, so it must
// compile without exceptions and without run-time type information. Returns how many checks failed.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/version.hpp>

namespace kv = pagedkv;

namespace {

int failures = 0;

void check(bool holds, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer: failed: %s\n", what);
  ++failures;
}

kv::Result<kv::BlockId> first_block(std::int32_t num_blocks) {
  if (num_blocks < 1) return kv::Unexpected{kv::Errc::no_free_blocks};
  return kv::BlockId{0};
}

void vocabulary() {
  static_assert(PAGEDKV_VERSION_MAJOR == 0 && PAGEDKV_VERSION_MINOR == 1);
  check(kv::blocks_for(17, 16) == 2, "17 tokens need 2 blocks of 16");
  check(first_block(1).value() == kv::BlockId{0}, "a result carries its value");
  check(first_block(0).error() == kv::Errc::no_free_blocks, "a result carries its error");
}

std::vector<kv::TokenId> count(kv::TokenId first, std::int32_t n) {
  std::vector<kv::TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Opens a prompt, appends what isn't cached and makes it final.
std::optional<kv::Sequence> prefilled(kv::KvCache& cache, std::uint64_t id,
                                      std::span<kv::TokenId const> prompt) {
  auto seq = cache.open(kv::SequenceId{id}, prompt);
  if (!seq || !seq->append(prompt.subspan(static_cast<std::size_t>(seq->size())))) return {};
  cache.take_copies();
  seq->commit(seq->size());
  return *std::move(seq);
}

void manager() {
  kv::KvCache cache{
      {.block_tokens = 16, .num_blocks = 64, .max_sequences = 4, .max_sequence_tokens = 256}};
  auto const prompt = count(0, 40);
  auto first = prefilled(cache, 1, prompt);
  auto second = prefilled(cache, 2, prompt);
  check(first && second, "two prompts find room");
  if (!first || !second) return;
  check(first->cached() == 0 && second->cached() == 32, "the second finds what the first computed");
  check(cache.stats().used == 4, "full blocks are shared");

  auto forked = second->fork(kv::SequenceId{3});
  check(forked.has_value(), "a committed sequence can be forked");
  if (!forked) return;
  check(forked->append(count(900, 1)).has_value(), "a fork can go its own way");
  auto const copies = cache.take_copies();
  check(copies.size() == 1 && copies[0].num_tokens == 8, "which copies the shared tail once");
  forked->commit(41);

  auto const refused = cache.open(kv::SequenceId{4}, count(0, 257));
  check(!refused && refused.error() == kv::Errc::never_fits,
        "a request that never fits is told so");
  check(static_cast<bool>(cache.verify()), "all is consistent");
  first.reset();
  second.reset();
  std::move(*forked).finish(kv::Reuse::none);
  cache.end_step();
  auto const left = cache.stats();
  check(left.used == 0 && left.free + left.idle == 64, "all blocks are back");
}

void step() {
  kv::KvCache cache{{.num_blocks = 64, .max_sequences = 4, .max_sequence_tokens = 256}};
  kv::Batch batch(cache, {.max_sequences = 4, .max_tokens = 64});
  auto seq = cache.open(kv::SequenceId{1}, count(0, 20), {.reserve = 20});
  check(seq.has_value(), "a prompt finds room");
  if (!seq) return;
  std::vector<kv::Slot> slots(32);
  std::vector<std::int32_t> offsets(5);
  kv::BatchBuffers out;
  out.slot_mapping = slots;
  out.query_offsets = offsets;
  batch.begin_step();
  check(batch.add(*seq, {0, 20}).has_value(), "a batch takes it");
  batch.pad_to(32, 4);
  auto const built = batch.build(out);
  check(built && built->num_tokens == 20, "a step's arrays are built");
  check(slots[17] == kv::Slot{seq->blocks()[1].value()} * 16 + 1, "a slot is block and offset");
  check(slots[20] == kv::padding_slot && offsets[1] == 20 && offsets[4] == 20,
        "the rest is padded");
  batch.commit();
  check(seq->committed() == 20, "and committed");

  kv::StepPlanner planner{{.max_num_batched_tokens = 64, .max_num_seqs = 4}};
  kv::WaitingRequest const waiting{.tokens = 20, .blocks_needed = 2};
  auto const plan = planner.plan({.num_blocks = 64, .available_blocks = 62}, {}, {&waiting, 1});
  check(plan.admitted.size() == 1, "the planner admits what fits");
}

void sizing() {
  kv::Geometry const llama{
      .num_layers = 80, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
  check(llama.bytes_per_token().bytes == 327680, "a token of Llama 3.1 70B takes 320 KiB");
  auto const plan = kv::try_capacity_plan(
      {.geometry = llama, .device_bytes = 1 << 30, .weight_bytes = 2LL << 30});
  check(!plan && !plan.message.empty(), "a plan that can't work says why");
}

}  // namespace

int main() {
  vocabulary();
  manager();
  step();
  sizing();
  if (failures == 0) std::puts("consumer: pagedkv works");
  return failures;
}

// SPDX-License-Identifier: Apache-2.0
// Four branches of one long context, as in parallel sampling, beam search or an agent that tries
// several ways. A fork shares every block; whoever writes into a shared one first gets a copy.
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;

constexpr int block_tokens = 16;
constexpr int num_blocks = 4096;
constexpr int context_tokens = 32'744;  // 2,046 full blocks and half a one
constexpr int num_branches = 4;

// What a data plane does: rows of a block are written by slot and copied by the copy plan.
struct DataPlane {
  std::vector<kv::TokenId> rows = std::vector<kv::TokenId>(std::size_t{num_blocks} * block_tokens);

  kv::TokenId& row(kv::BlockId block, int offset) {
    return rows[std::size_t(block.value()) * block_tokens + std::size_t(offset)];
  }
  void copy(kv::BlockCopy const& c) {
    std::printf("  copy %d rows of block %d to block %d\n", c.num_tokens, c.src.value(),
                c.dst.value());
    for (int i = 0; i < c.num_tokens; ++i) row(c.dst, i) = row(c.src, i);
  }
};

// One step: positions for the tokens, planned copies first, then the rows.
bool compute(kv::KvCache& cache, kv::Sequence& seq, std::vector<kv::TokenId> const& tokens,
             DataPlane& data) {
  auto const range = seq.append(tokens);
  if (!range) return false;
  for (kv::BlockCopy const& c : cache.take_copies()) data.copy(c);
  std::vector<kv::Slot> slots(tokens.size());
  seq.slot_mapping(*range, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    data.rows[static_cast<std::size_t>(slots[i])] = tokens[i];
  }
  seq.commit(seq.size());
  cache.end_step();
  return true;
}

int main() {
  kv::KvCache cache{{.block_tokens = block_tokens,
                     .num_blocks = num_blocks,
                     .max_sequences = num_branches,
                     .max_sequence_tokens = context_tokens + 1024}};
  DataPlane data;

  std::vector<kv::TokenId> context(context_tokens);
  std::iota(context.begin(), context.end(), 0);
  auto first = cache.open(kv::SequenceId{0}, context);
  if (!first || !compute(cache, *first, context, data)) return 1;
  std::printf("context: %d tokens in %d blocks\n", first->size(), first->num_blocks());

  std::vector<kv::Sequence> branches;
  branches.push_back(*std::move(first));
  for (unsigned i = 1; i < num_branches; ++i) {
    auto fork = branches.front().fork(kv::SequenceId{i});
    if (!fork) return 1;
    branches.push_back(*std::move(fork));
  }
  std::printf("%d branches: still %d blocks\n", num_branches, cache.stats().used);

  int copies_of_all = 0;
  for (int i = 0; i < num_branches; ++i) {
    auto& branch = branches[static_cast<std::size_t>(i)];
    std::printf("branch %d goes its own way\n", i);
    if (!compute(cache, branch, std::vector<kv::TokenId>(64, 1'000'000 + i), data)) return 1;
    copies_of_all += branch.num_blocks();
  }
  // Each branch reads its own history, whoever wrote it.
  for (auto const& branch : branches) {
    for (int p = 0; p < branch.size(); ++p) {
      auto const block = branch.blocks()[static_cast<std::size_t>(p / block_tokens)];
      if (data.row(block, p % block_tokens) != branch.token(p)) return 1;
    }
  }

  int const used = cache.stats().used;
  double const saved = 100.0 * (copies_of_all - used) / copies_of_all;
  std::printf("%d copies of the context: %d blocks; here: %d; %.1f %% less\n", num_branches,
              copies_of_all, used, saved);
  return saved >= 70 ? 0 : 1;
}

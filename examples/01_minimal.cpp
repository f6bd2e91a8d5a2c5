// SPDX-License-Identifier: Apache-2.0
// The smallest engine. Two users send the same prompt; only the first one's has to be computed.
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;

// Stands for a K row that the model computes from a token.
int k_row_of(kv::TokenId token) { return token * 7 + 1; }

int main() {
  constexpr int block_tokens = 16;
  constexpr int num_blocks = 64;
  kv::KvCache cache{{.block_tokens = block_tokens,
                     .num_blocks = num_blocks,
                     .max_sequences = 8,
                     .max_sequence_tokens = 512}};
  // Your K and V: block_tokens rows a block. Here a row is one int, and a slot is its index.
  std::vector<int> k_rows(std::size_t{num_blocks} * block_tokens);

  std::vector<kv::TokenId> prompt(100);
  std::iota(prompt.begin(), prompt.end(), 1000);

  int computed = 0;
  for (unsigned user = 1; user <= 2; ++user) {
    // What is cached of the prompt is there already; never the last token, whose logits you need.
    auto seq = cache.open(kv::SequenceId{user}, prompt);
    if (!seq) {
      std::printf("no room: %s\n", kv::to_string(seq.error()));
      return 1;
    }
    // Positions for the rest, and the slot of each.
    auto const rest = std::span(prompt).subspan(static_cast<std::size_t>(seq->size()));
    auto const range = seq->append(rest);
    if (!range) return 1;
    std::vector<kv::Slot> slots(rest.size());
    seq->slot_mapping(*range, slots);

    // The model's work: one row for each new token, written where the slot says.
    for (std::size_t i = 0; i < rest.size(); ++i) {
      k_rows[static_cast<std::size_t>(slots[i])] = k_row_of(rest[i]);
    }
    computed = range->count;
    seq->commit(seq->size());  // the rows are final: full blocks may be shared from now on
    cache.end_step();
    std::printf("user %u: %3d of %zu tokens cached, %3d computed, blocks", user, seq->cached(),
                prompt.size(), computed);
    for (kv::BlockId const b : seq->blocks()) std::printf(" %d", b.value());
    std::printf("\n");

    // Attention finds position p in block p / 16 of the sequence's table, row p % 16.
    auto const table = seq->blocks();
    for (std::size_t p = 0; p < prompt.size(); ++p) {
      auto const block = static_cast<std::size_t>(table[p / block_tokens].value());
      if (k_rows[block * block_tokens + p % block_tokens] != k_row_of(prompt[p])) {
        std::printf("position %zu holds another token's row\n", p);
        return 1;
      }
    }
  }  // the sequence's destructor gives its blocks back; full ones stay findable

  auto const stats = cache.stats();
  std::printf("afterwards: %d blocks free, %d idle (cached, owned by nobody), %d used\n",
              stats.free, stats.idle, stats.used);
  // 6 full blocks were shared; the 4 tokens of the block that isn't full are computed again.
  return computed == 4 && stats.idle == 6 && stats.used == 0 ? 0 : 1;
}

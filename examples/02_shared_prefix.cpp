// SPDX-License-Identifier: Apache-2.0
// Fifty users ask about one document at the same time. Its K and V are in memory once.
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;

constexpr int num_users = 50;
constexpr int document_tokens = 8192;
constexpr int question_tokens = 40;
constexpr int answer_tokens = 20;

// The document, then a question that no other user asks.
std::vector<kv::TokenId> prompt_of(int user) {
  std::vector<kv::TokenId> tokens(document_tokens + question_tokens);
  std::iota(tokens.begin(), tokens.begin() + document_tokens, 0);
  std::iota(tokens.begin() + document_tokens, tokens.end(), 100'000 + 1'000 * user);
  return tokens;
}

// Appends tokens as a step of the engine does: positions, (K and V), final.
bool compute(kv::Sequence& seq, std::span<kv::TokenId const> tokens) {
  if (!seq.append(tokens)) return false;
  seq.commit(seq.size());
  return true;
}

int main() {
  // Sizes of Llama 3.1 70B in 16 bit: 80 layers, 8 KV heads, 128 elements a head.
  kv::Geometry const model{
      .num_layers = 80, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
  auto const mebibytes = [&](int blocks) {
    return static_cast<double>(model.bytes_per_block()) * blocks / (1 << 20);
  };

  kv::KvCache cache{{.block_tokens = model.block_tokens,
                     .num_blocks = 1024,
                     .max_sequences = num_users,
                     .max_sequence_tokens = 16384}};

  std::vector<kv::Sequence> sequences;
  int computed = 0;
  int alone = 0;  // blocks if each user had a copy of everything
  for (int user = 0; user < num_users; ++user) {
    auto const prompt = prompt_of(user);
    auto seq = cache.open(kv::SequenceId{static_cast<unsigned>(user)}, prompt);
    if (!seq) {
      std::printf("user %d: %s\n", user, kv::to_string(seq.error()));
      return 1;
    }
    auto const rest = std::span(prompt).subspan(static_cast<std::size_t>(seq->size()));
    if (!compute(*seq, rest)) return 1;
    std::vector<kv::TokenId> answer(answer_tokens, 200'000 + user);
    if (!compute(*seq, answer)) return 1;
    cache.end_step();

    if (user < 2) {
      std::printf("user %d: %d tokens cached, %zu computed\n", user, seq->cached(), rest.size());
    }
    computed += static_cast<int>(rest.size());
    alone += seq->num_blocks();
    sequences.push_back(*std::move(seq));
  }

  int const document = kv::blocks_for(document_tokens, model.block_tokens);
  int const used = cache.stats().used;
  int const tails = used - document;
  std::printf("%d users, %d tokens of prompt each, %d computed in all\n", num_users,
              document_tokens + question_tokens, computed);
  std::printf("a copy for each user: %5d blocks, %7.0f MiB\n", alone, mebibytes(alone));
  std::printf("in use here:          %5d blocks, %7.0f MiB\n", used, mebibytes(used));
  std::printf("  the document, once: %5d blocks, %7.0f MiB\n", document, mebibytes(document));
  std::printf("  the users' tails:   %5d blocks, %7.0f MiB\n", tails, mebibytes(tails));

  int const tail = kv::blocks_for(question_tokens + answer_tokens, model.block_tokens);
  return tails == num_users * tail && static_cast<bool>(cache.verify()) ? 0 : 1;
}

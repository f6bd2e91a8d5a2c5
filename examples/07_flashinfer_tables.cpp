// SPDX-License-Identifier: Apache-2.0
// What an engine hands to FlashInfer: the pool once, for each layer, and a page table for each
// step. Nothing of FlashInfer is needed to make them; in an engine the same arrays lie in device
// memory.
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/interop/flashinfer.hpp>
#include <pagedkv/pagedkv.hpp>

namespace kv = pagedkv;
namespace flashinfer = pagedkv::interop::flashinfer;
using kv::interop::Tensor;

void show(char const* name, Tensor const& t) {
  std::printf("  %-18s %s [", name, to_string(t.dtype));
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    std::printf("%s%lld", d > 0 ? ", " : "", static_cast<long long>(t.shape[d]));
  }
  std::printf("], strides (");
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    std::printf("%s%lld", d > 0 ? ", " : "", static_cast<long long>(t.strides[d]));
  }
  std::puts(")");
}

std::vector<int> numbers_of(Tensor const& t) {
  auto const* const first = static_cast<std::int32_t const*>(t.data);
  return {first, first + t.shape[0]};
}
void show_numbers(char const* name, Tensor const& t) {
  std::printf("  %-18s", name);
  for (int const n : numbers_of(t)) std::printf(" %d", n);
  std::puts("");
}

std::vector<kv::TokenId> prompt_of(kv::TokenId first, int n) {
  std::vector<kv::TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

int main() {
  kv::Geometry geometry;
  geometry.num_layers = 1;
  geometry.num_kv_heads = 2;
  geometry.head_dim_k = geometry.head_dim_v = 64;
  geometry.block_tokens = 16;
  geometry.format = kv::LayerFormat(*kv::parse_kv_format("fp8_e4m3/per_tensor"));
  std::vector<kv::StaticScales> const scales = {{{0.02F}, {0.01F}}};
  kv::KvStorage const pool(geometry, 64, {}, scales);

  // Once a layer. A pool that FlashInfer can't take is refused, with what would have to change.
  auto const cache = flashinfer::paged_kv(pool.view(), 0, flashinfer::Backend::fa2, scales[0]);
  if (!cache) {
    std::puts(cache.refusal().message.c_str());
    return 1;
  }
  std::printf("wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, \"%s\", backend=\"fa2\")\n",
              cache->kv_layout);
  std::puts("o = wrapper.run(q, (k_cache, v_cache), k_scale=..., v_scale=...)");
  show("k_cache", cache->k);
  show("v_cache", cache->v);
  show("or as one tensor", cache->kv);
  std::printf("  k_scale %g, v_scale %g\n\n", static_cast<double>(cache->k_scale),
              static_cast<double>(cache->v_scale));

  // A step: two prompts, the second of which begins like the first, and a fork that decodes.
  kv::KvCache kv_cache{
      {.block_tokens = 16, .num_blocks = 64, .max_sequences = 8, .max_sequence_tokens = 256}};
  kv::BatchLimits const limits{.max_sequences = 4, .max_tokens = 128};
  kv::Batch batch(kv_cache, limits);
  std::vector<std::int32_t> qo_indptr(5), kv_indptr(5), kv_indices(64), last_page_len(4);
  kv::BatchBuffers const arrays{.query_offsets = qo_indptr,
                                .indptr = kv_indptr,
                                .indices = kv_indices,
                                .last_block_len = last_page_len};

  auto const first_prompt = prompt_of(0, 48);
  auto first = kv_cache.open(kv::SequenceId{1}, first_prompt, {.reserve = 48});
  if (!first) return 1;
  batch.begin_step();
  if (!batch.add(*first, {0, 48}) || !batch.build(arrays)) return 1;
  batch.commit();
  kv_cache.end_step();

  auto second_prompt = prompt_of(0, 32);
  for (kv::TokenId const token : prompt_of(900, 9)) second_prompt.push_back(token);
  auto second = kv_cache.open(kv::SequenceId{2}, second_prompt, {.reserve = 41});
  auto fork = first->fork(kv::SequenceId{3});
  if (!second || !fork) return 1;
  batch.begin_step();
  bool added = batch.add(*first, *first->append(prompt_of(48, 1))).has_value();
  added = added && batch.add(*second, {second->cached(), 41 - second->cached()}).has_value();
  added = added && batch.add(*fork, *fork->append(prompt_of(500, 1))).has_value();
  auto const step = batch.build(arrays);
  if (!added || !step) return 1;

  auto const table = flashinfer::page_table(*step, arrays);
  std::puts("wrapper.plan(qo_indptr, kv_indptr, kv_indices, kv_last_page_len,");
  std::printf("             num_qo_heads, %d, %d, %d, causal=True)\n", cache->num_kv_heads,
              cache->head_dim, cache->page_size);
  show_numbers("qo_indptr", table.qo_indptr);
  show_numbers("kv_indptr", table.kv_indptr);
  show_numbers("kv_indices", table.kv_indices);
  show_numbers("kv_last_page_len", table.kv_last_page_len);

  // 49, 41 and 49 tokens; the second shares two pages of the first, its fork three.
  auto const pages = numbers_of(table.kv_indices);
  bool holds = numbers_of(table.qo_indptr) == std::vector<int>{0, 1, 10, 11};
  holds = holds && numbers_of(table.kv_indptr) == std::vector<int>{0, 4, 7, 11};
  holds = holds && numbers_of(table.kv_last_page_len) == std::vector<int>{1, 9, 1};
  for (std::size_t i = 0; i < 2; ++i) holds = holds && pages[4 + i] == pages[i];
  for (std::size_t i = 0; i < 3; ++i) holds = holds && pages[7 + i] == pages[i];
  holds = holds && pages[3] != pages[10];
  batch.commit();
  kv_cache.end_step();

  // A format that FlashInfer has no kernel for.
  geometry.format = kv::LayerFormat(*kv::parse_kv_format("fp8_e4m3/per_token_head"));
  kv::KvStorage const other(geometry, 64);
  auto const refused = flashinfer::paged_kv(other.view(), 0, flashinfer::Backend::fa2);
  if (refused) return 1;
  std::printf("\n%s\n", refused.refusal().message.c_str());
  return holds && cache->kv.exists() ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Writers, copies and gathers: runs of neighbouring tokens go to the kernels of this machine.
#include <cstring>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "guards.hpp"
#include "kernels.hpp"

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {
namespace {

std::int64_t stride_bytes(Element element, std::int64_t elements) noexcept {
  return elements * bits_per_element(element) / 8;
}
std::size_t index_of(Element element) noexcept { return static_cast<std::size_t>(element); }

/// Tokens first .. first + count - 1 of the rows, and where they lie in the pool.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t block = 0;
  std::int64_t offset = 0;
};

VectorsArgs store_args(KvView const& view, KvTensor const& t, KvRows const& rows, Run const& run,
                       bool streams) {
  Element const e = t.format.element;
  VectorsArgs a{};
  a.in = static_cast<std::byte const*>(rows.data) +
         stride_bytes(rows.element, run.first * rows.token_stride);
  a.in_token_stride = stride_bytes(rows.element, rows.token_stride);
  a.in_head_stride = stride_bytes(rows.element, rows.head_stride);
  a.out = t.vector(run.block, run.offset, 0);
  a.out_token_stride = stride_bytes(e, t.token_stride);
  a.out_head_stride = stride_bytes(e, t.head_stride);
  if (t.scales != nullptr) {
    a.scales = t.scale(run.block, run.offset, 0);
    a.scale_token_stride = t.scale_token_stride;
    a.scale_head_stride = t.scale_head_stride;
  }
  a.num_tokens = run.count;
  a.num_heads = view.num_kv_heads;
  a.dim = t.head_dim;
  a.streams = streams;
  return a;
}

/// What a layer stores of a token, without scales.
std::int64_t bytes_per_token(KvView const& view, KvLayer const& layer) noexcept {
  return view.num_kv_heads * (bytes_per_vector(layer.k.format.element, layer.k.head_dim) +
                              bytes_per_vector(layer.v.format.element, layer.v.head_dim));
}

/// `per_block_head`: the oracle's grow_scale, for one head.
void grow_scale(Kernels const& kernel, KvTensor const& t, KvRows const& rows, Run const& run,
                std::int64_t head, VectorsArgs const& args) {
  VectorsArgs one = args;
  one.in += head * args.in_head_stride;
  one.num_heads = 1;
  float const largest = kernel.amax[index_of(rows.element)](one);
  float* const scale = t.scale(run.block, 0, head);
  float const before = run.offset == 0 ? 0.0F : *scale;
  float const needed = quant::power_of_two_scale(t.format.element, largest).value;
  *scale = before < needed ? needed : before;
  if (*scale == before || run.offset == 0) return;
  one.out = t.vector(run.block, 0, head);
  one.num_tokens = run.offset;
  kernel.requantize[t.format.element == Element::fp8_e4m3 ? 0 : 1](one, before, *scale);
}

void write_run(Kernels const& kernel, KvView const& view, KvTensor const& t, KvRows const& rows,
               Run const& run, bool streams) {
  if (t.head_dim == 0) return;
  VectorsArgs const args = store_args(view, t, rows, run, streams);
  std::size_t const row = index_of(rows.element);
  std::size_t const element = index_of(t.format.element);
  if (t.format.granularity == Granularity::per_token_head) {
    return kernel.store_dynamic[row][element](args);
  }
  if (t.format.granularity == Granularity::per_block_head) {
    for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
      grow_scale(kernel, t, rows, run, head, args);
    }
  }
  kernel.store[row][element](args);
}

/// Bytes and dynamic scales of a tensor's block, as pieces that lie in one.
template <class Piece>
void for_each_piece(KvView const& view, KvTensor const& t, std::int64_t num_tokens, Piece piece) {
  Element const e = t.format.element;
  std::int64_t const vector = bytes_per_vector(e, t.head_dim);
  std::int64_t const token = stride_bytes(e, t.token_stride);
  std::int64_t const head = stride_bytes(e, t.head_stride);
  std::int64_t const heads = view.num_kv_heads;
  if (head == vector && token == heads * vector) {
    piece(0, num_tokens * token);
  } else if (token == vector) {
    for (std::int64_t h = 0; h < heads; ++h) piece(h * head, num_tokens * vector);
  } else {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < num_tokens; ++i) piece(h * head + i * token, vector);
    }
  }
}

template <class Entry>
void for_each_scale(KvView const& view, KvTensor const& t, std::int64_t num_tokens, Entry entry) {
  bool const by_token = t.format.granularity == Granularity::per_token_head;
  if (!by_token && t.format.granularity != Granularity::per_block_head) return;
  std::int64_t const tokens = by_token ? num_tokens : num_tokens < 1 ? num_tokens : 1;
  auto const bytes = static_cast<std::size_t>(bytes_per_scale_entry(t.format.element));
  for (std::int64_t h = 0; h < view.num_kv_heads; ++h) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      entry(i * t.scale_token_stride + h * t.scale_head_stride, bytes);
    }
  }
}

void copy_tensor(KvView const& view, KvTensor const& t, BlockCopy const& copy) {
  if (t.head_dim == 0) return;
  std::byte* const to = t.vector(copy.dst.value(), 0, 0);
  std::byte const* const from = t.vector(copy.src.value(), 0, 0);
  for_each_piece(view, t, copy.num_tokens, [&](std::int64_t at, std::int64_t bytes) {
    std::memcpy(to + at, from + at, static_cast<std::size_t>(bytes));
  });
  for_each_scale(view, t, copy.num_tokens, [&](std::int64_t at, std::size_t bytes) {
    std::memcpy(t.scale(copy.dst.value(), 0, 0) + at, t.scale(copy.src.value(), 0, 0) + at, bytes);
  });
}

void zero_tensor(KvView const& view, KvTensor const& t, BlockId block) {
  if (t.head_dim == 0) return;
  std::byte* const to = t.vector(block.value(), 0, 0);
  for_each_piece(view, t, view.block_tokens, [&](std::int64_t at, std::int64_t bytes) {
    std::memset(to + at, 0, static_cast<std::size_t>(bytes));
  });
  for_each_scale(view, t, view.block_tokens, [&](std::int64_t at, std::size_t bytes) {
    std::memset(t.scale(block.value(), 0, 0) + at, 0, bytes);
  });
}

void load_run(Kernels const& kernel, KvView const& view, KvTensor const& t,
              MutableKvRows const& rows, Run const& run) {
  if (t.head_dim == 0) return;
  Element const e = t.format.element;
  VectorsArgs a{};
  a.in = t.vector(run.block, run.offset, 0);
  a.in_token_stride = stride_bytes(e, t.token_stride);
  a.in_head_stride = stride_bytes(e, t.head_stride);
  a.out = static_cast<std::byte*>(rows.data) +
          stride_bytes(rows.element, run.first * rows.token_stride);
  a.out_token_stride = stride_bytes(rows.element, rows.token_stride);
  a.out_head_stride = stride_bytes(rows.element, rows.head_stride);
  if (t.scales != nullptr) {
    a.scales = t.scale(run.block, run.offset, 0);
    a.scale_token_stride = t.scale_token_stride;
    a.scale_head_stride = t.scale_head_stride;
  }
  a.num_tokens = run.count;
  a.num_heads = view.num_kv_heads;
  a.dim = t.head_dim;
  kernel.load[index_of(e)][index_of(rows.element)](a);
}

}  // namespace

void write_kv(KvView const& view, std::int32_t layer_index, KvRows const& k, KvRows const& v,
              std::span<Slot const> slots) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "write_kv");
  if (slots.empty()) return;
  detail::check_rows(layer.k, k.element, k.data, "write_kv: K");
  detail::check_rows(layer.v, v.element, v.data, "write_kv: V");
  detail::check_slots(view, slots);
  Kernels const& kernel = kernels();
  auto const num_tokens = static_cast<std::int64_t>(slots.size());
  bool const streams = num_tokens * bytes_per_token(view, layer) >= streaming_bytes();
  for (std::int64_t i = 0; i < num_tokens;) {
    Slot const slot = slots[static_cast<std::size_t>(i)];
    if (slot < 0) {
      ++i;
      continue;
    }
    Run run{i, 1, slot / view.block_tokens, slot % view.block_tokens};
    while (i + run.count < num_tokens && run.offset + run.count < view.block_tokens &&
           slots[static_cast<std::size_t>(i + run.count)] == slot + run.count) {
      ++run.count;
    }
    write_run(kernel, view, layer.k, k, run, streams);
    write_run(kernel, view, layer.v, v, run, streams);
    i += run.count;
  }
#if defined(__x86_64__)
  // Until then others may see such stores after later ones of this thread.
  if (streams) __builtin_ia32_sfence();
#endif
}

void copy_blocks(KvView const& view, std::span<BlockCopy const> copies) {
  detail::check_copies(view, copies);
  for (KvLayer const& layer : view.layers) {
    for (BlockCopy const& copy : copies) {
      copy_tensor(view, layer.k, copy);
      copy_tensor(view, layer.v, copy);
    }
  }
}

void zero_blocks(KvView const& view, std::span<BlockId const> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    detail::check_block(view, blocks[i].value(), "zero_blocks", i);
  }
  for (KvLayer const& layer : view.layers) {
    for (BlockId const block : blocks) {
      zero_tensor(view, layer.k, block);
      zero_tensor(view, layer.v, block);
    }
  }
}

void gather_kv(KvView const& view, std::int32_t layer_index, std::span<std::int32_t const> table,
               TokenRange range, MutableKvRows const& k, MutableKvRows const& v) {
  KvLayer const& layer = detail::layer_of(view, layer_index, "gather_kv");
  detail::check_gather(view, table, range);
  if (range.count == 0) return;
  detail::check_rows(layer.k, k.element, k.data, "gather_kv: K");
  detail::check_rows(layer.v, v.element, v.data, "gather_kv: V");
  Kernels const& kernel = kernels();
  for (std::int64_t i = 0; i < range.count;) {
    std::int64_t const position = range.first + i;
    std::int64_t const block = detail::block_at(view, table, position);
    if (block < 0) {
      ++i;
      continue;
    }
    std::int64_t const offset = position % view.block_tokens;
    Run const run{i, std::min<std::int64_t>(range.count - i, view.block_tokens - offset), block,
                  offset};
    load_run(kernel, view, layer.k, k, run);
    load_run(kernel, view, layer.v, v, run);
    i += run.count;
  }
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

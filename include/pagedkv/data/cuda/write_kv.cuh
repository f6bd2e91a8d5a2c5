// SPDX-License-Identifier: Apache-2.0
/// \file
/// write_kv on the device: quantizes and stores K and V of a step. Three kernels that move 16 bytes
/// at a time, and one for whatever isn't aligned.
///
///     none, per_tensor, per_head   a thread: 16 elements of K and the same 16 of V
///     per_token_head               the same, and the lanes of a vector find its scale together
///     per_block_head               a block of threads: one head of one block of the pool
///
/// Each comes in two: as it is, and with K rotated while it is loaded (rope.cuh), f32 from there
/// on.
///
/// Launchers are templates of the input's element; `cuda::write_kv<in, format>` is one kernel of
/// one's own choice.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/chunk.cuh>
#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/data/cuda/rope.cuh>
#include <pagedkv/data/cuda/tensors.cuh>
#include <pagedkv/data/kv_view.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace detail {

struct WriteArgs {
  SideArgs k;
  SideArgs v;
  Rope rope;  ///< read by kernels that rotate
  Slot const* slots = nullptr;
  std::int64_t num_tokens = 0;
  std::int64_t num_slots = 0;
  Divider heads;
  Divider block_tokens;
  Divider chunks;               ///< chunks of a vector; the longer of K's and V's
  std::int32_t lanes_log2 = 0;  ///< per_token_head: lanes of a vector
};

/// What a thread works on.
struct WritePlace {
  std::int64_t token = 0;
  std::int64_t head = 0;
  std::int64_t block = 0;
  std::int64_t offset = 0;
  bool exists = false;
};

/// Where vector `index` of the step goes: the heads of a token are neighbours.
PAGEDKV_DEVICE WritePlace place_of(Slot const* slots, std::int64_t num_tokens,
                                   std::int64_t num_slots, Divider const& heads,
                                   Divider const& block_tokens, std::int64_t index) {
  auto const [token, head] = heads.divide(index);
  if (token >= num_tokens) return {};
  Slot const slot = slots[token];
  if (slot < 0 || slot >= num_slots) return {};
  auto const [block, offset] = block_tokens.divide(slot);
  return {token, head, block, offset, true};
}
PAGEDKV_DEVICE WritePlace place_of(WriteArgs const& a, std::int64_t index) {
  return place_of(a.slots, a.num_tokens, a.num_slots, a.heads, a.block_tokens, index);
}

PAGEDKV_DEVICE std::int64_t thread_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <Element in>
PAGEDKV_DEVICE void load_side(SideArgs const& side, WritePlace const& at, std::int32_t chunk,
                              Chunk<in>& x) {
  constexpr std::int64_t bytes = Chunk<in>::num_words * 4;
  load_chunk(side.rows.vector(at.token, at.head) + chunk * bytes, x);
}
/// What K is between its load and its store.
template <Element in, bool rotates>
inline constexpr Element k_element = rotates ? Element::f32 : in;

template <Element in, Element out, bool rotates>
PAGEDKV_DEVICE void load_k(WriteArgs const& a, WritePlace const& at, std::int32_t chunk,
                           Chunk<k_element<in, rotates>>& x) {
  if constexpr (rotates) {
    load_turned<in, out>(a.rope, rope_row_of(a.rope, at.token), a.k.rows.vector(at.token, at.head),
                         chunk, x);
  } else {
    load_side(a.k, at, chunk, x);
  }
}
template <Element in, Element out>
PAGEDKV_DEVICE void store_side(SideArgs const& side, WritePlace const& at, std::int32_t chunk,
                               Chunk<in> const& x, InverseScale inverse, float zero) {
  constexpr std::int64_t bytes = Chunk<out>::num_words * 4;
  Chunk<out> codes;
  encode_chunk(x, inverse, zero, codes);
  store_chunk(codes, side.pool.vector(at.block, at.offset, at.head) + chunk * bytes);
}

template <Element out>
PAGEDKV_DEVICE InverseScale static_inverse(SideArgs const& side, WritePlace const& at) {
  if constexpr (quant::is_unscaled(out)) return {1.0F};
  return quant::inverse({*side.pool.scale(at.block, at.offset, at.head)});
}

// ---- none, per_tensor, per_head -----------------------------------------------------------------

template <Element in, Element out, bool rotates>
PAGEDKV_KERNEL(256, rotates || (in == Element::f32 && quant::is_unscaled(out)) ? 4 : 6)
write_static(WriteArgs const a) {
  wait_for_previous_kernel();
  auto const [vector, part] = a.chunks.divide(thread_index());
  WritePlace const at = place_of(a, vector);
  if (!at.exists) return;
  auto const chunk = static_cast<std::int32_t>(part);
  bool const has_k = chunk * chunk_elements < a.k.dim;
  bool const has_v = chunk * chunk_elements < a.v.dim;
  // Four loads before the first store: both sides at once where a chunk takes two.
  constexpr bool together = in != Element::f32;
  InverseScale k_inverse{};
  InverseScale v_inverse{};
  Chunk<k_element<in, rotates>> k{};
  Chunk<in> v{};
  if (has_k) k_inverse = static_inverse<out>(a.k, at);
  if (together && has_v) v_inverse = static_inverse<out>(a.v, at);
  if (has_k) load_k<in, out, rotates>(a, at, chunk, k);
  if (together && has_v) load_side(a.v, at, chunk, v);
  if (has_k) store_side<k_element<in, rotates>, out>(a.k, at, chunk, k, k_inverse, 0.0F);
  if (!together && has_v) v_inverse = static_inverse<out>(a.v, at);
  if (!together && has_v) load_side(a.v, at, chunk, v);
  allow_next_kernel();
  if (has_v) store_side<in, out>(a.v, at, chunk, v, v_inverse, 0.0F);
}

// ---- per_token_head -----------------------------------------------------------------------------

template <Element out>
struct FoundFor {
  using type = Amax;
};
template <>
struct FoundFor<Element::int8_asym> {
  using type = Range;
};
template <>
struct FoundFor<Element::int4> {
  using type = Range;
};

PAGEDKV_DEVICE void store_scale(Element out, float* entry, AffineScale scale) {
  entry[0] = scale.scale;
  if (quant::has_zero(out)) entry[1] = scale.zero;
}

template <Element in, Element out>
PAGEDKV_DEVICE void store_scaled_side(SideArgs const& side, WritePlace const& at,
                                      std::int32_t chunk, Chunk<in> const& x, AffineScale scale) {
  if (chunk == 0) store_scale(out, side.pool.scale(at.block, at.offset, at.head), scale);
  store_side<in, out>(side, at, chunk, x, quant::inverse({scale.scale}), scale.zero);
}

/// Every lane stays to the end: neighbours, as many as a vector has chunks (rounded up to a power
/// of two), find its scale together.
template <Element in, Element out, bool rotates>
PAGEDKV_KERNEL(256, in == Element::f32 ? 2 : 4)
write_per_token_head(WriteArgs const a) {
  wait_for_previous_kernel();
  std::int64_t const index = thread_index();
  std::int32_t const lanes = 1 << a.lanes_log2;
  WritePlace const at = place_of(a, index >> a.lanes_log2);
  std::int32_t const chunk = static_cast<std::int32_t>(index) & (lanes - 1);
  bool const has_k = at.exists && chunk * chunk_elements < a.k.dim;
  bool const has_v = at.exists && chunk * chunk_elements < a.v.dim;
  Chunk<k_element<in, rotates>> k{};
  Chunk<in> v{};
  if (has_k) load_k<in, out, rotates>(a, at, chunk, k);
  if (has_v) load_side(a.v, at, chunk, v);
  allow_next_kernel();
  using Found = typename FoundFor<out>::type;
  Found k_found;
  Found v_found;
  if (has_k) add_chunk(k, k_found);
  if (has_v) add_chunk(v, v_found);
  for (std::int32_t distance = lanes / 2; distance > 0; distance /= 2) {
    k_found.join(distance);
    v_found.join(distance);
  }
  if (has_k) store_scaled_side<k_element<in, rotates>, out>(a.k, at, chunk, k, k_found.scale(out));
  if (has_v) store_scaled_side<in, out>(a.v, at, chunk, v, v_found.scale(out));
}

// ---- per_block_head -----------------------------------------------------------------------------

/// `BlockRun` as plain numbers.
struct RunEntry {
  std::int32_t block;
  std::int32_t offset;
  std::int32_t count;
  std::int32_t first_token;
};
static_assert(sizeof(RunEntry) == sizeof(BlockRun));

struct BlockWriteArgs {
  SideArgs k;
  SideArgs v;
  Rope rope;  ///< read by kernels that rotate
  bool k_is_vectorizable = false;
  bool v_is_vectorizable = false;
  RunEntry const* runs = nullptr;
  std::int64_t num_tokens = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
};

/// The side of K or V, number by number: nvcc 13.0 selects the struct as a whole wrongly (its `dim`
/// is K's for both), which only the layer that runs PTX sees.
PAGEDKV_DEVICE SideArgs side_of(BlockWriteArgs const& a, bool is_k) {
  SideArgs side = is_k ? a.k : a.v;
  side.dim = is_k ? a.k.dim : a.v.dim;
  return side;
}

/// A head's K or V, chunk by chunk, through 16-byte accesses or number by number.
template <Element in, Element out, bool rotates>
struct BlockSide {
  using Loaded = Chunk<k_element<in, rotates>>;

  SideArgs side;
  bool is_vectorizable;
  std::int64_t block;
  std::int64_t head;
  Rope rope;  ///< of V, which isn't rotated: none

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t num_chunks() const {
    return (side.dim + chunk_elements - 1) / chunk_elements;
  }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t size_of(std::int32_t chunk) const {
    std::int32_t const left = side.dim - chunk * chunk_elements;
    return left < chunk_elements ? left : chunk_elements;
  }
  /// What is missing of a last chunk reads as 0.
  PAGEDKV_DEVICE void load(std::int64_t token, std::int32_t chunk, Loaded& x) const {
    std::byte const* const vector = side.rows.vector(token, head);
    if constexpr (rotates) return load_and_turn(token, vector, chunk, x);
    if (is_vectorizable) return load_chunk(vector + chunk * Chunk<in>::num_words * 4, x);
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < chunk_elements; ++i) {
      if (in != Element::f32 && i % 2 == 0) x.words[i / 2] = 0;
      if (in == Element::f32) x.words[i] = 0;
      if (i >= size_of(chunk)) continue;
      std::int32_t const element = chunk * chunk_elements + i;
      if constexpr (in == Element::f32) {
        x.words[i] = reinterpret_cast<std::uint32_t const*>(vector)[element];
      } else {
        std::uint32_t const half = reinterpret_cast<std::uint16_t const*>(vector)[element];
        x.words[i / 2] |= half << (i % 2 * 16);
      }
    }
  }
  PAGEDKV_DEVICE void load_and_turn(std::int64_t token, std::byte const* vector, std::int32_t chunk,
                                    Chunk<Element::f32>& x) const {
    RopeRow const row = rope_row_of(rope, token);
    if (is_vectorizable) return load_turned<in, out>(rope, row, vector, chunk, x);
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < chunk_elements; ++i) {
      x.words[i] = 0;
      if (i >= size_of(chunk)) continue;
      x.words[i] = bits_of(turned_number(rope, row, in, vector, chunk * chunk_elements + i));
    }
  }
  [[nodiscard]] PAGEDKV_DEVICE std::byte* stored(std::int64_t offset, std::int32_t chunk) const {
    return side.pool.vector(block, offset, head) + chunk * chunk_elements;
  }
  PAGEDKV_DEVICE void load_codes(std::int64_t offset, std::int32_t chunk, Chunk<out>& codes) const {
    std::byte const* const from = stored(offset, chunk);
    if (is_vectorizable) {
      uint4 const part = *reinterpret_cast<uint4 const*>(from);
      codes.words[0] = part.x;
      codes.words[1] = part.y;
      codes.words[2] = part.z;
      codes.words[3] = part.w;
      return;
    }
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < chunk_elements; ++i) {
      if (i % 4 == 0) codes.words[i / 4] = 0;
      if (i >= size_of(chunk)) continue;
      codes.words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (i % 4 * 8);
    }
  }
  PAGEDKV_DEVICE void store(std::int64_t offset, std::int32_t chunk,
                            Chunk<out> const& codes) const {
    std::byte* const to = stored(offset, chunk);
    if (is_vectorizable) return store_chunk(codes, to);
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < chunk_elements; ++i) {
      if (i >= size_of(chunk)) continue;
      to[i] = static_cast<std::byte>((codes.words[i / 4] >> (i % 4 * 8)) & 0xFFU);
    }
  }
};

template <Element out>
PAGEDKV_DEVICE void requantize_chunk(Chunk<out>& codes, float before, InverseScale inverse) {
  PAGEDKV_UNROLL_ALL
  for (std::int32_t w = 0; w < Chunk<out>::num_words; ++w) {
    std::uint32_t word = 0;
    PAGEDKV_UNROLL_ALL
    for (std::int32_t i = 0; i < 4; i += 2) {
      float2 const x = numbers_at(codes, 4 * w + i, AffineScale{before, 0.0F});
      word |= encode_fp8_pair<out>(quant::detail::product(x.x, inverse.value),
                                   quant::detail::product(x.y, inverse.value))
              << (8 * i);
    }
    codes.words[w] = word;
  }
}

inline constexpr std::int32_t block_write_threads = 128;

/// The largest of the block's values, in every thread. One call a kernel: its memory is used once.
PAGEDKV_DEVICE float block_amax(Amax found) {
  PAGEDKV_SHARED(warps, std::uint32_t[block_write_threads / 32]);
  for (std::int32_t distance = 16; distance > 0; distance /= 2) found.join(distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = found.bits;
  __syncthreads();
  for (std::uint32_t const bits : warps) found.bits = bits > found.bits ? bits : found.bits;
  return found.value();
}

/// Block (x, y, z): run x, head y, K or V.
template <Element in, Element out, bool rotates>
PAGEDKV_KERNEL(block_write_threads, 4)
write_per_block_head(BlockWriteArgs const a) {
  wait_for_previous_kernel();
  RunEntry const run = a.runs[blockIdx.x];
  bool const in_pool = run.block >= 0 && run.block < a.num_blocks && run.offset >= 0 &&
                       run.count > 0 && run.count <= a.block_tokens - run.offset;
  bool const in_step = run.first_token >= 0 && run.first_token <= a.num_tokens - run.count;
  bool const is_k = blockIdx.z == 0;
  using Side = BlockSide<in, out, rotates>;
  Side const s{side_of(a, is_k), is_k ? a.k_is_vectorizable : a.v_is_vectorizable, run.block,
               static_cast<std::int64_t>(blockIdx.y), is_k ? a.rope : Rope{}};
  if (!in_pool || !in_step || s.side.dim == 0) return;
  auto const thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t const chunks = s.num_chunks();

  Amax found;
  for (std::int32_t i = thread; i < run.count * chunks; i += block_write_threads) {
    typename Side::Loaded x;
    s.load(run.first_token + i / chunks, i % chunks, x);
    add_chunk(x, found);
  }
  float* const entry = s.side.pool.scale(run.block, 0, s.head);
  float const before = run.offset == 0 ? 0.0F : *entry;
  float const needed = quant::power_of_two_scale(out, block_amax(found)).value;
  float const after = before < needed ? needed : before;
  InverseScale const inverse = quant::inverse({after});
  allow_next_kernel();
  std::int32_t const earlier = after == before ? 0 : run.offset * chunks;
  for (std::int32_t i = thread; i < earlier; i += block_write_threads) {
    Chunk<out> codes;
    s.load_codes(i / chunks, i % chunks, codes);
    requantize_chunk(codes, before, inverse);
    s.store(i / chunks, i % chunks, codes);
  }
  for (std::int32_t i = thread; i < run.count * chunks; i += block_write_threads) {
    typename Side::Loaded x;
    Chunk<out> codes;
    s.load(run.first_token + i / chunks, i % chunks, x);
    encode_chunk(x, inverse, 0.0F, codes);
    s.store(run.offset + i / chunks, i % chunks, codes);
  }
  if (thread == 0) *entry = after;
}

// ---- whatever isn't aligned ---------------------------------------------------------------------

struct AnyWriteArgs {
  SideArgs side;
  Rope rope;  ///< without positions: nothing is rotated
  Element in = Element::f32;
  Element out = Element::f16;
  Slot const* slots = nullptr;
  std::int64_t num_tokens = 0;
  std::int64_t num_slots = 0;
  Divider heads;
  Divider block_tokens;
};

/// The code of one number, as bits, of any element.
PAGEDKV_DEVICE std::uint32_t any_code(Element out, float x, InverseScale inverse, float zero) {
  switch (out) {
    case Element::fp8_e4m3: return code_of<Element::fp8_e4m3>(x, inverse, zero);
    case Element::fp8_e5m2: return code_of<Element::fp8_e5m2>(x, inverse, zero);
    case Element::int8: return code_of<Element::int8>(x, inverse, zero);
    case Element::int8_asym: return code_of<Element::int8_asym>(x, inverse, zero);
    default: return code_of<Element::int4>(x, inverse, zero);
  }
}

/// A warp stores a vector, number by number.
template <bool is_dynamic>
PAGEDKV_KERNEL(128, 4)
write_any(AnyWriteArgs const a) {
  wait_for_previous_kernel();
  WritePlace const at =
      place_of(a.slots, a.num_tokens, a.num_slots, a.heads, a.block_tokens, thread_index() / 32);
  if (!at.exists) return;  // the whole warp
  auto const lane = static_cast<std::int32_t>(threadIdx.x % 32);
  std::int32_t const dim = a.side.dim;
  std::byte const* const row = a.side.rows.vector(at.token, at.head);
  std::byte* const to = a.side.pool.vector(at.block, at.offset, at.head);
  RopeRow const turn = rope_row_of(a.rope, at.token);
  auto const number = [&](std::int32_t i) { return turned_number(a.rope, turn, a.in, row, i); };
  AffineScale scale{1.0F, 0.0F};
  if constexpr (is_dynamic) {
    Amax amax;
    Range range;
    for (std::int32_t i = lane; i < dim; i += 32) {
      amax.add(number(i));
      range.add(number(i));
    }
    for (std::int32_t distance = 16; distance > 0; distance /= 2) {
      amax.join(distance);
      range.join(distance);
    }
    scale = quant::has_zero(a.out) ? range.scale(a.out) : amax.scale(a.out);
    if (lane == 0) store_scale(a.out, a.side.pool.scale(at.block, at.offset, at.head), scale);
  } else if (!quant::is_unscaled(a.out)) {
    scale.scale = *a.side.pool.scale(at.block, at.offset, at.head);
  }
  InverseScale const inverse = quant::inverse({scale.scale});
  if (a.out == Element::int4) {
    for (std::int32_t i = 2 * lane; i < dim; i += 64) {
      std::uint32_t code = any_code(a.out, number(i), inverse, scale.zero);
      if (i + 1 < dim) code |= any_code(a.out, number(i + 1), inverse, scale.zero) << 4;
      to[i / 2] = static_cast<std::byte>(code);
    }
    return;
  }
  for (std::int32_t i = lane; i < dim; i += 32) {
    float const x = number(i);
    if (quant::is_unscaled(a.out)) {
      store_number(a.out, to, i, x);
    } else {
      to[i] = static_cast<std::byte>(any_code(a.out, x, inverse, scale.zero));
    }
  }
}

// ---- launchers ----------------------------------------------------------------------------------

/// A layer's K and V, or one of them, of one format and one input.
struct WriteCall {
  SideArgs k;
  SideArgs v;
  Rope rope;  ///< of K; without positions: nothing is rotated
  KvFormat format;
  Element in = Element::f32;
  std::int32_t num_heads = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
  WriteSlots to;
  cudaStream_t stream = nullptr;

  [[nodiscard]] std::int64_t num_vectors() const { return to.num_tokens * num_heads; }
  [[nodiscard]] bool k_is_vectorizable() const {
    return detail::is_vectorizable(k, format.element) &&
           (rope.positions == nullptr || detail::is_vectorizable(rope));
  }
  [[nodiscard]] bool is_vectorizable() const {
    return (k.dim == 0 || k_is_vectorizable()) &&
           (v.dim == 0 || detail::is_vectorizable(v, format.element));
  }
};

template <class Args>
cudaError_t launch_write(WriteCall const& call, void (*kernel)(Args), dim3 grid, unsigned threads,
                         Args const& args) {
  return call.to.early_start ? launch_dependent(kernel, grid, threads, 0, call.stream, args)
                             : launch(kernel, grid, threads, 0, call.stream, args);
}

inline cudaError_t write_any_side(WriteCall const& call, SideArgs const& side, Rope const& rope) {
  if (side.dim == 0) return cudaSuccess;
  AnyWriteArgs args;
  args.side = side;
  args.rope = rope;
  args.in = call.in;
  args.out = call.format.element;
  args.slots = call.to.slots;
  args.num_tokens = call.to.num_tokens;
  args.num_slots = std::int64_t{call.num_blocks} * call.block_tokens;
  args.heads = Divider(call.num_heads);
  args.block_tokens = Divider(call.block_tokens);
  unsigned const blocks = blocks_of(call.num_vectors() * 32, 128);
  if (blocks == 0) return cudaErrorInvalidValue;
  bool const is_dynamic = call.format.granularity == Granularity::per_token_head;
  return launch_write(call, is_dynamic ? &write_any<true> : &write_any<false>, blocks, 128, args);
}
inline cudaError_t write_any_sides(WriteCall const& call) {
  cudaError_t const error = write_any_side(call, call.k, call.rope);
  return error == cudaSuccess ? write_any_side(call, call.v, {}) : error;
}

inline WriteArgs write_args(WriteCall const& call) {
  WriteArgs args;
  args.k = call.k;
  args.v = call.v;
  args.rope = call.rope;
  args.slots = call.to.slots;
  args.num_tokens = call.to.num_tokens;
  args.num_slots = std::int64_t{call.num_blocks} * call.block_tokens;
  args.heads = Divider(call.num_heads);
  args.block_tokens = Divider(call.block_tokens);
  std::int32_t const dim = call.k.dim > call.v.dim ? call.k.dim : call.v.dim;
  std::int32_t const chunks = dim / chunk_elements;
  args.chunks = Divider(chunks < 1 ? 1 : chunks);
  while ((1 << args.lanes_log2) < chunks) ++args.lanes_log2;
  return args;
}

template <Element in, Element out, bool rotates>
cudaError_t launch_static(WriteCall const& call) {
  if (!call.is_vectorizable()) return write_any_sides(call);
  WriteArgs const args = write_args(call);
  unsigned const blocks = blocks_of(call.num_vectors() * args.chunks.divisor, 256);
  if (blocks == 0) return cudaErrorInvalidValue;
  return launch_write(call, &write_static<in, out, rotates>, blocks, 256, args);
}

template <Element in, Element out, bool rotates>
cudaError_t launch_per_token_head(WriteCall const& call) {
  WriteArgs const args = write_args(call);
  if (!call.is_vectorizable() || args.lanes_log2 > 5) return write_any_sides(call);
  unsigned const blocks = blocks_of(call.num_vectors() << args.lanes_log2, 256);
  if (blocks == 0) return cudaErrorInvalidValue;
  return launch_write(call, &write_per_token_head<in, out, rotates>, blocks, 256, args);
}

template <Element in, Element out, bool rotates>
cudaError_t launch_per_block_head(WriteCall const& call) {
  if (call.to.num_runs == 0) return cudaSuccess;
  if (call.to.num_runs < 0 || call.to.runs == nullptr) return cudaErrorInvalidValue;
  BlockWriteArgs args;
  args.k = call.k;
  args.v = call.v;
  args.rope = call.rope;
  args.k_is_vectorizable = call.k_is_vectorizable();
  args.v_is_vectorizable = is_vectorizable(call.v, out);
  args.runs = reinterpret_cast<RunEntry const*>(call.to.runs);
  args.num_tokens = call.to.num_tokens;
  args.num_blocks = call.num_blocks;
  args.block_tokens = call.block_tokens;
  dim3 const grid(static_cast<unsigned>(call.to.num_runs), static_cast<unsigned>(call.num_heads),
                  2);
  return launch_write(call, &write_per_block_head<in, out, rotates>, grid, block_write_threads,
                      args);
}

}  // namespace detail

/// One kernel: the format of both tensors is `{out, granularity}`, the rows' element is `in`, and
/// `rotates` says whether the call has a rope.
template <Element in, Element out, Granularity granularity, bool rotates = false>
cudaError_t write_kv(detail::WriteCall const& call) {
  static_assert(detail::is_row<in>);
  static_assert(is_valid(KvFormat{out, granularity}), "no such format");
  if constexpr (granularity == Granularity::per_block_head) {
    return detail::launch_per_block_head<in, out, rotates>(call);
  } else if constexpr (granularity == Granularity::per_token_head) {
    return detail::launch_per_token_head<in, out, rotates>(call);
  } else {
    return detail::launch_static<in, out, rotates>(call);
  }
}

namespace detail {

template <Element in, Element out, bool rotates>
cudaError_t write_fp8(WriteCall const& call) {
  switch (call.format.granularity) {
    case Granularity::per_token_head: return launch_per_token_head<in, out, rotates>(call);
    case Granularity::per_block_head: return launch_per_block_head<in, out, rotates>(call);
    default: return launch_static<in, out, rotates>(call);
  }
}

/// All formats for rows of one element.
template <Element in, bool rotates>
cudaError_t write_from(WriteCall const& call) {
  switch (call.format.element) {
    case Element::f32: return launch_static<in, Element::f32, rotates>(call);
    case Element::f16: return launch_static<in, Element::f16, rotates>(call);
    case Element::bf16: return launch_static<in, Element::bf16, rotates>(call);
    case Element::fp8_e4m3: return write_fp8<in, Element::fp8_e4m3, rotates>(call);
    case Element::fp8_e5m2: return write_fp8<in, Element::fp8_e5m2, rotates>(call);
    case Element::int8:
      return call.format.granularity == Granularity::per_token_head
                 ? launch_per_token_head<in, Element::int8, rotates>(call)
                 : launch_static<in, Element::int8, rotates>(call);
    case Element::int8_asym: return launch_per_token_head<in, Element::int8_asym, rotates>(call);
    case Element::int4: return launch_per_token_head<in, Element::int4, rotates>(call);
    default: return cudaErrorInvalidValue;
  }
}

/// Where a program compiles the kernels of each input elsewhere, it says so before this.
#if defined(PAGEDKV_CUDA_KERNELS_COMPILED)
extern template cudaError_t write_from<Element::f32, false>(WriteCall const& call);
extern template cudaError_t write_from<Element::f16, false>(WriteCall const& call);
extern template cudaError_t write_from<Element::bf16, false>(WriteCall const& call);
extern template cudaError_t write_from<Element::f32, true>(WriteCall const& call);
extern template cudaError_t write_from<Element::f16, true>(WriteCall const& call);
extern template cudaError_t write_from<Element::bf16, true>(WriteCall const& call);
#endif

template <bool rotates>
cudaError_t write_call(WriteCall const& call) {
  switch (call.in) {
    case Element::f32: return write_from<Element::f32, rotates>(call);
    case Element::f16: return write_from<Element::f16, rotates>(call);
    case Element::bf16: return write_from<Element::bf16, rotates>(call);
    default: return cudaErrorInvalidValue;
  }
}

/// K and V of a step for a layer; `rotates` says whether there is a rope. One launch where K and V
/// agree in format and input, else one each: V's never rotates.
template <bool rotates>
cudaError_t write_layer(KvView const& view, std::int32_t layer_index, KvRows const& k,
                        KvRows const& v, Rope const& rope, WriteSlots const& to,
                        cudaStream_t stream) {
  if (!view_works(view, layer_index)) return cudaErrorInvalidValue;
  if (to.num_tokens == 0) return cudaSuccess;
  KvLayer const& layer = view.layers[static_cast<std::size_t>(layer_index)];
  if (!count_works(to.num_tokens) || !side_works(layer.k, k) || !side_works(layer.v, v)) {
    return cudaErrorInvalidValue;
  }
  if (rotates && !rope_works(rope, layer.k.head_dim)) return cudaErrorInvalidValue;
  WriteCall call;
  call.k = side_args(layer.k, k);
  call.v = side_args(layer.v, v);
  call.rope = rope;
  call.format = layer.k.format;
  call.in = k.element;
  call.num_heads = view.num_kv_heads;
  call.num_blocks = view.num_blocks;
  call.block_tokens = view.block_tokens;
  call.to = to;
  call.stream = stream;
  bool const needs_slots =
      layer.k.format.granularity != Granularity::per_block_head ||
      (layer.v.head_dim > 0 && layer.v.format.granularity != Granularity::per_block_head);
  if (needs_slots && to.slots == nullptr) return cudaErrorInvalidValue;
  if (layer.v.head_dim == 0 || (layer.k.format == layer.v.format && k.element == v.element)) {
    return write_call<rotates>(call);
  }
  WriteCall second = call;
  call.v = {};
  second.k = {};
  second.rope = {};
  second.format = layer.v.format;
  second.in = v.element;
  cudaError_t const error = write_call<rotates>(call);
  return error == cudaSuccess ? write_call<false>(second) : error;
}

/// See operations.hpp.
inline cudaError_t write_kv(KvView const& view, std::int32_t layer, KvRows const& k,
                            KvRows const& v, WriteSlots const& to, cudaStream_t stream) {
  return write_layer<false>(view, layer, k, v, {}, to, stream);
}
/// See operations.hpp.
inline cudaError_t write_kv_rope(KvView const& view, std::int32_t layer, KvRows const& k,
                                 KvRows const& v, Rope const& rope, WriteSlots const& to,
                                 cudaStream_t stream) {
  return write_layer<true>(view, layer, k, v, rope, to, stream);
}

}  // namespace detail
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Memory of a pool, or an array of a step, as consumers name it: a pointer, a type, a shape and
/// strides. Nothing is owned and nothing is read: the pointer may be one of a device.
///
///     pool_tensor(view, view.layers[0].k)    [num_blocks, block_tokens, num_kv_heads, head_dim]
///     scale_tensor(view, view.layers[0].k)   what is beside it
///
/// Strides are 64-bit and count elements, as everywhere in pagedkv, PyTorch and DLPack; only
/// cuda_array_interface.hpp converts them to bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {

/// The types that a consumer has a name for.
enum class Dtype : std::uint8_t { f32, f16, bf16, e4m3fn, e5m2, i8, u8, i32, i64 };

/// PyTorch's name, e.g. "float8_e4m3fn".
[[nodiscard]] constexpr char const* to_string(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32: return "float32";
    case Dtype::f16: return "float16";
    case Dtype::bf16: return "bfloat16";
    case Dtype::e4m3fn: return "float8_e4m3fn";
    case Dtype::e5m2: return "float8_e5m2";
    case Dtype::i8: return "int8";
    case Dtype::u8: return "uint8";
    case Dtype::i32: return "int32";
    case Dtype::i64: return "int64";
  }
  return "unknown";
}

[[nodiscard]] constexpr std::int32_t bytes_per_item(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::i64: return 8;
    case Dtype::f32:
    case Dtype::i32: return 4;
    case Dtype::f16:
    case Dtype::bf16: return 2;
    default: return 1;
  }
}

/// The type of stored numbers. `int8_asym` is unsigned; of `int4` there are only bytes, two
/// numbers each.
[[nodiscard]] constexpr Dtype dtype_of(Element element) noexcept {
  switch (element) {
    case Element::f32: return Dtype::f32;
    case Element::f16: return Dtype::f16;
    case Element::bf16: return Dtype::bf16;
    case Element::fp8_e4m3: return Dtype::e4m3fn;
    case Element::fp8_e5m2: return Dtype::e5m2;
    case Element::int8: return Dtype::i8;
    case Element::int8_asym:
    case Element::int4: return Dtype::u8;
  }
  return Dtype::u8;
}

/// `rank` dimensions of `shape` and `strides` are in use, outermost first; rank 0: there is no such
/// tensor.
struct Tensor {
  static constexpr std::size_t max_rank = 5;

  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int32_t rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};  ///< in elements of `dtype`

  [[nodiscard]] constexpr bool exists() const noexcept { return rank != 0; }
  [[nodiscard]] constexpr std::int64_t num_elements() const noexcept {
    std::int64_t n = exists() ? 1 : 0;
    for (std::int32_t i = 0; i < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }
  friend constexpr bool operator==(Tensor const&, Tensor const&) noexcept = default;
};
static_assert(std::is_trivially_copyable_v<Tensor>);

/// K or V of a layer: [num_blocks, block_tokens, num_kv_heads, head_dim], whatever its strides;
/// `int4`: bytes, so that the last is bytes_per_vector. None where head_dim is 0.
[[nodiscard]] constexpr Tensor pool_tensor(KvView const& view, KvTensor const& t) noexcept {
  if (t.head_dim == 0) return {};
  std::int64_t const per_item = t.format.element == Element::int4 ? 2 : 1;
  return {t.data,
          dtype_of(t.format.element),
          4,
          {view.num_blocks, view.block_tokens, view.num_kv_heads,
           (t.head_dim + per_item - 1) / per_item},
          {t.block_stride / per_item, t.token_stride / per_item, t.head_stride / per_item, 1}};
}

/// The scales beside it, f32: none without scales, [1] for `per_tensor`, [num_kv_heads] for
/// `per_head`, [num_blocks, num_kv_heads] for `per_block_head`, [num_blocks, block_tokens,
/// num_kv_heads] for `per_token_head`. `int8_asym` and `int4`: a last dimension of 2 more, the
/// scale and the zero.
[[nodiscard]] constexpr Tensor scale_tensor(KvView const& view, KvTensor const& t) noexcept {
  Granularity const reach = t.format.granularity;
  if (t.head_dim == 0 || reach == Granularity::none) return {};
  Tensor out{t.scales, Dtype::f32, 0, {}, {}};
  auto const add = [&out](std::int64_t size, std::int64_t stride) {
    out.shape[static_cast<std::size_t>(out.rank)] = size;
    out.strides[static_cast<std::size_t>(out.rank++)] = stride;
  };
  bool const is_dynamic =
      reach == Granularity::per_token_head || reach == Granularity::per_block_head;
  if (is_dynamic) add(view.num_blocks, t.scale_block_stride);
  if (reach == Granularity::per_token_head) add(view.block_tokens, t.scale_token_stride);
  if (reach == Granularity::per_tensor) {
    add(1, 1);
  } else {
    add(view.num_kv_heads, t.scale_head_stride);
  }
  if (bytes_per_scale_entry(t.format.element) > bytes_per_scale) add(2, 1);
  return out;
}

/// The first `n` elements of a step's array: [n], contiguous. Requires: it has them, so that
/// `Batch::build` wrote it.
template <class T>
[[nodiscard]] constexpr Tensor array_tensor(std::span<T> array, std::int64_t n) {
  static_assert(std::is_same_v<T, std::int32_t> || std::is_same_v<T, Slot>);
  PAGEDKV_ASSERT(array.size() >= static_cast<std::size_t>(n),
                 "array_tensor: a step's array is missing or short; Batch::build must write it");
  return {array.data(), std::is_same_v<T, Slot> ? Dtype::i64 : Dtype::i32, 1, {n}, {1}};
}

/// The same memory with dimensions `a` and `b` exchanged. Requires: both exist.
[[nodiscard]] constexpr Tensor transposed(Tensor t, std::size_t a, std::size_t b) noexcept {
  std::swap(t.shape[a], t.shape[b]);
  std::swap(t.strides[a], t.strides[b]);
  return t;
}

/// K and V as one tensor [2, shape of both]; nothing unless V lies like K, a whole number of
/// elements behind it.
[[nodiscard]] inline std::optional<Tensor> stacked(Tensor const& k, Tensor const& v) noexcept {
  Tensor moved = v;
  moved.data = k.data;
  auto const distance = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(v.data) -
                                                  reinterpret_cast<std::uintptr_t>(k.data));
  if (moved != k || distance <= 0 || distance % bytes_per_item(k.dtype) != 0) return std::nullopt;
  Tensor out{k.data, k.dtype, k.rank + 1, {2}, {distance / bytes_per_item(k.dtype)}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(k.rank); ++i) {
    out.shape[i + 1] = k.shape[i];
    out.strides[i + 1] = k.strides[i];
  }
  return out;
}

}  // namespace interop
PAGEDKV_NAMESPACE_END

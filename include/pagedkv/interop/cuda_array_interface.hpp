// SPDX-License-Identifier: Apache-2.0
/// \file
/// The entries of Python's `__cuda_array_interface__`, version 3, for a tensor in device memory:
/// what CuPy, Numba and PyTorch read.
///
///     {"shape": a.shape[:a.ndim], "typestr": a.typestr, "data": (a.data, a.read_only),
///      "version": a.version, "strides": a.strides[:a.ndim], "stream": a.stream}
///
/// Here strides are in bytes. NumPy's typestr has no fp8 and no bfloat16: such a tensor is exported
/// as unsigned integers of its size, and `tag` says what they are, e.g. for PyTorch
/// `torch.as_tensor(a).view(getattr(torch, a.tag))`. DLPack needs no such tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <pagedkv/error.hpp>
#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {

struct CudaArrayInterface {
  std::int32_t version = 3;
  std::int32_t ndim = 0;
  std::array<std::int64_t, Tensor::max_rank> shape{};
  std::array<std::int64_t, Tensor::max_rank> strides{};  ///< in bytes
  char const* typestr = "<f4";
  char const* tag = "float32";  ///< PyTorch's name of what the numbers are
  std::uintptr_t data = 0;      ///< 0 where there are no elements, as the protocol wants it
  bool read_only = false;
  /// On which the consumer waits before it reads: 1 is the legacy default stream, 2 the per-thread
  /// one, others a cudaStream_t; nothing (None): no waiting is needed.
  std::optional<std::uint64_t> stream{};
};

/// NumPy's, little-endian.
[[nodiscard]] constexpr char const* typestr_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32: return "<f4";
    case Dtype::f16: return "<f2";
    case Dtype::bf16: return "<u2";
    case Dtype::i8: return "|i1";
    case Dtype::e4m3fn:
    case Dtype::e5m2:
    case Dtype::u8: return "|u1";
    case Dtype::i32: return "<i4";
    case Dtype::i64: return "<i8";
  }
  return "|u1";
}

/// Nothing is owned: the object that hands it out must keep the memory alive. Requires: a `stream`
/// isn't 0, which the protocol leaves ambiguous.
[[nodiscard]] inline CudaArrayInterface cuda_array_interface(
    Tensor const& t, std::optional<std::uint64_t> stream = std::nullopt, bool read_only = false) {
  PAGEDKV_ASSERT(stream != 0U, "cuda_array_interface: stream 0 is ambiguous; pass 1 or 2");
  CudaArrayInterface out;
  out.ndim = t.rank;
  out.shape = t.shape;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) {
    out.strides[i] = t.strides[i] * bytes_per_item(t.dtype);
  }
  out.typestr = typestr_of(t.dtype);
  out.tag = to_string(t.dtype);
  if (t.num_elements() != 0) out.data = reinterpret_cast<std::uintptr_t>(t.data);
  out.read_only = read_only;
  out.stream = stream;
  return out;
}

}  // namespace interop
PAGEDKV_NAMESPACE_END

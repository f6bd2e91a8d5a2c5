// SPDX-License-Identifier: Apache-2.0
/// \file
/// What is compiled once for each vector width, as a table of functions. Plain arguments only: the
/// sources behind it share no inline function with the rest of the library, so that the linker
/// can't give wide instructions to a narrow machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

/// Vectors of tokens x heads on both sides. Strides of vectors count bytes, those of scales floats.
struct VectorsArgs {
  std::byte const* in;
  std::int64_t in_token_stride;
  std::int64_t in_head_stride;
  std::byte* out;
  std::int64_t out_token_stride;
  std::int64_t out_head_stride;
  float* scales;  ///< null where there are none
  std::int64_t scale_token_stride;
  std::int64_t scale_head_stride;
  std::int64_t num_tokens;
  std::int64_t num_heads;
  std::int64_t dim;
  bool streams;  ///< `in` is asked for ahead and `out` written around the caches, if a level can
};

/// K or V of one head, seen by attention.
struct HeadTensor {
  std::byte const* data;  ///< of the head
  float const* scales;
  std::int64_t block_stride;  ///< bytes
  std::int64_t token_stride;
  std::int64_t scale_block_stride;  ///< floats
  std::int64_t scale_token_stride;
  std::int32_t dim;
  std::int32_t element;
};

/// Query heads that read the same KV head: converted vectors serve all of them.
inline constexpr std::int32_t max_lanes = 8;

/// One tile of a sequence for some queries. `q`, `acc`: [lane][padded dim], padded with zeros to a
/// multiple of 16 floats and aligned to 64 bytes.
struct TileArgs {
  HeadTensor k;
  HeadTensor v;
  std::int32_t const* table;
  std::int32_t block_tokens;
  std::int32_t num_lanes;
  float const* q;
  std::int64_t q_stride;
  float* acc;
  std::int64_t acc_stride;
  float softmax_scale;
  std::int64_t tile_begin;        ///< a multiple of tile_tokens
  std::int64_t sequence_end;      ///< positions that the table holds
  std::int64_t begin[max_lanes];  ///< visible positions of the tile: begin .. end - 1
  std::int64_t end[max_lanes];    ///< end <= begin: nothing
  float max[max_lanes];           ///< result
  float sum[max_lanes];           ///< result
};

/// Rows are f32, f16, bf16 (index 0 to 2, as `Element` counts).
inline constexpr int num_row_elements = 3;
inline constexpr int num_elements = 8;

struct Kernels {
  char const* name;
  /// Encodes rows with the scales at hand. [row element][stored element]
  void (*store[num_row_elements][num_elements])(VectorsArgs const&);
  /// Makes a scale for each vector, stores it and encodes with it (`per_token_head`).
  void (*store_dynamic[num_row_elements][num_elements])(VectorsArgs const&);
  /// Decodes into rows. [stored element][row element]
  void (*load[num_elements][num_row_elements])(VectorsArgs const&);
  /// The largest finite magnitude of all vectors of `in`. [row element]
  float (*amax[num_row_elements])(VectorsArgs const&);
  /// Rewrites `num_tokens` stored fp8 vectors at `out`. [0: e4m3, 1: e5m2]
  void (*requantize[2])(VectorsArgs const&, float before, float after);
  void (*attend_tile)(TileArgs&);
};

/// Narrowest first; null where the compiler or the machine's architecture hasn't got it.
enum class VectorLevel : std::int32_t { baseline, avx2, avx512 };
[[nodiscard]] Kernels const* kernels_baseline() noexcept;
[[nodiscard]] Kernels const* kernels_avx2() noexcept;
[[nodiscard]] Kernels const* kernels_avx512() noexcept;

/// Those in use: the widest that the machine has, or what `set_vector_level` or the environment
/// variable PAGEDKV_VECTOR_LEVEL (baseline, avx2, avx512) says.
[[nodiscard]] Kernels const& kernels() noexcept;

/// For tests and benchmarks; not while an operation runs. False, and nothing changes, if the
/// machine hasn't got it.
bool set_vector_level(VectorLevel level) noexcept;

/// A call of write_kv that stores at least so many bytes reads its rows from memory and leaves
/// nothing of use in the caches: it streams. INT64_MAX but on Intel's processors, where it was
/// faster (docs/performance-data.md).
[[nodiscard]] std::int64_t streaming_bytes() noexcept;
/// For tests and benchmarks; not while an operation runs.
void set_streaming_bytes(std::int64_t bytes) noexcept;

}  // namespace cpu
PAGEDKV_NAMESPACE_END

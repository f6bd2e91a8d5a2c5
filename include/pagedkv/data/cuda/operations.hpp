// SPDX-License-Identifier: Apache-2.0
/// \file
/// The CUDA data plane: the operations of `data/cpu/operations.hpp` on device memory. Link
/// `pagedkv::cuda`; nothing here needs nvcc.
///
/// Every function enqueues on `stream` and returns what the launch returned: it allocates nothing,
/// never synchronizes, may be captured in a graph. `cudaErrorInvalidValue`: a format, element,
/// pointer or size that can't work (more tokens or rows than an int32 counts, more heads or
/// sequences than a grid's 65,535), or rows that aren't aligned to their element. Nothing to do is
/// `cudaSuccess` without a launch.
///
/// A `KvView` here is a host object whose pointers point into device memory. Stored bytes and
/// scales are those of `cpu::scalar`, bit for bit; what a gather reads is too, all NaN being one.
///
/// Rows and blocks that are aligned to 16 bytes in every stride, with a head_dim that 16 divides,
/// go through 16-byte accesses; everything else works, element by element.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pagedkv/data/cuda/arguments.hpp>
#include <pagedkv/data/cuda/runtime_types.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/data/rope.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

/// Quantizes and stores K and V of a layer, in one launch where both have one format and rows of
/// one element (element by element: one each, but for `per_block_head`). `v.data` is ignored where
/// the layer has no V. `per_block_head` needs `to.runs`; tokens of a block come in order, and all
/// at offsets below a run's first are written.
[[nodiscard]] cudaError_t write_kv(KvView const& view, std::int32_t layer, KvRows const& k,
                                   KvRows const& v, WriteSlots const& to, cudaStream_t stream);

/// The same with K rotated on its way to the quantizer: the bytes that `write_kv` stores of K in
/// f32, each vector by `rotate_vector`. V stays as it is, and so do the rows. Still one launch.
/// `rope`: pointers into device memory. `cudaErrorInvalidValue` also where one is null, or
/// rotary_dim is odd, 0 or above the head_dim of K.
///
/// A rotary_dim that 16 divides and tables aligned to 16 bytes go through 16-byte accesses.
[[nodiscard]] cudaError_t write_kv_rope(KvView const& view, std::int32_t layer, KvRows const& k,
                                        KvRows const& v, Rope const& rope, WriteSlots const& to,
                                        cudaStream_t stream);

/// Runs the copy plan: all layers, K, V and the scales beside them, one launch.
/// `device_layers`: view.layers copied to device memory. `copies`: [num_copies], on the device; one
/// of 0 tokens is padding, one whose blocks the pool hasn't is skipped.
[[nodiscard]] cudaError_t copy_blocks(KvView const& view, KvLayer const* device_layers,
                                      BlockCopy const* copies, std::int32_t num_copies,
                                      cudaStream_t stream);

/// All bytes and dynamic scales of these blocks become 0, one launch. `blocks`: [num_blocks], on
/// the device; one that the pool hasn't (-1) is padding.
[[nodiscard]] cudaError_t zero_blocks(KvView const& view, KvLayer const* device_layers,
                                      BlockId const* blocks, std::int32_t num_blocks,
                                      cudaStream_t stream);

/// Reads ranges of sequences, dequantized, into rows of f16, bf16 or f32. A position whose block
/// isn't in its sequence's row, or whose entry the pool hasn't, leaves its row untouched.
[[nodiscard]] cudaError_t gather_kv(KvView const& view, std::int32_t layer,
                                    GatherRanges const& ranges, MutableKvRows const& k,
                                    MutableKvRows const& v, cudaStream_t stream);

/// One query a sequence, at its last token, over blocks of any format: head_dim 64, 128 or 256, the
/// same for K and V, one element for both, 16-byte alignment. Query head h reads KV head
/// h / (num_q_heads / num_kv_heads). Two launches. Not the oracle's bits: within 1e-3 of its
/// result, f32. Sequences of length 0 leave `out` untouched. A position whose block isn't in its
/// sequence's row, or whose entry the pool hasn't, counts for nothing; without any other, `out` is
/// 0.
[[nodiscard]] cudaError_t decode_attention(KvView const& view, std::int32_t layer,
                                           DecodeBatch const& batch, DecodeQueries const& queries,
                                           DecodeOptions const& options, cudaStream_t stream);

/// Raises a layer's row of the table to what K and V of a step have: over many steps, what
/// `quant::CalibrationObserver` sees (a per_tensor amax is the largest of its heads'), bit for bit;
/// infinities and NaN count for nothing. `workspace`: device memory of `bytes`, at least
/// `calibrate_amax_workspace`, aligned to 256 bytes; steps on one stream may share it. Two
/// launches.
[[nodiscard]] cudaError_t calibrate_amax(AmaxTable const& table, std::int32_t layer,
                                         AmaxStep const& step, void* workspace, std::size_t bytes,
                                         cudaStream_t stream);
/// The bytes that its workspace needs for this table, whatever the step.
[[nodiscard]] cudaError_t calibrate_amax_workspace(AmaxTable const& table, std::size_t& bytes);

/// Applies a step's row moves, in order, then its changes. `table`: in device memory; what
/// `decode_attention` reads, and what `interop/` hands to others.
[[nodiscard]] cudaError_t update_tables(BlockTable const& table, TableUpdates const& updates,
                                        cudaStream_t stream);

}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Streams that run nothing before somebody waits for them, in order. What the runtime of
/// `tests/emulated/runtime` is made of; kernels come here through `launch`.
#pragma once

#include <functional>
#include <vector>

#include <pagedkv/data/cuda/device.cuh>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

/// `enqueue` is in device.cuh: on the null stream the work of all streams runs, then `work`.
using Work = std::function<cudaError_t()>;

[[nodiscard]] cudaStream_t create_stream();
/// Runs what is left in it.
cudaError_t destroy_stream(cudaStream_t stream);

/// Runs the stream's work until `is_enough()`, or all of it. The first error of the stream, which
/// stays: everything behind it is dropped. The null stream: all streams.
cudaError_t run_stream(cudaStream_t stream, std::function<bool()> const& is_enough);
cudaError_t run_all_streams();

/// From here on what is enqueued is kept and not run, until `end_capture` hands it out.
cudaError_t begin_capture(cudaStream_t stream);
cudaError_t end_capture(cudaStream_t stream, std::vector<Work>& work);
[[nodiscard]] bool is_capturing() noexcept;

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <algorithm>
#include <deque>
#include <utility>

struct CUstream_st {
  std::deque<pagedkv::cuda::emulated::Work> queue;
  std::vector<pagedkv::cuda::emulated::Work> captured;
  bool is_capturing = false;
  pagedkv::cuda::cudaError_t error = pagedkv::cuda::cudaSuccess;
};

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

namespace {

/// Never destroyed: a program may end with streams that it hasn't.
std::vector<cudaStream_t>& streams = *new std::vector<cudaStream_t>;

/// The front of the queue.
void run_next(CUstream_st& stream) {
  Work const work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (stream.error == cudaSuccess) stream.error = work();
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (stream == nullptr) {
    auto const error = run_all_streams();
    return error != cudaSuccess ? error : work();
  }
  if (stream->is_capturing) {
    stream->captured.push_back(std::move(work));
  } else {
    stream->queue.push_back(std::move(work));
  }
  return cudaSuccess;
}

cudaStream_t create_stream() { return streams.emplace_back(new CUstream_st); }
cudaError_t destroy_stream(cudaStream_t stream) {
  auto const error = run_stream(stream, [] { return false; });
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return error;
}

cudaError_t run_stream(cudaStream_t stream, std::function<bool()> const& is_enough) {
  if (stream == nullptr) return run_all_streams();
  while (!stream->queue.empty() && !is_enough()) run_next(*stream);
  return stream->error;
}
cudaError_t run_all_streams() {
  cudaError_t error = cudaSuccess;
  for (cudaStream_t const stream : streams) {
    auto const of_stream = run_stream(stream, [] { return false; });
    if (error == cudaSuccess) error = of_stream;
  }
  return error;
}

cudaError_t begin_capture(cudaStream_t stream) {
  if (stream == nullptr || stream->is_capturing) return cudaErrorInvalidValue;
  stream->is_capturing = true;
  stream->captured.clear();
  return cudaSuccess;
}
cudaError_t end_capture(cudaStream_t stream, std::vector<Work>& work) {
  if (stream == nullptr || !stream->is_capturing) return cudaErrorInvalidValue;
  stream->is_capturing = false;
  work = std::move(stream->captured);
  return cudaSuccess;
}
bool is_capturing() noexcept {
  return std::any_of(streams.begin(), streams.end(),
                     [](cudaStream_t stream) { return stream->is_capturing; });
}

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Streams, events and captured graphs for tests that call the CUDA runtime: the toolkit's, or the
/// one that stands for it on the executor. A call that fails ends the test.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace pagedkv::testing {

inline void require_success(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

/// Doesn't wait for the null stream. Ended when it is destroyed.
class WorkStream {
 public:
  WorkStream() {
    require_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  ~WorkStream() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  WorkStream(WorkStream const&) = delete;
  WorkStream& operator=(WorkStream const&) = delete;
  // Implicit, so that it is passed as the handle.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator cudaStream_t() const noexcept { return stream_; }
  void wait() const { require_success(cudaStreamSynchronize(stream_), "the stream's work"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A place in a stream.
class Event {
 public:
  explicit Event(WorkStream const& stream, unsigned flags = cudaEventDisableTiming) {
    require_success(cudaEventCreateWithFlags(&event_, flags), "an event");
    require_success(cudaEventRecord(event_, stream), "recording an event");
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  /// What `stream` does from here on comes after it.
  void hold_back(WorkStream const& stream) const {
    require_success(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
  }
  void wait() const { require_success(cudaEventSynchronize(event_), "the work before an event"); }
  /// Requires: both have been reached, and were made with `cudaEventDefault`.
  [[nodiscard]] double seconds_since(Event const& earlier) const {
    float milliseconds = 0.0F;
    require_success(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "a time");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// What `work(stream)` enqueues, to be launched any number of times.
class Graph {
 public:
  template <class Work>
  Graph(WorkStream const& stream, Work work) {
    require_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    work(stream);
    cudaGraph_t graph = nullptr;
    require_success(cudaStreamEndCapture(stream, &graph), "the end of a capture");
    cudaError_t const error = cudaGraphInstantiate(&exec_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    require_success(error, "a graph");
  }
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(exec_)); }
  Graph(Graph const&) = delete;
  Graph& operator=(Graph const&) = delete;
  void launch(WorkStream const& stream) const {
    require_success(cudaGraphLaunch(exec_, stream), "launching a graph");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace pagedkv::testing

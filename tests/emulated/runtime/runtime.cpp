// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "executor/device_buffer.hpp"
#include "executor/streams.hpp"
#include "runtime_control.hpp"

namespace emulated = pagedkv::cuda::emulated;

namespace {

using Memories = std::vector<std::unique_ptr<emulated::GuardedMemory>>;
Memories on_device;
Memories pinned;
emulated::RuntimeCalls calls;
cudaError_t next_error = cudaSuccess;
int calls_before_it = 0;

cudaError_t take_error() noexcept {
  if (next_error == cudaSuccess || calls_before_it-- > 0) return cudaSuccess;
  return std::exchange(next_error, cudaSuccess);
}

bool holds(Memories const& memories, void const* address, std::size_t bytes) {
  auto const* const first = static_cast<char const*>(address);
  return std::any_of(memories.begin(), memories.end(), [&](auto const& m) {
    auto const* const begin = static_cast<char const*>(m->data());
    return first >= begin && bytes <= m->size() && first <= begin + (m->size() - bytes);
  });
}

cudaError_t allocate(Memories& memories, void** memory, std::size_t bytes, char const* name) {
  ++calls.allocations;
  if (auto const error = take_error(); error != cudaSuccess) return error;
  if (emulated::is_capturing()) return cudaErrorStreamCaptureUnsupported;
  memories.push_back(std::make_unique<emulated::GuardedMemory>(bytes, name, false));
  *memory = memories.back()->data();
  return cudaSuccess;
}

cudaError_t release(Memories& memories, void* memory) {
  ++calls.frees;
  if (memory == nullptr) return cudaSuccess;
  auto const error = cudaDeviceSynchronize();
  auto const found = std::find_if(memories.begin(), memories.end(),
                                  [&](auto const& m) { return m->data() == memory; });
  if (found == memories.end()) return cudaErrorInvalidValue;
  memories.erase(found);
  return error;
}

/// Owned here, so that a program may end without having destroyed all it made.
template <class T>
std::vector<std::unique_ptr<T>>& all() {
  static auto& objects = *new std::vector<std::unique_ptr<T>>;
  return objects;
}
template <class T>
T* make(T object) {
  return all<T>().emplace_back(std::make_unique<T>(std::move(object))).get();
}
template <class T>
void destroy(T* object) {
  std::erase_if(all<T>(), [=](auto const& one) { return one.get() == object; });
}

}  // namespace

/// A place in a stream. What was told to wait for it keeps it: the event may be recorded elsewhere
/// or destroyed meanwhile.
struct Mark {
  cudaStream_t stream = nullptr;
  bool is_reached = false;
  std::chrono::steady_clock::time_point reached_at{};

  cudaError_t reach() {
    if (is_reached) return cudaSuccess;
    return emulated::run_stream(stream, [this] { return is_reached; });
  }
};
struct CUevent_st {
  std::shared_ptr<Mark> mark;  ///< null: not recorded yet
};
struct CUgraph_st {
  std::vector<emulated::Work> work;
};
struct CUgraphExec_st {
  std::vector<emulated::Work> work;
};

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {
RuntimeCalls const& runtime_calls() noexcept { return calls; }
void fail_next_call(cudaError_t error, int after) noexcept {
  next_error = error;
  calls_before_it = after;
}
std::size_t live_allocations() noexcept { return on_device.size() + pinned.size(); }
}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

char const* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case 0: return "no error";
    case 1: return "invalid argument";
    case 2: return "out of memory";
    case 600: return "device not ready";
    case 719: return "unspecified launch failure";
    case 900: return "operation not permitted when stream is capturing";
    default: return "some error";
  }
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"the executor", 1};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return emulated::run_all_streams(); }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return allocate(on_device, memory, bytes, "memory of cudaMalloc");
}
cudaError_t cudaMallocManaged(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFree(void* memory) { return release(on_device, memory); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return allocate(pinned, memory, bytes, "memory of cudaMallocHost");
}
cudaError_t cudaFreeHost(void* memory) { return release(pinned, memory); }

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ++calls.copies;
  if (auto const error = take_error(); error != cudaSuccess) return error;
  bool const to_device = kind == cudaMemcpyHostToDevice;
  void const* const there = to_device ? to : from;
  auto const is_held = [=] {
    return holds(on_device, there, bytes) &&
           (kind != cudaMemcpyDeviceToDevice || holds(on_device, to, bytes));
  };
  if (!is_held()) return cudaErrorInvalidValue;
  return emulated::enqueue(stream, [=] {
    if (!is_held()) return cudaErrorInvalidValue;
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (auto const error = take_error(); error != cudaSuccess) return error;
  if (!holds(on_device, to, bytes)) return cudaErrorInvalidValue;
  return emulated::enqueue(stream, [=] {
    if (!holds(on_device, to, bytes)) return cudaErrorInvalidValue;
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = emulated::create_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return emulated::destroy_stream(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (emulated::is_capturing()) return cudaErrorStreamCaptureUnsupported;
  return emulated::run_stream(stream, [] { return false; });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = make(CUevent_st{});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  destroy(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->mark = std::make_shared<Mark>(Mark{.stream = stream});
  return emulated::enqueue(stream, [mark = event->mark] {
    mark->is_reached = true;
    mark->reached_at = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->mark == nullptr || event->mark->is_reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->mark == nullptr ? cudaSuccess : event->mark->reach();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->mark == nullptr || end->mark == nullptr) return cudaErrorInvalidValue;
  if (!begin->mark->is_reached || !end->mark->is_reached) return cudaErrorNotReady;
  auto const elapsed = end->mark->reached_at - begin->mark->reached_at;
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (event->mark == nullptr) return cudaSuccess;
  return emulated::enqueue(stream, [mark = event->mark] { return mark->reach(); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return emulated::begin_capture(stream);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = make(CUgraph_st{});
  return emulated::end_capture(stream, (*graph)->work);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = make(CUgraphExec_st{graph->work});
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (auto const& work : exec->work) {
    if (auto const error = emulated::enqueue(stream, work); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  destroy(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  destroy(exec);
  return cudaSuccess;
}

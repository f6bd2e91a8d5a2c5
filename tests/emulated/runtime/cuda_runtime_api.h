// SPDX-License-Identifier: Apache-2.0
/// \file
/// Stands where the toolkit's header of this name would: what pagedkv and its examples call of the
/// CUDA runtime, on the host. Programs that link pagedkv_cuda_emulated get it.
///
/// As late as the rules allow: what is queued on a stream runs when somebody waits for that stream
/// or for an event on it, and a copy reads its source then. A graph keeps addresses and numbers and
/// nothing else. The null stream is the legacy one: it waits for all others and runs at once.
/// Memory is guarded and full of 0xFF (`DeviceBuffer`); copies to or from what isn't a live
/// allocation are refused. `runtime_control.hpp` is for tests.
#pragma once

#include <cstddef>

#include <pagedkv/data/cuda/runtime_types.hpp>

using pagedkv::cuda::cudaError_t;
using pagedkv::cuda::cudaErrorInvalidConfiguration;
using pagedkv::cuda::cudaErrorInvalidValue;
using pagedkv::cuda::cudaErrorLaunchFailure;
using pagedkv::cuda::cudaStream_t;
using pagedkv::cuda::cudaSuccess;
inline constexpr auto cudaErrorMemoryAllocation = static_cast<cudaError_t>(2);
inline constexpr auto cudaErrorNotReady = static_cast<cudaError_t>(600);
inline constexpr auto cudaErrorStreamCaptureUnsupported = static_cast<cudaError_t>(900);

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
/// Of these, what is asked for.
struct cudaDeviceProp {
  char name[256];
  int l2CacheSize;
};
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

char const* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
/// A cache too small for anything.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
/// 9, whatever is asked.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** memory, std::size_t bytes);
/// As cudaMalloc: here the host can read all memory.
cudaError_t cudaMallocManaged(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
/// Host time: of the moments when the events were reached.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the kernels of `pagedkv::cuda` were compiled for, and what follows for a device. Link
/// `pagedkv::cuda`; nothing here needs nvcc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <pagedkv/model/recommend_format.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {

enum class CodeKind : std::uint8_t {
  machine,        ///< sm_80: for this capability and later ones of its major version
  machine_exact,  ///< sm_90a: for this capability alone
  ptx,            ///< compute_80: the driver compiles it for this and every later capability
};
struct CompiledCode {
  ComputeCapability capability;
  CodeKind kind = CodeKind::machine;

  friend constexpr bool operator==(CompiledCode const&, CompiledCode const&) noexcept = default;
};

/// All that this build holds (PAGEDKV_CUDA_ARCHITECTURES).
[[nodiscard]] std::span<CompiledCode const> compiled_code() noexcept;

namespace detail {
constexpr bool goes_before(CompiledCode const& a, CompiledCode const& b) noexcept {
  bool const is_ptx = a.kind == CodeKind::ptx;
  if (is_ptx != (b.kind == CodeKind::ptx)) return !is_ptx;
  return a.capability > b.capability;
}
}  // namespace detail

/// What of it the driver takes for a device: machine code before PTX, the latest first. Empty:
/// nothing, and launches return cudaErrorNoKernelImageForDevice.
[[nodiscard]] constexpr std::optional<CompiledCode> code_for(
    ComputeCapability device, std::span<CompiledCode const> compiled) noexcept {
  std::optional<CompiledCode> best;
  for (CompiledCode const& code : compiled) {
    bool const runs = code.kind == CodeKind::machine_exact ? device == code.capability
                      : code.kind == CodeKind::ptx         ? device >= code.capability
                                                   : device.major == code.capability.major &&
                                                         device.minor >= code.capability.minor;
    if (!runs) continue;
    if (!best || detail::goes_before(code, *best)) best = code;
  }
  return best;
}

/// `recommend_format` for the code that the device would run. Kernels that were compiled for less
/// than 8.9 convert fp8 by integer arithmetic, on whatever device they run.
[[nodiscard]] constexpr FormatAdvice recommend_format(
    ComputeCapability device, std::span<CompiledCode const> compiled) noexcept {
  auto const code = code_for(device, compiled);
  if (!code) {
    return {pagedkv::recommend_format(device).format,
            "these kernels run on no device of this compute capability: add its architecture to "
            "PAGEDKV_CUDA_ARCHITECTURES"};
  }
  if (device >= first_with_fp8 && code->capability < first_with_fp8) {
    return {pagedkv::recommend_format(code->capability).format,
            "this device would run kernels compiled for less than compute capability 8.9, which "
            "convert fp8 in software: add its architecture to PAGEDKV_CUDA_ARCHITECTURES"};
  }
  return pagedkv::recommend_format(device);
}

}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tensor types of GGUF files that are read, and their numbers as f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace engine {

/// As numbered in the files.
enum class TensorType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q8_0 = 8,
  q6_k = 14,
  bf16 = 30,
};

/// The names of those above, for messages.
inline constexpr char const* tensor_type_names = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q6_K";

/// Numbers that are stored together, and their bytes.
struct TypeLayout {
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 0;
};

/// Nothing for a type that isn't read.
[[nodiscard]] std::optional<TypeLayout> layout_of(std::uint32_t type) noexcept;

/// Requires: `bytes` holds out.size() elements of `type`, a multiple of its block.
void dequantize(TensorType type, std::span<std::byte const> bytes, std::span<float> out);

}  // namespace engine

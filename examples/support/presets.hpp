// SPDX-License-Identifier: Apache-2.0
/// \file
/// Models and devices that the programs know by name.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <pagedkv/model/recommend_format.hpp>

namespace programs {

/// What a model's published configuration says.
struct ModelPreset {
  std::string_view name;
  std::int64_t num_params = 0;  ///< all of them, embeddings included
  int weight_bits = 16;         ///< of the published checkpoint
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;     ///< 0: no V, the latent serves as both
  int max_len = 0;        ///< positions the model knows
  char const* note = "";  ///< what a reader of its plan should know
};

inline constexpr std::array<ModelPreset, 8> models = {{
    {"llama-3.1-8b", 8'030'261'248, 16, 32, 8, 128, 128, 131'072, ""},
    {"llama-3.1-70b", 70'553'706'496, 16, 80, 8, 128, 128, 131'072, ""},
    {"llama-3.1-405b", 405'853'388'800, 16, 126, 8, 128, 128, 131'072, ""},
    {"mistral-large-2", 122'610'069'504, 16, 88, 8, 128, 128, 131'072, ""},
    {"qwen2.5-72b", 72'706'203'648, 16, 80, 8, 128, 128, 131'072,
     "trained to 32,768 positions; 131,072 with YaRN"},
    {"qwen2.5-14b", 14'770'033'664, 16, 48, 8, 128, 128, 131'072,
     "trained to 32,768 positions; 131,072 with YaRN"},
    {"gemma-3-27b", 27'432'406'640, 16, 62, 16, 128, 128, 131'072,
     "52 of the 62 layers look back 1,024 tokens only; all 62 are counted in full, as a cache "
     "that keeps every token of every layer needs it; weights include the vision tower"},
    {"deepseek-v3", 671'026'419'200, 8, 61, 1, 512 + 64, 0, 163'840,
     "latent attention: one latent of 512 + 64 elements a token and layer, no V, a copy on every "
     "tensor-parallel rank; weights in fp8 as published"},
}};

/// `memory_bytes` is what the driver reports as the device's total, which is less than the name
/// says where the driver keeps some back (error correction, firmware).
struct DevicePreset {
  std::string_view name;
  std::int64_t memory_bytes = 0;
  pagedkv::ComputeCapability capability;
};

inline constexpr std::int64_t mib = std::int64_t{1} << 20;

inline constexpr std::array<DevicePreset, 8> devices = {{
    {"a100-80gb", 81'920 * mib, {8, 0}},
    {"a100-40gb", 40'960 * mib, {8, 0}},
    {"h100-80gb", 81'559 * mib, {9, 0}},
    {"h200-141gb", 143'771 * mib, {9, 0}},
    {"b200-180gb", 183'359 * mib, {10, 0}},
    {"rtx-3090-24gb", 24'576 * mib, {8, 6}},
    {"rtx-4090-24gb", 24'564 * mib, {8, 9}},
    {"l4-24gb", 23'034 * mib, {8, 9}},
}};

}  // namespace programs

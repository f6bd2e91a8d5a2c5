// SPDX-License-Identifier: Apache-2.0
/// \file
/// Static scales for the formats that need them: made from a text, or read from files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/quant/scale_file.hpp>
#include <pagedkv/quant/scale_set.hpp>

#include "model.hpp"

namespace quality {

/// A static format has no scales. The message says what would help.
class MissingScales : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs the model over `tokens` with an f32 cache, windows of `window`, and takes the scales of
/// each format (all static) from the K and V it sees. O(one pass).
[[nodiscard]] std::vector<pagedkv::quant::ScaleSet> calibrate(
    engine::Model const& model, std::string const& name, std::span<std::int32_t const> tokens,
    std::int32_t window, std::vector<pagedkv::KvFormat> const& formats);

/// `path` itself for a single format, else "x.fp8_e4m3.per_head.json" for "x.json".
[[nodiscard]] std::string scale_path(std::string const& path, pagedkv::KvFormat format,
                                     bool single);

/// The scales of a static format in one of these files (own JSON, vLLM's JSON), or in all that are
/// safetensors: those are one checkpoint. For `per_head`, one with the heads' own scales before one
/// with the tensor's. Throws `MissingScales` with what was wrong with each.
[[nodiscard]] pagedkv::quant::LoadedScales find_scales(std::vector<std::string> const& paths,
                                                       engine::ModelConfig const& config,
                                                       pagedkv::KvFormat format);

/// As `KvStorage` takes them: a `per_tensor` set gives every head of a `per_head` format its scale.
[[nodiscard]] std::vector<pagedkv::StaticScales> storage_scales(pagedkv::quant::ScaleSet const& set,
                                                                pagedkv::KvFormat format,
                                                                std::int32_t num_kv_heads);

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Static scales in files: our own JSON, the historical JSON of vLLM, and safetensors checkpoints.
///
///     write_scale_file("kv_cache_scales.json", observer.scales());
///     auto const [scales, report] = load_scales("kv_cache_scales.json", geometry);
///     std::puts(to_string(report).c_str());
///
/// Reading is strict: a scale that is unknown, missing, there twice, not finite or not positive is
/// an `Error` that names file, tensor and what was expected. Nothing ever becomes 1.0 by itself.
/// What is read is checked against the geometry (`scale_set_error`), formats included; scales that
/// nothing in the geometry would use are an error, too. docs/quantization.md has the schemas.
///
/// Defined in pagedkv::pagedkv. No function here keeps a file open.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/model/geometry.hpp>
#include <pagedkv/quant/scale_set.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {

/// Where the scales of one tensor came from.
struct ScaleOrigin {
  std::int32_t layer = 0;
  char tensor = 'K';       ///< 'K' or 'V'
  std::int32_t count = 0;  ///< 1, or one for each head
  std::string file{};      ///< as it was passed
  std::string name{};      ///< of the safetensors tensor, or the place in the JSON
};

/// What a reader did.
struct ScaleReport {
  std::vector<ScaleOrigin> set{};
  /// What a person should know: shared, absent, of another module and so ignored, suspicious.
  std::vector<std::string> notes{};
};

/// A line for each origin and note.
[[nodiscard]] std::string to_string(ScaleReport const& report);

struct LoadedScales {
  ScaleSet scales{};
  ScaleReport report{};
};

/// Writes our JSON; numbers read back bit for bit. Raises if the set couldn't be read again
/// (format, empty or uneven layers, a scale that is none), or the file can't be written.
void write_scale_file(std::string const& path, ScaleSet const& set);

/// Reads our JSON or vLLM's. The latter has one number for K and V of a layer and rank: one rank
/// gives a `per_tensor` set, more give `per_head`, the heads dealt out as by tensor parallelism.
[[nodiscard]] LoadedScales read_scale_file(std::string const& path, Geometry const& geometry);

/// Reads the scales of all files of a safetensors checkpoint, in every producer's spelling. They
/// are for fp8_e4m3; `per_head` if any tensor has more than one number. Only the decoder's own
/// layers count (`model.layers.N`, `model.language_model.layers.N`, `transformer.h.N`, ...): scales
/// of other modules (`mtp.layers.0`, `vision_tower...`) are ignored, and the report says so.
[[nodiscard]] LoadedScales read_checkpoint_scales(std::span<std::string const> paths,
                                                  Geometry const& geometry);

/// Whether a file is a safetensors checkpoint, whole or not: by its name (*.safetensors) or its
/// first bytes. Raises if it can't be read.
[[nodiscard]] bool is_safetensors(std::string const& path);

/// One of the two, by what the files are. Several files are the shards of one checkpoint.
[[nodiscard]] LoadedScales load_scales(std::span<std::string const> paths,
                                       Geometry const& geometry);
[[nodiscard]] inline LoadedScales load_scales(std::string const& path, Geometry const& geometry) {
  return load_scales(std::span(&path, 1), geometry);
}

}  // namespace quant
PAGEDKV_NAMESPACE_END

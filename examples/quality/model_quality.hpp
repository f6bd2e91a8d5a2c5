// SPDX-License-Identifier: Apache-2.0
/// \file
/// A model's perplexity on a text with each format, and how far its predictions are from those with
/// an f32 cache.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/model/kv_format.hpp>

#include "model.hpp"
#include "rows.hpp"

namespace quality {

/// A format, with [num_layers] scales if it is static.
struct ScaledFormat {
  pagedkv::KvFormat format;
  std::vector<pagedkv::StaticScales> scales{};
};

/// What is measured.
struct QualityRun {
  std::string name;  ///< of the model, in rows
  std::vector<ScaledFormat> formats;
  std::vector<std::int32_t> first_tokens;  ///< in front of every window, e.g. the model's <s>
  std::int32_t window = 512;               ///< tokens a forward pass sees, first_tokens included
  std::int64_t max_tokens = INT64_MAX;     ///< a longer text is read in places, evenly
};

/// Reads the text in windows that know nothing of each other; each token but a window's first is
/// predicted from those before it (from its `first_tokens` too, if there are any).
///
/// Every cache reads what it stored itself, chunk by chunk as in chunked prefill: a token's K and V
/// are read in the format's precision by the token itself and all after it. kl and top1 compare
/// with an f32 cache token by token, whether or not f32 is among the formats.
///
/// Of a text longer than `max_tokens`, windows at even distances are read, as many as that makes,
/// at least one: its beginning alone may be unlike the rest.
///
/// Rows in the order of formats. `progress(tokens done)`. Throws `std::invalid_argument` if there
/// is nothing to predict or the window isn't within the model's positions.
[[nodiscard]] std::vector<QualityRow> measure_quality(
    engine::Model const& model, QualityRun const& run, std::span<std::int32_t const> tokens,
    std::function<void(std::int64_t)> const& progress);

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The needle at the level of attention: every format, length and depth.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/model/kv_format.hpp>

#include "needle_cache.hpp"
#include "rows.hpp"

namespace quality {

/// What is asked.
struct NeedleSearch {
  std::vector<pagedkv::KvFormat> formats;
  std::vector<std::int32_t> lengths = {1024, 4096, 16384, 65536, 131072};
  std::uint64_t seed = 1;
};

/// The static scales of the synthetic layer, from 4,096 tokens of another seed: as in earnest, what
/// is served later isn't what was calibrated with. Empty if the format isn't static.
[[nodiscard]] std::vector<pagedkv::StaticScales> calibrated_needle_scales(pagedkv::KvFormat format);

/// Rows in the order format, length, depth. `progress(done)` is called after each needle.
/// O(formats * depths * sum of lengths); the longest context's K and V are in memory in f32.
[[nodiscard]] std::vector<NeedleRow> search_needles(
    NeedleSearch const& search, std::function<void(std::int64_t)> const& progress);

/// How many of the context's needles this format finds, written by `write`.
[[nodiscard]] int count_needles(NeedleContext const& context, pagedkv::KvFormat format,
                                WriteKv const& write);

}  // namespace quality

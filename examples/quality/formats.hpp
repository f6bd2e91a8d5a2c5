// SPDX-License-Identifier: Apache-2.0
/// \file
/// The formats to compare.
#pragma once

#include <string>
#include <vector>

#include <pagedkv/model/kv_format.hpp>

namespace quality {

/// Every element with every granularity it takes, in the order of `kv_format.hpp`: f32 first.
[[nodiscard]] std::vector<pagedkv::KvFormat> all_formats();

/// Whether its scales are made beforehand.
[[nodiscard]] constexpr bool is_static(pagedkv::KvFormat format) noexcept {
  return format.granularity == pagedkv::Granularity::per_tensor ||
         format.granularity == pagedkv::Granularity::per_head;
}

/// Reads names as `to_string(KvFormat)` writes them; an element alone means all its granularities.
/// Throws `std::invalid_argument` saying what is wrong with a name and what would be right.
[[nodiscard]] std::vector<pagedkv::KvFormat> parse_formats(std::vector<std::string> const& names);

}  // namespace quality

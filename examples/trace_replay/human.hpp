// SPDX-License-Identifier: Apache-2.0
/// \file
/// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace replay {

/// "12,031"
[[nodiscard]] std::string grouped(std::int64_t value);
/// "36.5 %"; more digits where there would be only zeros: "0.061 %"
[[nodiscard]] std::string percent(double share);
/// "2.4 ms", "31 s", "59 min", "5.8 h"
[[nodiscard]] std::string duration(double seconds);
/// `part` of `whole` as a percentage, "-" where there is no whole
[[nodiscard]] std::string share_of(double part, double whole);

}  // namespace replay

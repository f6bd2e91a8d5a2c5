// SPDX-License-Identifier: Apache-2.0
#include "human.hpp"

#include <fmt/format.h>

#include <cmath>

namespace replay {

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  std::size_t const digits_from = value < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > digits_from + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string percent(double share) {
  double const value = share * 100;
  double const size = std::fabs(value);
  if (size == 0) return "0 %";
  if (size < 1) return fmt::format("{:.2g} %", value);
  return fmt::format("{:.1f} %", value);
}

std::string duration(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.3g} min", seconds / 60);
  return fmt::format("{:.3g} h", seconds / 3600);
}

std::string share_of(double part, double whole) { return whole > 0 ? percent(part / whole) : "-"; }

}  // namespace replay

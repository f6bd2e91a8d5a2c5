// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "support/progress.hpp"

namespace replay {

/// Counts requests.
class Progress : public programs::Progress {
 public:
  explicit Progress(std::int64_t total, bool wanted = true)
      : programs::Progress(total, "requests", wanted) {}
};

}  // namespace replay

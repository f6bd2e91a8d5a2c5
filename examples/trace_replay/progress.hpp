// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/progress.hpp"

namespace replay {

using programs::Progress;

}  // namespace replay

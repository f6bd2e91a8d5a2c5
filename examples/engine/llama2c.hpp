// SPDX-License-Identifier: Apache-2.0
/// \file
/// Checkpoints of llama2.c (version 0: seven numbers, then f32 arrays).
#pragma once

#include <string>

#include "model.hpp"

namespace engine {

/// Throws `LoadError` naming the file, the array and what was expected.
[[nodiscard]] Model load_llama2c(std::string const& path);

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The vectorized operations for every machine of the architecture.
#define PAGEDKV_LEVEL baseline
#include "kernels_level.hpp"

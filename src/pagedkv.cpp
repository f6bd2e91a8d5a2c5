// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one home of what `PAGEDKV_COMPILED` promises: the default policies, instantiated once.
#include <pagedkv/version.hpp>

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Version 0.1 recounts the cache here at assertion level 2. The oracle isn't what is tested: it
/// doesn't.
#pragma once

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN
namespace detail {

template <class Core>
void check(Core const&) noexcept {}

}  // namespace detail
PAGEDKV_ORACLE_END

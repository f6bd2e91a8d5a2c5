// SPDX-License-Identifier: Apache-2.0
/// \file
/// Needles as heat maps, depths by lengths, and the model's numbers: one page that needs nothing
/// else.
#pragma once

#include <string>

#include "rows.hpp"

namespace quality {

[[nodiscard]] std::string to_html(Rows const& rows);

}  // namespace quality

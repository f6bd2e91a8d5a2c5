// SPDX-License-Identifier: Apache-2.0
/// \file
/// Catch2, version 2 or 3. Include this and neither of theirs.
#pragma once

#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

namespace pagedkv::testing {

/// Runs the selected tests as Catch2's own main() does; returns the exit status.
int run_catch(int argc, char** argv);

/// For `CHECK_THAT(text, contains_text("..."))`: the two versions name this matcher differently.
inline auto contains_text(std::string const& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace pagedkv::testing

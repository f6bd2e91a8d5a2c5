// SPDX-License-Identifier: Apache-2.0
// The random programs of the default policies, compiled once for the tests that run them.
#undef PAGEDKV_TEST_PROGRAMS_COMPILED
#include "../run_programs.hpp"

namespace pagedkv::testing {
template ProgramOutcome run_program<DefaultPolicy>(Shape const&, Choices, std::int64_t, int,
                                                   std::vector<std::string>*);
template RunReport run_programs<DefaultPolicy>(std::vector<Shape> const&, RunLimits const&,
                                               std::int64_t, int);
}  // namespace pagedkv::testing

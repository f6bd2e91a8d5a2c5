// SPDX-License-Identifier: Apache-2.0
// Catch2 2 is a header whose implementation is compiled here; Catch2 3 brings a library.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "catch.hpp"

namespace pagedkv::testing {

int run_catch(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace pagedkv::testing

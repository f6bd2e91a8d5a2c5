// SPDX-License-Identifier: Apache-2.0
// The library does what version 0.1 did, except where it is meant to differ.
#include "differential_run.hpp"

using namespace pagedkv::testing::differential;

namespace {

using Library = LibrarySystem<pagedkv::DefaultPolicy>;
using Oracle = OracleSystem<pagedkv_oracle::DefaultPolicy>;

}  // namespace

TEST_CASE("random programs without twins agree with version 0.1") {
  check_programs<Library, Oracle>("differential", {}, 1, 80);
}

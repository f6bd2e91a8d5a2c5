// SPDX-License-Identifier: Apache-2.0
// clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined: run with tests/fuzz/corpus.
#include <cstdio>
#include <cstdlib>

#include "../fuzz_program.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const mismatch = pagedkv::testing::mismatch_of({data, size});
  if (!mismatch.empty()) {
    std::fprintf(stderr, "%s\n", mismatch.c_str());
    std::abort();
  }
  return 0;
}

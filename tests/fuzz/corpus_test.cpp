// SPDX-License-Identifier: Apache-2.0
// Replays every file of tests/fuzz/corpus. A failing input that a fuzzer finds is added there.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "catch.hpp"
#include "fuzz_program.hpp"

using namespace pagedkv::testing;

TEST_CASE("the programs of the fuzz corpus agree with the naive model") {
  std::vector<std::filesystem::path> files;
  for (auto const& entry :
       std::filesystem::directory_iterator(PAGEDKV_SOURCE_DIR "/tests/fuzz/corpus")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 8);
  for (auto const& file : files) {
    CAPTURE(file.filename().string());
    std::ifstream in(file, std::ios::binary);
    std::vector<std::uint8_t> const bytes{std::istreambuf_iterator<char>(in), {}};
    CHECK(mismatch_of(bytes) == "");
  }
}

TEST_CASE("bytes of any length make a program that ends") {
  for (unsigned n = 0; n < 300; n += 7) {
    std::vector<std::uint8_t> bytes(n);
    for (unsigned i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + n);
    CHECK(mismatch_of(bytes) == "");
  }
}

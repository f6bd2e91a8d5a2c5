// SPDX-License-Identifier: Apache-2.0
// Prints the event logs. matrix.cmake compares what different compilers and levels make of them.
#include <cstdio>

#include "event_log.hpp"
#include "logged_programs.hpp"

int main() {
  auto const print = [](std::vector<std::string> const& lines) {
    for (auto const& line : lines) std::puts(line.c_str());
  };
  pagedkv::testing::write_plain_log(print);
  pagedkv::testing::write_twin_log(print);
  pagedkv::testing::write_event_log(print);
}

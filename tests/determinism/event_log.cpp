// SPDX-License-Identifier: Apache-2.0
// Prints the event log. matrix.cmake compares what different compilers and levels make of it.
#include <cstdio>

#include "event_log.hpp"

int main() {
  pagedkv::testing::write_event_log([](std::vector<std::string> const& lines) {
    for (auto const& line : lines) std::puts(line.c_str());
  });
}

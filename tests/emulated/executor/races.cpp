// SPDX-License-Identifier: Apache-2.0
// What TSan reports is counted, so that a test can ask for it. Compiled without -fsanitize=thread.
#include <cstdio>
#include <string>
#include <utility>

#include "executor.hpp"

namespace {
int num_races = 0;
std::string first_place;
}  // namespace

#if PAGEDKV_UNDER_TSAN
// The runtime's own names.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
int __tsan_get_report_mop(void* report, unsigned long index, int* thread, void** address, int* size,
                          int* write, int* atomic, void** trace, unsigned long trace_size);
void __sanitizer_symbolize_pc(void* pc, char const* format, char* text, std::size_t size);
void __tsan_on_report(void* report);
char const* __tsan_default_options();

void __tsan_on_report(void* report) {
  if (++num_races > 1) return;
  constexpr int depth = 16;
  void* trace[depth] = {};
  int thread = 0;
  int size = 0;
  int write = 0;
  int atomic = 0;
  void* address = nullptr;
  __tsan_get_report_mop(report, 0, &thread, &address, &size, &write, &atomic, trace, depth);
  for (void* const pc : trace) {
    if (pc == nullptr) break;
    char text[600] = {};
    __sanitizer_symbolize_pc(pc, "%s:%l", text, sizeof text);
    first_place += text;
    first_place += ' ';
  }
}

// Reports are counted, not fatal: tests decide.
char const* __tsan_default_options() {
  return "exitcode=0:halt_on_error=0:allow_addr2line=1:"
         "report_signal_unsafe=0";
}
}
// NOLINTEND(bugprone-reserved-identifier)
#endif

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace emulated {

int take_races() noexcept { return std::exchange(num_races, 0); }

std::string take_race_place() { return std::exchange(first_place, {}); }

}  // namespace emulated
}  // namespace cuda
PAGEDKV_NAMESPACE_END

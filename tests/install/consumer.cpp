// SPDX-License-Identifier: Apache-2.0
// A stranger's program. Every check runs in every consumer project of this folder, so it must
// compile without exceptions and without run-time type information. Returns how many checks failed.
#include <cstdint>
#include <cstdio>

#include <pagedkv/error.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

namespace kv = pagedkv;

namespace {

int failures = 0;

void check(bool holds, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer: failed: %s\n", what);
  ++failures;
}

kv::Result<kv::BlockId> first_block(std::int32_t num_blocks) {
  if (num_blocks < 1) return kv::Unexpected{kv::Errc::no_free_blocks};
  return kv::BlockId{0};
}

void vocabulary() {
  static_assert(PAGEDKV_VERSION_MAJOR == 0 && PAGEDKV_VERSION_MINOR == 1);
  check(kv::blocks_for(17, 16) == 2, "17 tokens need 2 blocks of 16");
  check(first_block(1).value() == kv::BlockId{0}, "a result carries its value");
  check(first_block(0).error() == kv::Errc::no_free_blocks, "a result carries its error");
}

}  // namespace

int main() {
  vocabulary();
  if (failures == 0) std::puts("consumer: pagedkv works");
  return failures;
}

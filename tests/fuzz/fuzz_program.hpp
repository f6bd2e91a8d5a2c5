// SPDX-License-Identifier: Apache-2.0
/// \file
/// One body for the fuzzer and for the corpus: bytes decide a cache and a program of verbs, which
/// runs against the naive model.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "../model/run_programs.hpp"

namespace pagedkv::testing {

/// What differed from the model; empty: nothing. Byte 0 chooses the cache.
inline std::string mismatch_of(std::span<std::uint8_t const> bytes) {
  static constexpr Shape shapes[] = {{1, 1},  {1, 2}, {1, 7}, {1, 64}, {2, 2},  {2, 7},
                                     {2, 64}, {3, 7}, {4, 7}, {16, 2}, {16, 7}, {16, 64}};
  if (bytes.empty()) return {};
  Shape const& shape = shapes[bytes[0] % std::size(shapes)];
  auto const outcome =
      run_program<DefaultPolicy>(shape, Choices::from_bytes(bytes.subspan(1)), 1'000'000, 1);
  return outcome.mismatch;
}

}  // namespace pagedkv::testing

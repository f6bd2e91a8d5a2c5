// SPDX-License-Identifier: Apache-2.0
// The hash says nothing here, or next to nothing: comparisons alone must find the right blocks and
// no others.
#include "model_checks.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;

namespace {

template <std::uint64_t num_hashes>
struct WeakHash {
  static kv::Hash128 root(std::uint64_t) noexcept { return {}; }
  static kv::Hash128 content(std::span<kv::TokenId const> tokens, std::uint64_t) noexcept {
    std::uint64_t sum = 0;
    for (auto const t : tokens) sum += static_cast<std::uint64_t>(t);
    return {sum % num_hashes, sum % num_hashes};
  }
  static kv::Hash128 extra(std::span<std::byte const> bytes, std::uint64_t) noexcept {
    return {bytes.size() % num_hashes, 0};
  }
  static kv::Hash128 chain(kv::Hash128 a, kv::Hash128 b) noexcept {
    return {(a.low + b.low) % num_hashes, (a.high + b.high) % num_hashes};
  }
};
template <std::uint64_t num_hashes>
struct WeakPolicy {
  using Hash = WeakHash<num_hashes>;
  using Eviction = kv::LruEviction;
};

std::vector<Shape> const shapes{{1, 7}, {2, 7}, {16, 7}, {1, 64}, {2, 64}, {16, 64}};

}  // namespace

TEST_CASE("random programs agree with the naive model when all hashes are equal") {
  auto const report = check_programs<WeakPolicy<1>>("one hash", shapes, 5, 2000, 1);
  check_variety(report);
}

TEST_CASE("random programs agree with the naive model when there are three hashes") {
  auto const report = check_programs<WeakPolicy<3>>("three hashes", shapes, 5, 2000, 1);
  check_variety(report);
}

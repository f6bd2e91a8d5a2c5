// SPDX-License-Identifier: Apache-2.0
// The same as differential_test.cpp, where hashes say nothing, or next to nothing.
#include "differential_run.hpp"

using namespace pagedkv::testing::differential;

namespace {

template <class Hash128, std::uint64_t num_hashes>
struct WeakHash {
  static Hash128 root(std::uint64_t) noexcept { return {}; }
  static Hash128 content(std::span<pagedkv::TokenId const> tokens, std::uint64_t) noexcept {
    std::uint64_t sum = 0;
    for (auto const t : tokens) sum += static_cast<std::uint64_t>(t);
    return {sum % num_hashes, sum % num_hashes};
  }
  static Hash128 extra(std::span<std::byte const> bytes, std::uint64_t) noexcept {
    return {bytes.size() % num_hashes, 0};
  }
  static Hash128 chain(Hash128 a, Hash128 b) noexcept {
    return {(a.low + b.low) % num_hashes, (a.high + b.high) % num_hashes};
  }
};
template <std::uint64_t num_hashes>
struct WeakPolicy {
  using Hash = WeakHash<pagedkv::Hash128, num_hashes>;
  using Eviction = pagedkv::DefaultPolicy::Eviction;
};
template <std::uint64_t num_hashes>
struct WeakOraclePolicy {
  using Hash = WeakHash<pagedkv_oracle::Hash128, num_hashes>;
  using Eviction = pagedkv_oracle::DefaultPolicy::Eviction;
};

}  // namespace

TEST_CASE("random programs agree with version 0.1 when all hashes are equal") {
  check_programs<LibrarySystem<WeakPolicy<1>>, OracleSystem<WeakOraclePolicy<1>>>(
      "differential, one hash", {}, 1'000'001, 10);
}

TEST_CASE("random programs agree with version 0.1 when there are three hashes") {
  check_programs<LibrarySystem<WeakPolicy<3>>, OracleSystem<WeakOraclePolicy<3>>>(
      "differential, three hashes", {}, 2'000'001, 10);
}

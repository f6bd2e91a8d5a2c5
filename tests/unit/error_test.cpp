// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/error.hpp>

#include <set>
#include <string>
#include <type_traits>

#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using kv::Errc;
using pagedkv::testing::outcome_of;

namespace {

static_assert(std::is_base_of_v<std::runtime_error, kv::Error>);
static_assert(noexcept(kv::to_string(Errc::never_fits)));

void quiet(char const*) {}

}  // namespace

TEST_CASE("every error code has a name of its own") {
  std::set<std::string> names;
  for (auto const code : {Errc::never_fits, Errc::no_free_blocks, Errc::no_free_sequences,
                          Errc::uncommitted, Errc::extra_keys_too_long, Errc::batch_full}) {
    names.insert(kv::to_string(code));
  }
  CHECK(names.size() == 6);
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(kv::to_string(Errc::no_free_blocks)) == "no_free_blocks");
  CHECK(std::string(kv::to_string(static_cast<Errc>(255))) == "unknown");
}

TEST_CASE("a failed set-up throws an error with its message") {
  try {
    kv::raise("num_blocks is 0; it must be at least 1");
    FAIL("raise returned");
  } catch (kv::Error const& error) {
    CHECK(std::string(error.what()) == "num_blocks is 0; it must be at least 1");
  }
}

TEST_CASE("setting a handler returns the one before and nullptr restores the default") {
  auto const original = kv::set_error_handler(&quiet);
  CHECK(original != &quiet);
  CHECK(kv::set_error_handler(nullptr) == &quiet);
  CHECK(kv::set_error_handler(original) == original);
}

TEST_CASE("a broken contract tells the handler the rule and aborts") {
  auto const broken = outcome_of([] { PAGEDKV_ASSERT(1 + 1 == 3, "sum: count again"); });
  CHECK(broken.aborted);
  CHECK(broken.message == "sum: count again");
}

TEST_CASE("a kept contract goes unnoticed") {
  auto const kept = outcome_of([] { PAGEDKV_ASSERT(1 + 1 == 2, "sum: count again"); });
  CHECK_FALSE(kept.aborted);
  CHECK(kept.message.empty());
}

TEST_CASE("a full check runs at level 2 only") {
  auto const broken = outcome_of([] { PAGEDKV_ASSERT_FULL(1 + 1 == 3, "sum: count again"); });
  CHECK(broken.aborted == (PAGEDKV_ASSERT_LEVEL >= 2));
}

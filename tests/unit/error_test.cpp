// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <pagedkv/error.hpp>
#include <pagedkv/pagedkv.hpp>

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
  for (auto const code :
       {Errc::never_fits, Errc::no_free_blocks, Errc::no_free_sequences, Errc::uncommitted,
        Errc::extra_keys_too_long, Errc::batch_full, Errc::no_staging_buffer}) {
    names.insert(kv::to_string(code));
  }
  CHECK(names.size() == 7);
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

TEST_CASE("at level 2 every verb verifies the whole cache") {
  auto const broken = outcome_of([] {
    namespace kv = pagedkv;
    kv::KvCache cache({.num_blocks = 4, .max_sequences = 2, .max_sequence_tokens = 64});
    auto first = cache.open(kv::SequenceId{1}, std::vector<kv::TokenId>(20, 7), {.reserve = 20});
    auto second = cache.open(kv::SequenceId{2}, std::vector<kv::TokenId>(4, 9), {.reserve = 4});
    // A row that names a block of another sequence: no verb does that.
    const_cast<kv::BlockId&>(second->blocks()[0]) = first->blocks()[0];
    first->commit(20);
  });
  CHECK(broken.aborted == (PAGEDKV_ASSERT_LEVEL >= 2));
}

// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "catch.hpp"
#include "event_log.hpp"
#include "logged_programs.hpp"

using namespace pagedkv::testing;

namespace {

/// FNV-1a: nothing of the library's own.
struct Digest {
  std::uint64_t value = 0xCBF29CE484222325ULL;
  std::uint64_t lines = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t moves = 0;

  void operator()(std::vector<std::string> const& text) {
    for (auto const& line : text) {
      for (char const c : line) {
        value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
      }
      value = (value ^ '\n') * 0x100000001B3ULL;
      ++lines;
      mismatches += line.rfind("mismatch", 0) == 0 ? 1U : 0U;
      moves += line.rfind("moved", 0) == 0 ? 1U : 0U;
    }
  }
};

template <class Write>
Digest digest_of(Write&& write) {
  Digest digest;
  write([&](std::vector<std::string> const& lines) { digest(lines); });
  return digest;
}
Digest digest_of_log() {
  return digest_of([](auto&& take) { write_event_log(take); });
}

}  // namespace

TEST_CASE("contract 15: a long program leaves the same log twice") {
  Digest const once = digest_of_log();
  CHECK(once.mismatches == 0);
  CHECK(once.lines > 50'000);
  CHECK(digest_of_log().value == once.value);
}

TEST_CASE("contract 15: without twins and late reclaim, the log is that of version 0.1") {
  // Ids, victims, copies, events, counts: a change of one byte is a decision.
  Digest const log = digest_of([](auto&& take) { write_plain_log(take); });
  CHECK(log.mismatches == 0);
  CHECK(log.moves == 0);
  CHECK(log.lines == 75'569);
  CHECK(log.value == 0xD72409762046DA09ULL);
}

TEST_CASE("contract 15: a program with twins leaves the same log twice") {
  auto const write = [](auto&& take) { write_twin_log(take); };
  Digest const once = digest_of(write);
  CHECK(once.moves > 500);
  CHECK(digest_of(write).value == once.value);
}

TEST_CASE("contract 15: hashes of known blocks don't change by accident") {
  // Changing a hash is a decision: routers that key on it must be told.
  namespace kv = pagedkv;
  kv::KvCache const cache({.block_tokens = 4, .num_blocks = 1, .max_sequence_tokens = 64});
  std::vector<kv::TokenId> const tokens{1, 2, 3, 4, 5, 6, 7, 8};
  auto const plain = cache.hash(tokens);
  auto const salted = cache.hash(tokens, {.salt = "tenant"});
  REQUIRE(plain.hashes().size() == 2);
  CAPTURE(plain.hashes()[0].high, plain.hashes()[0].low, plain.hashes()[1].high,
          plain.hashes()[1].low, salted.hashes()[1].high, salted.hashes()[1].low);
  CHECK(plain.hashes()[0] == kv::Hash128{0xB40B9ED02C753B2BULL, 0xC3FDD459229BEB53ULL});
  CHECK(plain.hashes()[1] == kv::Hash128{0x41EF09D69B3E2AB2ULL, 0x4A5C93EF51BA95E2ULL});
  CHECK(salted.hashes()[1] == kv::Hash128{0x27F57D1823D84D88ULL, 0xC5AC8FC6F90F1500ULL});
}

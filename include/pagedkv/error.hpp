// SPDX-License-Identifier: Apache-2.0
/// \file
/// Three kinds of trouble, three answers:
///  - exhaustion is normal: `Result<T>` with an `Errc` (result.hpp), no message, no allocation;
///  - misuse breaks a contract: `PAGEDKV_ASSERT` prints the rule and aborts;
///  - set-up fails: `raise()` throws `pagedkv::Error` whose message names every term; with
///    exceptions off it calls the error handler and aborts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <pagedkv/version.hpp>

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define PAGEDKV_EXCEPTIONS 1
#else
#define PAGEDKV_EXCEPTIONS 0
#endif

/// 0: off. 1: cheap (O(1) checks; the default, also in release). 2: full (`verify()` after each
/// verb).
#ifndef PAGEDKV_ASSERT_LEVEL
#define PAGEDKV_ASSERT_LEVEL 1
#endif

PAGEDKV_NAMESPACE_BEGIN

/// Why a call changed nothing.
enum class Errc : std::uint8_t {
  never_fits,           ///< more blocks than the pool has, or more tokens than max_sequence_tokens
  no_free_blocks,       ///< not now: release, evict, reclaim or preempt, then try again
  no_free_sequences,    ///< max_sequences (pin: max_pins) handles are alive
  uncommitted,          ///< fork needs committed() == size()
  extra_keys_too_long,  ///< a block's extra keys need more than max_extra_key_bytes
  batch_full,           ///< the Batch has no row, slot or output left for this entry
  no_staging_buffer,    ///< every buffer of the staging ring is in flight: reclaim, then try again
};

/// The enumerator's name, e.g. "no_free_blocks".
[[nodiscard]] constexpr char const* to_string(Errc code) noexcept {
  switch (code) {
    case Errc::never_fits: return "never_fits";
    case Errc::no_free_blocks: return "no_free_blocks";
    case Errc::no_free_sequences: return "no_free_sequences";
    case Errc::uncommitted: return "uncommitted";
    case Errc::extra_keys_too_long: return "extra_keys_too_long";
    case Errc::batch_full: return "batch_full";
    case Errc::no_staging_buffer: return "no_staging_buffer";
  }
  return "unknown";
}

/// What a failed set-up throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Called with the message before the process aborts: on misuse, and on failed set-up when
/// exceptions are off. May throw or long-jump (tests do). Not thread-safe to set.
using ErrorHandler = void (*)(char const* message);

namespace detail {
inline void print_message(char const* message) { std::fprintf(stderr, "pagedkv: %s\n", message); }
inline ErrorHandler& error_handler() noexcept {
  static ErrorHandler handler = &print_message;
  return handler;
}
}  // namespace detail

/// Replaces the handler and returns the one before. `nullptr` restores the default, which prints.
inline ErrorHandler set_error_handler(ErrorHandler handler) noexcept {
  auto const before = detail::error_handler();
  detail::error_handler() = handler != nullptr ? handler : &detail::print_message;
  return before;
}

/// Set-up failed: throws `Error`, or without exceptions calls the handler and aborts.
[[noreturn]] inline void raise(std::string const& message) {
#if PAGEDKV_EXCEPTIONS
  throw Error(message);
#else
  detail::error_handler()(message.c_str());
  std::abort();
#endif
}

namespace detail {
[[noreturn]] inline void contract_broken(char const* rule) {
  error_handler()(rule);
  std::abort();
}
}  // namespace detail

PAGEDKV_NAMESPACE_END

#define PAGEDKV_DETAIL_CHECK(condition, rule) \
  (static_cast<bool>(condition) ? void(0) : ::pagedkv::detail::contract_broken(rule))

/// `rule` is a string literal that says what the caller must do.
#if PAGEDKV_ASSERT_LEVEL >= 1
#define PAGEDKV_ASSERT(condition, rule) PAGEDKV_DETAIL_CHECK(condition, rule)
#else
#define PAGEDKV_ASSERT(condition, rule) void(0)
#endif

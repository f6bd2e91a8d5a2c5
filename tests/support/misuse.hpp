// SPDX-License-Identifier: Apache-2.0
/// \file
/// Asks what happens when a contract is broken: the process aborts, so a child process tries it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include <pagedkv/error.hpp>

namespace pagedkv::testing {

/// What became of a piece of code that ran in a child process.
struct Outcome {
  bool aborted = false;  ///< ended by SIGABRT
  std::string message;   ///< what the error handler was told; empty when it wasn't called
};

namespace detail {
inline int message_pipe = -1;
inline void write_message(char const* message) {
  std::string const text = message;
  if (::write(message_pipe, text.data(), text.size()) < 0) ::_exit(3);
}
}  // namespace detail

/// Runs `code` in a child process and tells whether it aborted, and with which message.
/// What `code` changes isn't seen by the caller. POSIX only; not with other threads running.
template <class Code>
[[nodiscard]] Outcome outcome_of(Code&& code) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  std::fflush(nullptr);
  pid_t const child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    detail::message_pipe = ends[1];
    // The test runner's own handler would report the abort as a failed test.
    std::signal(SIGABRT, SIG_DFL);
    set_error_handler(&detail::write_message);
    code();
    ::_exit(0);
  }
  ::close(ends[1]);
  Outcome outcome;
  char buffer[256];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    outcome.message.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return outcome;
}

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
/// \file
/// How far a program is.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace programs {

/// A bar on stderr, when that is a terminal; nothing otherwise.
class Progress {
 public:
  explicit Progress(std::int64_t total, bool wanted = true)
      : total_(total), on_(wanted && total > 0 && ::isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Draws at most ten times a second.
  void update(std::int64_t done) {
    if (!on_) return;
    auto const now = Clock::now();
    if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    constexpr int width = 40;
    auto const filled = static_cast<int>(done * width / total_);
    std::string bar(static_cast<std::size_t>(filled), '#');
    bar.resize(width, '.');
    std::fprintf(stderr, "\r[%s] %3d %%  %lld of %lld requests", bar.c_str(),
                 static_cast<int>(done * 100 / total_), static_cast<long long>(done),
                 static_cast<long long>(total_));
    std::fflush(stderr);
  }

  void clear() {
    if (!drawn_) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    drawn_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t total_;
  bool on_;
  bool drawn_ = false;
  Clock::time_point last_;
};

}  // namespace programs

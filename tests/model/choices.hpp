// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where a random program takes its decisions from: a seed, the bytes of a fuzzer, or the recorded
/// decisions of a program that failed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::testing {

/// The decisions of one program, a list a step. Removing a step leaves the others what they were,
/// so a failing program can be shrunk.
using Recording = std::vector<std::vector<std::uint16_t>>;

class Choices {
 public:
  static Choices from_seed(std::uint64_t seed) {
    Choices c;
    // Mixed: the next state is one increment more, so that seeds that count up would all draw from
    // one sequence, each one draw later.
    c.state_ = mixed(seed * increment + 0x1234567ULL);
    c.source_ = Source::seed;
    return c;
  }
  static Choices from_bytes(std::span<std::uint8_t const> bytes) {
    Choices c;
    c.bytes_ = bytes;
    c.source_ = Source::bytes;
    return c;
  }
  static Choices from_recording(Recording const& recording) {
    Choices c;
    c.replayed_ = &recording;
    c.source_ = Source::recording;
    return c;
  }

  void record_into(Recording* out) { recorded_ = out; }

  /// Called before each step, and once before the first for the program's own parameters.
  void begin_step() {
    if (recorded_ != nullptr) recorded_->emplace_back();
    if (source_ == Source::recording) {
      group_ = next_group_ < replayed_->size() ? &(*replayed_)[next_group_] : nullptr;
      ++next_group_;
      place_ = 0;
    }
  }

  /// Nothing left to decide from.
  [[nodiscard]] bool exhausted() const {
    switch (source_) {
      case Source::seed: return false;
      case Source::bytes: return place_ >= bytes_.size();
      case Source::recording: return next_group_ >= replayed_->size();
    }
    return true;
  }

  /// 0 .. bound - 1; bound in 1 .. 65536.
  int below(int bound) {
    return static_cast<int>((draw() * static_cast<std::uint32_t>(bound)) >> 16);
  }
  /// lo .. hi
  int between(int lo, int hi) { return lo + below(hi - lo + 1); }
  bool one_in(int n) { return below(n) == n - 1; }
  template <class T>
  T const& pick(std::vector<T> const& from) {
    return from[static_cast<std::size_t>(below(static_cast<int>(from.size())))];
  }

 private:
  enum class Source : std::uint8_t { seed, bytes, recording };

  // SplitMix64.
  static constexpr std::uint64_t increment = 0x9E3779B97F4A7C15ULL;
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::uint32_t draw() {
    std::uint16_t raw = 0;
    switch (source_) {
      case Source::seed: {
        state_ += increment;
        raw = static_cast<std::uint16_t>(mixed(state_) >> 48);
        break;
      }
      case Source::bytes:
        if (place_ < bytes_.size()) raw = static_cast<std::uint16_t>(bytes_[place_++] * 257);
        break;
      case Source::recording:
        if (group_ != nullptr && place_ < group_->size()) raw = (*group_)[place_++];
        break;
    }
    if (recorded_ != nullptr && !recorded_->empty()) recorded_->back().push_back(raw);
    return raw;
  }

  Source source_ = Source::seed;
  std::uint64_t state_ = 0;
  std::span<std::uint8_t const> bytes_;
  Recording const* replayed_ = nullptr;
  std::vector<std::uint16_t> const* group_ = nullptr;
  std::size_t next_group_ = 0;
  std::size_t place_ = 0;
  Recording* recorded_ = nullptr;
};

}  // namespace pagedkv::testing

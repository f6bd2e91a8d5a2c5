// SPDX-License-Identifier: Apache-2.0
/// \file
/// Threads that wait for loops to run, and memory for what they have half done. Made once; nothing
/// allocates afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

/// `num_threads` threads in all: the one that calls `parallel_for` is one of them. Neither copied
/// nor moved. One `parallel_for` at a time, and not from inside one.
class Workers {
 public:
  /// Floats of scratch if nothing else is said: 4 MiB.
  static constexpr std::size_t default_scratch_floats = std::size_t{1} << 20;

  /// Raises if num_threads < 1 or threads can't be started.
  explicit Workers(std::int32_t num_threads, std::size_t scratch_floats = default_scratch_floats);
  Workers(Workers const&) = delete;
  Workers& operator=(Workers const&) = delete;
  /// Waits for the threads. Requires: no loop runs.
  ~Workers();

  [[nodiscard]] std::int32_t num_threads() const noexcept;

  /// Calls `body(i)` once for each i of 0 .. count - 1, in any order and on any of the threads;
  /// returns when all have returned. What they wrote is then seen by the caller. `body` must not
  /// throw.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, [](void* context, std::int64_t i) { (*static_cast<Plain*>(context))(i); },
        const_cast<std::remove_const_t<Plain>*>(&body));
  }

  /// The operations' own memory while they run, 64-byte aligned; anybody's between them.
  [[nodiscard]] std::span<float> scratch() noexcept;

 private:
  struct State;
  void run(std::int64_t count, void (*call)(void*, std::int64_t), void* context);

  std::unique_ptr<State> state_;
};

}  // namespace cpu
PAGEDKV_NAMESPACE_END

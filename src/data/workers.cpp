// SPDX-License-Identifier: Apache-2.0
/// \file
/// A loop is a number that grows by one each time somebody takes the next index. Threads wait on a
/// condition variable between loops; the caller waits until the last thread has left the loop.
#include <pagedkv/data/cpu/workers.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <pagedkv/detail/lazy_array.hpp>
#include <pagedkv/error.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace cpu {

struct Workers::State {
  explicit State(std::size_t scratch_floats) : scratch(scratch_floats) {}

  void work() noexcept {
    for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      call(context, i);
    }
  }
  void serve() noexcept {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      begun.wait(lock, [&] { return stopping || loop != seen; });
      if (stopping) return;
      seen = loop;
      lock.unlock();
      work();
      lock.lock();
      if (--busy == 0) ended.notify_one();
    }
  }
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex);
      stopping = true;
    }
    begun.notify_all();
    for (auto& thread : threads) thread.join();
  }

  std::mutex mutex;
  std::condition_variable begun;
  std::condition_variable ended;
  std::uint64_t loop = 0;
  std::size_t busy = 0;
  bool stopping = false;
  // Written before a loop begins, under the mutex.
  std::int64_t count = 0;
  void (*call)(void*, std::int64_t) = nullptr;
  void* context = nullptr;
  alignas(64) std::atomic<std::int64_t> next{0};
  detail::LazyArray<float> scratch;
  std::vector<std::thread> threads;
};

Workers::Workers(std::int32_t num_threads, std::size_t scratch_floats) {
  if (num_threads < 1) {
    raise("Workers: num_threads is " + std::to_string(num_threads) + "; it must be at least 1");
  }
  state_ = std::make_unique<State>(scratch_floats);
  state_->threads.reserve(static_cast<std::size_t>(num_threads - 1));
#if PAGEDKV_EXCEPTIONS
  try {
#endif
    for (std::int32_t i = 1; i < num_threads; ++i) {
      state_->threads.emplace_back([state = state_.get()] { state->serve(); });
    }
#if PAGEDKV_EXCEPTIONS
  } catch (std::exception const& error) {
    state_->stop();
    raise("Workers: can't start " + std::to_string(num_threads - 1) +
          " threads: " + std::string(error.what()));
  }
#endif
}

Workers::~Workers() { state_->stop(); }

std::int32_t Workers::num_threads() const noexcept {
  return static_cast<std::int32_t>(state_->threads.size()) + 1;
}

std::span<float> Workers::scratch() noexcept {
  return {state_->scratch.data(), state_->scratch.size()};
}

void Workers::run(std::int64_t count, void (*call)(void*, std::int64_t), void* context) {
  if (count <= 0) return;
  State& s = *state_;
  if (s.threads.empty() || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) call(context, i);
    return;
  }
  {
    std::lock_guard const lock(s.mutex);
    s.count = count;
    s.call = call;
    s.context = context;
    s.next.store(0, std::memory_order_relaxed);
    s.busy = s.threads.size();
    ++s.loop;
  }
  s.begun.notify_all();
  s.work();
  std::unique_lock lock(s.mutex);
  s.ended.wait(lock, [&] { return s.busy == 0; });
}

}  // namespace cpu
PAGEDKV_NAMESPACE_END

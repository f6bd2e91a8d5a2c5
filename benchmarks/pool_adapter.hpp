// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one place that knows the interface of `kv::BlockPool`, which differs between versions: the
/// benchmarks of one version are built against the headers of others (scripts/compare-benchmarks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <pagedkv/pagedkv.hpp>

namespace bench {

namespace kv = pagedkv;

/// A pool alone: nothing is published, so nothing is evicted.
template <class Pool>
class PoolAdapter {
 public:
  explicit PoolAdapter(std::int32_t num_blocks) : pool_(num_blocks) {}

  [[nodiscard]] std::size_t num_available() const {
    return static_cast<std::size_t>(pool_.num_available());
  }
  void allocate(std::span<kv::BlockId> out) { pool_.allocate(out, NoVictim{}); }
  void release(std::span<kv::BlockId const> blocks) {
    // Whether they wait for the device, and who hears of each last reference.
    pool_.release(blocks, false, [](kv::BlockId, std::uint32_t) {});
  }

 private:
  struct NoVictim {
    void soon(kv::BlockId) const noexcept {}
    void next(kv::BlockId) const noexcept {}
    void evict(kv::BlockId) const noexcept {}
  };

  Pool pool_;
};

#if __has_include(<pagedkv/manage/run_table.hpp>)
/// Blocks of which nothing is published, held in runs.
template <class Pool>
class RunPoolAdapter {
 public:
  explicit RunPoolAdapter(std::int32_t num_blocks) : runs_(num_blocks, 16, 1), pool_(runs_) {}

  [[nodiscard]] std::size_t num_available() const {
    return static_cast<std::size_t>(pool_.num_available());
  }
  void allocate(std::span<kv::BlockId> out) {
    std::size_t const num_clean = pool_.allocate(out, NoVictim{});
    runs_.lay(-1, false, out, num_clean, room_);
  }
  void release(std::span<kv::BlockId const> blocks) {
    for (std::size_t end = blocks.size(); end > 0;) {
      kv::RunId const x = runs_.run_at_edge(blocks[end - 1]);
      end -= static_cast<std::size_t>(runs_[x].length);
      if (pool_.drop(x, 0)) pool_.settle(x);
    }
  }

 private:
  struct NoVictim {
    void soon(kv::RunId) const noexcept {}
    void evict(kv::RunId, std::int32_t) const noexcept {}
  };

  kv::RunTable runs_;
  Pool pool_;
  kv::detail::Extent room_;
};
using PagedPool = RunPoolAdapter<kv::BlockPool>;
#else
using PagedPool = PoolAdapter<kv::BlockPool>;  // 0.1
#endif

}  // namespace bench

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
  // A version with another interface gets a branch in these two.
  void allocate(std::span<kv::BlockId> out) {
    if constexpr (requires { pool_.allocate(out); }) {
      pool_.allocate(out);
    } else {  // 0.1: a listener hears of each victim
      pool_.allocate(out, NoVictim{});
    }
  }
  void release(std::span<kv::BlockId const> blocks) {
    if constexpr (requires { pool_.release(blocks); }) {
      pool_.release(blocks);
    } else {  // 0.1: whether they wait for the device, and who hears of each last reference
      pool_.release(blocks, false, [](kv::BlockId, std::uint32_t) {});
    }
  }

 private:
  struct NoVictim {
    void soon(kv::BlockId) const noexcept {}
    void next(kv::BlockId) const noexcept {}
    void evict(kv::BlockId) const noexcept {}
  };

  Pool pool_;
};

using PagedPool = PoolAdapter<kv::BlockPool>;

}  // namespace bench

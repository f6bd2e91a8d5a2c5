// SPDX-License-Identifier: Apache-2.0
/// \file
/// The full recount behind `KvCache::verify`: every counter, flag and list is derived again from
/// the block tables, the pins and the copies, and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <pagedkv/detail/cache_core.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// True if all is well; else `broken` names the first broken rule and `block` where.
struct VerifyReport {
  char const* broken = nullptr;
  BlockId block;

  [[nodiscard]] explicit operator bool() const noexcept { return broken == nullptr; }
};

namespace detail {

template <class Policy>
class Verifier {
 public:
  explicit Verifier(CacheCore<Policy> const& core)
      : core_(core),
        pool_(core.pool()),
        references_(static_cast<std::size_t>(pool_.num_blocks())),
        holds_(references_.size()),
        places_(references_.size()) {}

  VerifyReport run() {
    count_references();
    count_holds();
    walk_lists();
    for (std::int32_t i = 0; i < pool_.num_blocks(); ++i) check_block(BlockId{i});
    check_totals();
    return report_;
  }

 private:
  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }
  void require(bool ok, char const* rule, BlockId b = {}) {
    if (!ok && report_.broken == nullptr) report_ = {rule, b};
  }
  bool in_pool(BlockId b) {
    bool const ok = b.value() >= 0 && b.value() < pool_.num_blocks();
    require(ok, "a table names a block that is not of the pool", b);
    return ok;
  }

  void count_references() {
    for (std::int32_t r = 0; r < core_.config().max_sequences; ++r) {
      if (!core_.sequences().is_alive(r)) continue;
      ++alive_;
      auto const& s = core_.state(r);
      require(s.num_blocks == core_.shape().blocks(s.size), "a row's length fits its size()");
      require(s.committed <= s.size && s.known <= s.size, "committed and known lie within size()");
      require(s.published_blocks <= core_.shape().block(s.committed),
              "nothing behind committed() is published");
      auto const row = core_.row(r);
      if (core_.shape().offset(s.size) != 0 && !s.writable_tail.is_null()) {
        require(!row.empty() && row.back() == s.writable_tail &&
                    (pool_.word(s.writable_tail) & BlockWord::writable_mask) == 1,
                "a remembered tail is the row's last block, and nobody else has it");
      }
      for (std::size_t j = 0; j < row.size(); ++j) {
        if (!in_pool(row[j])) continue;
        ++references_[at(row[j])];
        if (j >= static_cast<std::size_t>(s.published_blocks) && j + 1 < row.size()) {
          require(!pool_.has(row[j], BlockWord::published), "an unfinished block is findable",
                  row[j]);
        }
      }
    }
    for (std::int32_t p = 0; p < core_.config().max_pins; ++p) {
      for (BlockId const b : core_.pins().blocks(p)) ++references_[at(b)];
    }
    for (std::int32_t i = 0; i < pool_.num_blocks(); ++i) {
      BlockId const b{i};
      if (!pool_.has(b, BlockWord::twin)) continue;
      BlockId const first = core_.twin_of(b);
      if (!in_pool(first)) continue;
      ++references_[at(first)];
      require(pool_.has(first, BlockWord::published), "the first of a twin is findable", b);
      require(!pool_.has(b, BlockWord::published), "a twin is not findable itself", b);
    }
  }
  void count_holds() {
    for (BlockCopy const& copy : core_.copies().pending()) {
      ++holds_[at(copy.src)];
      require(pool_.has(copy.dst, BlockWord::copy_target), "a planned copy marks its target",
              copy.dst);
      require(!pool_.has(copy.src, BlockWord::copy_target), "no destination is a source", copy.src);
      require(pool_.references(copy.dst) != 0, "an untaken copy's target is owned", copy.dst);
      ++targets_;
    }
    core_.copies().for_each_taken_end([&](BlockId b) { ++holds_[at(b)]; });
  }
  void walk_lists() {
    pool_.for_each_free([&](BlockId b) { places_[at(b)] += 1; });
    std::int32_t idle = 0;
    for (BlockId b = pool_.eviction().front(); !b.is_null(); b = pool_.eviction().after(b)) {
      places_[at(b)] += 100;
      require(++idle <= pool_.num_blocks(), "the idle list has no circle", b);
      if (idle > pool_.num_blocks()) return;
      check_tail_first(b, idle);
    }
    require(idle == pool_.num_idle(), "the idle list is as long as it says");
    std::uint64_t before = 0;
    pool_.for_each_waiting([&](BlockId b, std::uint64_t stamp) {
      places_[at(b)] += 10000;
      require(stamp >= before, "waiting blocks are in order of ticks", b);
      before = stamp;
    });
  }
  // Contract 10. A parent that somebody still owns, or whose identity has changed, is no matter.
  void check_tail_first(BlockId b, std::int32_t position) {
    if (order_.empty()) order_.resize(references_.size());
    order_[at(b)] = position;
    BlockIdentity const parent = core_.index().parent(b);
    if (parent.block.value() < 0) return;
    bool const current =
        core_.index().identity(parent.block) == parent && core_.index().is_published(parent.block);
    if (current && pool_.is_idle(parent.block)) {
      require(order_[at(parent.block)] == 0, "a parent is evicted before its child", b);
    }
  }
  void check_block(BlockId b) {
    std::uint32_t const w = pool_.word(b);
    bool const owned = (w & BlockWord::count_mask) != 0;
    bool const held = (w & BlockWord::held) != 0;
    bool const waiting = (w & BlockWord::waiting) != 0;
    require((w & BlockWord::count_mask) == references_[at(b)],
            "a block's count equals its sequences, pins and twins", b);
    require(pool_.holds(b) == holds_[at(b)] && held == (holds_[at(b)] != 0),
            "a block is held once for each end of a copy", b);
    require(core_.index().is_published(b) == ((w & BlockWord::published) != 0),
            "pool and index agree on what is findable", b);
    std::uint32_t const place = owned                             ? 0
                                : waiting                         ? 10000
                                : (w & BlockWord::published) != 0 ? 100
                                                                  : 1;
    require(!held || owned || waiting, "a held block without owner waits", b);
    require(places_[at(b)] == place, "a block is in the one list that its state says", b);
    if (!owned) require((w & BlockWord::twin) == 0, "a twin is owned", b);
    retained_ += !owned && held ? 1 : 0;
    used_ += owned ? 1 : 0;
    published_ += (w & BlockWord::published) != 0 ? 1 : 0;
    marked_ += (w & BlockWord::copy_target) != 0 ? 1 : 0;
    if ((w & BlockWord::published) != 0) check_findable(b);
  }
  void check_findable(BlockId b) {
    BlockIdentity const parent = core_.index().parent(b);
    std::span<TokenId const> const tokens{core_.index().tokens(b),
                                          static_cast<std::size_t>(core_.shape().tokens())};
    BlockId const found =
        core_.index().find(core_.index().hash(b), parent, tokens, core_.index().extra(b));
    require(found == b, "a published block is found by its content", b);
    bool const current =
        parent.block.is_null() || (core_.index().identity(parent.block) == parent &&
                                   core_.index().is_published(parent.block));
    if (current) {
      require(core_.index().hash(b) == core_.index().chained(core_.index().hash(parent.block),
                                                             tokens, core_.index().extra(b)),
              "a published block's hash is that of its content", b);
    }
  }
  void check_totals() {
    require(alive_ == core_.sequences().num_alive(), "live rows equal handed out handles");
    require(retained_ == pool_.num_retained(), "retained blocks are counted");
    require(used_ == pool_.num_used(), "free + idle + used + quarantined + retained = all");
    require(published_ == core_.index().size(), "the index holds exactly the published blocks");
    require(marked_ == targets_, "copy targets equal planned copies");
  }

  CacheCore<Policy> const& core_;
  typename CacheCore<Policy>::Pool const& pool_;
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> holds_;
  std::vector<std::uint32_t> places_;
  std::vector<std::int32_t> order_;
  std::int32_t alive_ = 0;
  std::int32_t used_ = 0;
  std::int32_t retained_ = 0;
  std::int32_t published_ = 0;
  std::int32_t targets_ = 0;
  std::int32_t marked_ = 0;
  VerifyReport report_;
};

template <class Policy>
[[nodiscard]] VerifyReport verify(CacheCore<Policy> const& core) {
  return Verifier<Policy>(core).run();
}

/// After each verb at PAGEDKV_ASSERT_LEVEL 2, else nothing.
template <class Policy>
void check([[maybe_unused]] CacheCore<Policy> const& core) {
#if PAGEDKV_ASSERT_LEVEL >= 2
  if (VerifyReport const report = verify(core); !report) contract_broken(report.broken);
#endif
}

}  // namespace detail
PAGEDKV_NAMESPACE_END

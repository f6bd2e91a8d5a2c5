// SPDX-License-Identifier: Apache-2.0
/// \file
/// The full recount of `KvCache::verify`: every counter, flag and list is derived again from
/// the block tables, the pins and the copies, and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <pagedkv/manage/detail/cache_core.hpp>

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
        stock_(core.stock()),
        runs_(core.runs()),
        pool_(core.pool()),
        references_(static_cast<std::size_t>(runs_.num_records())),
        lists_(references_.size()),
        waiting_children_(references_.size()),
        children_(references_.size()),
        holds_(static_cast<std::size_t>(pool_.num_blocks())),
        times_free_(holds_.size()) {}

  VerifyReport run() {
    walk_tables();
    if (report_.broken == nullptr) count_holds();
    if (report_.broken == nullptr) walk_lists();
    for (RunId x = 0; x < runs_.num_records() && report_.broken == nullptr; ++x) count_child(x);
    for (RunId x = 0; x < runs_.num_records() && report_.broken == nullptr; ++x) check_run(x);
    for (std::int32_t i = 0; i < pool_.num_blocks() && report_.broken == nullptr; ++i) {
      check_block(BlockId{i});
    }
    if (report_.broken == nullptr) check_totals();
    return report_;
  }

 private:
  enum List : std::uint8_t { none, idle, waiting };

  static std::size_t at(RunId x) noexcept { return static_cast<std::size_t>(x); }
  static std::size_t at(BlockId b) noexcept { return static_cast<std::size_t>(b.value()); }
  void require(bool ok, char const* rule, BlockId b = {}) {
    if (!ok && report_.broken == nullptr) report_ = {rule, b};
  }

  // ---- tables -----------------------------------------------------------------------------------

  void walk_tables() {
    for (std::int32_t r = 0; r < core_.config().max_sequences; ++r) {
      rooms_ += core_.sequences().room(r).count;
      if (!core_.sequences().is_alive(r)) continue;
      ++alive_;
      check_sequence(r);
      walk_row(core_.row(r));
    }
    for (std::int32_t p = 0; p < core_.config().max_pins; ++p) walk_row(core_.pins().blocks(p));
  }
  void check_sequence(std::int32_t r) {
    auto const& s = core_.state(r);
    auto const row = core_.row(r);
    require(s.num_blocks == core_.shape().blocks(s.size), "a row's length fits its size()");
    require(s.committed <= s.size && s.known <= s.size, "committed and known lie within size()");
    require(s.published_blocks <= core_.shape().block(s.committed),
            "nothing behind committed() is published");
    for (std::size_t j = static_cast<std::size_t>(s.published_blocks); j + 1 < row.size(); ++j) {
      Run const* const run = core_.run_of(row[j]);
      require(run == nullptr || !run->has(Run::published), "an unfinished block is findable",
              row[j]);
    }
    if (core_.shape().offset(s.size) == 0 || s.writable_tail == 0 || row.empty()) return;
    Run const* const run = core_.run_of(row.back());
    require(run != nullptr && runs_.place(row.back()) == s.writable_tail && run->references == 1 &&
                !run->has(Run::published) && !stock_.is_twin(row.back()),
            "a remembered tail is the row's last block, and nobody else has it");
  }
  /// A row is made of whole runs, each after the content of the one before.
  void walk_row(std::span<BlockId const> row) {
    RunId before = -1;
    for (std::size_t j = 0; j < row.size();) {
      if (row[j].value() < 0 || row[j].value() >= pool_.num_blocks()) {
        return require(false, "a table names a block that is not of the pool", row[j]);
      }
      RunId const x = runs_.run_of(row[j]);
      if (x < 0) return require(false, "a table names a block that is in no run", row[j]);
      auto const blocks = runs_.blocks(x);
      bool const whole =
          blocks.size() <= row.size() - j &&
          std::equal(blocks.begin(), blocks.end(), row.begin() + static_cast<std::ptrdiff_t>(j));
      if (!whole) return require(false, "a row is made of whole runs", row[j]);
      ++references_[at(x)];
      if (runs_[x].has(Run::published)) {
        require(!core_.index().is_reachable(runs_[x]) || runs_[x].parent == before,
                "a findable run hangs behind the one before it in its row", row[j]);
      }
      j += blocks.size();
      before = content_run(x);
    }
  }
  RunId content_run(RunId x) const {
    BlockId const last = runs_.last_block(x);
    if (!stock_.is_twin(last)) return x;
    return runs_.run_of(runs_.block_at(stock_.rings().content(last)));
  }

  // ---- lists ------------------------------------------------------------------------------------

  void count_holds() {
    for (BlockCopy const& copy : core_.copies().pending()) {
      ++holds_[at(copy.src)];
      Run const* const dst = core_.run_of(copy.dst);
      Run const* const src = core_.run_of(copy.src);
      if (dst == nullptr || src == nullptr) {
        return require(false, "both ends of a copy are in runs", copy.dst);
      }
      require(dst->has(Run::copy_target), "a planned copy marks its target", copy.dst);
      require(!src->has(Run::copy_target), "no destination is a source", copy.src);
      require(dst->references != 0, "an untaken copy's target is owned", copy.dst);
      ++targets_;
    }
    core_.copies().for_each_taken_end([&](BlockId b) { ++holds_[at(b)]; });
  }
  void walk_lists() {
    pool_.free_blocks().for_each([&](BlockId b) { ++times_free_[at(b)]; });
    for (RunId x = pool_.eviction().front(); x >= 0; x = pool_.eviction().after(runs_, x)) {
      if (lists_[at(x)] != none) return require(false, "the idle list has no circle", first(x));
      lists_[at(x)] = idle;
      idle_ += runs_[x].length;
      position_.resize(references_.size());
      position_[at(x)] = ++num_idle_runs_;
      Run const& run = runs_[x];
      if (run.parent >= 0 && core_.index().is_reachable(run)) {
        require(position_[at(run.parent)] == 0, "a parent is evicted before its child", first(x));
      }
    }
    std::uint64_t before = 0;
    RunId smaller = -1;  // the last run of the next smaller stamp
    for (RunId x = pool_.quarantine().front(); x >= 0; x = runs_[x].next) {
      if (lists_[at(x)] != none) return require(false, "the waiting list has no circle", first(x));
      lists_[at(x)] = waiting;
      waiting_ += runs_[x].length;
      require(runs_[x].stamp >= before, "waiting runs are in order of ticks", first(x));
      before = runs_[x].stamp;
      RunId const next = runs_[x].next;
      if (next >= 0 && runs_[next].stamp == before) continue;
      require(runs_[x].jump == smaller, "waiting runs name the smaller stamp's last", first(x));
      smaller = x;
    }
  }
  BlockId first(RunId x) const { return runs_[x].length != 0 ? runs_.blocks(x)[0] : BlockId{}; }

  // ---- runs and blocks --------------------------------------------------------------------------

  void count_child(RunId x) {
    Run const& run = runs_[x];
    if (run.length == 0 || !run.has(Run::published) || run.parent < 0) return;
    if (!core_.index().is_reachable(run)) return;
    ++children_[at(run.parent)];
    waiting_children_[at(run.parent)] += lists_[at(x)] == waiting ? 1 : 0;
  }
  void check_run(RunId x) {
    Run const& run = runs_[x];
    if (run.length == 0) return;
    ++num_runs_;
    bool const owned = run.references != 0;
    bool const published = run.has(Run::published);
    BlockId const b = first(x);
    require(run.length <= RunTable::max_run_blocks, "a run is no longer than its bound", b);
    require(run.references == references_[at(x)], "a run's count equals its sequences and pins", b);
    List const list = owned ? none : run.has(Run::waiting) ? waiting : idle;
    require(lists_[at(x)] == list, "a run is in the one list that its state says", b);
    require(owned || published || list == waiting, "what is idle is published", b);
    require(!run.has(Run::held | Run::copy_target) || run.length == 1, "an end of a copy is a run",
            b);
    require(!run.has(Run::held) || owned || list == waiting, "a held run without owner waits", b);
    require(run.num_children == (published ? children_[at(x)] : 0), "children are counted", b);
    require(pool_.quarantine().waiting_children(x) == (published ? waiting_children_[at(x)] : 0),
            "waiting children are counted", b);
    require(list != idle || waiting_children_[at(x)] == 0, "a parent waits with its child", b);
    used_ += owned ? run.length : 0;
    retained_ += !owned && run.has(Run::held) ? 1 : 0;
    published_ += published ? 1 : 0;
    marked_ += run.has(Run::copy_target) ? 1 : 0;
    if (published) check_findable(x);
  }
  void check_findable(RunId x) {
    Run const& run = runs_[x];
    if (!core_.index().is_reachable(run)) return;
    RunId const found =
        core_.index().find(run.parent, runs_.tokens(run.start), core_.index().extra(x));
    require(found == x, "a published run is found by its content", first(x));
  }
  void check_block(BlockId b) {
    Run const* const run = core_.run_of(b);
    require(times_free_[at(b)] == (run == nullptr ? 1 : 0), "a block is free or in a run, once", b);
    bool const held = run != nullptr && run->has(Run::held);
    require(pool_.holds(b) == holds_[at(b)] && held == (holds_[at(b)] != 0),
            "a block is held once for each end of a copy", b);
    if (run == nullptr)
      return require(stock_.rings().content(b) == 0, "a free block is no twin", b);
    if (runs_.place(b) == run->start || runs_.place(b) + 1 == run->end()) {
      require(&runs_[runs_.run_at_edge(b)] == run, "a block at an edge knows its run", b);
    }
    blocks_in_runs_ += 1;
    if (stock_.rings().content(b) != 0) check_ring(b, *run);
  }
  void check_ring(BlockId b, Run const& run) {
    BlockId const bearer = runs_.block_at(stock_.rings().content(b));
    Run const* const bearers = core_.run_of(bearer);
    require(run.has(Run::has_twins), "the run of a twin is marked", b);
    require(bearers != nullptr && bearers->has(Run::published), "the bearer of a twin is findable",
            b);
    require(run.references != 0, "a twin and its bearer are owned", b);
    if (b == bearer) return;
    require(!run.has(Run::published), "a twin is not findable itself", b);
    bool found = false;
    for (BlockId t = stock_.rings().oldest(bearer); !t.is_null() && !found;
         t = stock_.rings().younger(t)) {
      found = t == b;
    }
    require(found, "a twin is in the ring of its bearer", b);
    if (!found || bearers == nullptr) return;
    TokenId const* const own = runs_.tokens(runs_.place(b));
    require(std::equal(own, own + core_.shape().tokens(), runs_.tokens(runs_.place(bearer))),
            "a twin has the content of its bearer", b);
  }
  void check_totals() {
    require(alive_ == core_.sequences().num_alive(), "live rows equal handed out handles");
    require(idle_ == pool_.num_idle(), "idle blocks are counted");
    require(waiting_ == pool_.num_incoming(), "waiting blocks are counted");
    require(retained_ == pool_.num_retained(), "retained blocks are counted");
    require(used_ == pool_.num_used(), "free + idle + used + quarantined + retained = all");
    require(published_ == core_.index().size(), "the index holds exactly the published runs");
    require(marked_ == targets_, "copy targets equal planned copies");
    require(num_runs_ == runs_.num_runs(), "runs are counted");
    require(blocks_in_runs_ + rooms_ + runs_.arena().num_free() == runs_.arena().end() - 1,
            "blocks, rooms and free places are all places");
  }

  CacheCore<Policy> const& core_;
  BlockStock<Policy> const& stock_;
  RunTable const& runs_;
  typename CacheCore<Policy>::Pool const& pool_;
  std::vector<std::uint32_t> references_;
  std::vector<List> lists_;
  std::vector<std::int32_t> waiting_children_;
  std::vector<std::int32_t> children_;
  std::vector<std::uint32_t> holds_;
  std::vector<std::uint32_t> times_free_;
  std::vector<std::int32_t> position_;
  std::int32_t num_idle_runs_ = 0;
  std::int32_t alive_ = 0;
  std::int32_t idle_ = 0;
  std::int32_t waiting_ = 0;
  std::int32_t used_ = 0;
  std::int32_t retained_ = 0;
  std::int32_t published_ = 0;
  std::int32_t targets_ = 0;
  std::int32_t marked_ = 0;
  std::int32_t num_runs_ = 0;
  std::int32_t rooms_ = 0;
  std::int32_t blocks_in_runs_ = 0;
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

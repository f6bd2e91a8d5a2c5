// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include <pagedkv/data/cuda/operations.hpp>

#include "catch.hpp"
#include "write_steps.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

/// Numbers below `n`, of a seed.
class Dice {
 public:
  explicit Dice(unsigned seed) : random(seed) {}
  [[nodiscard]] std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  }
  [[nodiscard]] bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T, std::size_t n>
  [[nodiscard]] T of(T const (&choices)[n]) {
    return choices[below(n)];
  }
  std::mt19937 random;
};

/// A layer as an engine might lay it out: K and V of formats, dimensions, orders, gaps and
/// alignments of their own, in one piece of memory. The oracle's copy of it and the machine's.
class OddPool {
 public:
  explicit OddPool(Dice& dice) {
    auto const formats = all_formats();
    std::int32_t const dims[] = {64, 128, 256, 80, 96, 16, 48, 112, 1, 7, 33, 72, 100, 192, 528};
    num_heads_ = static_cast<std::int32_t>(dice.one_in(6) ? 1 + dice.below(20) : 1 + dice.below(4));
    std::int32_t const block_tokens[] = {1, 2, 3, 4, 5, 8, 16, 17};
    block_tokens_ = dice.of(block_tokens);
    num_blocks_ = static_cast<std::int32_t>(4 + dice.below(4));
    KvFormat const k = formats[static_cast<std::size_t>(dice.below(std::ssize(formats)))];
    KvFormat const other = formats[static_cast<std::size_t>(dice.below(std::ssize(formats)))];
    KvFormat const v = dice.one_in(2) ? k : other;
    std::int32_t const dim = dice.of(dims);
    bool const is_neat = dice.one_in(2);  // aligned to 16 bytes everywhere
    add(dice, layer_.k, k, dim, is_neat);
    std::int32_t const dim_v = dice.one_in(3) ? dice.of(dims) : dim;
    add(dice, layer_.v, v, dice.one_in(10) ? 0 : dim_v, is_neat || dice.one_in(4));
    host_.assign((static_cast<std::size_t>(end_) + 255) / 256 * 256, std::byte{0xA5});
    fill_static(dice, layer_.k);
    fill_static(dice, layer_.v);
  }

  [[nodiscard]] KvView view(KvLayer& layer, std::byte* memory) const {
    layer = layer_;
    for (KvTensor* t : {&layer.k, &layer.v}) {
      if (t->head_dim == 0) continue;
      t->data = memory + offset_of(t->data);
      if (t->scales != nullptr) t->scales = floats_at(memory, *t);
    }
    return {std::span(&layer, 1), num_blocks_, block_tokens_, num_heads_};
  }
  [[nodiscard]] std::vector<std::byte>& host() { return host_; }
  [[nodiscard]] KvLayer const& layer() const { return layer_; }
  [[nodiscard]] std::int32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] std::int32_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] std::int32_t num_heads() const { return num_heads_; }

 private:
  static std::ptrdiff_t offset_of(void const* pointer) {
    return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(pointer)) - 1;
  }
  /// An offset as a pointer, until there is memory; never null.
  template <class T>
  static T* at(std::int64_t offset) {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(offset + 1));
  }
  static float* floats_at(std::byte* memory, KvTensor const& t) {
    return reinterpret_cast<float*>(memory + offset_of(t.scales));
  }

  /// Strides of [blocks, tokens, heads] in a random order, outermost a multiple of what is in it.
  std::int64_t arrange(Dice& dice, std::int64_t inner, std::int64_t unit, bool has_tokens,
                       bool has_blocks, std::int64_t& block, std::int64_t& token,
                       std::int64_t& head) {
    std::pair<std::int64_t*, std::int64_t> places[] = {{&head, num_heads_},
                                                       {&token, has_tokens ? block_tokens_ : 1},
                                                       {&block, has_blocks ? num_blocks_ : 1}};
    std::shuffle(std::begin(places), std::end(places), dice.random);
    std::int64_t const rounded = (inner + unit - 1) / unit * unit;
    std::int64_t stride = rounded;
    for (auto& [place, count] : places) {
      if (dice.one_in(3)) stride += unit * (1 + dice.below(3));
      bool const is_used = place == &head || (place == &token ? has_tokens : has_blocks);
      *place = is_used ? stride : 0;
      if (is_used) stride *= count;
    }
    return stride;
  }
  void add(Dice& dice, KvTensor& t, KvFormat format, std::int32_t dim, bool is_neat) {
    t.format = format;
    t.head_dim = dim;
    if (dim == 0) return;
    std::int64_t const bits = bits_per_element(format.element);
    std::int64_t const unit = is_neat ? 128 / bits : format.element == Element::int4 ? 2 : 1;
    std::int64_t const natural = bits < 8 ? 1 : bits / 8;
    end_ = (end_ + 15) / 16 * 16 + (is_neat ? 0 : natural * dice.below(9));
    t.data = at<std::byte>(end_);
    end_ += arrange(dice, dim, unit, true, true, t.block_stride, t.token_stride, t.head_stride) *
            bits / 8;
    if (format.granularity == Granularity::none) return;
    end_ = (end_ + 3) / 4 * 4;
    t.scales = at<float>(end_);
    std::int64_t const entry = bytes_per_scale_entry(format.element) / bytes_per_scale;
    bool const by_token = format.granularity == Granularity::per_token_head;
    bool const by_block = by_token || format.granularity == Granularity::per_block_head;
    std::int64_t const floats = arrange(dice, entry, 1, by_token, by_block, t.scale_block_stride,
                                        t.scale_token_stride, t.scale_head_stride);
    if (format.granularity == Granularity::per_tensor) t.scale_head_stride = 0;
    end_ += 4 * floats;
  }
  void fill_static(Dice& dice, KvTensor const& t) {
    if (t.head_dim == 0 || !is_static(t.format)) return;
    for (std::int64_t h = 0; h < num_heads_; ++h) {
      floats_at(host_.data(), t)[h * t.scale_head_stride] =
          0.004F + 0.003F * static_cast<float>(dice.below(20));
    }
  }

  KvLayer layer_;
  std::int64_t end_ = 0;
  std::int32_t num_heads_ = 0;
  std::int32_t block_tokens_ = 0;
  std::int32_t num_blocks_ = 0;
  std::vector<std::byte> host_;
};

/// Rows whose tokens or whose heads are neighbours.
class OddRows {
 public:
  OddRows(Dice& dice, std::int64_t num_tokens, std::int64_t num_heads, std::int64_t dim,
          Element element, float magnitude)
      : is_by_head_(dice.one_in(3)),
        rows_(shape(dice, is_by_head_ ? num_heads : num_tokens,
                    is_by_head_ ? num_tokens : num_heads, std::max<std::int64_t>(dim, 1), element)),
        dim_(dim) {
    Rows::Shape const all{is_by_head_ ? num_heads : num_tokens,
                          is_by_head_ ? num_tokens : num_heads, std::max<std::int64_t>(dim, 1)};
    if (magnitude > 0.0F) fill_rows(rows_, all, dice.random, magnitude);
  }
  [[nodiscard]] Rows& plain() { return rows_; }
  template <class Some>
  [[nodiscard]] Some turned(Some rows) const {
    if (is_by_head_) std::swap(rows.token_stride, rows.head_stride);
    return dim_ == 0 ? Some{} : rows;
  }
  [[nodiscard]] KvRows rows() { return turned(rows_.rows()); }
  [[nodiscard]] std::vector<float> floats(std::int64_t t, std::int64_t h) {
    return is_by_head_ ? rows_.floats(h, t) : rows_.floats(t, h);
  }

 private:
  static Rows::Shape shape(Dice& dice, std::int64_t outer, std::int64_t inner, std::int64_t dim,
                           Element element) {
    Rows::Shape shape{outer, inner, dim, element};
    std::int64_t const bytes = bits_per_element(element) / 8;
    bool const is_neat = dice.one_in(2);
    std::int64_t const step = is_neat ? 16 / bytes : 1;
    if (dice.one_in(2)) shape.head_gap = step * dice.below(3);
    if (dice.one_in(2)) shape.token_gap = step * dice.below(3);
    if (!is_neat && dice.one_in(2)) shape.misaligned = static_cast<std::size_t>(bytes);
    return shape;
  }

  bool is_by_head_;
  Rows rows_;
  std::int64_t dim_;
};

/// The pool's memory after some operations in a row, by the oracle and by the machine.
class OddRun {
 public:
  explicit OddRun(unsigned seed)
      : dice_(seed),
        pool_(dice_),
        memory_(pool_.host(), "the pool"),
        here_(pool_.view(host_layer_, pool_.host().data())),
        there_(pool_.view(layer_, memory_.data())),
        layers_(std::span<KvLayer const>(&layer_, 1), "layers"),
        steps_(pool_.num_blocks(), pool_.block_tokens()) {
    // kv_view_error wants what operations do.
    right_ = kv_view_error(here_).empty();
  }

  RunResult run() {
    for (int i = 0; i < 5 && right_ && error_ == cuda::cudaSuccess; ++i) {
      switch (i < 2 ? 0 : dice_.below(6)) {
        case 0:
        case 1: write(); break;
        case 2: copy(); break;
        case 3: zero(); break;
        default: gather(); break;
      }
    }
    if (right_ && error_ == cuda::cudaSuccess) calibrate();
    return judge(error_, right_);
  }
  [[nodiscard]] std::string text() const {
    KvLayer const& l = pool_.layer();
    return to_string(l.k.format) + " x " + std::to_string(l.k.head_dim) + " and " +
           to_string(l.v.format) + " x " + std::to_string(l.v.head_dim) + ", " +
           std::to_string(pool_.num_heads()) + " heads, blocks of " +
           std::to_string(pool_.block_tokens()) + ", at " + last_;
  }

 private:
  [[nodiscard]] KvLayer const& layer() const { return pool_.layer(); }
  void take(cuda::cudaError_t error) {
    finish();
    if (error_ == cuda::cudaSuccess) error_ = error;
    right_ = right_ && std::memcmp(memory_.data(), pool_.host().data(), memory_.size()) == 0;
  }

  void write() {
    last_ = "write_kv";
    Step step = steps_.make(static_cast<std::int32_t>(1 + dice_.below(3)), dice_.random);
    auto const n = static_cast<std::int64_t>(step.slots.size());
    add_broken_runs(step);
    Element const k_in = dice_.of(inputs);
    Element const v_in = dice_.one_in(4) ? dice_.of(inputs) : k_in;
    OddRows k(dice_, n, pool_.num_heads(), layer().k.head_dim, k_in, 2.0F);
    OddRows v(dice_, n, pool_.num_heads(), layer().v.head_dim, v_in, 9.0F);
    WriteCase rope_case;
    rope_case.rotary_dim = 2 * static_cast<std::int32_t>(dice_.below(layer().k.head_dim / 2 + 1));
    if (dice_.one_in(2)) rope_case.rotary_dim = rope_case.rotary_dim / 16 * 16;
    rope_case.pairing = dice_.one_in(2) ? RopePairing::half_split : RopePairing::interleaved;
    rope_case.table_gap = dice_.one_in(3) ? dice_.below(6) : 0;
    rope_case.table_shift = dice_.one_in(3) ? static_cast<std::size_t>(dice_.below(6)) : 0;
    bool const rotates = dice_.one_in(2) && rope_case.rotary_dim > 0;
    RopeTables const tables(rope_case);
    auto const positions = RopeTables::positions(step.slots.size(), dice_.random);

    Rows turned({n, pool_.num_heads(), layer().k.head_dim});
    if (rotates) {
      Rope const rope = tables.rope(tables.floats().data(), positions.data());
      for (std::int64_t t = 0; t < n; ++t) {
        for (std::int64_t h = 0; h < pool_.num_heads(); ++h) {
          auto x = k.floats(t, h);
          rotate_vector(rope, positions[static_cast<std::size_t>(t)], x.data(), layer().k.head_dim);
          std::memcpy(turned.vector(t, h), x.data(), x.size() * sizeof(float));
        }
      }
    }
    cpu::scalar::write_kv(here_, 0, rotates ? turned.rows() : k.rows(), v.rows(),
                          step.known_slots(here_.num_slots()));

    DeviceRows const device_k(k.plain());
    DeviceRows const device_v(v.plain());
    KvRows const k_rows = k.turned(device_k.rows());
    KvRows const v_rows = v.turned(device_v.rows());
    DeviceBuffer<Slot> const slots(step.slots, "slots");
    DeviceBuffer<BlockRun> const runs(step.runs, "runs");
    DeviceBuffer<float> const floats(tables.floats(), "tables");
    DeviceBuffer<std::int32_t> const rows(positions, "positions");
    cuda::WriteSlots const to{slots.data(), n, runs.data(),
                              static_cast<std::int32_t>(step.runs.size()),
                              dice_.one_in(2) && has_early_start()};
    take(rotates ? cuda::write_kv_rope(there_, 0, k_rows, v_rows,
                                       tables.rope(floats.data(), rows.data()), to, nullptr)
                 : cuda::write_kv(there_, 0, k_rows, v_rows, to, nullptr));
  }
  /// Runs that no batch would make: each is skipped as a whole.
  void add_broken_runs(Step& step) {
    auto const n = static_cast<std::int32_t>(step.slots.size());
    std::int32_t const t = pool_.block_tokens();
    BlockRun const broken[] = {
        {BlockId{0}, t, 1, 0},         {BlockId{0}, 0, t + 1, 0},     {BlockId{1}, -1, 1, 0},
        {BlockId{1}, 0, -1, 0},        {BlockId{1}, 0, 1, n},         {BlockId{1}, 0, 1, -1},
        {BlockId{0}, INT32_MAX, 1, 0}, {BlockId{0}, 0, INT32_MAX, 0}, {BlockId{0}, 0, 1, INT32_MAX},
        {BlockId{0}, 1, INT32_MAX, 1}, {BlockId{INT32_MIN}, 0, 1, 0}};
    step.runs.push_back(dice_.of(broken));
  }

  void copy() {
    last_ = "copy_blocks";
    auto const blocks = random_blocks(pool_.num_blocks(), dice_.random);
    std::vector<BlockCopy> copies;
    for (std::size_t i = 0; i + 1 < blocks.size(); i += 2) {
      copies.push_back({BlockId{blocks[i]}, BlockId{blocks[i + 1]},
                        static_cast<std::int32_t>(dice_.below(pool_.block_tokens() + 1))});
    }
    cpu::scalar::copy_blocks(here_, copies);
    DeviceBuffer<BlockCopy> const list(copies, "copies");
    take(cuda::copy_blocks(there_, layers_.data(), list.data(),
                           static_cast<std::int32_t>(copies.size()), nullptr));
  }
  void zero() {
    last_ = "zero_blocks";
    std::vector<BlockId> const blocks = {
        BlockId{static_cast<std::int32_t>(dice_.below(pool_.num_blocks()))}};
    cpu::scalar::zero_blocks(here_, blocks);
    DeviceBuffer<BlockId> const list(blocks, "blocks");
    take(cuda::zero_blocks(there_, layers_.data(), list.data(), 1, nullptr));
  }

  void gather() {
    last_ = "gather_kv";
    std::int32_t const t = pool_.block_tokens();
    auto blocks = random_blocks(pool_.num_blocks(), dice_.random);
    auto const first = static_cast<std::int32_t>(dice_.below(t + 1));
    auto const count = static_cast<std::int32_t>(dice_.below(3 * t + 1));
    bool const has_first = first != 0 || dice_.one_in(2);
    std::int64_t const begin = dice_.below(3);  // of the output's rows
    Element const k_out = dice_.of(inputs);
    Element const v_out = dice_.one_in(4) ? dice_.of(inputs) : k_out;
    std::int64_t const n = begin + count + 2;
    OddRows k(dice_, n, pool_.num_heads(), layer().k.head_dim, k_out, 0.0F);
    OddRows v(dice_, n, pool_.num_heads(), layer().v.head_dim, v_out, 0.0F);
    DeviceRows const device_k(k.plain());
    DeviceRows const device_v(v.plain());

    MutableKvRows k_want = k.turned(k.plain().mutable_rows());
    MutableKvRows v_want = v.turned(v.plain().mutable_rows());
    auto const skip = [&](MutableKvRows& rows) {
      rows.data = static_cast<std::byte*>(rows.data) +
                  begin * rows.token_stride * bits_per_element(rows.element) / 8;
    };
    skip(k_want);
    if (layer().v.head_dim > 0) skip(v_want);
    cpu::scalar::gather_kv(here_, 0, blocks, {first, count}, k_want, v_want);

    DeviceBuffer<std::int32_t> const table(blocks, "table");
    DeviceBuffer<std::int32_t> const firsts(std::vector<std::int32_t>{first}, "first positions");
    DeviceBuffer<std::int64_t> const offsets(std::vector<std::int64_t>{begin, begin + count},
                                             "row offsets");
    cuda::GatherRanges ranges;
    ranges.indices = table.data();
    ranges.table_stride = pool_.num_blocks();
    ranges.first_positions = has_first ? firsts.data() : nullptr;
    ranges.row_offsets = offsets.data();
    ranges.num_sequences = 1;
    ranges.max_rows = n;
    take(cuda::gather_kv(there_, 0, ranges, k.turned(device_k.mutable_rows()),
                         v.turned(device_v.mutable_rows()), nullptr));
    right_ = right_ && device_k.bytes() == k.plain().bytes() &&
             (layer().v.head_dim == 0 || device_v.bytes() == v.plain().bytes());
  }

  void calibrate() {
    last_ = "calibrate_amax";
    std::int64_t const n = 1 + dice_.below(9);
    std::int64_t const heads = pool_.num_heads();
    std::int32_t const dims[] = {layer().k.head_dim, layer().v.head_dim};
    std::vector<Slot> slots;
    for (std::int64_t t = 0; t < n; ++t) slots.push_back(dice_.one_in(3) ? padding_slot : Slot{t});
    OddRows k(dice_, n, heads, dims[0], dice_.of(inputs), 3.0F);
    OddRows v(dice_, n, heads, dims[1], dice_.of(inputs), 3.0F);
    std::vector<float> want[2];
    DeviceBuffer<float> got_k(std::vector<float>(static_cast<std::size_t>(heads), 0.25F), "amax");
    DeviceBuffer<float> got_v(std::vector<float>(static_cast<std::size_t>(heads), 0.25F), "amax");
    for (int side = 0; side < 2; ++side) {
      for (std::int64_t h = 0; h < heads; ++h) {
        float most = 0.25F;
        for (std::int64_t t = 0; t < n && dims[side] > 0; ++t) {
          if (slots[static_cast<std::size_t>(t)] < 0) continue;
          for (float const x : (side == 0 ? k : v).floats(t, h)) {
            if (std::isfinite(x)) most = std::max(most, std::fabs(x));
          }
        }
        want[side].push_back(most);
      }
    }
    DeviceRows const device_k(k.plain());
    DeviceRows const device_v(v.plain());
    DeviceBuffer<Slot> const list(slots, "slots");
    cuda::AmaxTable const table{got_k.data(), got_v.data(), 1, static_cast<std::int32_t>(heads),
                                dims[0],      dims[1]};
    std::size_t bytes = 0;
    take(cuda::calibrate_amax_workspace(table, bytes));
    DeviceBuffer<std::byte> workspace((bytes + 255) / 256 * 256, "workspace");
    cuda::AmaxStep const step{k.turned(device_k.rows()), v.turned(device_v.rows()), n, list.data()};
    take(cuda::calibrate_amax(table, 0, step, workspace.data(), bytes, nullptr));
    right_ = right_ && got_k.copy() == want[0] && got_v.copy() == want[1];
  }

  Dice dice_;
  OddPool pool_;
  DeviceBuffer<std::byte> memory_;
  KvLayer host_layer_;
  KvLayer layer_;
  KvView here_;
  KvView there_;
  DeviceBuffer<KvLayer> layers_;
  StepMaker steps_;
  bool right_ = true;
  cuda::cudaError_t error_ = cuda::cudaSuccess;
  std::string last_;
};

/// PAGEDKV_SHAPES: how many times twenty (on a device, five).
int num_rounds() {
#if PAGEDKV_UNDER_TSAN
  constexpr int usual = 2;
#else
  constexpr int usual = 15;
#endif
  char const* const asked = std::getenv("PAGEDKV_SHAPES");
  return asked != nullptr ? std::atoi(asked) : usual;
}

}  // namespace

TEST_CASE("pools of any strides, K and V apart, are the oracle's after every operation") {
  unsigned seed = 0;
  for (int round = 0; round < num_rounds(); ++round) {
    std::string first_wrong;
    auto const findings = try_orders([&](int) {
      OddRun run(++seed);
      auto const result = run.run();
      if (result != RunResult::right && first_wrong.empty()) {
        first_wrong = "seed " + std::to_string(seed) + ": " + run.text();
      }
      return result;
    });
    INFO(findings.text() << "\n" << first_wrong);
    CHECK(findings.clean());
  }
}

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the tests of both writers share: two steps on one pool, by the oracle and by the kernels.
#pragma once

#include <cmath>

#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/data/rope.hpp>

#include "device_pool.hpp"

namespace pagedkv::testing {

struct WriteCase {
  LayerFormat format{};
  Element input = Element::f16;
  std::int32_t dim_k = 64;
  std::int32_t dim_v = 64;
  std::int32_t heads = 2;
  std::int32_t block_tokens = 4;
  KvLayout layout{};
  std::int64_t gap = 0;         ///< between neighbouring vectors of the rows, elements
  std::size_t misaligned = 0;   ///< bytes
  std::int32_t rotary_dim = 0;  ///< 0: K isn't rotated
  RopePairing pairing{};
  std::int64_t table_gap = 0;   ///< between neighbouring rows of the tables, floats
  std::size_t table_shift = 0;  ///< where the tables begin, floats
};

inline std::string name_of(WriteCase const& c) {
  return to_string(c.format.k) + " and " + to_string(c.format.v) + " from " + to_string(c.input) +
         ", dims " + std::to_string(c.dim_k) + " and " + std::to_string(c.dim_v) + ", rotary " +
         std::to_string(c.rotary_dim);
}

/// Tables as models have them, cosines and sines of a position beside each other.
class RopeTables {
 public:
  static constexpr std::int32_t max_position = 23;

  explicit RopeTables(WriteCase const& c) : half_(c.rotary_dim / 2), case_(c) {
    std::int64_t const stride = c.rotary_dim + c.table_gap;
    floats_.assign(c.table_shift + static_cast<std::size_t>(max_position * stride), -9.0F);
    for (std::int64_t p = 0; p < max_position; ++p) {
      for (std::int64_t j = 0; j < half_; ++j) {
        double const turn = static_cast<double>(j) / static_cast<double>(half_);
        double const angle = static_cast<double>(p) * std::pow(10000.0, -turn);
        auto const at = c.table_shift + static_cast<std::size_t>(p * stride + j);
        floats_[at] = static_cast<float>(std::cos(angle));
        floats_[at + static_cast<std::size_t>(half_)] = static_cast<float>(std::sin(angle));
      }
    }
  }
  [[nodiscard]] std::vector<float> const& floats() const { return floats_; }
  /// Whose floats lie at `floats`.
  [[nodiscard]] Rope rope(float const* floats, std::int32_t const* positions) const {
    Rope rope = rope_of_cache(floats + case_.table_shift, max_position, case_.rotary_dim,
                              case_.pairing, positions);
    rope.row_stride += case_.table_gap;
    return rope;
  }
  /// A position a token, now and then one that the tables haven't.
  [[nodiscard]] static std::vector<std::int32_t> positions(std::size_t count,
                                                           std::mt19937& random) {
    std::int32_t const unknown[] = {-1, max_position, INT32_MAX, INT32_MIN};
    std::vector<std::int32_t> found;
    for (std::size_t i = 0; i < count; ++i) {
      found.push_back(random() % 6 == 0 ? unknown[random() % 4]
                                        : static_cast<std::int32_t>(random() % max_position));
    }
    return found;
  }

 private:
  std::int64_t half_;
  WriteCase case_;
  std::vector<float> floats_;
};

/// K of a step as f32, rotated.
inline Rows turned_rows(Rows& k, Rows::Shape shape, Rope const& rope) {
  Rows turned({shape.num_tokens, shape.num_heads, shape.dim});
  for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      std::vector<float> x = k.floats(t, h);
      rotate_vector(rope, rope.positions[t], x.data(), static_cast<std::int32_t>(shape.dim));
      std::memcpy(turned.vector(t, h), x.data(), x.size() * sizeof(float));
    }
  }
  return turned;
}

/// A step and the pool that the oracle makes of it.
struct Told {
  Step step;
  Rows k;
  Rows v;
  std::vector<std::int32_t> positions;
  std::vector<std::byte> expected;
};

/// Two steps on one pool, the second with larger numbers. What they store is found once; every
/// order of threads must store it, bytes between the vectors included.
class TwoSteps {
 public:
  TwoSteps(WriteCase const& c, unsigned seed)
      : geometry_{.num_layers = 1,
                  .num_kv_heads = c.heads,
                  .head_dim_k = c.dim_k,
                  .head_dim_v = c.dim_v,
                  .block_tokens = c.block_tokens,
                  .format = c.format},
        oracle_(geometry_, num_blocks, c.layout, scales_for(geometry_)),
        rotates_(c.rotary_dim > 0),
        tables_(c),
        before_(bytes_of(oracle_)) {
    std::mt19937 random(seed);
    StepMaker steps(num_blocks, c.block_tokens);
    for (float const magnitude : {1.0F, 40.0F}) {
      Step step = steps.make(3, random);
      auto const n = static_cast<std::int64_t>(step.slots.size());
      Rows::Shape const k_shape{n, c.heads, c.dim_k, c.input, c.gap, c.gap, c.misaligned};
      Rows::Shape const v_shape{n, c.heads, std::max(c.dim_v, 1), c.input, c.gap, 0, c.misaligned};
      Rows k(k_shape);
      Rows v(v_shape);
      fill_rows(k, k_shape, random, magnitude);
      fill_rows(v, v_shape, random, 3.0F * magnitude);
      auto const positions = RopeTables::positions(step.slots.size(), random);
      Rope const rope = tables_.rope(tables_.floats().data(), positions.data());
      Rows written = rotates_ ? turned_rows(k, k_shape, rope) : k;
      cpu::scalar::write_kv(oracle_.view(), 0, written.rows(), v.rows(),
                            step.known_slots(oracle_.view().num_slots()));
      told_.push_back({std::move(step), std::move(k), std::move(v), positions, bytes_of(oracle_)});
    }
  }

  RunResult run(int seed) {
    std::memcpy(oracle_.memory().data(), before_.data(), before_.size());
    DevicePool pool(oracle_);
    for (Told& told : told_) {
      DeviceRows const k(told.k);
      DeviceRows const v(told.v);
      DeviceBuffer<Slot> const slots(told.step.slots, "slots");
      DeviceBuffer<BlockRun> const runs(told.step.runs, "runs");
      cuda::WriteSlots const to{slots.data(), static_cast<std::int64_t>(slots.size()), runs.data(),
                                static_cast<std::int32_t>(runs.size()),
                                seed % 2 == 0 && has_early_start()};
      DeviceBuffer<float> const floats(tables_.floats(), "tables");
      DeviceBuffer<std::int32_t> const positions(told.positions, "positions");
      Rope const rope = tables_.rope(floats.data(), positions.data());
      auto const error =
          rotates_ ? cuda::write_kv_rope(pool.view(), 0, k.rows(), v.rows(), rope, to, nullptr)
                   : cuda::write_kv(pool.view(), 0, k.rows(), v.rows(), to, nullptr);
      finish();
      auto const result = judge(error, pool.equals(told.expected));
      if (result != RunResult::right) return result;
    }
    return RunResult::right;
  }

 private:
  static constexpr std::int32_t num_blocks = 5;
  Geometry geometry_;
  KvStorage oracle_;
  bool rotates_;
  RopeTables tables_;
  std::vector<std::byte> before_;
  std::vector<Told> told_;
};

inline void check_write(WriteCase const& c) {
  static unsigned next_seed = 1;
  TwoSteps steps(c, next_seed++);
  auto const findings = try_orders([&](int seed) { return steps.run(seed); });
  INFO(name_of(c) << ": " << findings.text());
  CHECK(findings.clean());
}

inline constexpr Element inputs[] = {Element::f16, Element::bf16, Element::f32};

}  // namespace pagedkv::testing

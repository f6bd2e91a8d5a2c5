// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/operations.hpp>
#include <pagedkv/quant/calibration.hpp>

#include "catch.hpp"
#include "device_pool.hpp"

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

struct Case {
  Element input = Element::f16;
  std::int32_t dim_k = 64;
  std::int32_t dim_v = 64;
  std::int32_t heads = 3;
  std::int64_t gap = 0;        ///< between neighbouring vectors of the rows, elements
  std::size_t misaligned = 0;  ///< bytes
  bool is_padded = false;      ///< slots say which tokens there are
};

struct AmaxRows {
  std::int32_t layer;
  Rows k;
  Rows v;
  std::vector<Slot> slots;
};

constexpr std::int32_t num_layers = 2;

/// Three steps over two layers, seen by the observer once and by the device in every order.
class Calibrating {
 public:
  Calibrating(Case const& c, unsigned seed)
      : case_(c),
        geometry_{.num_layers = num_layers,
                  .num_kv_heads = c.heads,
                  .head_dim_k = c.dim_k,
                  .head_dim_v = c.dim_v,
                  .block_tokens = 4,
                  .format = per_head},
        by_head_(geometry_, {.format = per_head}),
        by_tensor_(geometry_, {.format = {Element::int8, Granularity::per_tensor}}) {
    std::mt19937 random(seed);
    add(0, 5, 2.0F, random);
    add(1, 33, 1.0F, random);
    add(0, 2, 90.0F, random);
    add(1, 1, 0.01F, random);  // raises nothing
  }

  RunResult run() {
    std::size_t const entries = num_layers * static_cast<std::size_t>(case_.heads);
    DeviceBuffer<float> k(std::vector<float>(entries), "amax of K");
    DeviceBuffer<float> v(std::vector<float>(entries), "amax of V");
    cuda::AmaxTable const table{k.data(),    v.data(),    num_layers,
                                case_.heads, case_.dim_k, case_.dim_v};
    std::size_t bytes = 0;
    if (cuda::calibrate_amax_workspace(table, bytes) != cuda::cudaSuccess) {
      return RunResult::wrong;
    }
    // Guarded behind its end, rounded up to a page's multiple of 256.
    DeviceBuffer<std::byte> workspace((bytes + 255) / 256 * 256, "workspace");
    for (AmaxRows& step : steps_) {
      DeviceRows const k_rows(step.k);
      DeviceRows const v_rows(step.v);
      DeviceBuffer<Slot> const slots(step.slots, "slots");
      cuda::AmaxStep const told{k_rows.rows(), v_rows.rows(),
                                static_cast<std::int64_t>(step.slots.size()),
                                case_.is_padded ? slots.data() : nullptr};
      auto const error =
          cuda::calibrate_amax(table, step.layer, told, workspace.data(), bytes, nullptr);
      if (error != cuda::cudaSuccess) return judge(error, false);
    }
    finish();
    return judge(cuda::cudaSuccess, equals_observers(k.copy(), v.copy()));
  }

 private:
  static constexpr KvFormat per_head{Element::fp8_e4m3, Granularity::per_head};

  void add(std::int32_t layer, std::int64_t n, float magnitude, std::mt19937& random) {
    Rows::Shape const k_shape{n,         case_.heads, case_.dim_k,     case_.input,
                              case_.gap, case_.gap,   case_.misaligned};
    Rows::Shape const v_shape{n,         case_.heads, std::max(case_.dim_v, 1), case_.input,
                              case_.gap, 0,           case_.misaligned};
    Rows k(k_shape);
    Rows v(v_shape);
    fill_rows(k, k_shape, random, magnitude);
    fill_rows(v, v_shape, random, 3.0F * magnitude);
    std::vector<Slot> slots;
    for (std::int64_t t = 0; t < n; ++t) {
      bool const is_padding = case_.is_padded && n > 1 && random() % 3 == 0;
      slots.push_back(is_padding ? padding_slot : Slot{t});
      // A head of small numbers alone, so that its amax isn't its neighbours'.
      for (std::int64_t i = 0; i < case_.dim_k; ++i) {
        k.set(t, 0, i, 0.001F * magnitude * static_cast<float>(i + 1));
      }
      // The largest of all where nobody must look.
      if (is_padding) k.set(t, case_.heads - 1, 0, 65000.0F);
      if (!is_padding) observe(layer, t, k, v);
    }
    steps_.push_back({layer, std::move(k), std::move(v), std::move(slots)});
  }
  void observe(std::int32_t layer, std::int64_t token, Rows& k, Rows& v) {
    std::vector<float> k_row;
    std::vector<float> v_row;
    for (std::int64_t h = 0; h < case_.heads; ++h) {
      auto const k_floats = k.floats(token, h);
      auto const v_floats = v.floats(token, h);
      k_row.insert(k_row.end(), k_floats.begin(), k_floats.end());
      v_row.insert(v_row.end(), v_floats.begin(), v_floats.end());
    }
    for (quant::CalibrationObserver* observer : {&by_head_, &by_tensor_}) {
      observer->observe_k(layer, k_row);
      if (case_.dim_v > 0) observer->observe_v(layer, v_row);
    }
  }

  /// The observers tell scales: what they make of an amax is made of the device's too.
  [[nodiscard]] bool equals_observers(std::vector<float> const& k,
                                      std::vector<float> const& v) const {
    auto const heads = quant::ScaleSet(by_head_.scales());
    auto const tensors = quant::ScaleSet(by_tensor_.scales());
    bool right = true;
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      right = right && equals(heads.layers[layer].k, tensors.layers[layer].k, k, layer);
      if (case_.dim_v > 0) {
        right = right && equals(heads.layers[layer].v, tensors.layers[layer].v, v, layer);
      } else {
        right = right && v == std::vector<float>(v.size());
      }
    }
    return right;
  }
  [[nodiscard]] bool equals(std::vector<float> const& by_head, std::vector<float> const& by_tensor,
                            std::vector<float> const& table, std::size_t layer) const {
    auto const num_heads = static_cast<std::size_t>(case_.heads);
    bool right = by_head.size() == num_heads && by_tensor.size() == 1;
    float largest = 0.0F;
    for (std::size_t h = 0; right && h < num_heads; ++h) {
      float const amax = table[layer * num_heads + h];
      largest = std::max(largest, amax);
      right = same_floats(quant::dynamic_scale(Element::fp8_e4m3, amax).value, by_head[h]);
    }
    return right && same_floats(quant::dynamic_scale(Element::int8, largest).value, by_tensor[0]);
  }

  Case case_;
  Geometry geometry_;
  quant::CalibrationObserver by_head_;
  quant::CalibrationObserver by_tensor_;
  std::vector<AmaxRows> steps_;
};

void check(Case const& c) {
  static unsigned next_seed = 1;
  Calibrating calibrating(c, next_seed++);
  auto const findings = try_orders([&](int) { return calibrating.run(); });
  INFO(to_string(c.input) << ", dims " << c.dim_k << " and " << c.dim_v << ": " << findings.text());
  CHECK(findings.clean());
}

constexpr Element inputs[] = {Element::f16, Element::bf16, Element::f32};

}  // namespace

TEST_CASE("the running amax of every head is the observer's, bit for bit") {
  for (Element const input : inputs) {
    for (bool const is_padded : {false, true}) {
      check({.input = input, .is_padded = is_padded});
      check({.input = input, .dim_k = 128, .dim_v = 256, .heads = 1, .is_padded = is_padded});
      check({.input = input, .dim_k = 80, .dim_v = 0, .is_padded = is_padded});
      check({.input = input, .dim_k = 33, .dim_v = 20, .is_padded = is_padded});
      check({.input = input, .gap = 8, .is_padded = is_padded});
      check({.input = input, .gap = 1, .misaligned = 4, .is_padded = is_padded});
    }
  }
}

TEST_CASE("an empty step queues nothing; what can't work is refused") {
  DeviceBuffer<float> amax(std::vector<float>(2, 0.5F), "amax");
  cuda::AmaxTable const table{amax.data(), nullptr, 2, 1, 64, 0};
  std::size_t bytes = 0;
  REQUIRE(cuda::calibrate_amax_workspace(table, bytes) == cuda::cudaSuccess);
  REQUIRE(bytes > 0);
  DeviceBuffer<std::byte> memory((bytes + 128 + 255) / 256 * 256, "workspace");
  Rows host_rows({3, 1, 64, Element::f16}, 1);
  host_rows.set(1, 0, 5, 700.0F);
  DeviceRows const rows(host_rows);
  cuda::AmaxStep const step{rows.rows(), {}, 3};
  auto const calibrate = [&](cuda::AmaxTable const& t, std::int32_t layer,
                             cuda::AmaxStep const& s) {
    return cuda::calibrate_amax(t, layer, s, memory.data(), bytes, nullptr);
  };
  auto const refused = cuda::cudaErrorInvalidValue;
  CHECK(calibrate(table, 0, {rows.rows(), {}, 0}) == cuda::cudaSuccess);
  CHECK(calibrate(table, 2, step) == refused);
  CHECK(calibrate(table, -1, step) == refused);
  CHECK(calibrate(table, 0, {rows.rows(), {}, -1}) == refused);
  CHECK(calibrate(table, 0, {rows.rows(), {}, std::int64_t{1} << 62}) == refused);
  CHECK(calibrate(table, 0, {{nullptr, Element::f16, 64, 64}, {}, 3}) == refused);
  CHECK(calibrate(table, 0, {{rows.rows().data, Element::int8, 64, 64}, {}, 3}) == refused);
  CHECK(calibrate({nullptr, nullptr, 2, 1, 64, 0}, 0, step) == refused);
  CHECK(calibrate({amax.data(), nullptr, 2, 1, 64, 64}, 0, step) == refused);
  auto const with = [&](void* workspace, std::size_t size) {
    return cuda::calibrate_amax(table, 0, step, workspace, size, nullptr);
  };
  CHECK(with(nullptr, bytes) == refused);
  CHECK(with(memory.data() + 128, bytes) == refused);
  CHECK(with(memory.data(), bytes - 1) == refused);
  CHECK(amax.copy() == std::vector<float>(2, 0.5F));
  CHECK(calibrate(table, 1, step) == cuda::cudaSuccess);
  finish();
  CHECK(amax.copy() == std::vector<float>{0.5F, 700.0F});
}

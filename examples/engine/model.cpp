// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "random.hpp"

namespace engine {

namespace {

constexpr std::int32_t max_dim = 1 << 20;

std::size_t elements(std::int32_t rows, std::int32_t columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

void fill(std::vector<float>& weights, float scale, Random& random) {
  for (float& w : weights) w = scale * random.normal();
}

}  // namespace

std::string model_config_error(ModelConfig const& c) {
  std::array<std::pair<char const*, std::int32_t>, 8> const counts = {{
      {"dim", c.dim},
      {"hidden_dim", c.hidden_dim},
      {"num_layers", c.num_layers},
      {"num_heads", c.num_heads},
      {"num_kv_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"vocab_size", c.vocab_size},
      {"max_positions", c.max_positions},
  }};
  for (auto const& [name, value] : counts) {
    if (value < 1 || value > max_dim) {
      return std::string(name) + " is " + std::to_string(value) + "; expected 1 to " +
             std::to_string(max_dim);
    }
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return "num_heads is " + std::to_string(c.num_heads) + "; expected a multiple of the " +
           std::to_string(c.num_kv_heads) + " KV heads";
  }
  if (c.head_dim % 2 != 0) {
    return "head_dim is " + std::to_string(c.head_dim) + "; expected an even number";
  }
  if (std::int64_t{c.num_heads} * c.head_dim > max_dim) {
    return "num_heads * head_dim is " + std::to_string(std::int64_t{c.num_heads} * c.head_dim) +
           "; expected at most " + std::to_string(max_dim);
  }
  if (!(c.rope_base > 1.0F) || !std::isfinite(c.rope_base)) return "rope_base must be above 1";
  if (!(c.norm_epsilon >= 0.0F) || !std::isfinite(c.norm_epsilon)) {
    return "norm_epsilon must be 0 or more";
  }
  return {};
}

std::string weights_error(std::span<float const> weights) {
  auto const is_bad = [](float w) { return !std::isfinite(w); };
  auto const bad = std::find_if(weights.begin(), weights.end(), is_bad);
  if (bad == weights.end()) return {};
  return "number " + std::to_string(bad - weights.begin()) + " is " + std::to_string(*bad) +
         "; expected finite ones";
}

Model empty_model(ModelConfig const& config, bool tied_classifier) {
  if (auto const problem = model_config_error(config); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  Model model;
  model.config = config;
  model.embedding.resize(elements(config.vocab_size, config.dim));
  model.final_norm.resize(static_cast<std::size_t>(config.dim));
  if (!tied_classifier) model.classifier.resize(model.embedding.size());
  model.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (auto& layer : model.layers) {
    layer.attention_norm.resize(static_cast<std::size_t>(config.dim));
    layer.qkv.resize(elements(config.qkv_dim(), config.dim));
    layer.wo.resize(elements(config.dim, config.q_dim()));
    layer.ffn_norm.resize(static_cast<std::size_t>(config.dim));
    layer.gate_up.resize(2 * elements(config.hidden_dim, config.dim));
    layer.down.resize(elements(config.dim, config.hidden_dim));
  }
  return model;
}

Model random_model(ModelConfig const& config, std::uint64_t seed, bool tied_classifier) {
  Model model = empty_model(config, tied_classifier);
  Random random(seed);
  auto const per_input = [](std::int32_t inputs) {
    return 1.0F / std::sqrt(static_cast<float>(inputs));
  };
  auto const norm = [&random](std::vector<float>& weights) {
    for (float& w : weights) w = 1.0F + 0.1F * random.normal();
  };
  fill(model.embedding, 1.0F, random);
  norm(model.final_norm);
  fill(model.classifier, 1.0F, random);
  for (auto& layer : model.layers) {
    norm(layer.attention_norm);
    norm(layer.ffn_norm);
    // Twice as large: attention that tells positions apart, not an average of all.
    fill(layer.qkv, 2.0F * per_input(config.dim), random);
    fill(layer.wo, per_input(config.q_dim()), random);
    fill(layer.gate_up, per_input(config.dim), random);
    fill(layer.down, per_input(config.hidden_dim), random);
  }
  return model;
}

Rope::Rope(ModelConfig const& config) : pairs_(config.rope_pairs) {
  for (std::int32_t i = 0; i < config.head_dim / 2; ++i) {
    double const exponent = -2.0 * i / config.head_dim;
    frequencies_.push_back(std::pow(static_cast<double>(config.rope_base), exponent));
  }
}

void Rope::prepare(std::span<std::int32_t const> positions) {
  cos_.clear();
  sin_.clear();
  for (std::int32_t const position : positions) {
    for (double const frequency : frequencies_) {
      cos_.push_back(static_cast<float>(std::cos(position * frequency)));
      sin_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
}

void Rope::rotate(float* head, std::size_t token) const noexcept {
  std::size_t const half = frequencies_.size();
  float const* const cosines = &cos_[token * half];
  float const* const sines = &sin_[token * half];
  bool const neighbours = pairs_ == RopePairs::neighbours;
  for (std::size_t i = 0; i < half; ++i) {
    float& a = head[neighbours ? 2 * i : i];
    float& b = head[neighbours ? 2 * i + 1 : i + half];
    float const turned = a * cosines[i] - b * sines[i];
    b = a * sines[i] + b * cosines[i];
    a = turned;
  }
}

}  // namespace engine

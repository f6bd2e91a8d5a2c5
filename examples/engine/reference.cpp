// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <algorithm>
#include <cmath>

namespace engine {

namespace {

std::size_t at(std::int32_t n) { return static_cast<std::size_t>(n); }

double dot(float const* a, float const* b, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// `rows` rows of `matrix` from `first` on, times x.
std::vector<float> times(std::vector<float> const& matrix, std::int32_t first, std::int32_t rows,
                         std::vector<float> const& x) {
  std::vector<float> out(at(rows));
  for (std::size_t r = 0; r < out.size(); ++r) {
    out[r] = static_cast<float>(dot(&matrix[(at(first) + r) * x.size()], x.data(), x.size()));
  }
  return out;
}

std::vector<float> norm(std::vector<float> const& x, std::vector<float> const& weight,
                        float epsilon) {
  double const mean = dot(x.data(), x.data(), x.size()) / static_cast<double>(x.size());
  double const factor = 1.0 / std::sqrt(mean + static_cast<double>(epsilon));
  std::vector<float> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = static_cast<float>(x[i] * factor * weight[i]);
  }
  return out;
}

void rotate(std::vector<float>& heads, ModelConfig const& c, std::int32_t position) {
  std::int32_t const half = c.head_dim / 2;
  for (std::size_t first = 0; first < heads.size(); first += at(c.head_dim)) {
    for (std::int32_t i = 0; i < half; ++i) {
      double const angle = position * std::pow(double{c.rope_base}, -2.0 * i / c.head_dim);
      bool const neighbours = c.rope_pairs == RopePairs::neighbours;
      float& a = heads[first + at(neighbours ? 2 * i : i)];
      float& b = heads[first + at(neighbours ? 2 * i + 1 : i + half)];
      double const x = a;
      double const y = b;
      a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
      b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
  }
}

void add(std::vector<float>& x, std::vector<float> const& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

Reference::Reference(Model const& model)
    : model_(&model), k_(model.layers.size()), v_(model.layers.size()) {}

std::vector<float> const& Reference::next(std::int32_t token) {
  auto const& c = model_->config;
  auto const* const embedded = &model_->embedding[at(token) * at(c.dim)];
  std::vector<float> x(embedded, embedded + c.dim);
  for (std::size_t l = 0; l < model_->layers.size(); ++l) {
    auto const& w = model_->layers[l];
    auto const input = norm(x, w.attention_norm, c.norm_epsilon);
    auto q = times(w.qkv, 0, c.q_dim(), input);
    auto k = times(w.qkv, c.q_dim(), c.kv_dim(), input);
    auto const v = times(w.qkv, c.q_dim() + c.kv_dim(), c.kv_dim(), input);
    rotate(q, c, position_);
    rotate(k, c, position_);
    k_[l].insert(k_[l].end(), k.begin(), k.end());
    v_[l].insert(v_[l].end(), v.begin(), v.end());
    std::vector<float> mixed(at(c.q_dim()));
    attend(l, q, mixed);
    add(x, times(w.wo, 0, c.dim, mixed));

    auto const ffn_input = norm(x, w.ffn_norm, c.norm_epsilon);
    auto hidden = times(w.gate_up, 0, c.hidden_dim, ffn_input);
    auto const up = times(w.gate_up, c.hidden_dim, c.hidden_dim, ffn_input);
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      double const gate = hidden[i];
      hidden[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up[i]);
    }
    add(x, times(w.down, 0, c.dim, hidden));
  }
  auto const& classifier = model_->classifier.empty() ? model_->embedding : model_->classifier;
  logits_ = times(classifier, 0, c.vocab_size, norm(x, model_->final_norm, c.norm_epsilon));
  ++position_;
  return logits_;
}

void Reference::attend(std::size_t layer, std::vector<float>& q, std::vector<float>& mixed) {
  auto const& c = model_->config;
  auto const head_dim = at(c.head_dim);
  auto const num_positions = at(position_ + 1);
  std::vector<double> weights(num_positions);
  for (std::int32_t h = 0; h < c.num_heads; ++h) {
    std::size_t const kv_head = at(h / (c.num_heads / c.num_kv_heads));
    double largest = -INFINITY;
    for (std::size_t p = 0; p < num_positions; ++p) {
      float const* const k = &k_[layer][p * at(c.kv_dim()) + kv_head * head_dim];
      weights[p] = dot(&q[at(h) * head_dim], k, head_dim) / std::sqrt(double{1} * c.head_dim);
      largest = std::max(largest, weights[p]);
    }
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (std::size_t i = 0; i < head_dim; ++i) {
      double value = 0.0;
      for (std::size_t p = 0; p < num_positions; ++p) {
        value += weights[p] * v_[layer][p * at(c.kv_dim()) + kv_head * head_dim + i];
      }
      mixed[at(h) * head_dim + i] = static_cast<float>(value / sum);
    }
  }
}

std::int32_t argmax(float const* logits, std::int32_t n) {
  return static_cast<std::int32_t>(std::max_element(logits, logits + n) - logits);
}

std::vector<std::int32_t> greedy_reference(Model const& model,
                                           std::vector<std::int32_t> const& prompt,
                                           std::int32_t max_tokens,
                                           std::vector<std::int32_t> const& stop) {
  Reference reference(model);
  std::vector<std::int32_t> output;
  std::vector<float> const* logits = nullptr;
  for (std::int32_t const token : prompt) logits = &reference.next(token);
  while (static_cast<std::int32_t>(output.size()) < max_tokens) {
    std::int32_t const id = argmax(logits->data(), model.config.vocab_size);
    if (std::find(stop.begin(), stop.end(), id) != stop.end()) break;
    output.push_back(id);
    if (reference.position() == model.config.max_positions) break;
    logits = &reference.next(id);
  }
  return output;
}

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
#include "forward.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace engine {

namespace {

std::size_t at(std::int32_t n) { return static_cast<std::size_t>(n); }

int matrix_threads = 1;

/// Below so many rows the weights are read from memory once for all, and no time is spent on
/// packing them: decodes of a few requests run up to twice as fast.
constexpr std::size_t few_rows = 8;

/// out [rows, n] = x [rows, k] * transposed w [n, k] + add * out.
void product(float const* x, std::size_t rows, float const* w, std::int32_t n, std::int32_t k,
             float* out, std::int32_t x_stride, float add = 0.0F) {
  if (rows >= few_rows) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), n, k, 1.0F, x,
                x_stride, w, k, add, out, n);
    return;
  }
  // As much of the weights as stays in the cache, for one row after the other.
  std::int32_t const part = rows == 1 ? n : std::max(1, (1 << 18) / k);
  for (std::int32_t first = 0; first < n; first += part) {
    for (std::size_t row = 0; row < rows; ++row) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, std::min(part, n - first), k, 1.0F,
                  w + at(first) * at(k), k, x + row * at(x_stride), 1, add,
                  out + row * at(n) + at(first), 1);
    }
  }
}

/// x / sqrt(mean of squares + epsilon) * weight, element by element.
void rms_norm(float const* x, float const* weight, std::size_t dim, float epsilon, float* out) {
  double sum = 0.0;
  for (std::size_t i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * x[i];
  auto const mean = static_cast<float>(sum / static_cast<double>(dim));
  float const factor = 1.0F / std::sqrt(mean + epsilon);
  for (std::size_t i = 0; i < dim; ++i) out[i] = x[i] * factor * weight[i];
}

float silu(float x) { return x / (1.0F + std::exp(-x)); }

}  // namespace

void set_matrix_threads(int threads) {
  matrix_threads = std::max(threads, 1);
  openblas_set_num_threads(matrix_threads);
}

Forward::Forward(Model const& model) : model_(model), rope_(model.config) {
  // OpenBLAS takes all processors by itself.
  openblas_set_num_threads(matrix_threads);
}

std::span<float const> Forward::run(std::span<std::int32_t const> tokens,
                                    std::span<std::int32_t const> positions, Attention& attention,
                                    std::span<std::int32_t const> output_rows) {
  auto const& c = model_.config;
  resize(tokens.size(), output_rows.size());
  embed(tokens);
  rope_.prepare(positions);
  for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
    attention_block(layer, attention);
    feed_forward_block(layer);
  }
  for (std::size_t i = 0; i < output_rows.size(); ++i) {
    rms_norm(&x_[at(output_rows[i]) * at(c.dim)], model_.final_norm.data(), at(c.dim),
             c.norm_epsilon, &normed_[i * at(c.dim)]);
  }
  if (!output_rows.empty()) {
    product(normed_.data(), output_rows.size(), model_.classifier_data(), c.vocab_size, c.dim,
            logits_.data(), c.dim);
  }
  return {logits_.data(), output_rows.size() * at(c.vocab_size)};
}

void Forward::resize(std::size_t num_tokens, std::size_t num_outputs) {
  auto const& c = model_.config;
  auto const grow = [](std::vector<float>& v, std::size_t n) { v.resize(std::max(v.size(), n)); };
  num_tokens_ = num_tokens;
  grow(x_, num_tokens * at(c.dim));
  grow(normed_, std::max(num_tokens, num_outputs) * at(c.dim));
  grow(qkv_, num_tokens * at(c.qkv_dim()));
  grow(mixed_, num_tokens * at(c.q_dim()));
  grow(hidden_, num_tokens * 2 * at(c.hidden_dim));
  grow(logits_, num_outputs * at(c.vocab_size));
}

void Forward::embed(std::span<std::int32_t const> tokens) {
  auto const dim = at(model_.config.dim);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::copy_n(&model_.embedding[at(tokens[t]) * dim], dim, &x_[t * dim]);
  }
}

void Forward::attention_block(std::int32_t layer, Attention& attention) {
  auto const& c = model_.config;
  auto const& w = model_.layers[at(layer)];
  for (std::size_t t = 0; t < num_tokens_; ++t) {
    rms_norm(&x_[t * at(c.dim)], w.attention_norm.data(), at(c.dim), c.norm_epsilon,
             &normed_[t * at(c.dim)]);
  }
  product(normed_.data(), num_tokens_, w.qkv.data(), c.qkv_dim(), c.dim, qkv_.data(), c.dim);
  for (std::size_t t = 0; t < num_tokens_; ++t) {
    float* const row = &qkv_[t * at(c.qkv_dim())];
    // K's heads follow q's: both are rotated.
    for (std::int32_t h = 0; h < c.num_heads + c.num_kv_heads; ++h) {
      rope_.rotate(row + at(h) * at(c.head_dim), t);
    }
  }
  float const* const q = qkv_.data();
  attention.attend(layer, {q, q + c.q_dim(), q + c.q_dim() + c.kv_dim(), c.qkv_dim()},
                   mixed_.data());
  product(mixed_.data(), num_tokens_, w.wo.data(), c.dim, c.q_dim(), x_.data(), c.q_dim(), 1.0F);
}

void Forward::feed_forward_block(std::int32_t layer) {
  auto const& c = model_.config;
  auto const& w = model_.layers[at(layer)];
  auto const hidden = at(c.hidden_dim);
  for (std::size_t t = 0; t < num_tokens_; ++t) {
    rms_norm(&x_[t * at(c.dim)], w.ffn_norm.data(), at(c.dim), c.norm_epsilon,
             &normed_[t * at(c.dim)]);
  }
  product(normed_.data(), num_tokens_, w.gate_up.data(), 2 * c.hidden_dim, c.dim, hidden_.data(),
          c.dim);
  for (std::size_t t = 0; t < num_tokens_; ++t) {
    float* const gate = &hidden_[t * 2 * hidden];
    for (std::size_t i = 0; i < hidden; ++i) gate[i] = silu(gate[i]) * gate[hidden + i];
  }
  product(hidden_.data(), num_tokens_, w.down.data(), c.dim, c.hidden_dim, x_.data(),
          2 * c.hidden_dim, 1.0F);
}

}  // namespace engine

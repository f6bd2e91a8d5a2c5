// SPDX-License-Identifier: Apache-2.0
#include "model_quality.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "paged_sequence.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr kv::KvFormat f32{kv::Element::f32, kv::Granularity::none};
constexpr std::size_t chunk_tokens = 64;

/// The next token's distribution as the f32 cache has it, kept while the others are compared.
struct Baseline {
  std::vector<float> logits;
  std::vector<float> shares;  ///< softmax of logits
  double log_sum = 0;
  std::size_t best = 0;
};

double log_sum_exp(std::span<float const> logits) {
  float const largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float const logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

std::size_t argmax(std::span<float const> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Baseline baseline_of(std::span<float const> logits) {
  Baseline base{{logits.begin(), logits.end()}, {}, log_sum_exp(logits), argmax(logits)};
  base.shares.reserve(logits.size());
  auto const log_sum = static_cast<float>(base.log_sum);
  for (float const logit : logits) base.shares.push_back(std::exp(logit - log_sum));
  return base;
}

/// Sum of p * (log p - log q), never below 0 by rounding.
double divergence(Baseline const& base, std::span<float const> logits, double log_sum) {
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    sum += static_cast<double>(base.shares[i]) *
           (static_cast<double>(base.logits[i]) - static_cast<double>(logits[i]));
  }
  return std::max(0.0, sum - base.log_sum + log_sum);
}

/// One format: its cache and what was added up.
struct Candidate {
  std::unique_ptr<PagedSequence> sequence;
  double loss = 0;
  double squares = 0;  // of the loss's differences from the baseline's
  double kl = 0;
  std::int64_t agreed = 0;

  void add(Baseline const& base, std::span<float const> logits, std::int32_t next) {
    double const log_sum = log_sum_exp(logits);
    auto const at = static_cast<std::size_t>(next);
    double const own = log_sum - static_cast<double>(logits[at]);
    double const difference = own - (base.log_sum - static_cast<double>(base.logits[at]));
    loss += own;
    squares += difference * difference;
    kl += divergence(base, logits, log_sum);
    agreed += argmax(logits) == base.best ? 1 : 0;
  }
};

class Measurement {
 public:
  Measurement(engine::Model const& model, QualityRun const& run)
      : run_(run),
        vocab_(static_cast<std::size_t>(model.config.vocab_size)),
        forward_(model),
        base_(model.config, forward_, run.window, f32) {
    for (auto const& [format, scales] : run.formats) {
      auto& candidate = candidates_.emplace_back();
      if (format == f32) continue;  // the baseline itself
      candidate.sequence =
          std::make_unique<PagedSequence>(model.config, forward_, run.window, format, scales);
    }
  }

  /// `window`: first tokens and text; `next`: what follows each of its tokens, -1: not asked.
  void read(std::span<std::int32_t const> window, std::span<std::int32_t const> next) {
    (void)base_.rewind(0);
    for (auto& candidate : candidates_) {
      if (candidate.sequence) (void)candidate.sequence->rewind(0);
    }
    for (std::size_t at = 0; at < window.size(); at += chunk_tokens) {
      std::size_t const count = std::min(chunk_tokens, window.size() - at);
      read_chunk(window.subspan(at, count), next.subspan(at, count));
    }
  }

  std::vector<QualityRow> rows() const {
    std::vector<QualityRow> rows;
    auto const n = static_cast<double>(predicted_);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      auto const& c = candidates_[i];
      auto const& geometry = c.sequence ? c.sequence->geometry() : base_.geometry();
      rows.push_back({run_.name, run_.formats[i].format, geometry.bytes_per_token().value(),
                      std::exp(c.loss / n), c.kl / n, static_cast<double>(c.agreed) / n,
                      std::sqrt(c.squares) / n});
    }
    return rows;
  }

 private:
  void read_chunk(std::span<std::int32_t const> tokens, std::span<std::int32_t const> next) {
    outputs_.clear();
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (next[i] >= 0) outputs_.push_back(static_cast<std::int32_t>(i));
    }
    auto const logits = base_.run(tokens, outputs_);
    std::vector<Baseline> bases;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      bases.push_back(baseline_of(logits.subspan(i * vocab_, vocab_)));
    }
    predicted_ += static_cast<std::int64_t>(outputs_.size());
    for (auto& candidate : candidates_) compare(candidate, bases, tokens, next);
  }

  void compare(Candidate& candidate, std::vector<Baseline> const& bases,
               std::span<std::int32_t const> tokens, std::span<std::int32_t const> next) {
    std::span<float const> logits;
    if (candidate.sequence) logits = candidate.sequence->run(tokens, outputs_);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      auto const target = next[static_cast<std::size_t>(outputs_[i])];
      auto const row = candidate.sequence ? logits.subspan(i * vocab_, vocab_)
                                          : std::span<float const>(bases[i].logits);
      candidate.add(bases[i], row, target);
    }
  }

  QualityRun const& run_;
  std::size_t vocab_;
  engine::Forward forward_;
  PagedSequence base_;
  std::vector<Candidate> candidates_;
  std::vector<std::int32_t> outputs_;
  std::int64_t predicted_ = 0;
};

void check(engine::Model const& model, QualityRun const& run, std::int64_t num_tokens) {
  auto const first = static_cast<std::int64_t>(run.first_tokens.size());
  auto const positions = model.config.max_positions;
  if (run.window > positions || run.window < first + 2) {
    throw std::invalid_argument("a window of " + std::to_string(run.window) +
                                " tokens: the model takes " + std::to_string(first + 2) + " to " +
                                std::to_string(positions));
  }
  if (num_tokens + first < 2) {
    throw std::invalid_argument("the text has " + std::to_string(num_tokens) +
                                " tokens to read; at least 2 are needed");
  }
}

/// Where windows of `length` tokens begin.
std::vector<std::size_t> window_starts(std::size_t num_tokens, std::size_t length,
                                       std::int64_t max_tokens) {
  std::size_t const all = (num_tokens + length - 1) / length;
  auto const wanted = static_cast<std::size_t>(max_tokens) / length;
  std::size_t const count = std::clamp<std::size_t>(wanted, 1, all);
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < count; ++i) {
    starts.push_back(count == all ? i * length : num_tokens * i / count);
  }
  return starts;
}

}  // namespace

std::vector<QualityRow> measure_quality(engine::Model const& model, QualityRun const& run,
                                        std::span<std::int32_t const> tokens,
                                        std::function<void(std::int64_t)> const& progress) {
  check(model, run, std::min(static_cast<std::int64_t>(tokens.size()), run.max_tokens));
  Measurement measurement(model, run);
  auto const room =
      static_cast<std::int64_t>(run.window) - static_cast<std::int64_t>(run.first_tokens.size());
  auto const length = static_cast<std::size_t>(std::min(room, run.max_tokens));
  std::int64_t done = 0;
  for (std::size_t const start : window_starts(tokens.size(), length, run.max_tokens)) {
    auto const part = tokens.subspan(start, std::min(length, tokens.size() - start));
    std::vector<std::int32_t> window = run.first_tokens;
    window.insert(window.end(), part.begin(), part.end());
    std::vector<std::int32_t> next(window.begin() + 1, window.end());
    next.push_back(-1);
    // Nobody predicts what always stands in front.
    for (std::size_t i = 0; i + 1 < run.first_tokens.size(); ++i) next[i] = -1;
    measurement.read(window, next);
    progress(done += static_cast<std::int64_t>(part.size()));
  }
  return measurement.rows();
}

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Continuous batching over a paged cache: what an engine does with the library, step by step.
///
///     numbers -> StepPlanner::plan -> preempt, open, append -> Batch -> forward pass -> commit
///             -> sample, fork, finish
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/step/planner_numbers.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forward.hpp"
#include "model.hpp"
#include "paged_attention.hpp"
#include "random.hpp"

namespace engine {

/// What a client asks for.
struct Request {
  std::string id;                     ///< stands in answers and events
  std::vector<kv::TokenId> prompt;    ///< at least one
  std::int32_t max_tokens = 256;      ///< of the answer
  std::vector<kv::TokenId> stop_ids;  ///< end the answer and aren't part of it
  float temperature = 0.0F;           ///< 0: the likeliest token always
  std::int32_t n = 1;                 ///< samples, which share the prompt
  /// The client leaves after so many tokens of a sample; 0: while its prompt is being computed.
  std::optional<std::int32_t> cancel_after;
  std::uint64_t seed = 0;  ///< of the samples' random numbers
};

enum class Finish : std::uint8_t {
  stop,       ///< a stop id
  length,     ///< max_tokens, or the end of the model's context or of the pool
  cancelled,  ///< what was generated until then
  refused,    ///< prompt and one token are more than the pool; nothing was computed
};

/// One sample of a request, at its end.
struct Answer {
  std::shared_ptr<Request const> request;
  std::int32_t index = 0;  ///< which of the request's n
  std::vector<kv::TokenId> output;
  std::int32_t cached_tokens = 0;  ///< of the prompt: found in the cache when it was first opened
  std::int32_t preempted = 0;      ///< how often
  Finish finish = Finish::length;
};

/// Told what happens, from within `Engine::step`, `submit` and `cancel`; must not call them.
class Listener {
 public:
  virtual ~Listener() = default;
  /// Before a token is chosen. `logits`: [vocab_size], valid during the call.
  virtual void on_logits(Request const& request, std::int32_t index, std::int32_t num_output,
                         std::span<float const> logits);
  virtual void on_token(Request const& request, std::int32_t index, kv::TokenId token);
  virtual void on_answer(Answer const& answer);
};

struct EngineOptions {
  kv::LayerFormat format{kv::KvFormat{kv::Element::f32, kv::Granularity::none}};
  std::vector<kv::StaticScales> static_scales;  ///< [num_layers], of static granularities
  std::int32_t block_tokens = 16;
  std::int32_t num_blocks = 0;
  kv::PlannerLimits limits;
  kv::KvLayout layout{};
  kv::Twins twins = kv::Twins::keep;
  bool partial_hits = false;
  std::int32_t threads = 1;  ///< of attention; answers are the same with any number
};

/// What an engine has done so far.
struct EngineNumbers {
  std::int64_t steps = 0;
  std::int64_t computed_tokens = 0;   ///< of prompts and answers; hits aren't computed
  std::int64_t generated_tokens = 0;  ///< tokens of answers
  std::int64_t answers = 0;
  std::int64_t refused = 0;
  std::int64_t cancelled = 0;
  double peak_usage = 0;               ///< share of the pool in use, 0 to 1
  double usage_sum = 0;                ///< of the steps
  std::chrono::nanoseconds total{};    ///< inside `step`
  std::chrono::nanoseconds manager{};  ///< thereof in the cache, the planner and the batch
  std::chrono::nanoseconds data{};     ///< thereof writing, copying and attending
};

/// The geometry of a model's cache.
[[nodiscard]] kv::Geometry geometry_of(ModelConfig const& config, kv::LayerFormat format,
                                       std::int32_t block_tokens);

/// Called from one thread. Deterministic: the same submissions and steps give the same answers.
class Engine {
 public:
  /// `model` and `listener` must outlive it. Raises `pagedkv::Error` for options that can't work.
  Engine(Model const& model, EngineOptions const& options, Listener& listener);
  ~Engine();
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;

  /// Queues a request, or answers it at once: refused when prompt and one token can't fit the pool,
  /// empty when there is no room for an answer. Requires: a prompt, ids below vocab_size.
  void submit(Request request);
  /// Ends all samples of a request that haven't ended. False if there is none.
  bool cancel(std::string_view id);
  /// One step. False when nothing was left to do.
  bool step();
  /// Steps until nothing is left.
  void run() {
    while (step()) {
    }
  }

  [[nodiscard]] std::size_t num_unfinished() const noexcept {
    return running_.size() + waiting_.size();
  }
  [[nodiscard]] kv::KvCache const& cache() const noexcept { return cache_; }
  [[nodiscard]] kv::Geometry const& geometry() const noexcept { return geometry_; }
  [[nodiscard]] EngineNumbers const& numbers() const noexcept { return numbers_; }
  /// Drops everything that is cached and that nobody owns.
  void reset_cache() { cache_.reset(); }

 private:
  struct Sample;
  struct Details;
  /// A sample's share of a step.
  struct Entry {
    Sample* sample;
    kv::TokenRange query;
  };

  [[nodiscard]] kv::StepPlan make_plan(Details& details);
  void apply(kv::StepPlan const& plan);
  void preempt(Sample& sample);
  void admit(kv::PlannedRequest const& planned);
  void grow(kv::PlannedRequest const& planned);
  void move_between_lists();
  void run_entries();
  [[nodiscard]] kv::BatchStep build_batch();
  void gather_inputs(kv::BatchStep const& step);
  void sample_all(std::span<float const> logits);
  void begin_siblings(Sample& first, std::span<float const> logits);
  [[nodiscard]] bool take_token(Sample& sample, std::span<float const> logits);
  void end(Sample& sample, Finish finish);
  void answer(Sample const& sample, std::int32_t index, Finish finish);

  Model const& model_;
  EngineOptions options_;
  Listener& listener_;
  kv::Geometry geometry_;
  kv::KvStorage storage_;
  kv::KvCache cache_;
  kv::StepPlanner planner_;
  kv::Batch batch_;
  StepArrays arrays_;
  Forward forward_;
  std::optional<kv::cpu::Workers> workers_;  // for more than one thread

  std::uint64_t next_number_ = 0;
  std::vector<std::unique_ptr<Sample>> running_;  // in arrival order
  std::deque<std::unique_ptr<Sample>> waiting_;   // in queue order
  std::vector<std::unique_ptr<Sample>> forked_;   // in this step

  std::vector<kv::RunningRequest> running_numbers_;
  std::vector<kv::WaitingRequest> waiting_numbers_;
  std::vector<Entry> entries_;
  std::vector<Entry> admitted_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> output_rows_;
  std::vector<Sample*> outputs_;  // whose logits those are
  EngineNumbers numbers_;
};

}  // namespace engine

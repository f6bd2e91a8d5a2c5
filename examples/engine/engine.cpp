// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "sampling.hpp"

namespace engine {

namespace {

std::size_t at(std::int32_t n) { return static_cast<std::size_t>(n); }
std::int32_t size_of(auto const& container) { return static_cast<std::int32_t>(container.size()); }

/// Requests are numbered in arrival order, their samples within.
constexpr std::uint64_t numbers_per_request = 1U << 20;

/// Where a sample's random numbers begin. A stream goes on in steps of one number: seeds apart by
/// multiples of it would draw the same numbers, one token later.
std::uint64_t sample_seed(std::uint64_t seed, std::int32_t index) {
  return Random(seed ^ Random(static_cast<std::uint64_t>(index)).next()).next();
}

kv::BatchLimits batch_limits(ModelConfig const& config, kv::PlannerLimits const& limits) {
  // Without chunked prefill a longer prompt than the budget runs in a step of its own.
  std::int32_t const tokens = limits.chunked_prefill
                                  ? limits.max_num_batched_tokens
                                  : std::max(limits.max_num_batched_tokens, config.max_positions);
  return {.max_sequences = limits.max_num_seqs, .max_tokens = tokens};
}

kv::KvCacheConfig cache_config(ModelConfig const& config, EngineOptions const& options) {
  kv::KvCacheConfig c;
  c.block_tokens = options.block_tokens;
  c.num_blocks = options.num_blocks;
  c.max_sequences = options.limits.max_num_seqs;
  c.max_sequence_tokens = config.max_positions;
  c.twins = options.twins;
  c.partial_hits = options.partial_hits;
  return c;
}

}  // namespace

void Listener::on_logits(Request const&, std::int32_t, std::int32_t, std::span<float const>) {}
void Listener::on_token(Request const&, std::int32_t, kv::TokenId) {}
void Listener::on_answer(Answer const&) {}

kv::Geometry geometry_of(ModelConfig const& config, kv::LayerFormat format,
                         std::int32_t block_tokens) {
  kv::Geometry geometry;
  geometry.num_layers = config.num_layers;
  geometry.num_kv_heads = config.num_kv_heads;
  geometry.head_dim_k = config.head_dim;
  geometry.head_dim_v = config.head_dim;
  geometry.block_tokens = block_tokens;
  geometry.format = format;
  return geometry;
}

/// One answer in the making, from its submission to its end.
struct Engine::Sample {
  std::shared_ptr<Request const> request;
  std::int32_t index = 0;
  std::uint64_t number = 0;  ///< arrival order
  Random random;
  std::vector<kv::TokenId> tokens;   ///< prompt and output so far
  std::optional<kv::PromptKey> key;  ///< of `tokens`, while it waits
  std::optional<kv::Sequence> sequence;
  std::int32_t siblings = 0;  ///< samples that begin when its prompt is computed
  std::int32_t overtaken = 0;
  std::int32_t preempted = 0;
  std::int32_t cached_tokens = 0;
  bool was_open = false;

  Sample(std::shared_ptr<Request const> asked, std::int32_t i, std::uint64_t first_number)
      : request(std::move(asked)),
        index(i),
        number(first_number + static_cast<std::uint64_t>(i)),
        random(sample_seed(request->seed, i)),
        tokens(request->prompt) {}

  [[nodiscard]] std::int32_t num_output() const {
    return size_of(tokens) - size_of(request->prompt);
  }
  [[nodiscard]] bool leaves_early() const { return request->cancel_after == 0; }
};

/// What the planner asks only when it matters.
struct Engine::Details {
  Engine& engine;

  kv::PreemptionCost preemption_cost(std::int32_t index) {
    return kv::preemption_cost(*engine.running_[at(index)]->sequence);
  }
  auto admission(std::int32_t index) {
    Sample& sample = *engine.waiting_[at(index)];
    if (!sample.key) sample.key = engine.cache_.hash(sample.tokens);
    return engine.cache_.admission(*sample.key, {.reserve = size_of(sample.tokens)});
  }
};

Engine::Engine(Model const& model, EngineOptions const& options, Listener& listener)
    : model_(model),
      options_(options),
      listener_(listener),
      geometry_(geometry_of(model.config, options.format, options.block_tokens)),
      storage_(geometry_, options.num_blocks, options.layout, options.static_scales),
      cache_(cache_config(model.config, options)),
      planner_(options.limits),
      batch_(cache_, batch_limits(model.config, options.limits)),
      arrays_(options.limits.max_num_seqs, batch_limits(model.config, options.limits).max_tokens,
              cache_.table_width(), options.num_blocks),
      forward_(model) {
  if (options.threads > 1) workers_.emplace(options.threads);
}

Engine::~Engine() = default;

// ---- requests -----------------------------------------------------------------------------------

void Engine::submit(Request request) {
  auto const shared = std::make_shared<Request const>(std::move(request));
  auto sample = std::make_unique<Sample>(shared, 0, next_number_);
  next_number_ += numbers_per_request;
  sample->siblings = shared->n - 1;
  std::int32_t const prompt = size_of(shared->prompt);
  if (kv::blocks_for(prompt + 1, options_.block_tokens) > options_.num_blocks) {
    return end(*sample, Finish::refused);
  }
  if (shared->max_tokens < 1 || prompt >= model_.config.max_positions) {
    return end(*sample, Finish::length);
  }
  waiting_.push_back(std::move(sample));
}

bool Engine::cancel(std::string_view id) {
  bool found = false;
  auto const leave = [&](std::unique_ptr<Sample>& sample) {
    if (sample->request->id != id) return false;
    found = true;
    end(*sample, Finish::cancelled);
    return true;
  };
  std::erase_if(running_, leave);
  std::erase_if(waiting_, leave);
  return found;
}

/// Gives the blocks back and answers, also for siblings that never began.
void Engine::end(Sample& sample, Finish finish) {
  if (sample.sequence) {
    Timed const timed(numbers_.manager);
    std::move(*sample.sequence).finish(kv::Reuse::likely);
    sample.sequence.reset();
  }
  answer(sample, sample.index, finish);
  for (std::int32_t i = 1; i <= sample.siblings; ++i) answer(sample, sample.index + i, finish);
  sample.siblings = 0;
}

void Engine::answer(Sample const& sample, std::int32_t index, Finish finish) {
  ++numbers_.answers;
  numbers_.refused += finish == Finish::refused;
  numbers_.cancelled += finish == Finish::cancelled;
  Answer answer;
  answer.request = sample.request;
  answer.index = index;
  answer.output.assign(sample.tokens.begin() + size_of(sample.request->prompt),
                       sample.tokens.end());
  answer.cached_tokens = sample.cached_tokens;
  answer.preempted = sample.preempted;
  answer.finish = finish;
  listener_.on_answer(answer);
}

// ---- a step -------------------------------------------------------------------------------------

bool Engine::step() {
  if (num_unfinished() == 0) return false;
  Timed const timed(numbers_.total);
  Details details{*this};
  kv::StepOutcome outcome;
  {
    Timed const managing(numbers_.manager);
    kv::StepPlan const plan = make_plan(details);
    outcome = plan.outcome;
    apply(plan);
  }
  if (outcome == kv::StepOutcome::blocked || outcome == kv::StepOutcome::idle) {
    throw std::logic_error("nobody holds blocks but running requests, and the plan is " +
                           std::string(kv::to_string(outcome)));
  }
  if (outcome == kv::StepOutcome::run) run_entries();
  // Nothing is in flight here: blocks that are on their way back arrive with the end of the step.
  if (outcome == kv::StepOutcome::wait) cache_.end_step();
  return true;
}

kv::StepPlan Engine::make_plan(Details& details) {
  running_numbers_.clear();
  for (auto const& sample : running_) {
    running_numbers_.push_back(
        kv::running_request(cache_, *sample->sequence, size_of(sample->tokens)));
  }
  waiting_numbers_.clear();
  auto const window = std::min(waiting_.size(), at(options_.limits.admission_window));
  for (std::size_t i = 0; i < window; ++i) {
    waiting_numbers_.push_back(
        {.tokens = size_of(waiting_[i]->tokens), .overtaken = waiting_[i]->overtaken});
  }
  return planner_.plan(kv::pool_numbers(cache_), running_numbers_, waiting_numbers_, details);
}

/// In the order of docs/design/step-planner.md.
void Engine::apply(kv::StepPlan const& plan) {
  if (!plan.never_fits.empty() || !plan.running_never_fits.empty()) {
    throw std::logic_error("a request that can't fit was neither refused nor cut");
  }
  entries_.clear();
  admitted_.clear();
  for (std::int32_t const index : plan.preempted) preempt(*running_[at(index)]);
  for (auto const& passed : plan.passed) waiting_[at(passed.index)]->overtaken += passed.by;
  // Admissions first: they hold their hits before growth can evict them.
  for (auto const& planned : plan.admitted) admit(planned);
  for (auto const& planned : plan.running) grow(planned);
  entries_.insert(entries_.end(), admitted_.begin(), admitted_.end());
  move_between_lists();
}

void Engine::preempt(Sample& sample) {
  std::move(*sample.sequence).finish(kv::Reuse::resume);
  sample.sequence.reset();
  ++sample.preempted;
}

void Engine::admit(kv::PlannedRequest const& planned) {
  Sample& sample = *waiting_[at(planned.index)];
  auto opened = cache_.open(kv::SequenceId{sample.number}, *sample.key,
                            {.reserve = planned.reserve, .resumed = sample.preempted > 0});
  if (!opened) return;  // still waiting: the next plan sees it again
  sample.sequence.emplace(std::move(*opened));
  sample.key.reset();
  std::int32_t const cached = sample.sequence->cached();
  if (!std::exchange(sample.was_open, true)) sample.cached_tokens = cached;
  std::int32_t const count = std::min(planned.query.count, sample.sequence->size() - cached);
  admitted_.push_back({&sample, {cached, count}});
}

void Engine::grow(kv::PlannedRequest const& planned) {
  Sample& sample = *running_[at(planned.index)];
  if (planned.reserve > 0) {
    auto const next = std::span(sample.tokens).subspan(at(sample.sequence->size()));
    if (!sample.sequence->append(next.first(at(planned.reserve)))) return;
  }
  entries_.push_back({&sample, planned.query});
}

/// Who has a sequence runs, in arrival order; who has none waits, those that ran before first.
void Engine::move_between_lists() {
  auto const earlier = [](auto const& a, auto const& b) { return a->number < b->number; };
  std::vector<std::unique_ptr<Sample>> preempted;
  for (auto& sample : running_) {
    if (!sample->sequence) preempted.push_back(std::move(sample));
  }
  std::erase(running_, nullptr);
  for (auto& sample : waiting_) {
    if (!sample->sequence) continue;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sample, earlier),
                    std::move(sample));
  }
  std::erase(waiting_, nullptr);
  for (auto& sample : preempted) {
    auto const later = std::find_if(waiting_.begin(), waiting_.end(), [&](auto const& other) {
      return other->preempted == 0 || other->number > sample->number;
    });
    waiting_.insert(later, std::move(sample));
  }
}

void Engine::run_entries() {
  kv::BatchStep step;
  {
    Timed const managing(numbers_.manager);
    step = build_batch();
  }
  gather_inputs(step);
  double const usage = cache_.stats().usage();
  numbers_.peak_usage = std::max(numbers_.peak_usage, usage);
  numbers_.usage_sum += usage;
  ++numbers_.steps;
  numbers_.computed_tokens += step.num_tokens;

  kv::KvView const view = storage_.view();
  PagedAttention attention(model_.config, view, arrays_, step, workers_ ? &*workers_ : nullptr);
  attention.prepare();
  auto const logits = forward_.run(tokens_, positions_, attention, output_rows_);
  numbers_.data += attention.time();
  {
    Timed const managing(numbers_.manager);
    batch_.commit();
    cache_.end_step();
  }
  sample_all(logits);
}

kv::BatchStep Engine::build_batch() {
  if (entries_.empty()) throw std::logic_error("a step was planned and nothing of it could run");
  batch_.begin_step();
  for (Entry const& entry : entries_) {
    if (!batch_.add(*entry.sample->sequence, entry.query)) {
      throw std::logic_error("the batch refuses a planned request");
    }
  }
  auto const built = batch_.build(arrays_.buffers());
  if (!built) throw std::logic_error("the step's arrays are too small");
  return *built;
}

/// Tokens and positions in the batch's order of rows.
void Engine::gather_inputs(kv::BatchStep const& step) {
  auto const offsets = arrays_.attention(step).query_offsets;
  tokens_.resize(at(step.num_tokens));
  positions_.resize(at(step.num_tokens));
  output_rows_.clear();
  outputs_.clear();
  for (Entry const& entry : entries_) {
    Sample& sample = *entry.sample;
    std::int32_t const first = offsets[at(batch_.row_of(*sample.sequence))];
    for (std::int32_t i = 0; i < entry.query.count; ++i) {
      tokens_[at(first + i)] = sample.tokens[at(entry.query.first + i)];
      positions_[at(first + i)] = entry.query.first + i;
    }
    if (entry.query.end() < size_of(sample.tokens) && !sample.leaves_early()) continue;
    output_rows_.push_back(first + entry.query.count - 1);
    outputs_.push_back(&sample);
  }
}

/// Each sample whose tokens are all computed gets its next one, or ends.
void Engine::sample_all(std::span<float const> logits) {
  auto const vocab = at(model_.config.vocab_size);
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Sample& sample = *outputs_[i];
    if (sample.leaves_early()) {
      end(sample, Finish::cancelled);
      continue;
    }
    auto const own = logits.subspan(i * vocab, vocab);
    if (sample.siblings > 0) begin_siblings(sample, own);
    (void)take_token(sample, own);
  }
  std::erase_if(running_, [](auto const& sample) { return !sample->sequence; });
  auto const earlier = [](auto const& a, auto const& b) { return a->number < b->number; };
  for (auto& sample : forked_) {
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sample, earlier),
                    std::move(sample));
  }
  forked_.clear();
}

/// The prompt is computed: the other samples begin as forks, as long as there is room to run. The
/// rest waits, and will find the prompt in the cache.
void Engine::begin_siblings(Sample& first, std::span<float const> logits) {
  std::int32_t const count = std::exchange(first.siblings, 0);
  auto next_waiting = waiting_.begin();
  for (std::int32_t i = 1; i <= count; ++i) {
    auto sibling = std::make_unique<Sample>(first.request, i, first.number);
    sibling->cached_tokens = first.cached_tokens;
    sibling->was_open = true;
    if (!take_token(*sibling, logits)) continue;
    Timed const managing(numbers_.manager);
    if (size_of(running_) + size_of(forked_) < options_.limits.max_num_seqs) {
      auto fork = first.sequence->fork(kv::SequenceId{sibling->number});
      if (fork) sibling->sequence.emplace(std::move(*fork));
    }
    if (sibling->sequence) {
      forked_.push_back(std::move(sibling));
    } else {
      next_waiting = std::next(waiting_.insert(next_waiting, std::move(sibling)));
    }
  }
}

/// False: that was its end.
bool Engine::take_token(Sample& sample, std::span<float const> logits) {
  Request const& request = *sample.request;
  listener_.on_logits(request, sample.index, sample.num_output(), logits);
  kv::TokenId const token = choose_token(logits, request.temperature, sample.random);
  auto const& stop = request.stop_ids;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    end(sample, Finish::stop);
    return false;
  }
  sample.tokens.push_back(token);
  ++numbers_.generated_tokens;
  listener_.on_token(request, sample.index, token);
  bool const cancelled = sample.num_output() == request.cancel_after;
  std::int32_t const positions = size_of(sample.tokens);
  bool const full = sample.num_output() >= request.max_tokens ||
                    positions >= model_.config.max_positions ||
                    kv::blocks_for(positions, options_.block_tokens) > options_.num_blocks;
  if (cancelled || full) end(sample, cancelled ? Finish::cancelled : Finish::length);
  return !cancelled && !full;
}

}  // namespace engine

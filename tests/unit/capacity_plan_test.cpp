// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/model/capacity_plan.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <type_traits>

#include "catch.hpp"

namespace kv = pagedkv;
using kv::CapacityInput;
using kv::PlanProblem;
using kv::testing::contains_text;

namespace {

constexpr std::int64_t gib = std::int64_t{1} << 30;
constexpr std::int64_t llama_70b_weights = 141'107'412'992;

kv::KvFormat format(char const* text) { return *kv::parse_kv_format(text); }

/// Meta-Llama-3.1-70B on devices of 80 GiB.
CapacityInput llama_70b(std::int32_t tensor_parallel) {
  CapacityInput input;
  input.geometry = {80, 8, 128, 128, 16, format("f16"), {}};
  input.parallel.tensor = tensor_parallel;
  input.device_bytes = 80 * gib;
  input.utilization = 0.95;
  input.weight_bytes = llama_70b_weights;
  input.model_max_len = 131'072;
  return input;
}

/// What a message names for a term, in the part that tells what would have worked.
std::string named(std::string const& message, std::string const& term) {
  auto const start = message.find("\n  " + term + ": ");
  if (start == std::string::npos) return "missing";
  auto const value = start + term.size() + 5;
  return message.substr(value, message.find_first_of(" ,\n", value) - value);
}

std::string as_text(std::int64_t value) { return std::to_string(value); }

TEST_CASE("Llama 3.1 70B on four 80 GiB devices: every term and the blocks that follow") {
  auto const plan = kv::capacity_plan(llama_70b(4));
  CHECK(plan.rank.usable_bytes == 81'604'378'624);
  CHECK(plan.rank.weight_bytes == llama_70b_weights / 4);
  CHECK(plan.rank.available_bytes == 81'604'378'624 - llama_70b_weights / 4);
  CHECK(plan.rank.bytes_per_block == 16 * 327'680 / 4);
  CHECK(plan.rank.kv_heads == 2);
  CHECK(plan.num_blocks == 46'327'525'376 / 1'310'720);
  CHECK(plan.rank.cache_bytes == plan.num_blocks * std::int64_t{1'310'720});
  CHECK(plan.rank.unused_bytes == plan.rank.available_bytes - plan.rank.cache_bytes);
  CHECK(plan.rank.unused_bytes < plan.rank.bytes_per_block);
  CHECK(plan.bytes_per_token == kv::BytesPerToken{327'680, 1});
  CHECK(plan.cache_bytes == 4 * plan.rank.cache_bytes);
  CHECK(plan.cache_bytes_all_ranks == plan.cache_bytes);
  CHECK(plan.max_model_len == 131'072);
  CHECK(plan.blocks_per_sequence == 8192);
  CHECK(plan.sequences_at_max_len == 4);
  CHECK(plan.concurrency == static_cast<double>(plan.num_blocks) / 8192);
  CHECK(plan.total_tokens == std::int64_t{plan.num_blocks} * 16);
  CHECK(plan.num_ranks == 4);
  CHECK(plan.tail_tokens_mean == 7.5);
  CHECK(plan.tail_tokens_at_max_len == 0);
  CHECK(plan.tail_bytes_mean == 7.5 * 327'680);
}

TEST_CASE("fp8 doubles the blocks, its static scales being counted apart") {
  auto input = llama_70b(4);
  auto const half = kv::capacity_plan(input);
  input.geometry.format = format("fp8_e4m3");
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.rank.static_scale_bytes == 640);
  CHECK(plan.rank.available_bytes == half.rank.available_bytes - 640);
  CHECK(plan.num_blocks == plan.rank.available_bytes / (16 * 163'840 / 4));
}

TEST_CASE("activations and other use are taken from every rank") {
  auto input = llama_70b(4);
  auto const before = kv::capacity_plan(input).rank.available_bytes;
  input.activation_bytes = 3 * gib;
  input.other_bytes = gib;
  CHECK(kv::capacity_plan(input).rank.available_bytes == before - 4 * gib);
}

TEST_CASE("weights of a rank are taken as they are given") {
  auto input = llama_70b(4);
  auto const whole = kv::capacity_plan(input);
  input.weight_scope = kv::WeightScope::per_rank;
  input.weight_bytes = llama_70b_weights / 4;
  CHECK(kv::capacity_plan(input).num_blocks == whole.num_blocks);
}

TEST_CASE("more ranks than KV heads hold copies, which the total counts and the model doesn't") {
  auto const plan = kv::capacity_plan(llama_70b(16));
  CHECK(plan.rank.kv_heads == 1);
  CHECK(plan.kv_head_copies == 2);
  CHECK(plan.cache_bytes == plan.num_blocks * plan.bytes_per_block);
  CHECK(plan.cache_bytes_all_ranks == 2 * plan.cache_bytes);
  CHECK(plan.cache_bytes_all_ranks == 16 * plan.rank.cache_bytes);
}

TEST_CASE("the fullest pipeline stage decides") {
  auto input = llama_70b(2);
  input.geometry.num_layers = 81;
  input.parallel.pipeline = 2;
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.rank.stage == 0);
  CHECK(plan.rank.layers == kv::LayerRange{0, 41});
  CHECK(plan.rank.weight_bytes == (llama_70b_weights * 41 + 161) / 162);
  CHECK(plan.cache_bytes_all_ranks == plan.num_blocks * plan.bytes_per_block);
}

TEST_CASE("a stage can be the fullest by an override, without having the most layers") {
  auto input = llama_70b(4);
  input.parallel.pipeline = 2;
  input.geometry.overrides = {{{79, 1}, format("f32")}};
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.rank.stage == 1);
  CHECK(plan.rank.bytes_per_block == 16 * (39 + 2) * 4096 / 4);
}

TEST_CASE("auto is the largest length that fits, within what the model knows") {
  auto input = llama_70b(2);
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.max_model_len == plan.total_tokens);
  CHECK(plan.blocks_per_sequence == plan.num_blocks);
  CHECK(plan.concurrency == 1);
  input.max_model_len = plan.max_model_len;
  CHECK(kv::try_capacity_plan(input));
  input.max_model_len = plan.max_model_len + 1;
  CHECK(kv::try_capacity_plan(input).problem == PlanProblem::sequence_too_long);
  input.max_model_len = kv::auto_max_model_len;
  input.model_max_len = 8192;
  CHECK(kv::capacity_plan(input).max_model_len == 8192);
  CHECK(kv::capacity_plan(input).num_blocks == plan.num_blocks);
}

TEST_CASE("a pool of exactly one longest sequence is enough, one block less is not") {
  auto input = llama_70b(1);
  input.max_model_len = 1000;
  input.num_blocks = 63;
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.concurrency == 1);
  CHECK(plan.tail_tokens_at_max_len == 8);
  input.num_blocks = 62;
  auto const outcome = kv::try_capacity_plan(input);
  CHECK(outcome.problem == PlanProblem::sequence_too_long);
  CHECK(named(outcome.message, "max_model_len") == "992");
  CHECK(named(outcome.message, "num_blocks") == "63");
}

TEST_CASE("explicit cache bytes are the blocks' own and ignore the other terms") {
  auto input = llama_70b(1);
  input.geometry.format = format("fp8_e4m3");
  input.cache_bytes = 100 * input.geometry.bytes_per_block();
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.sized_by == kv::SizedBy::cache_bytes);
  CHECK(plan.num_blocks == 100);
  CHECK(plan.rank.unused_bytes == 0);
  CHECK(plan.rank.beyond_device_bytes ==
        *input.cache_bytes + llama_70b_weights + 640 - input.device_bytes);
  *input.cache_bytes -= 1;
  CHECK(kv::capacity_plan(input).num_blocks == 99);
  input.device_bytes = 0;
  CHECK(kv::capacity_plan(input).rank.beyond_device_bytes == 0);
}

TEST_CASE("a number of blocks overrides bytes, and the checks go by it") {
  auto input = llama_70b(1);
  input.cache_bytes = 1;
  input.num_blocks = 512;
  auto plan = kv::capacity_plan(input);
  CHECK(plan.sized_by == kv::SizedBy::num_blocks);
  CHECK(plan.num_blocks == 512);
  CHECK(plan.max_model_len == 8192);
  CHECK(plan.cache_bytes == 512 * std::int64_t{16} * 327'680);
  input.max_model_len = 8193;
  CHECK(kv::try_capacity_plan(input).problem == PlanProblem::sequence_too_long);
}

TEST_CASE("no memory: the message lists every term and names what would have worked") {
  auto input = llama_70b(1);
  input.activation_bytes = 2 * gib;
  input.other_bytes = 123'456'789;
  auto const outcome = kv::try_capacity_plan(input);
  REQUIRE(outcome.problem == PlanProblem::no_memory);
  auto const& message = outcome.message;
  CHECK(message.rfind("No available memory for the cache blocks", 0) == 0);
  for (auto const& term :
       {as_text(80 * gib), std::string("0.95"), as_text(81'604'378'624), as_text(llama_70b_weights),
        as_text(2 * gib), std::string("123456789"),
        as_text(81'604'378'624 - llama_70b_weights - 2 * gib - 123'456'789), as_text(5'242'880)}) {
    CHECK_THAT(message, contains_text(term));
  }
  CHECK(named(message, "utilization") == "none");
  CHECK(named(message, "weight_bytes") ==
        as_text(81'604'378'624 - 2 * gib - 123'456'789 - 5'242'880));
  CHECK(named(message, "tensor_parallel") == "2");
  CHECK_THROWS_WITH(kv::capacity_plan(input), message);
}

TEST_CASE("no memory: when nothing would have worked it says so") {
  auto input = llama_70b(1);
  input.activation_bytes = 90 * gib;
  auto const outcome = kv::try_capacity_plan(input);
  REQUIRE(outcome.problem == PlanProblem::no_memory);
  CHECK(named(outcome.message, "utilization") == "none");
  CHECK(named(outcome.message, "weight_bytes") == "none");
  CHECK(named(outcome.message, "tensor_parallel") == "none");
  CHECK(named(outcome.message, "kv_format") == "none");
}

TEST_CASE("one sequence too long: the largest length, the utilization and the format are named") {
  auto input = llama_70b(2);
  input.max_model_len = 70'000;
  auto const outcome = kv::try_capacity_plan(input);
  REQUIRE(outcome.problem == PlanProblem::sequence_too_long);
  CHECK(outcome.message.rfind("One sequence of 70000 tokens does not fit", 0) == 0);
  // (81,604,378,624 - 70,553,706,496) / 2,621,440 blocks of 16 tokens.
  CHECK(named(outcome.message, "max_model_len") == as_text(67'440));
  // (70,553,706,496 + 4,375 * 2,621,440) / 85,899,345,920 = 0.9548676
  CHECK(named(outcome.message, "utilization") == "0.954868");
  CHECK(named(outcome.message, "kv_format") == "fp8_e4m3/per_token_head");
  CHECK(named(outcome.message, "tensor_parallel") == "4");
  input.capability = kv::ComputeCapability{8, 0};
  CHECK(named(kv::try_capacity_plan(input).message, "kv_format") == "int8/per_token_head");
}

TEST_CASE("an input that can't be meant is told by name") {
  auto const problem = [](auto const& change) {
    auto input = llama_70b(4);
    change(input);
    auto const outcome = kv::try_capacity_plan(input);
    CHECK(outcome.problem == PlanProblem::invalid_input);
    CHECK_THROWS_AS(kv::capacity_plan(input), kv::Error);
    return outcome.message;
  };
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(problem([](auto& in) { in.utilization = 0; }), contains_text("utilization"));
  CHECK_THAT(problem([](auto& in) { in.utilization = 1.01; }), contains_text("at most 1"));
  CHECK_THAT(problem([=](auto& in) { in.utilization = nan; }), contains_text("utilization"));
  CHECK_THAT(problem([](auto& in) { in.device_bytes = -1; }), contains_text("device_bytes"));
  CHECK_THAT(problem([](auto& in) { in.device_bytes = 0; }), contains_text("cache_bytes, or"));
  CHECK_THAT(problem([](auto& in) { in.weight_bytes = -5; }), contains_text("weight_bytes is -5"));
  CHECK_THAT(problem([](auto& in) { in.activation_bytes = -1; }), contains_text("activation"));
  CHECK_THAT(problem([](auto& in) { in.other_bytes = -1; }), contains_text("other_bytes"));
  CHECK_THAT(problem([](auto& in) { in.cache_bytes = -1; }), contains_text("cache_bytes"));
  CHECK_THAT(problem([](auto& in) { in.num_blocks = 0; }), contains_text("num_blocks"));
  CHECK_THAT(problem([](auto& in) { in.max_model_len = -1; }), contains_text("max_model_len"));
  CHECK_THAT(problem([](auto& in) { in.model_max_len = -1; }), contains_text("model_max_len"));
  CHECK_THAT(problem([](auto& in) { in.parallel.tensor = 3; }), contains_text("2 and 4"));
  CHECK_THAT(problem([](auto& in) { in.geometry.num_layers = 0; }), contains_text("num_layers"));
  CHECK_THAT(problem([](auto& in) { in.device_bytes = std::int64_t{1} << 60; }),
             contains_text("2^60"));
  CHECK_THAT(problem([](auto& in) {
               in.num_blocks = 2'147'483'647;
               in.geometry.block_tokens = 65'536;
             }),
             contains_text("2^60"));
}

TEST_CASE("more blocks than ids are never planned") {
  CapacityInput input;
  input.geometry = {1, 1, 1, 0, 1, format("fp8_e4m3"), {}};
  input.device_bytes = 80 * gib;
  auto const plan = kv::capacity_plan(input);
  CHECK(plan.num_blocks == 2'147'483'647);
  CHECK(plan.max_model_len == 2'147'483'647);
}

/// Inputs around the edge between fitting and not.
CapacityInput random_input(std::mt19937_64& random) {
  auto const pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  auto const power = [&](std::int64_t most) { return std::int32_t{1} << pick(0, most); };
  auto const any_format = [&] {
    auto const element = kv::all_elements[random() % kv::all_elements.size()];
    auto const choices = kv::granularities_of(element);
    return kv::KvFormat{element, choices[random() % choices.size()]};
  };
  CapacityInput input;
  input.geometry.num_layers = static_cast<std::int32_t>(pick(1, 90));
  input.geometry.num_kv_heads = power(4);
  input.geometry.head_dim_k = static_cast<std::int32_t>(pick(1, 4)) * 64;
  input.geometry.head_dim_v = pick(0, 4) == 0 ? 0 : input.geometry.head_dim_k;
  input.geometry.block_tokens = pick(0, 1) == 0 ? power(8) : static_cast<std::int32_t>(pick(1, 99));
  input.geometry.format = {any_format(), any_format()};
  if (pick(0, 2) == 0) input.geometry.overrides = {{{0, 1}, format("bf16")}};
  input.parallel.tensor = power(4);
  input.parallel.pipeline =
      static_cast<std::int32_t>(pick(1, std::min(4, input.geometry.num_layers)));
  input.device_bytes = pick(1, 200) * gib + pick(0, gib);
  input.utilization = static_cast<double>(pick(300'000, 1'000'000)) / 1e6;
  auto const ranks = std::int64_t{input.parallel.tensor} * input.parallel.pipeline;
  bool const whole = pick(0, 1) == 0;
  input.weight_scope = whole ? kv::WeightScope::whole_model : kv::WeightScope::per_rank;
  input.weight_bytes = pick(0, input.device_bytes / 100 * pick(50, 130)) * (whole ? ranks : 1);
  input.activation_bytes = pick(0, 1) == 0 ? 0 : pick(0, input.device_bytes / pick(1, 20));
  input.other_bytes = pick(0, 1) == 0 ? 0 : pick(0, 2 * gib);
  if (pick(0, 3) != 0) input.max_model_len = static_cast<std::int32_t>(pick(1, 1'000'000));
  if (pick(0, 5) == 0) input.cache_bytes = pick(1, input.device_bytes);
  if (pick(0, 7) == 0) input.num_blocks = static_cast<std::int32_t>(pick(1, 20'000));
  if (pick(0, 1) == 0) input.capability = kv::ComputeCapability{static_cast<int>(pick(7, 9)), 0};
  return input;
}

/// Blocks by the definition, rank by rank, in 128 bits.
std::int64_t counted_blocks(CapacityInput const& input) {
  __extension__ using Wide = __int128;
  if (input.num_blocks) return *input.num_blocks;
  auto const& geometry = input.geometry;
  std::int64_t least = std::numeric_limits<std::int32_t>::max();
  auto const heads = std::max(1, geometry.num_kv_heads / input.parallel.tensor);
  std::int32_t first = 0;
  for (std::int32_t stage = 0; stage < input.parallel.pipeline; ++stage) {
    auto const left = input.parallel.pipeline - stage;
    auto const layers = (geometry.num_layers - first + left - 1) / left;
    auto const block = geometry.bytes_per_block({first, layers}, heads);
    Wide available = input.cache_bytes.value_or(0);
    if (!input.cache_bytes) {
      Wide weights = input.weight_bytes;
      if (input.weight_scope == kv::WeightScope::whole_model) {
        Wide const shares = Wide{geometry.num_layers} * input.parallel.tensor;
        weights = weights * layers / shares + (weights * layers % shares != 0);
      }
      available = Wide(std::floor(static_cast<double>(input.device_bytes) * input.utilization)) -
                  weights - input.activation_bytes - input.other_bytes -
                  geometry.static_scale_bytes({first, layers}, heads);
    }
    if (available < 0) available = 0;
    least = std::min(least, static_cast<std::int64_t>(available / block));
    first += layers;
  }
  return least;
}

/// Whether there is a plan with one term changed.
template <class Value>
bool works(CapacityInput input, Value CapacityInput::*term,
           std::type_identity_t<Value> const& value) {
  input.*term = value;
  return bool(kv::try_capacity_plan(input));
}

bool works_on(CapacityInput const& input, std::int32_t tensor_parallel) {
  return works(input, &CapacityInput::parallel, {tensor_parallel, input.parallel.pipeline});
}

bool works_as(CapacityInput input, kv::KvFormat stored) {
  input.geometry.format = stored;
  return bool(kv::try_capacity_plan(input));
}

// Each of these asks: does the value that is named work, does one step back fail, and is "none"
// true at the end of the range?

void check_utilization(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const text = named(outcome.message, "utilization");
  if (auto const value = outcome.hints.utilization) {
    REQUIRE(std::strtod(text.c_str(), nullptr) == *value);
    REQUIRE(works(input, &CapacityInput::utilization, *value));
    REQUIRE_FALSE(works(input, &CapacityInput::utilization, *value - 1e-6));
  } else {
    REQUIRE(text == "none");
    REQUIRE_FALSE(works(input, &CapacityInput::utilization, 1.0));
  }
}

void check_weight_bytes(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const text = named(outcome.message, "weight_bytes");
  if (auto const value = outcome.hints.weight_bytes) {
    REQUIRE(text == as_text(*value));
    REQUIRE(works(input, &CapacityInput::weight_bytes, *value));
    REQUIRE_FALSE(works(input, &CapacityInput::weight_bytes, *value + 1));
  } else {
    REQUIRE(text == "none");
    REQUIRE_FALSE(works(input, &CapacityInput::weight_bytes, std::int64_t{0}));
  }
}

void check_tensor_parallel(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const value = outcome.hints.tensor_parallel;
  REQUIRE(named(outcome.message, "tensor_parallel") == (value ? as_text(*value) : "none"));
  if (value) REQUIRE(works_on(input, *value));
  for (std::int32_t other = 1; other < value.value_or(1025); ++other) {
    if (other > 16 && other % 16 != 0) continue;
    REQUIRE_FALSE(works_on(input, other));
  }
}

void check_kv_format(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const value = outcome.hints.kv_format;
  REQUIRE(named(outcome.message, "kv_format") == (value ? kv::to_string(*value) : "none"));
  if (value) REQUIRE(works_as(input, *value));
  for (auto const other : kv::formats_to_try(input.capability)) {
    if (value == other) break;
    REQUIRE_FALSE(works_as(input, other));
  }
}

void check_max_model_len(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const value = outcome.hints.max_model_len.value();
  REQUIRE(named(outcome.message, "max_model_len") == as_text(value));
  REQUIRE(works(input, &CapacityInput::max_model_len, value));
  REQUIRE_FALSE(works(input, &CapacityInput::max_model_len, value + 1));
}

/// Of the bytes or blocks that were given instead of a utilization.
template <class Value>
void check_given(CapacityInput const& input, std::string const& text,
                 std::optional<Value> CapacityInput::*term, std::optional<Value> least) {
  REQUIRE(text == as_text(least.value()));
  REQUIRE(works(input, term, least));
  --*least;
  REQUIRE_FALSE(works(input, term, least));
}

void check_hints(CapacityInput const& input, kv::PlanOutcome const& outcome) {
  auto const& message = outcome.message;
  auto const sized_by = outcome.plan.sized_by;
  if (sized_by == kv::SizedBy::utilization) {
    check_utilization(input, outcome);
    check_weight_bytes(input, outcome);
  }
  if (sized_by != kv::SizedBy::num_blocks) {
    check_tensor_parallel(input, outcome);
    check_kv_format(input, outcome);
  }
  if (outcome.problem == PlanProblem::sequence_too_long) check_max_model_len(input, outcome);
  if (sized_by == kv::SizedBy::cache_bytes) {
    check_given(input, named(message, "cache_bytes"), &CapacityInput::cache_bytes,
                outcome.hints.cache_bytes);
  }
  if (sized_by == kv::SizedBy::num_blocks) {
    check_given(input, named(message, "num_blocks"), &CapacityInput::num_blocks,
                outcome.hints.num_blocks);
  }
}

void check_plan(CapacityInput const& input, kv::CapacityPlan const& plan) {
  REQUIRE(plan.blocks_per_sequence ==
          (std::int64_t{plan.max_model_len} + plan.block_tokens - 1) / plan.block_tokens);
  REQUIRE(plan.blocks_per_sequence <= plan.num_blocks);
  REQUIRE(plan.sequences_at_max_len >= 1);
  REQUIRE(std::int64_t{plan.sequences_at_max_len} * plan.blocks_per_sequence <= plan.num_blocks);
  REQUIRE(plan.rank.cache_bytes <= plan.rank.available_bytes);
  REQUIRE(plan.rank.unused_bytes < plan.rank.bytes_per_block);
  if (plan.sized_by == kv::SizedBy::utilization) {
    REQUIRE(plan.rank.cache_bytes + plan.rank.weight_bytes + plan.rank.activation_bytes +
                plan.rank.other_bytes + plan.rank.static_scale_bytes <=
            input.device_bytes);
  }
  if (input.max_model_len != kv::auto_max_model_len) {
    REQUIRE(plan.max_model_len == input.max_model_len);
  }
}

TEST_CASE("what a failure names works when fed back, and one step less does not") {
  std::mt19937_64 random(31'415'926);
  int counts[4] = {};
  for (int round = 0; round < 1500; ++round) {
    auto const input = random_input(random);
    CAPTURE(round);
    auto const outcome = kv::try_capacity_plan(input);
    REQUIRE(outcome.problem != PlanProblem::invalid_input);
    REQUIRE(outcome.plan.num_blocks == counted_blocks(input));
    ++counts[static_cast<int>(outcome.problem)];
    if (outcome) {
      check_plan(input, outcome.plan);
    } else {
      check_hints(input, outcome);
    }
  }
  // The inputs must keep reaching every outcome.
  CHECK(counts[static_cast<int>(PlanProblem::none)] > 100);
  CHECK(counts[static_cast<int>(PlanProblem::no_memory)] > 100);
  CHECK(counts[static_cast<int>(PlanProblem::sequence_too_long)] > 100);
}

}  // namespace

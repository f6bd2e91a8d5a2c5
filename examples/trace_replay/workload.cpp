// SPDX-License-Identifier: Apache-2.0
#include "workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <vector>

namespace replay {

namespace {

/// Random numbers that are the same under every standard library (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  /// In least .. most.
  std::int32_t between(std::int32_t least, std::int32_t most) {
    return least + static_cast<std::int32_t>(uniform() * (most - least + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  /// A length whose median is `median`, a third of them beyond `median * spread`, at least 1.
  std::int32_t length(double median, double spread) {
    double const radius = std::sqrt(-2 * std::log1p(-uniform()));
    double const normal = radius * std::cos(2 * std::numbers::pi * uniform());
    double const value = median * std::exp(normal * 2 * std::log(spread));
    return static_cast<std::int32_t>(std::clamp(value, 1.0, 1e6));
  }
  /// 0 .. count - 1, number i about 1 / (i + 1) as often as number 0.
  std::int32_t popular(std::int32_t count) {
    return static_cast<std::int32_t>(std::pow(count + 1.0, uniform())) - 1;
  }

 private:
  std::uint64_t bits() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

/// A growing text: the ids of its full blocks, and its length.
struct Text {
  std::vector<std::int64_t> ids;
  std::int64_t tokens = 0;
};

struct Line {
  double seconds = 0;
  std::int64_t input_length = 0;
  std::int64_t output_length = 0;
  std::int64_t cancel_after = -1;
  std::vector<std::int64_t> ids;
};

class Generator {
 public:
  explicit Generator(WorkloadOptions const& options) : options_(options), random_(options.seed) {
    for (std::int32_t i = 0; i < options.system_prompts; ++i) {
      system_prompts_.push_back(text(random_.length(1500, 1.5)));
    }
    for (std::int32_t i = 0; i < options.num_documents; ++i) {
      documents_.push_back(text(std::min<std::int64_t>(random_.length(9000, 1.6), limit() / 2)));
    }
    tools_ = text(std::min<std::int64_t>(6000, limit() / 4));
  }

  std::vector<Line> lines() {
    double const sum = options_.chats + options_.documents + options_.agents;
    // Requests that one dialogue of each kind makes on average: sets how often one starts.
    constexpr double chat_requests = 5.0;
    constexpr double document_requests = 3.0;
    constexpr double agent_requests = 18.0;
    double const chats = options_.chats / sum / chat_requests;
    double const documents = options_.documents / sum / document_requests;
    double const agents = options_.agents / sum / agent_requests;
    double const starts_per_second = options_.requests_per_second * (chats + documents + agents);
    // Half as many again: the last dialogues to start have only begun where the trace ends.
    std::size_t const enough = static_cast<std::size_t>(options_.requests) * 3 / 2 + 32;
    for (double now = 0; lines_.size() < enough;
         now += random_.exponential(1 / starts_per_second)) {
      double const kind = random_.uniform() * (chats + documents + agents);
      if (kind < chats) {
        chat(now);
      } else if (kind < chats + documents) {
        document(now);
      } else {
        agent(now);
      }
    }
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](Line const& a, Line const& b) { return a.seconds < b.seconds; });
    lines_.resize(static_cast<std::size_t>(options_.requests));
    return std::move(lines_);
  }

 private:
  std::int64_t limit() const { return options_.max_tokens; }

  void extend(Text& text, std::int64_t tokens) {
    text.tokens += tokens;
    while (static_cast<std::int64_t>(text.ids.size() + 1) * options_.block_tokens <= text.tokens) {
      text.ids.push_back(next_id_++);
    }
  }

  Text text(std::int64_t tokens) {
    Text made;
    extend(made, std::clamp<std::int64_t>(tokens, 1, limit() / 2));
    return made;
  }

  /// A request with `text` as its prompt; the answer is appended to it. False: it got too long.
  bool ask(Text& text, double seconds, std::int32_t output) {
    if (text.tokens + output > limit()) return false;
    Line line;
    line.seconds = seconds;
    line.input_length = text.tokens;
    line.output_length = output;
    line.ids = text.ids;
    if (text.tokens % options_.block_tokens != 0) line.ids.push_back(next_id_++);
    if (random_.chance(options_.cancelled)) line.cancel_after = random_.between(0, output - 1);
    lines_.push_back(std::move(line));
    extend(text, output);
    return true;
  }

  void chat(double now) {
    Text dialogue = system_prompts_[static_cast<std::size_t>(
        random_.popular(static_cast<std::int32_t>(system_prompts_.size())))];
    do {
      extend(dialogue, random_.length(120, 1.8));
      std::int32_t const output = random_.length(250, 1.5);
      if (!ask(dialogue, now, output)) return;
      now += 0.02 * output + random_.exponential(25);
    } while (random_.chance(0.8));
  }

  void document(double now) {
    Text const& document = documents_[static_cast<std::size_t>(
        random_.popular(static_cast<std::int32_t>(documents_.size())))];
    std::int32_t const questions = random_.between(1, 5);
    for (std::int32_t i = 0; i < questions; ++i) {
      Text asked = document;
      extend(asked, random_.length(60, 1.4));
      ask(asked, now, random_.length(180, 1.4));
      now += random_.exponential(20);
    }
  }

  void agent(double now) {
    Text context = tools_;
    extend(context, random_.length(400, 1.5));
    work(context, now, random_.between(4, 16), true);
  }

  /// `steps` tool calls on one context. A branch shares all of it and goes its own way.
  void work(Text context, double now, std::int32_t steps, bool may_branch) {
    for (std::int32_t i = 0; i < steps; ++i) {
      std::int32_t const output = random_.length(110, 1.5);
      if (!ask(context, now, output)) return;
      extend(context, random_.length(500, 1.9));
      now += 0.02 * output + random_.exponential(4);
      if (!may_branch || !random_.chance(0.12)) continue;
      std::int32_t const branches = random_.between(2, 4);
      for (std::int32_t branch = 0; branch < branches; ++branch) {
        Text own = context;
        extend(own, random_.length(80, 1.3));
        work(std::move(own), now + 0.1 * branch, random_.between(2, 6), false);
      }
      now += 30;
    }
  }

  WorkloadOptions options_;
  Random random_;
  std::int64_t next_id_ = 0;
  std::vector<Text> system_prompts_;
  std::vector<Text> documents_;
  Text tools_;
  std::vector<Line> lines_;
};

}  // namespace

void require_sense(WorkloadOptions const& o) {
  auto const need = [](bool holds, char const* rule) {
    if (!holds) throw std::invalid_argument(rule);
  };
  need(o.requests >= 1, "--requests must be at least 1");
  need(o.requests_per_second > 0, "--rate must be above 0");
  need(o.block_tokens >= 1 && o.block_tokens <= 65'536, "--block-tokens must be 1 to 65536");
  need(o.max_tokens >= 1024 && o.max_tokens <= 4'194'304, "--max-tokens must be 1024 to 4194304");
  need(o.chats >= 0 && o.documents >= 0 && o.agents >= 0 && o.chats + o.documents + o.agents > 0,
       "--chats, --documents and --agents must not be negative, and one must be above 0");
  need(o.cancelled >= 0 && o.cancelled <= 1, "--cancelled must be 0 to 1");
  need(o.system_prompts >= 1 && o.num_documents >= 1,
       "--system-prompts and --num-documents must be at least 1");
}

void write_workload(WorkloadOptions const& options, std::ostream& out) {
  require_sense(options);
  for (Line const& line : Generator(options).lines()) {
    fmt::memory_buffer text;
    auto const at = std::back_inserter(text);
    fmt::format_to(at, "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, ",
                   std::llround(line.seconds * 1000), line.input_length, line.output_length);
    if (line.cancel_after >= 0) fmt::format_to(at, "\"cancel_after\": {}, ", line.cancel_after);
    fmt::format_to(at, "\"hash_ids\": [{}]}}\n", fmt::join(line.ids, ", "));
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
}

}  // namespace replay

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/observe/prometheus.hpp>

#include <charconv>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "misuse.hpp"

namespace kv = pagedkv;
using namespace std::string_view_literals;

namespace {

using Labels = std::map<std::string, std::string>;

struct Metric {
  std::string type;
  std::string help;
  std::vector<std::pair<Labels, double>> samples;

  double value(Labels const& labels = {}) const {
    for (auto const& sample : samples) {
      if (sample.first == labels) return sample.second;
    }
    return -1.0;
  }
};

// Reads the exposition format 0.0.4 back, and says what is wrong with it.
class Exposition {
 public:
  explicit Exposition(std::string_view text) {
    if (text.empty() || text.back() != '\n') wrong("the last line must end");
    while (!text.empty() && error_.empty()) {
      auto const end = text.find('\n');
      line(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
  }

  std::string const& error() const { return error_; }
  std::map<std::string, Metric> const& metrics() const { return metrics_; }
  Metric const& operator[](std::string const& name) const { return metrics_.at(name); }

 private:
  void wrong(std::string const& what) {
    if (error_.empty()) error_ = what;
  }

  static std::string word(std::string_view& text) {
    auto const end = std::min(text.find(' '), text.size());
    std::string const result{text.substr(0, end)};
    text.remove_prefix(std::min(end + 1, text.size()));
    return result;
  }

  static bool is_name(std::string_view name, bool colon) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (char c : name) {
      bool const letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      if (!letter && !(c >= '0' && c <= '9') && !(colon && c == ':')) return false;
    }
    return true;
  }

  void line(std::string_view text) {
    if (text.substr(0, 7) == "# HELP ") {
      text.remove_prefix(7);
      auto const name = word(text);
      if (!is_name(name, true)) wrong("a metric's name: " + name);
      if (metrics_.count(name) != 0) wrong("a metric stands twice: " + name);
      metrics_[name].help = text;
      current_ = name;
      if (text.empty()) wrong("no help: " + name);
    } else if (text.substr(0, 7) == "# TYPE ") {
      text.remove_prefix(7);
      auto const name = word(text);
      if (name != current_ || !metrics_[name].type.empty()) wrong("TYPE out of place: " + name);
      if (text != "counter" && text != "gauge") wrong("a type of neither kind: " + name);
      if (!metrics_[name].samples.empty()) wrong("TYPE after a sample: " + name);
      metrics_[name].type = text;
      bool const total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
      if (total != (text == "counter")) wrong("counters, and only they, end in _total: " + name);
    } else {
      sample(text);
    }
  }

  void sample(std::string_view text) {
    auto const end = text.find_first_of("{ ");
    std::string const name{text.substr(0, end)};
    if (name != current_ || metrics_[name].type.empty()) return wrong("no TYPE before: " + name);
    text.remove_prefix(std::min(end, text.size()));
    Labels labels;
    if (!text.empty() && text[0] == '{') {
      do {
        text.remove_prefix(1);
        label(text, labels);
        if (!error_.empty()) return;
      } while (!text.empty() && text[0] == ',');
      if (text.empty() || text[0] != '}') return wrong("labels don't end: " + name);
      text.remove_prefix(1);
    }
    if (text.empty() || text[0] != ' ') return wrong("no space before the value: " + name);
    text.remove_prefix(1);
    double value = 0.0;
    auto const read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc{} || read.ptr != text.data() + text.size()) {
      return wrong("no number: " + std::string(text));
    }
    for (auto const& other : metrics_[name].samples) {
      if (other.first == labels) return wrong("a sample stands twice: " + name);
    }
    metrics_[name].samples.emplace_back(labels, value);
  }

  void label(std::string_view& text, Labels& labels) {
    auto const equals = text.find("=\"");
    if (equals == std::string_view::npos) return wrong("a label without a value");
    std::string const name{text.substr(0, equals)};
    if (!is_name(name, false)) wrong("a label's name: " + name);
    text.remove_prefix(equals + 2);
    std::string value;
    while (!text.empty() && text[0] != '"') {
      if (text[0] == '\\') {
        text.remove_prefix(1);
        if (text.empty()) break;
        if ("\\\"n"sv.find(text[0]) == std::string_view::npos) wrong("an unknown escape: " + name);
        value += text[0] == 'n' ? '\n' : text[0];
      } else {
        value += text[0];
      }
      text.remove_prefix(1);
    }
    if (text.empty()) return wrong("a value without an end: " + name);
    text.remove_prefix(1);
    if (!labels.emplace(name, value).second) wrong("a label stands twice: " + name);
  }

  std::map<std::string, Metric> metrics_;
  std::string current_;
  std::string error_;
};

kv::Stats some_stats() {
  kv::Stats stats;
  stats.num_blocks = 100;
  stats.free = 10;
  stats.idle = 40;
  stats.used = 45;
  stats.quarantined = 3;
  stats.retained = 2;
  stats.sequences = 7;
  stats.pins = 1;
  stats.owned_slots = 640;
  stats.wasted_slots = 16;
  // Every counter another number.
  std::uint64_t next = 1000;
  for (auto* counter : {&stats.opens,
                        &stats.resumed_opens,
                        &stats.prefix_query_tokens,
                        &stats.prefix_hit_tokens,
                        &stats.resumed_query_tokens,
                        &stats.resumed_hit_tokens,
                        &stats.partial_hit_tokens,
                        &stats.external_tokens,
                        &stats.hit_blocks,
                        &stats.published_blocks,
                        &stats.twin_blocks,
                        &stats.adopted_blocks,
                        &stats.evicted_blocks,
                        &stats.moved_blocks,
                        &stats.unpublished_blocks,
                        &stats.copies,
                        &stats.dropped_copies,
                        &stats.forks,
                        &stats.preemptions,
                        &stats.resets}) {
    *counter = next++;
  }
  for (auto& count : stats.hit_ends.counts) count = next++;
  return stats;
}

std::string rendered(kv::Stats const& stats, kv::CapacityInfo const& capacity = {},
                     std::span<kv::Label const> labels = {}) {
  std::string text;
  kv::write_prometheus(stats, capacity, labels, text);
  return text;
}

}  // namespace

TEST_CASE("what is rendered reads back as valid exposition text") {
  Exposition const empty{rendered({})};
  CHECK(empty.error() == "");
  Exposition const full{rendered(some_stats(), {.block_tokens = 16, .kv_format = "int8 per_head"})};
  CHECK(full.error() == "");
  for (auto const& [name, metric] : full.metrics()) {
    CAPTURE(name);
    CHECK(name.substr(0, 8) == "pagedkv_");
    CHECK_FALSE(metric.samples.empty());
  }
}

TEST_CASE("the reader used here finds faults") {
  auto const fault = [](std::string const& text) { return !Exposition{text}.error().empty(); };
  std::string const head = "# HELP a_total what\n# TYPE a_total counter\n";
  CHECK_FALSE(fault(head + "a_total 1\n"));
  CHECK_FALSE(fault(head + "a_total{x=\"1\",y=\"\\\"\"} 1\n"));
  CHECK(fault(head + "a_total 1"));
  CHECK(fault(head + "a_total one\n"));
  CHECK(fault(head + "a_total 1\na_total 2\n"));
  CHECK(fault(head + "a_total{x=\"1\"}1\n"));
  CHECK(fault(head + "a_total{x=\"1\\q\"} 1\n"));
  CHECK(fault(head + "a_total{x=\"1\",x=\"2\"} 1\n"));
  CHECK(fault(head + "a_total{2x=\"1\"} 1\n"));
  CHECK(fault(head + "b_total 1\n"));
  CHECK(fault("a_total 1\n"));
  CHECK(fault("# HELP a what\n# TYPE a counter\na 1\n"));
  CHECK(fault("# HELP a_total what\n# TYPE a_total gauge\na_total 1\n"));
  CHECK(fault(head + "a_total 1\n" + head));
}

TEST_CASE("usage counts used blocks, not idle ones, and states add up to the pool") {
  Exposition const text{rendered(some_stats())};
  CHECK(text["pagedkv_cache_usage_ratio"].value() == 0.45);
  auto const& blocks = text["pagedkv_blocks"];
  CHECK(blocks.value({{"state", "free"}}) == 10);
  CHECK(blocks.value({{"state", "idle"}}) == 40);
  CHECK(blocks.value({{"state", "used"}}) == 45);
  CHECK(blocks.value({{"state", "quarantined"}}) == 3);
  CHECK(blocks.value({{"state", "retained"}}) == 2);
  double sum = 0;
  for (auto const& sample : blocks.samples) sum += sample.second;
  CHECK(sum == 100);
  CHECK(text["pagedkv_internal_fragmentation_ratio"].value() == 0.025);
  CHECK(Exposition{rendered({})}["pagedkv_cache_usage_ratio"].value() == 0.0);
}

TEST_CASE("each counter is rendered under its own name") {
  auto const stats = some_stats();
  Exposition const text{rendered(stats)};
  std::map<std::string, std::uint64_t> const expected{
      {"opens", stats.opens},
      {"resumed_opens", stats.resumed_opens},
      {"prefix_query_tokens", stats.prefix_query_tokens},
      {"prefix_hit_tokens", stats.prefix_hit_tokens},
      {"resumed_prefix_query_tokens", stats.resumed_query_tokens},
      {"resumed_prefix_hit_tokens", stats.resumed_hit_tokens},
      {"partial_hit_tokens", stats.partial_hit_tokens},
      {"external_tokens", stats.external_tokens},
      {"hit_blocks", stats.hit_blocks},
      {"published_blocks", stats.published_blocks},
      {"twin_blocks", stats.twin_blocks},
      {"adopted_blocks", stats.adopted_blocks},
      {"evicted_blocks", stats.evicted_blocks},
      {"moved_blocks", stats.moved_blocks},
      {"unpublished_blocks", stats.unpublished_blocks},
      {"copies", stats.copies},
      {"dropped_copies", stats.dropped_copies},
      {"forks", stats.forks},
      {"preemptions", stats.preemptions},
      {"resets", stats.resets}};
  std::size_t counters = 0;
  for (auto const& [name, metric] : text.metrics()) counters += metric.type == "counter";
  CHECK(counters == expected.size() + 1);  // and the hit ends
  for (auto const& [name, value] : expected) {
    CAPTURE(name);
    CHECK(text["pagedkv_" + name + "_total"].value() == static_cast<double>(value));
  }
}

TEST_CASE("every reason a hit ended for has a sample, with its name") {
  auto const stats = some_stats();
  Exposition const text{rendered(stats)};
  auto const& ends = text["pagedkv_hit_ends_total"];
  CHECK(ends.samples.size() == kv::num_hit_ends);
  for (auto reason : {kv::HitEnd::no_block, kv::HitEnd::last_token, kv::HitEnd::salt_or_adapter,
                      kv::HitEnd::capacity, kv::HitEnd::not_read}) {
    CAPTURE(kv::to_string(reason));
    CHECK(ends.value({{"reason", kv::to_string(reason)}}) ==
          static_cast<double>(stats.hit_ends[reason]));
  }
}

TEST_CASE("capacity info carries what is known as labels") {
  Exposition const all{rendered(some_stats(), {.block_tokens = 16,
                                               .max_sequences = 64,
                                               .max_sequence_tokens = 32768,
                                               .bytes_per_block = 5'242'880,
                                               .kv_format = "fp8_e4m3 per_head"})};
  CHECK(all["pagedkv_capacity_info"].value({{"block_tokens", "16"},
                                            {"num_blocks", "100"},
                                            {"max_sequences", "64"},
                                            {"max_sequence_tokens", "32768"},
                                            {"kv_format", "fp8_e4m3 per_head"}}) == 1);
  CHECK(all["pagedkv_block_bytes"].value() == 5'242'880);
  Exposition const none{rendered(some_stats())};
  CHECK(none["pagedkv_capacity_info"].value({{"num_blocks", "100"}}) == 1);
  CHECK(none.metrics().count("pagedkv_block_bytes") == 0);
}

TEST_CASE("constant labels stand on every sample, escaped") {
  std::string const value = "a \"quoted\" \\ path\nand a line";
  kv::Label const labels[] = {{"model", value}, {"rank", "0"}, {"empty", ""}};
  auto const raw = rendered(some_stats(), {.block_tokens = 16}, labels);
  Exposition const text{raw};
  CHECK(text.error() == "");
  for (auto const& [name, metric] : text.metrics()) {
    for (auto const& sample : metric.samples) {
      CAPTURE(name);
      CHECK(sample.first.at("model") == value);
      CHECK(sample.first.at("rank") == "0");
      CHECK(sample.first.at("empty") == "");
    }
  }
  CHECK_THAT(raw, kv::testing::contains_text(
                      "pagedkv_pins{model=\"a \\\"quoted\\\" \\\\ path\\nand a line\",rank=\"0\""));
}

TEST_CASE("the whole range of a counter is rendered exactly") {
  kv::Stats stats;
  stats.opens = UINT64_MAX;
  stats.owned_slots = INT64_MAX;
  auto const text = rendered(stats);
  CHECK_THAT(text, kv::testing::contains_text("pagedkv_opens_total 18446744073709551615\n"));
  CHECK_THAT(text, kv::testing::contains_text("pagedkv_owned_slots 9223372036854775807\n"));
}

TEST_CASE("a callback receives the same text as a string, which is appended to") {
  std::string pieces;
  std::size_t calls = 0;
  kv::write_prometheus(some_stats(), {}, {}, [&](std::string_view piece) {
    pieces += piece;
    ++calls;
  });
  CHECK(calls > 1);
  CHECK(pieces == rendered(some_stats()));
  std::string out = "before\n";
  kv::write_prometheus(some_stats(), {}, {}, out);
  CHECK(out == "before\n" + pieces);
}

TEST_CASE("a label name that can't be one is misuse") {
  for (auto const name :
       {"", "2x", "a-b", "__reserved", "state", "reason", "num_blocks", "mo del"}) {
    CAPTURE(name);
    auto const outcome = kv::testing::outcome_of([&] {
      kv::Label const labels[] = {{name, "x"}};
      (void)rendered({}, {}, labels);
    });
    CHECK(outcome.aborted);
    CHECK_THAT(outcome.message, kv::testing::contains_text("a label's name"));
  }
  auto const twice = kv::testing::outcome_of([] {
    kv::Label const labels[] = {{"model", "x"}, {"model", "y"}};
    (void)rendered({}, {}, labels);
  });
  CHECK(twice.aborted);
  CHECK_THAT(twice.message, kv::testing::contains_text("each label name stands once"));
}

TEST_CASE("usage and fragmentation of an empty cache are zero") {
  kv::Stats const stats;
  CHECK(stats.usage() == 0.0);
  CHECK(stats.internal_fragmentation() == 0.0);
}

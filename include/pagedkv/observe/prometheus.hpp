// SPDX-License-Identifier: Apache-2.0
/// \file
/// Renders a cache's `Stats` as Prometheus text (exposition format 0.0.4). Rendering only: the
/// counters live in manage/stats.hpp, serving them over HTTP is the engine's.
///
///     std::string text;
///     Label const labels[] = {{"model", "llama-3.1-8b"}};
///     write_prometheus(cache.stats(), {.block_tokens = 16}, labels, text);
///
/// A hit ratio is `rate(pagedkv_prefix_hit_tokens_total[5m]) /
/// rate(pagedkv_prefix_query_tokens_total[5m])`: both count a prompt once, when its open succeeded.
/// What preempted requests find again has counters of its own (`..._resumed_...`).
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <pagedkv/error.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// A constant label on every sample. The name must match [a-zA-Z_][a-zA-Z0-9_]*, must not begin
/// with two underscores and must not be one that a metric here uses itself (state, reason,
/// block_tokens, num_blocks, max_sequences, max_sequence_tokens, kv_format). The value is any UTF-8
/// text; it is escaped.
struct Label {
  std::string_view name;
  std::string_view value;
};

/// What a cache was configured to be: the labels of pagedkv_capacity_info. Zero or empty: left out.
struct CapacityInfo {
  std::int32_t block_tokens = 0;
  std::int32_t max_sequences = 0;
  std::int32_t max_sequence_tokens = 0;
  std::int64_t bytes_per_block = 0;  ///< rendered as a metric of its own
  std::string_view kv_format = {};   ///< e.g. "fp8_e4m3 per_head"
};

namespace detail {

template <class Sink>
class PrometheusWriter {
 public:
  PrometheusWriter(std::span<Label const> labels, Sink& sink) : labels_(labels), sink_(sink) {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      PAGEDKV_ASSERT(is_label_name(labels[i].name),
                     "write_prometheus: a label's name is [a-zA-Z_][a-zA-Z0-9_]*, not beginning "
                     "with __, and not a label that pagedkv's metrics use");
      for (std::size_t j = 0; j < i; ++j) {
        PAGEDKV_ASSERT(labels[i].name != labels[j].name,
                       "write_prometheus: each label name stands once");
      }
    }
  }

  // Opens a metric: all its samples follow at once, as the format wants.
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    put("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }

  template <class Value>
  void sample(Value value, std::span<Label const> own = {}) {
    put(name_);
    char separator = '{';
    for (auto const labels : {labels_, own}) {
      for (auto const& label : labels) {
        put(std::string_view(&separator, 1), label.name, "=\"");
        escaped(label.value);
        put("\"");
        separator = ',';
      }
    }
    put(separator == '{' ? " " : "} ");
    number(value);
    put("\n");
  }

  template <class Value>
  void single(std::string_view name, std::string_view type, std::string_view help, Value value) {
    metric(name, type, help);
    sample(value);
  }
  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    single(name, "counter", help, value);
  }
  template <class Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    single(name, "gauge", help, value);
  }

 private:
  template <class... Texts>
  void put(Texts... texts) {
    (sink_(std::string_view(texts)), ...);
  }

  // Shortest text that reads back as the same value; the same on every platform.
  template <class Value>
  void number(Value value) {
    char text[32];
    auto const end = std::to_chars(text, text + sizeof text, value).ptr;
    put(std::string_view(text, static_cast<std::size_t>(end - text)));
  }

  void escaped(std::string_view text) {
    std::size_t plain = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      char const c = text[i];
      if (c != '\\' && c != '"' && c != '\n') continue;
      put(text.substr(plain, i - plain), c == '\n' ? "\\n" : (c == '"' ? "\\\"" : "\\\\"));
      plain = i + 1;
    }
    put(text.substr(plain));
  }

  [[nodiscard]] static bool is_label_name(std::string_view name) noexcept {
    for (std::string_view const taken : {"state", "reason", "block_tokens", "num_blocks",
                                         "max_sequences", "max_sequence_tokens", "kv_format"}) {
      if (name == taken) return false;
    }
    if (name.empty() || name.substr(0, 2) == "__" || (name[0] >= '0' && name[0] <= '9'))
      return false;
    for (char const c : name) {
      bool const fine =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      if (!fine) return false;
    }
    return true;
  }

  std::span<Label const> labels_;
  Sink& sink_;
  std::string_view name_;
};

template <class Sink>
void write_capacity(Stats const& stats, CapacityInfo const& capacity, PrometheusWriter<Sink>& out) {
  // Numbers as label values: an info metric's way to say what doesn't change.
  char digits[4][16];
  Label labels[5];
  std::size_t count = 0;
  auto const add = [&](std::string_view name, std::int32_t value, bool known) {
    if (!known) return;
    char* const text = digits[count];
    char* const end = std::to_chars(text, text + sizeof digits[0], value).ptr;
    labels[count++] = {name, std::string_view(text, static_cast<std::size_t>(end - text))};
  };
  add("block_tokens", capacity.block_tokens, capacity.block_tokens > 0);
  add("num_blocks", stats.num_blocks, true);
  add("max_sequences", capacity.max_sequences, capacity.max_sequences > 0);
  add("max_sequence_tokens", capacity.max_sequence_tokens, capacity.max_sequence_tokens > 0);
  if (!capacity.kv_format.empty()) labels[count++] = {"kv_format", capacity.kv_format};
  out.metric("pagedkv_capacity_info", "gauge", "How the cache was configured; always 1.");
  out.sample(1, std::span<Label const>(labels, count));
  if (capacity.bytes_per_block > 0) {
    out.gauge("pagedkv_block_bytes", "Bytes of one block, all layers, scales included.",
              capacity.bytes_per_block);
  }
}

template <class Sink>
void write_now(Stats const& stats, PrometheusWriter<Sink>& out) {
  out.gauge("pagedkv_cache_usage_ratio",
            "Share of blocks in use, 0 to 1. Idle blocks, cached but to be had, don't count.",
            stats.usage());
  out.metric("pagedkv_blocks", "gauge", "Blocks by state; they add up to all blocks of the pool.");
  struct {
    std::string_view state;
    std::int32_t blocks;
  } const states[] = {{"free", stats.free},
                      {"idle", stats.idle},
                      {"used", stats.used},
                      {"quarantined", stats.quarantined},
                      {"retained", stats.retained}};
  for (auto const& [state, blocks] : states) {
    Label const label[] = {{"state", state}};
    out.sample(blocks, label);
  }
  out.gauge("pagedkv_sequences", "Live sequences.", stats.sequences);
  out.gauge("pagedkv_pins", "Live pins.", stats.pins);
  out.gauge("pagedkv_owned_slots", "Slots of the blocks in all sequences' tables.",
            stats.owned_slots);
  out.gauge("pagedkv_wasted_slots", "Owned slots at or beyond their sequence's size.",
            stats.wasted_slots);
  out.gauge("pagedkv_internal_fragmentation_ratio", "Wasted over owned slots, 0 to 1.",
            stats.internal_fragmentation());
}

template <class Sink>
void write_prefix_counters(Stats const& stats, PrometheusWriter<Sink>& out) {
  out.counter("pagedkv_opens_total", "Requests opened; those that came back not counted.",
              stats.opens);
  out.counter("pagedkv_resumed_opens_total", "Preempted requests opened again.",
              stats.resumed_opens);
  out.counter("pagedkv_prefix_query_tokens_total", "Prompt tokens of opened requests.",
              stats.prefix_query_tokens);
  out.counter("pagedkv_prefix_hit_tokens_total", "Prompt tokens found in the cache.",
              stats.prefix_hit_tokens);
  out.counter("pagedkv_resumed_prefix_query_tokens_total",
              "Tokens of preempted requests opened again.", stats.resumed_query_tokens);
  out.counter("pagedkv_resumed_prefix_hit_tokens_total",
              "Tokens of preempted requests found again.", stats.resumed_hit_tokens);
  out.counter("pagedkv_partial_hit_tokens_total",
              "Tokens found in part of a block and copied; both kinds of opens.",
              stats.partial_hit_tokens);
  out.counter("pagedkv_hit_blocks_total", "Full blocks found; both kinds of opens.",
              stats.hit_blocks);
  out.counter("pagedkv_external_tokens_total", "Tokens announced as computed elsewhere.",
              stats.external_tokens);
  out.metric("pagedkv_hit_ends_total", "counter", "Opens by the reason their hit ended.");
  for (std::size_t i = 0; i < num_hit_ends; ++i) {
    auto const reason = static_cast<HitEnd>(i);
    Label const label[] = {{"reason", to_string(reason)}};
    out.sample(stats.hit_ends[reason], label);
  }
}

template <class Sink>
void write_block_counters(Stats const& stats, PrometheusWriter<Sink>& out) {
  out.counter("pagedkv_published_blocks_total", "Blocks made findable.", stats.published_blocks);
  out.counter("pagedkv_twin_blocks_total", "Blocks whose content was published already.",
              stats.twin_blocks);
  out.counter("pagedkv_adopted_blocks_total",
              "Twins replaced in their table by the block that bears their content.",
              stats.adopted_blocks);
  out.counter("pagedkv_evicted_blocks_total", "Cached blocks whose content was dropped.",
              stats.evicted_blocks);
  out.counter("pagedkv_moved_blocks_total", "Cached content that another block bears since.",
              stats.moved_blocks);
  out.counter("pagedkv_unpublished_blocks_total",
              "Cached blocks taken back to write into them, or known to be wrong.",
              stats.unpublished_blocks);
  out.counter("pagedkv_preemptions_total", "Sequences preempted.", stats.preemptions);
  out.counter("pagedkv_copies_total", "Block copies planned (copy-on-write, partial hits).",
              stats.copies);
  out.counter("pagedkv_dropped_copies_total", "Planned copies that became needless.",
              stats.dropped_copies);
  out.counter("pagedkv_forks_total", "Sequences forked.", stats.forks);
  out.counter("pagedkv_resets_total", "Resets of the cache.", stats.resets);
}

}  // namespace detail

/// Hands the text to `sink(std::string_view)` piece by piece; pieces may be a part of a line.
/// Requires: label names as `Label` says, each once (checked). No allocation of its own.
/// Complexity: O(1) metrics, O(labels) a sample. Content-Type to serve it with:
/// `text/plain; version=0.0.4; charset=utf-8`.
template <class Sink>
requires std::invocable<Sink&, std::string_view>
void write_prometheus(Stats const& stats, CapacityInfo const& capacity,
                      std::span<Label const> labels, Sink&& sink) {
  detail::PrometheusWriter out{labels, sink};
  detail::write_capacity(stats, capacity, out);
  detail::write_now(stats, out);
  detail::write_prefix_counters(stats, out);
  detail::write_block_counters(stats, out);
}

/// Appends the text to `out`. A string that keeps its capacity is not allocated again.
inline void write_prometheus(Stats const& stats, CapacityInfo const& capacity,
                             std::span<Label const> labels, std::string& out) {
  write_prometheus(stats, capacity, labels, [&out](std::string_view text) { out.append(text); });
}

PAGEDKV_NAMESPACE_END

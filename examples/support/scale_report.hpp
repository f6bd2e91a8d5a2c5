// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where static scales came from, in a few lines: layers that are alike share one.
#pragma once

#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <pagedkv/quant/scale_file.hpp>

namespace programs {

/// Numbers that stand alone become N: "model.layers.3.attn.k_scale" is
/// "model.layers.N.attn.k_scale".
[[nodiscard]] inline std::string without_numbers(std::string_view text) {
  auto const is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    auto const word = text.substr(begin, end == begin ? 1 : end - begin);
    result += word.find_first_not_of("0123456789") == std::string_view::npos ? "N" : word;
    begin += word.size();
  }
  return result;
}

namespace detail {

/// What several layers have in common.
struct AlikeLine {
  std::string alike;  // without the layer's number
  std::string first;  // what the first says
  int count = 1;
  std::int32_t first_layer = 0;
  std::int32_t last_layer = 0;
};

inline void add_line(std::vector<AlikeLine>& lines, std::string const& alike,
                     std::string const& first, std::int32_t layer) {
  for (auto& line : lines) {
    if (line.alike != alike) continue;
    ++line.count;
    line.last_layer = layer;
    return;
  }
  lines.push_back({alike, first, 1, layer, layer});
}

[[nodiscard]] inline std::string origin_text(pagedkv::quant::ScaleOrigin const& origin,
                                             std::string const& name) {
  return fmt::format("{}: {} scale{} from {} of {}", origin.tensor, origin.count,
                     origin.count == 1 ? "" : "s", name, origin.file);
}

[[nodiscard]] inline std::vector<std::string> origin_lines(
    pagedkv::quant::ScaleReport const& report) {
  std::vector<AlikeLine> alike;
  for (auto const& origin : report.set) {
    add_line(alike, origin_text(origin, without_numbers(origin.name)),
             origin_text(origin, origin.name), origin.layer);
  }
  std::vector<std::string> lines;
  for (auto const& line : alike) {
    lines.push_back(line.count == 1 ? fmt::format("layer {} {}", line.first_layer, line.first)
                                    : fmt::format("{} layers, {} to {}, {}", line.count,
                                                  line.first_layer, line.last_layer, line.alike));
  }
  return lines;
}

[[nodiscard]] inline std::vector<std::string> note_lines(
    pagedkv::quant::ScaleReport const& report) {
  std::vector<AlikeLine> alike;
  for (auto const& note : report.notes) add_line(alike, without_numbers(note), note, 0);
  std::vector<std::string> lines;
  for (auto const& line : alike) {
    lines.push_back(line.count == 1 ? "note: " + line.first
                                    : fmt::format("note, {} times: {}", line.count, line.alike));
  }
  return lines;
}

}  // namespace detail

/// Of layers that are alike one line, at most 16 of them and of notes.
[[nodiscard]] inline std::string summary(pagedkv::quant::ScaleReport const& report) {
  auto const lines = detail::origin_lines(report);
  auto const notes = detail::note_lines(report);
  constexpr std::size_t most = 16;
  std::string text;
  for (auto const& part : {lines, notes}) {
    for (std::size_t i = 0; i < part.size() && i < most; ++i) text += part[i] + "\n";
    if (part.size() > most) text += fmt::format("and {} lines more\n", part.size() - most);
  }
  return text;
}

}  // namespace programs

// SPDX-License-Identifier: Apache-2.0
#include "calibration.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include <pagedkv/error.hpp>
#include <pagedkv/quant/calibration.hpp>
#include <pagedkv/quant/scale_file.hpp>

#include "engine.hpp"
#include "paged_sequence.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr std::size_t chunk_tokens = 128;

/// One number, or as many as there are heads.
std::vector<float> for_heads(std::vector<float> scales, kv::KvFormat format,
                             std::int32_t num_kv_heads) {
  if (format.granularity == kv::Granularity::per_head && scales.size() == 1) {
    scales.resize(static_cast<std::size_t>(num_kv_heads), scales.front());
  }
  return scales;
}

bool is_checkpoint(std::string const& path) {
  try {
    return kv::quant::is_safetensors(path);
  } catch (kv::Error const&) {
    return false;  // who reads it says what is wrong
  }
}

/// What is read at once: each JSON file, and all shards of the checkpoint.
std::vector<std::vector<std::string>> sources_of(std::vector<std::string> const& paths) {
  std::vector<std::vector<std::string>> sources;
  std::vector<std::string> shards;
  for (auto const& path : paths) {
    if (is_checkpoint(path)) {
      shards.push_back(path);
    } else {
      sources.push_back({path});
    }
  }
  if (!shards.empty()) sources.push_back(std::move(shards));
  return sources;
}

}  // namespace

std::vector<kv::quant::ScaleSet> calibrate(engine::Model const& model, std::string const& name,
                                           std::span<std::int32_t const> tokens,
                                           std::int32_t window,
                                           std::vector<kv::KvFormat> const& formats) {
  engine::Forward forward(model);
  PagedSequence sequence(model.config, forward, window, {kv::Element::f32, kv::Granularity::none});
  std::vector<kv::quant::CalibrationObserver> observers;
  for (auto const format : formats) {
    observers.emplace_back(sequence.geometry(),
                           kv::quant::CalibrationOptions{.format = format, .model = name});
  }
  sequence.observe([&](std::int32_t layer, std::span<float const> k, std::span<float const> v) {
    for (auto& observer : observers) {
      observer.observe_k(layer, k);
      observer.observe_v(layer, v);
    }
  });
  auto const longest = static_cast<std::size_t>(window);
  for (std::size_t first = 0; first < tokens.size(); first += longest) {
    auto const part = tokens.subspan(first, std::min(longest, tokens.size() - first));
    (void)sequence.rewind(0);
    for (std::size_t at = 0; at < part.size(); at += chunk_tokens) {
      sequence.run(part.subspan(at, std::min(chunk_tokens, part.size() - at)), {});
    }
  }
  std::vector<kv::quant::ScaleSet> sets;
  for (auto const& observer : observers) sets.push_back(observer.scales());
  return sets;
}

std::string scale_path(std::string const& path, kv::KvFormat format, bool single) {
  if (single) return path;
  std::filesystem::path const whole(path);
  auto name = whole.stem().string() + "." + kv::to_string(format.element) + "." +
              kv::to_string(format.granularity) + whole.extension().string();
  return (whole.parent_path() / name).string();
}

kv::quant::LoadedScales find_scales(std::vector<std::string> const& paths,
                                    engine::ModelConfig const& config, kv::KvFormat format) {
  auto const geometry = engine::geometry_of(config, format, 16);
  std::string problems;
  std::optional<kv::quant::LoadedScales> coarser;
  for (auto const& source : sources_of(paths)) {
    try {
      auto loaded = kv::quant::load_scales(source, geometry);
      if (loaded.scales.format == format) return loaded;
      coarser = std::move(loaded);
    } catch (kv::Error const& error) {
      problems += std::string("\n  ") + error.what();
    }
  }
  if (coarser) return *coarser;
  if (paths.empty()) problems = " none are given";
  throw MissingScales(kv::to_string(format) + " is static and needs calibrated scales:" + problems +
                      "\nPass --calibrate to make them from the text, --scales FILE, or leave the "
                      "format out (--formats)");
}

std::vector<kv::StaticScales> storage_scales(kv::quant::ScaleSet const& set, kv::KvFormat format,
                                             std::int32_t num_kv_heads) {
  std::vector<kv::StaticScales> all;
  for (auto const& layer : set.layers) {
    all.push_back(
        {for_heads(layer.k, format, num_kv_heads), for_heads(layer.v, format, num_kv_heads)});
  }
  return all;
}

}  // namespace quality

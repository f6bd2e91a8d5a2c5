// SPDX-License-Identifier: Apache-2.0
#include "needle_search.hpp"

#include <algorithm>

#include <pagedkv/data/cpu/operations.hpp>
#include <pagedkv/quant/calibration.hpp>

#include "formats.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

constexpr std::int32_t calibration_tokens = 4096;
constexpr std::uint64_t calibration_seed = 0xCA11;

/// One layer's, as `KvStorage` takes them.
kv::StaticScales calibrate(NeedleContext const& context, kv::KvFormat format) {
  kv::quant::CalibrationObserver observer(needle_geometry(format), {.format = format});
  observer.observe_k(0, context.k);
  observer.observe_v(0, context.v);
  auto const layer = observer.scales().layers.front();
  return {layer.k, layer.v};
}

}  // namespace

std::vector<kv::StaticScales> calibrated_needle_scales(kv::KvFormat format) {
  if (!is_static(format)) return {};
  static NeedleContext const context = make_needle_context(calibration_tokens, calibration_seed);
  return {calibrate(context, format)};
}

std::vector<NeedleRow> search_needles(NeedleSearch const& search,
                                      std::function<void(std::int64_t)> const& progress) {
  std::int64_t done = 0;
  std::vector<NeedleRow> rows;
  for (auto const length : search.lengths) {
    NeedleContext const context = make_needle_context(length, search.seed);
    for (auto const format : search.formats) {
      auto const scales = calibrated_needle_scales(format);
      NeedleCache cache(context, format, scales, kv::cpu::write_kv);
      for (auto const& needle : context.needles) {
        rows.push_back({"attention", format, length, needle.depth, cache.finds(needle)});
        progress(++done);
      }
    }
  }
  auto const place = [&](NeedleRow const& row) {
    return std::find(search.formats.begin(), search.formats.end(), row.format);
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](auto const& a, auto const& b) { return place(a) < place(b); });
  return rows;
}

int count_needles(NeedleContext const& context, kv::KvFormat format, WriteKv const& write) {
  auto const scales = calibrated_needle_scales(format);
  NeedleCache cache(context, format, scales, write);
  return static_cast<int>(std::count_if(context.needles.begin(), context.needles.end(),
                                        [&](auto const& needle) { return cache.finds(needle); }));
}

}  // namespace quality

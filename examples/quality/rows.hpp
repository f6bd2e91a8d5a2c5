// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the program found out, as rows: for JSON, for the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <pagedkv/model/kv_format.hpp>

namespace quality {

/// One needle at one place.
struct NeedleRow {
  std::string needle;  ///< "attention" or "model"
  pagedkv::KvFormat format;
  std::int32_t length = 0;  ///< tokens
  double depth = 0;         ///< 0: first token, 1: last
  bool found = false;
};

/// A model with one format.
struct QualityRow {
  std::string quality;  ///< the model's name
  pagedkv::KvFormat format;
  double bytes_per_token = 0;  ///< K and V of all layers, with the scales beside them
  double perplexity = 0;       ///< exp of the mean loss, nats
  double kl = 0;    ///< mean divergence of the next token's distribution from f32's, nats
  double top1 = 0;  ///< share of tokens whose most likely successor is f32's
  /// Standard error of the mean loss's difference from f32's, nats. Not in JSON.
  double error = 0;
};

struct Rows {
  std::vector<NeedleRow> needles;
  std::vector<QualityRow> qualities;
};

/// One array of objects: needles, then qualities.
[[nodiscard]] std::string to_json(Rows const& rows);

/// A line a format: needles found at each length, of each kind; then the model's numbers.
[[nodiscard]] std::string to_table(Rows const& rows);

/// How many needles of a kind were found in one format at one length.
struct Found {
  int found = 0;
  int asked = 0;
};
[[nodiscard]] Found count_found(Rows const& rows, std::string const& needle,
                                pagedkv::KvFormat format, std::int32_t length);

/// What there is of one kind of needle, in order of appearance.
struct NeedleAxes {
  std::vector<pagedkv::KvFormat> formats;
  std::vector<std::int32_t> lengths;
  std::vector<double> depths;
};
[[nodiscard]] NeedleAxes axes_of(Rows const& rows, std::string const& needle);

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
#include "formats.hpp"

#include <algorithm>
#include <stdexcept>

#include "support/format_problem.hpp"

namespace quality {

namespace kv = pagedkv;

namespace {

void add_all_of(kv::Element element, std::vector<kv::KvFormat>& formats) {
  for (auto const granularity : kv::granularities_of(element)) {
    formats.push_back({element, granularity});
  }
}

}  // namespace

std::vector<kv::KvFormat> all_formats() {
  std::vector<kv::KvFormat> formats;
  for (auto const element : kv::all_elements) add_all_of(element, formats);
  return formats;
}

std::vector<kv::KvFormat> parse_formats(std::vector<std::string> const& names) {
  std::vector<kv::KvFormat> formats;
  for (auto const& name : names) {
    if (auto const element = kv::parse_element(name)) {
      add_all_of(*element, formats);
    } else if (auto const format = kv::parse_kv_format(name)) {
      formats.push_back(*format);
    } else {
      throw std::invalid_argument(programs::format_problem(name));
    }
  }
  // Each once, in the order of all_formats().
  std::vector<kv::KvFormat> ordered;
  for (auto const format : all_formats()) {
    if (std::find(formats.begin(), formats.end(), format) != formats.end()) {
      ordered.push_back(format);
    }
  }
  return ordered;
}

}  // namespace quality

// SPDX-License-Identifier: Apache-2.0
/// \file
/// What can be wrong with files to be written is told before a long run, not behind it.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace programs {

/// An option and the file that it names; "": none.
struct NamedFile {
  char const* option;
  std::string path;
};

namespace detail {

/// One file, whatever it is called. Devices and pipes may be shared.
[[nodiscard]] inline bool are_one_file(std::string const& a, std::string const& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(a, ignored) && fs::exists(b, ignored)) {
    return fs::is_regular_file(a, ignored) && fs::equivalent(a, b, ignored);
  }
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

/// Leaves a file that is there as it is, and none where none was.
inline void require_writable(NamedFile const& file) {
  std::error_code ignored;
  bool const was_there = std::filesystem::exists(file.path, ignored);
  bool const opens = std::ofstream(file.path, std::ios::binary | std::ios::app).is_open();
  if (!was_there) std::filesystem::remove(file.path, ignored);
  if (!opens) throw std::runtime_error(file.path + ": can't be written (" + file.option + ")");
}

}  // namespace detail

/// Throws `std::runtime_error` naming options and file, when one can't be written, or is also read
/// or written by another option. Changes no file.
inline void check_outputs(std::vector<NamedFile> const& written, std::vector<NamedFile> read) {
  for (auto const& file : written) {
    if (file.path.empty()) continue;
    for (auto const& other : read) {
      if (other.path.empty() || !detail::are_one_file(file.path, other.path)) continue;
      throw std::runtime_error(file.path + ": " + file.option + " would write over the file of " +
                               other.option + "; name another");
    }
    detail::require_writable(file);
    read.push_back(file);
  }
}

}  // namespace programs

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Runs one of the built programs and tells what it printed. POSIX only.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace pagedkv::testing {

/// A folder of its own for the files of one test; gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto pattern = (std::filesystem::temp_directory_path() / "pagedkv-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string file(std::string const& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

[[nodiscard]] inline std::string read_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct ProgramResult {
  int status = -1;  ///< exit status; -1 when a signal ended it
  std::string out;
  std::string err;
};

/// `arguments` as a shell reads them.
[[nodiscard]] inline ProgramResult run_program(std::string const& program,
                                               std::string const& arguments) {
  TemporaryFolder const folder;
  auto const command = std::string("'") + PAGEDKV_BIN_DIR + "/" + program + "' " + arguments +
                       " >'" + folder.file("out") + "' 2>'" + folder.file("err") + "' </dev/null";
  int const status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder.file("out")),
          read_file(folder.file("err"))};
}

}  // namespace pagedkv::testing

// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace engine {

MappedFile::MappedFile(std::string const& path) : path_(path) {
  int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw LoadError(path + ": can't be opened: " + std::strerror(errno));
  struct stat status {};
  bool const regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
  void* const mapped =
      size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  ::close(file);
  if (!regular) throw LoadError(path + ": expected a regular file");
  if (size_ == 0) throw LoadError(path + ": is empty");
  if (mapped == MAP_FAILED) throw LoadError(path + ": can't be mapped: " + std::strerror(errno));
  data_ = static_cast<std::byte const*>(mapped);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), size_); }

}  // namespace engine

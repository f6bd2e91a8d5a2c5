// SPDX-License-Identifier: Apache-2.0
/// \file
/// Files for the readers of scales, in a folder that goes away with the test.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <pagedkv/model/geometry.hpp>

namespace pagedkv::testing {

class ScratchFolder {
 public:
  ScratchFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("pagedkv-scales-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ScratchFolder(ScratchFolder const&) = delete;
  ScratchFolder& operator=(ScratchFolder const&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path(std::string const& name) const { return (path_ / name).string(); }
  /// The path of a new file.
  [[nodiscard]] std::string file(std::string const& name, std::string const& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

/// A tensor of a safetensors file.
struct FileTensor {
  std::string name;
  std::vector<float> numbers;
  std::string shape = "[]";
  std::string dtype = "F32";
};

inline std::string f32_bytes(std::vector<float> const& numbers) {
  std::string bytes(numbers.size() * 4, '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

inline std::string with_header(std::string const& header, std::string const& data) {
  std::uint64_t const size = header.size();
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(size >> (8 * i));
  return bytes + header + data;
}

/// Numbers are written as f32 bytes whatever `dtype` says, except for 16 bits: their bit patterns
/// are the numbers.
inline std::string safetensors(std::vector<FileTensor> const& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (auto const& tensor : tensors) {
    auto const begin = data.size();
    if (tensor.dtype == "F16" || tensor.dtype == "BF16") {
      for (float const bits : tensor.numbers) {
        auto const code = static_cast<std::uint16_t>(bits);
        data += static_cast<char>(code & 0xFF);
        data += static_cast<char>(code >> 8);
      }
    } else {
      data += f32_bytes(tensor.numbers);
    }
    header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  return with_header(header + "}", data);
}

/// `layers` layers of 2 KV heads, stored as `text` says.
inline Geometry scaled_model(std::int32_t layers, char const* text) {
  Geometry geometry;
  geometry.num_layers = layers;
  geometry.num_kv_heads = 2;
  geometry.head_dim_k = 4;
  geometry.head_dim_v = 4;
  geometry.format = LayerFormat(*parse_kv_format(text));
  return geometry;
}

}  // namespace pagedkv::testing

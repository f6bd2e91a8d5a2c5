// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the scale readers share. Private: nlohmann_json stays out of the public headers.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <pagedkv/error.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/quant/scale_file.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace quant {
namespace detail {

using Json = nlohmann::json;

[[noreturn]] inline void fail(std::string const& file, std::string const& message) {
  raise(file + ": " + message);
}

/// JSON without duplicate keys, which nlohmann_json would silently let pass. `what` in front of
/// messages: "", or "its header ". Raises with place and line of what isn't JSON.
[[nodiscard]] Json parse_json(std::string const& file, std::string_view text,
                              std::string const& what = "");

/// The member, or null.
[[nodiscard]] inline Json const* member(Json const& object, char const* name) {
  if (!object.is_object()) return nullptr;
  auto const it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}
[[nodiscard]] inline std::string const* string_member(Json const& object, char const* name) {
  auto const* const value = member(object, name);
  return value == nullptr ? nullptr : value->get_ptr<Json::string_t const*>();
}

/// Size of a file. Raises if it can't be opened.
[[nodiscard]] inline std::uint64_t open_file(std::string const& path, std::ifstream& stream) {
  stream.open(path, std::ios::binary);
  stream.seekg(0, std::ios::end);
  auto const size = static_cast<std::streamoff>(stream.tellg());
  if (!stream || size < 0) fail(path, "can't be read");
  return static_cast<std::uint64_t>(size);
}
/// `count` bytes from `offset`. Requires: they lie in the file.
[[nodiscard]] inline std::string read_bytes(std::string const& path, std::ifstream& stream,
                                            std::uint64_t offset, std::uint64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  stream.seekg(static_cast<std::streamoff>(offset));
  stream.read(bytes.data(), static_cast<std::streamsize>(count));
  if (!stream) fail(path, "can't be read to its end");
  return bytes;
}

/// Raises unless every scale serves something and what needs one has it.
void check_loaded(std::string const& file, LoadedScales& loaded, Geometry const& geometry);

}  // namespace detail
}  // namespace quant
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// GGUF files, versions 2 and 3: metadata, and tensors as f32. Every count, length and offset is
/// checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dequantize.hpp"
#include "mapped_file.hpp"
#include "model.hpp"

namespace engine {

/// A file's directory: what it holds and where. Strings are copied, tensors stay in the mapping.
class GgufFile {
 public:
  using Strings = std::vector<std::string>;
  /// Numbers are widened; an array is of one kind.
  using Value = std::variant<std::int64_t, double, bool, std::string, Strings,
                             std::vector<std::int64_t>, std::vector<double>>;

  /// Throws `LoadError` naming the file, the key or tensor, and what was expected.
  explicit GgufFile(std::string const& path);

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  /// Whether the key is there, of any kind.
  [[nodiscard]] bool has(std::string const& key) const { return values_.contains(key); }
  /// The key's value, or the fallback where it isn't there. Throws `LoadError` when it is of
  /// another kind.
  template <class T>
  [[nodiscard]] T get_or(std::string const& key, T fallback) const {
    return has(key) ? get<T>(key) : std::move(fallback);
  }
  /// The same for a key that must be there.
  template <class T>
  [[nodiscard]] T const& get(std::string const& key) const {
    auto const found = values_.find(key);
    if (found == values_.end()) fail(key, "the key is missing");
    if (auto const* value = std::get_if<T>(&found->second)) return *value;
    fail(key, "the value is of another kind than expected");
  }

  [[nodiscard]] bool has_tensor(std::string const& name) const { return tensors_.contains(name); }
  /// Throws `LoadError` when the tensor is missing or of another shape.
  void require_shape(std::string const& name, std::int64_t rows, std::int64_t columns) const {
    (void)tensor_of(name, rows, columns);
  }
  /// Writes the tensor to `out`: `rows` rows of `columns` numbers (`rows` 1: a vector). Throws
  /// `LoadError` when it is missing, of another shape, or has a NaN or an infinity.
  void read(std::string const& name, std::int64_t rows, std::int64_t columns, std::span<float> out);
  /// Throws `LoadError` naming a tensor that `read` was never asked for: a model with more parts
  /// than are understood must not be run without them.
  void require_all_read() const;

  [[noreturn]] void fail(std::string const& what, std::string const& problem) const {
    throw LoadError(path() + ": " + what + ": " + problem);
  }

 private:
  struct Tensor {
    std::vector<std::int64_t> shape;  ///< innermost first, as stored
    TensorType type = TensorType::f32;
    std::uint64_t offset = 0;  ///< from the start of the data
    std::uint64_t bytes = 0;
  };

  Tensor const& tensor_of(std::string const& name, std::int64_t rows, std::int64_t columns) const;
  void read_metadata(ByteReader& in, std::uint64_t count);
  void read_directory(ByteReader& in, std::uint64_t count);
  void place_tensors(ByteReader const& in);

  MappedFile file_;
  std::map<std::string, Value> values_;
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> read_;
  std::size_t data_ = 0;  ///< where tensors begin
};

/// A model of architecture `llama`. Throws `LoadError`; `file` may be asked for its tokenizer
/// before and after.
[[nodiscard]] Model load_gguf_model(GgufFile& file);

}  // namespace engine

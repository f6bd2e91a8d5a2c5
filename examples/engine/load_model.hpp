// SPDX-License-Identifier: Apache-2.0
/// \file
/// A model and its tokenizer, whatever the files are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model.hpp"
#include "tokenizer.hpp"

namespace engine {

struct LoadedModel {
  Model model;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null: a llama2.c model without a tokenizer file
  std::vector<std::int32_t> end_ids;     ///< that end an answer
};

/// A GGUF file (known by its first bytes; its tokenizer is inside) or a llama2.c checkpoint with
/// the tokenizer file beside it, which may be empty. Throws `LoadError`.
[[nodiscard]] LoadedModel load_model(std::string const& path, std::string const& tokenizer_path);

}  // namespace engine

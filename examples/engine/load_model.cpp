// SPDX-License-Identifier: Apache-2.0
#include "load_model.hpp"

#include <cstring>

#include "gguf.hpp"
#include "llama2c.hpp"
#include "mapped_file.hpp"

namespace engine {

namespace {

bool is_gguf(std::string const& path) {
  MappedFile const file(path);
  return file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

LoadedModel from_gguf(std::string const& path, std::string const& tokenizer_path) {
  if (!tokenizer_path.empty()) {
    throw LoadError(tokenizer_path +
                    ": a GGUF file has its tokenizer inside; expected none beside");
  }
  LoadedModel loaded;
  GgufFile file(path);
  loaded.tokenizer = load_gguf_tokenizer(file);
  loaded.model = load_gguf_model(file);
  return loaded;
}

LoadedModel from_llama2c(std::string const& path, std::string const& tokenizer_path) {
  LoadedModel loaded;
  // A checkpoint has no mark of its own: any other file is taken for one.
  try {
    loaded.model = load_llama2c(path);
  } catch (LoadError const& error) {
    throw LoadError(std::string(error.what()) +
                    " (not a GGUF file, so read as a llama2.c checkpoint)");
  }
  auto const vocab_size = loaded.model.config.vocab_size;
  if (!tokenizer_path.empty()) {
    loaded.tokenizer = load_llama2c_tokenizer(tokenizer_path, vocab_size);
  } else if (vocab_size > 2) {
    loaded.end_ids = {1, 2};
  }
  return loaded;
}

}  // namespace

LoadedModel load_model(std::string const& path, std::string const& tokenizer_path) {
  auto loaded =
      is_gguf(path) ? from_gguf(path, tokenizer_path) : from_llama2c(path, tokenizer_path);
  if (loaded.tokenizer == nullptr) return loaded;
  loaded.end_ids = loaded.tokenizer->end_ids();
  if (loaded.tokenizer->vocab_size() > loaded.model.config.vocab_size) {
    throw LoadError(path + ": the tokenizer has " + std::to_string(loaded.tokenizer->vocab_size()) +
                    " tokens; expected at most " + std::to_string(loaded.model.config.vocab_size));
  }
  return loaded;
}

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Requests and answers as lines of JSON (docs/engine.md has the fields).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.hpp"
#include "tokenizer.hpp"

namespace engine {

/// A line that can't be served. The message names the file, the line and the field.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a request that doesn't say otherwise gets.
struct RequestDefaults {
  std::int32_t vocab_size = 0;           ///< ids must lie below
  std::vector<kv::TokenId> stop_ids;     ///< the model's own ends
  Tokenizer const* tokenizer = nullptr;  ///< null: only `prompt_ids` are taken
};

/// All lines of a file; empty ones are skipped. `Request::id` is the id as JSON text. Throws
/// `RequestError`.
[[nodiscard]] std::vector<Request> read_requests(std::string const& path,
                                                 RequestDefaults const& defaults);

/// An answer's line, without the line break. Without a tokenizer its text is empty.
[[nodiscard]] std::string answer_line(Answer const& answer, Tokenizer const* tokenizer);

}  // namespace engine

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Needle in a haystack with a real model: a sentence with a number somewhere in a text, the
/// sentence's beginning at its end; found if the model's likeliest continuation is the number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model.hpp"
#include "model_quality.hpp"
#include "rows.hpp"
#include "tokenizer.hpp"

namespace quality {

struct ModelNeedle {
  std::vector<ScaledFormat> formats;
  std::vector<std::int32_t> lengths = {256, 512, 1024,
                                       2048};  ///< those the model can't are left out
  std::vector<std::int32_t> haystack;          ///< tokens; repeated where a length needs more
  std::vector<std::int32_t> first_tokens;      ///< in front of the text, e.g. the model's <s>
};

/// One question.
struct NeedlePrompt {
  std::vector<std::int32_t> tokens;  ///< with the answer at the end
  std::size_t needle = 0;            ///< where its sentence begins
  std::size_t answer = 0;            ///< so many tokens at the end are the answer
};

/// The question for depth `depth` / 10, `length` tokens with its answer. What stands before the
/// needle stands before the next depth's, too. Throws `std::invalid_argument` for a length without
/// room for a haystack.
[[nodiscard]] NeedlePrompt make_needle_prompt(engine::Tokenizer const& tokenizer,
                                              ModelNeedle const& search, std::int32_t length,
                                              int depth);

/// A text about nothing in particular, for models without one to read.
[[nodiscard]] std::string plain_haystack();

/// The lengths that fit the model's positions.
[[nodiscard]] std::vector<std::int32_t> lengths_within(engine::ModelConfig const& config,
                                                       std::vector<std::int32_t> const& lengths);

/// Eleven depths; each has a number of its own. Rows in the order format, length, depth, needle
/// "model". `progress(needles done)`.
[[nodiscard]] std::vector<NeedleRow> search_model_needles(
    engine::Model const& model, engine::Tokenizer const& tokenizer, ModelNeedle const& search,
    std::function<void(std::int64_t)> const& progress);

}  // namespace quality

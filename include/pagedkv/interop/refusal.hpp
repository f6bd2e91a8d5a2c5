// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a consumer of the pool answers at set-up: its arguments, or why it can't take the pool.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include <pagedkv/error.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {

/// Why a consumer can't take a pool, and what would have to change.
struct Refusal {
  std::string term;     ///< e.g. "block_tokens", "format of V"
  std::string nearest;  ///< its nearest value that would be taken; empty if there is none
  std::string message;  ///< one line: the consumer, the term, its value, what is taken and why
};

/// A consumer's arguments or a `Refusal`; never empty. Reading the wrong one is misuse.
template <class T>
class [[nodiscard]] Answer {
 public:
  Answer(T value) : held_(std::move(value)) {}
  Answer(Refusal refusal) : held_(std::move(refusal)) {}

  [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] T const& value() const {
    PAGEDKV_ASSERT(has_value(), "Answer::value: the consumer refused; test the Answer first");
    return *std::get_if<0>(&held_);
  }
  [[nodiscard]] T const& operator*() const { return value(); }
  [[nodiscard]] T const* operator->() const { return &value(); }
  [[nodiscard]] Refusal const& refusal() const {
    PAGEDKV_ASSERT(!has_value(), "Answer::refusal: the consumer took it; test the Answer first");
    return *std::get_if<1>(&held_);
  }

 private:
  std::variant<T, Refusal> held_;
};

}  // namespace interop
PAGEDKV_NAMESPACE_END

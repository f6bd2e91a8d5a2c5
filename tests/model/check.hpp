// SPDX-License-Identifier: Apache-2.0
/// \file
/// How a random program says that reality differs from the model.
#pragma once

#include <stdexcept>
#include <string>

namespace pagedkv::testing {

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {
inline std::string text_of(std::string const& value) { return value; }
inline std::string text_of(char const* value) { return value; }
inline std::string text_of(bool value) { return value ? "true" : "false"; }
template <class T>
std::string text_of(T const& value) {
  return std::to_string(value);
}
}  // namespace detail

/// The parts, one after the other. Numbers are written out.
template <class... Parts>
[[nodiscard]] std::string join(Parts const&... parts) {
  std::string text;
  ((text += detail::text_of(parts)), ...);
  return text;
}

/// Throws with the parts joined.
template <class... Parts>
[[noreturn]] void mismatch(Parts const&... parts) {
  throw Mismatch(join(parts...));
}

/// `expected` is the model's answer.
template <class A, class B>
void expect_equal(A const& got, B const& expected, char const* what) {
  if (!(got == expected)) mismatch(what, ": got ", got, ", the model says ", expected);
}
inline void expect(bool holds, char const* rule) {
  if (!holds) mismatch(rule);
}

}  // namespace pagedkv::testing

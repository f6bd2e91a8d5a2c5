// SPDX-License-Identifier: Apache-2.0
/// \file
/// CLI11's errors, with the option that was probably meant.
#pragma once

#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "support/nearest.hpp"

namespace programs {

/// CLI11's PositiveNumber (1) and NonNegativeNumber (0), which print a range of 309 digits.
inline CLI::Validator at_least(int least) {
  auto const check = [least](std::string const& text) -> std::string {
    char* end = nullptr;
    double const value = std::strtod(text.c_str(), &end);
    bool const is_number = end != text.c_str();  // CLI11 refuses what isn't
    return is_number && value < least ? fmt::format("{} is less than {}", text, least) : "";
  };
  return CLI::Validator(check, least > 0 ? "POSITIVE" : "NONNEGATIVE");
}

/// Like `app.exit(error)`, and names the nearest option of each that isn't one.
inline int exit_with(CLI::App const& app, CLI::ParseError const& error) {
  auto const status = app.exit(error);
  if (dynamic_cast<CLI::ExtrasError const*>(&error) == nullptr) return status;
  std::vector<std::string> names;
  for (auto const* option : app.get_options()) {
    for (auto const& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (auto const& argument : app.remaining()) {
    if (argument.rfind("--", 0) != 0) continue;
    auto const name = argument.substr(0, argument.find('='));
    fmt::print(stderr, "{}: did you mean {}?\n", name, nearest_name(name, names));
  }
  return status;
}

/// A program's main(): reads the options, then returns what `run()` does. What it throws is printed
/// behind the program's name; the status is then 1.
template <class Run>
int parse_and_run(CLI::App& app, int argc, char** argv, Run&& run) {
  try {
    app.parse(argc, argv);
    return run();
  } catch (CLI::ParseError const& error) {
    return exit_with(app, error);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 1;
  }
}

}  // namespace programs

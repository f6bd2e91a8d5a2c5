// SPDX-License-Identifier: Apache-2.0
/// \file
/// The architectures that the build was told, as numbers.
#include <pagedkv/data/cuda/compiled.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

PAGEDKV_NAMESPACE_BEGIN
namespace cuda {
namespace {

/// "sm_80,sm_90a,compute_89": defined by the build.
constexpr std::string_view names = PAGEDKV_CUDA_CODE;

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Of one name: its number is ten times the major version, and the minor one.
constexpr CompiledCode parse(std::string_view name) noexcept {
  CompiledCode code;
  int number = 0;
  for (char const c : name) number = is_digit(c) ? 10 * number + (c - '0') : number;
  code.capability = {number / 10, number % 10};
  if (name.front() == 'c') code.kind = CodeKind::ptx;
  if (name.back() == 'a') code.kind = CodeKind::machine_exact;
  return code;
}

constexpr auto num_names =
    static_cast<std::size_t>(1 + std::count(names.begin(), names.end(), ','));

constexpr std::array<CompiledCode, num_names> parse_all() noexcept {
  std::array<CompiledCode, num_names> all{};
  std::size_t begin = 0;
  for (CompiledCode& code : all) {
    std::size_t const end = std::min(names.find(',', begin), names.size());
    code = parse(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

constexpr auto all_code = parse_all();

}  // namespace

std::span<CompiledCode const> compiled_code() noexcept { return all_code; }

}  // namespace cuda
PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/data/cuda/compiled.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"

using namespace pagedkv;
using cuda::CodeKind;
using cuda::CompiledCode;

namespace {

constexpr CompiledCode usual[] = {
    {{8, 0}, CodeKind::machine},        {{8, 9}, CodeKind::machine},
    {{9, 0}, CodeKind::machine_exact},  {{10, 0}, CodeKind::machine_exact},
    {{12, 0}, CodeKind::machine_exact}, {{8, 9}, CodeKind::ptx}};

}  // namespace

TEST_CASE("a device runs the latest machine code that is for it, else PTX") {
  auto const runs = [](ComputeCapability device) { return cuda::code_for(device, usual); };
  CHECK(runs({8, 0}) == usual[0]);
  CHECK(runs({8, 6}) == usual[0]);
  CHECK(runs({8, 9}) == usual[1]);
  CHECK(runs({9, 0}) == usual[2]);
  CHECK(runs({10, 0}) == usual[3]);
  CHECK(runs({10, 3}) == usual[5]);  // code for 10.0a is for 10.0 alone
  CHECK(runs({12, 0}) == usual[4]);
  CHECK(runs({13, 0}) == usual[5]);
  CHECK_FALSE(runs({7, 5}).has_value());
  CompiledCode const two_ptx[] = {{{8, 0}, CodeKind::ptx}, {{8, 9}, CodeKind::ptx}};
  CHECK(cuda::code_for({9, 0}, two_ptx) == two_ptx[1]);
}

TEST_CASE("the advice is for the code that would run, not for the device alone") {
  CompiledCode const old[] = {{{8, 0}, CodeKind::machine}, {{8, 0}, CodeKind::ptx}};
  auto const on_hopper = cuda::recommend_format({9, 0}, old);
  CHECK(on_hopper.format == recommend_format({8, 0}).format);
  CHECK(std::string(on_hopper.reason).find("PAGEDKV_CUDA_ARCHITECTURES") != std::string::npos);
  CHECK(cuda::recommend_format({8, 0}, old).reason == recommend_format({8, 0}).reason);
  CHECK(cuda::recommend_format({9, 0}, usual).format.element == Element::fp8_e4m3);
  CHECK(cuda::recommend_format({8, 6}, usual).format.element == Element::int8);
  auto const nowhere = cuda::recommend_format({7, 5}, usual);
  CHECK(std::string(nowhere.reason).find("run on no device") != std::string::npos);
}

TEST_CASE("what this build compiles suits every device that its architectures name") {
  auto const compiled = cuda::compiled_code();
  REQUIRE(std::any_of(compiled.begin(), compiled.end(),
                      [](CompiledCode const& code) { return code.kind == CodeKind::ptx; }));
  for (CompiledCode const& code : compiled) {
    auto const advice = cuda::recommend_format(code.capability, compiled);
    INFO(code.capability.major << '.' << code.capability.minor << ": " << advice.reason);
    CHECK(advice.format == recommend_format(code.capability).format);
  }
}

#ifdef PAGEDKV_DEFAULT_ARCHITECTURES
TEST_CASE("by default devices from 8.9 on, known or to come, convert fp8 in hardware") {
  CHECK(std::ranges::equal(cuda::compiled_code(), usual));
  for (ComputeCapability const device :
       {ComputeCapability{8, 9}, ComputeCapability{9, 0}, ComputeCapability{10, 0},
        ComputeCapability{10, 3}, ComputeCapability{12, 1}, ComputeCapability{13, 0}}) {
    auto const advice = cuda::recommend_format(device, cuda::compiled_code());
    CHECK(advice.format.element == Element::fp8_e4m3);
  }
}
#endif

// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/interop/cuda_array_interface.hpp>

#include "catch.hpp"
#include "misuse.hpp"
#include "refusals.hpp"
#include "world.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::KvFormat;
using pagedkv::interop::cuda_array_interface;
using pagedkv::interop::Dtype;
using pagedkv::interop::pool_tensor;
using pagedkv::interop::Tensor;

namespace {

/// A consumer knows an item's size from its typestr alone.
std::int64_t item_size(std::string const& typestr) { return typestr.back() - '0'; }

}  // namespace

TEST_CASE("a consumer of __cuda_array_interface__ finds every vector of a pool") {
  for (KvFormat const format : every_format()) {
    for (Placement const& placement : placements) {
      if (placement.engine_owned) continue;
      INFO(to_string(format) << ", " << placement.name);
      Pool const pool({.num_layers = 1,
                       .num_kv_heads = 3,
                       .head_dim_k = 16,
                       .head_dim_v = 16,
                       .block_tokens = 4,
                       .format = format},
                      3, placement);
      auto const view = pool.view();
      auto const& t = view.layers[0].v;
      auto const a = cuda_array_interface(pool_tensor(view, t));
      CHECK(a.version == 3);
      REQUIRE(a.ndim == 4);
      CHECK_FALSE(a.stream.has_value());
      CHECK(a.strides[3] == item_size(a.typestr));
      CHECK(a.shape[3] * item_size(a.typestr) == kv::bytes_per_vector(format.element, 16));
      for (std::int64_t block = 0; block < 3; ++block) {
        for (std::int64_t token = 0; token < 4; ++token) {
          for (std::int64_t head = 0; head < 3; ++head) {
            auto const bytes = block * a.strides[0] + token * a.strides[1] + head * a.strides[2];
            CHECK(a.data + static_cast<std::uintptr_t>(bytes) ==
                  reinterpret_cast<std::uintptr_t>(t.vector(block, token, head)));
          }
        }
      }
    }
  }
}

TEST_CASE("types that NumPy has no name for go as whole numbers with a tag") {
  struct Case {
    Dtype dtype;
    char const* typestr;
    char const* tag;
  };
  float number = 0.0F;
  for (Case const c :
       {Case{Dtype::f32, "<f4", "float32"}, Case{Dtype::f16, "<f2", "float16"},
        Case{Dtype::bf16, "<u2", "bfloat16"}, Case{Dtype::e4m3fn, "|u1", "float8_e4m3fn"},
        Case{Dtype::e5m2, "|u1", "float8_e5m2"}, Case{Dtype::i8, "|i1", "int8"},
        Case{Dtype::u8, "|u1", "uint8"}, Case{Dtype::i32, "<i4", "int32"},
        Case{Dtype::i64, "<i8", "int64"}}) {
    auto const a = cuda_array_interface(Tensor{&number, c.dtype, 1, {1}, {1}});
    CHECK(std::string(a.typestr) == c.typestr);
    CHECK(std::string(a.tag) == c.tag);
    CHECK(a.strides[0] == item_size(a.typestr));
  }
}

TEST_CASE("a stream is none, a default one by number, or a handle; 0 is a broken contract") {
  float number = 0.0F;
  Tensor const t{&number, Dtype::f32, 1, {1}, {1}};
  CHECK(cuda_array_interface(t, 2).stream == 2U);
  CHECK(cuda_array_interface(t, std::nullopt, true).read_only);
  auto const outcome = outcome_of([&] { (void)cuda_array_interface(t, 0); });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.message, contains_text("stream 0 is ambiguous"));
  Tensor const none{&number, Dtype::f32, 1, {0}, {1}};
  CHECK(cuda_array_interface(none).data == 0);
}

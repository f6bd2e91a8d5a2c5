// SPDX-License-Identifier: Apache-2.0
#include <pagedkv/interop/dlpack.hpp>

#include "catch.hpp"
#include "refusals.hpp"
#include "world.hpp"

namespace kv = pagedkv;
namespace dlpack = pagedkv::interop::dlpack;
using namespace pagedkv::testing;
using pagedkv::Element;
using pagedkv::Granularity;
using pagedkv::KvFormat;
using pagedkv::interop::Dtype;
using pagedkv::interop::pool_tensor;
using pagedkv::interop::scale_tensor;
using pagedkv::interop::Tensor;

namespace {

/// DLManagedTensorVersioned and DLManagedTensor as a consumer has them (dlpack.h 1.1, 64-bit):
/// flat, with the padding between the fields spelled out.
struct ConsumerTensor {
  void* data;
  std::int32_t device_type, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct ConsumerVersioned {
  std::uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(void*);
  std::uint64_t flags;
  ConsumerTensor tensor;
};
struct ConsumerLegacy {
  ConsumerTensor tensor;
  void* manager_ctx;
  void (*deleter)(void*);
};

/// The bytes that a consumer gets a pointer to.
template <class Consumer, class Managed>
Consumer received(Managed const* managed) {
  static_assert(sizeof(Consumer) == sizeof(Managed));
  Consumer seen{};
  std::memcpy(&seen, managed, sizeof seen);
  return seen;
}

/// What a consumer takes the type for.
Dtype type_of(ConsumerTensor const& t) {
  REQUIRE(t.lanes == 1);
  switch (t.code * 100 + t.bits) {
    case 2 * 100 + 32: return Dtype::f32;
    case 2 * 100 + 16: return Dtype::f16;
    case 4 * 100 + 16: return Dtype::bf16;
    case 10 * 100 + 8: return Dtype::e4m3fn;
    case 12 * 100 + 8: return Dtype::e5m2;
    case 0 * 100 + 8: return Dtype::i8;
    case 1 * 100 + 8: return Dtype::u8;
    case 0 * 100 + 32: return Dtype::i32;
    case 0 * 100 + 64: return Dtype::i64;
    default: FAIL("code " << int{t.code} << ", " << int{t.bits} << " bits");
  }
  return Dtype::u8;
}

/// The address of an element as dlpack.h says: data + byte_offset, strides in elements.
std::byte const* address(ConsumerTensor const& t, std::vector<std::int64_t> const& index) {
  REQUIRE(index.size() == static_cast<std::size_t>(t.ndim));
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < index.size(); ++d) {
    REQUIRE(index[d] < t.shape[d]);
    offset += index[d] * t.strides[d];
  }
  return static_cast<std::byte const*>(t.data) + t.byte_offset + offset * t.bits / 8;
}

kv::Geometry geometry(KvFormat format) {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim_k = 16,
          .head_dim_v = 10,
          .block_tokens = 4,
          .format = format};
}

}  // namespace

TEST_CASE("a consumer finds every vector and scale of a pool through DLPack") {
  for (KvFormat const format : every_format()) {
    for (Placement const& placement : placements) {
      if (placement.engine_owned) continue;
      INFO(to_string(format) << ", " << placement.name);
      auto const g = geometry(format);
      Pool const pool(g, 3, placement);
      auto const view = pool.view();
      for (auto const& layer : view.layers) {
        for (auto const* t : {&layer.k, &layer.v}) {
          auto* const managed = dlpack::exported(pool_tensor(view, *t), {}, nullptr);
          auto const whole_struct = received<ConsumerVersioned>(managed);
          REQUIRE(whole_struct.major == 1);
          auto const& seen = whole_struct.tensor;
          CHECK(seen.device_type == 1);
          CHECK(seen.byte_offset == 0);
          CHECK(type_of(seen) == kv::interop::dtype_of(format.element));
          std::vector<std::int64_t> const shape(seen.shape, seen.shape + seen.ndim);
          CHECK(shape ==
                std::vector<std::int64_t>{
                    3, 4, 3,
                    kv::bytes_per_vector(format.element, t->head_dim) * 8 /
                        (format.element == Element::int4 ? 8
                                                         : kv::bits_per_element(format.element))});
          CHECK(seen.strides[3] == 1);
          for (std::int64_t block = 0; block < 3; ++block) {
            for (std::int64_t token = 0; token < 4; ++token) {
              for (std::int64_t head = 0; head < 3; ++head) {
                CHECK(address(seen, {block, token, head, 0}) == t->vector(block, token, head));
              }
            }
          }
          managed->deleter(managed);
        }
      }
    }
  }
}

TEST_CASE("a consumer finds every scale of a pool through DLPack") {
  for (KvFormat const format : every_format()) {
    INFO(to_string(format));
    Pool const pool(geometry(format), 3, placements[2]);
    auto const view = pool.view();
    auto const& t = view.layers[1].v;
    Tensor const scales = scale_tensor(view, t);
    CHECK(scales.exists() == (format.granularity != Granularity::none));
    if (!scales.exists()) continue;
    auto* const managed = dlpack::exported(scales, {}, nullptr);
    auto const seen = received<ConsumerVersioned>(managed).tensor;
    CHECK(type_of(seen) == Dtype::f32);
    bool const has_zero = kv::quant::has_zero(format.element);
    for (std::int64_t block = 0; block < 3; ++block) {
      for (std::int64_t token = 0; token < 4; ++token) {
        for (std::int64_t head = 0; head < 3; ++head) {
          std::vector<std::int64_t> index;
          switch (format.granularity) {
            case Granularity::none: break;
            case Granularity::per_tensor: index = {0}; break;
            case Granularity::per_head: index = {head}; break;
            case Granularity::per_block_head: index = {block, head}; break;
            case Granularity::per_token_head: index = {block, token, head}; break;
          }
          if (has_zero) index.push_back(1);
          auto const* const found = reinterpret_cast<float const*>(address(seen, index));
          CHECK(found == t.scale(block, token, head) + (has_zero ? 1 : 0));
        }
      }
    }
    managed->deleter(managed);
  }
}

TEST_CASE("a step's arrays go through DLPack with their own types") {
  std::vector<kv::Slot> slots = {5, 1LL << 40, -1};
  std::vector<std::int32_t> lengths = {7, 8};
  for (bool const is_wide : {true, false}) {
    Tensor const t = is_wide ? kv::interop::array_tensor(std::span(slots), 3)
                             : kv::interop::array_tensor(std::span(lengths), 2);
    auto* const managed = dlpack::exported(t, {}, nullptr);
    auto const seen = received<ConsumerVersioned>(managed).tensor;
    CHECK(type_of(seen) == (is_wide ? Dtype::i64 : Dtype::i32));
    CHECK(seen.ndim == 1);
    CHECK(seen.shape[0] == (is_wide ? 3 : 2));
    CHECK(whole(t, {1}) == (is_wide ? 1LL << 40 : 8));
    CHECK(address(seen, {1}) == at(t, {1}));
    managed->deleter(managed);
  }
}

TEST_CASE("the owner lives until the last deleter has run, whichever it is") {
  auto owner = std::make_shared<int>(1);
  std::weak_ptr<int> const watched = owner;
  float number = 2.0F;
  Tensor const t{&number, Dtype::f32, 1, {1}, {1}};
  dlpack::Device const gpu{dlpack::DeviceType::cuda, 3};
  auto* const first = dlpack::exported(t, gpu, owner);
  auto* const second = dlpack::exported(t, gpu, owner, dlpack::Access::read_only);
  auto* const legacy = dlpack::exported_unversioned(t, gpu, owner);
  owner.reset();
  auto const seen = received<ConsumerVersioned>(first);
  CHECK(seen.tensor.device_type == 2);
  CHECK(seen.tensor.device_id == 3);
  CHECK(seen.flags == 0);
  CHECK(received<ConsumerVersioned>(second).flags == 1);
  auto const seen_by_old = received<ConsumerLegacy>(legacy);
  CHECK(seen_by_old.tensor.data == &number);
  CHECK(seen_by_old.tensor.ndim == 1);

  second->deleter(second);
  CHECK_FALSE(watched.expired());
  legacy->deleter(legacy);
  CHECK_FALSE(watched.expired());
  CHECK(seen.tensor.shape[0] == 1);  // what one consumer lets go doesn't touch another's
  first->deleter(first);
  CHECK(watched.expired());
}

TEST_CASE("a tensor without elements has no address") {
  std::vector<std::int32_t> none(1);
  auto* const managed =
      dlpack::exported(kv::interop::array_tensor(std::span(none), 0), {}, nullptr);
  auto const seen = received<ConsumerVersioned>(managed).tensor;
  CHECK(seen.data == nullptr);
  CHECK(seen.shape[0] == 0);
  managed->deleter(managed);
}

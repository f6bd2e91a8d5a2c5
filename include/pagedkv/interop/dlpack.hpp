// SPDX-License-Identifier: Apache-2.0
/// \file
/// Pools and arrays as DLPack tensors (dlpack.h 1.1), for `torch.from_dlpack` and its like.
///
/// The structs are declared here with dlpack.h's layout, so that pointers to them may be cast to
/// its own of the same name (`DLManagedTensorVersioned` and so on); it needn't be installed.
///
///     Device const device = {DeviceType::cuda, 0};
///     auto* const managed = dlpack::exported(pool_tensor(view, layer.k), device, owner);
///     // to a consumer, in a capsule named "dltensor_versioned"; it calls
///     managed->deleter(managed)
///
/// Ownership: `owner` is shared by every tensor exported with it and keeps the pool's memory alive
/// until the last of their deleters has run, in any order and from any thread. Who owns the memory
/// otherwise passes null and must outlive the consumer. Exporting moves and copies no numbers, and
/// synchronizes with no stream: writes must be enqueued before the consumer's reads.
///
/// `data` points at the first element and `byte_offset` is 0, as all consumers expect. The 256-byte
/// alignment that dlpack.h asks for isn't kept; nor is it by PyTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <pagedkv/interop/tensor.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace interop {
namespace dlpack {

struct Version {
  std::uint32_t major = 1;
  std::uint32_t minor = 1;
};
/// Some of DLDeviceType.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, rocm = 10 };
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t id = 0;  ///< 0 for memory of the host
};
/// Some of DLDataTypeCode.
enum class TypeCode : std::uint8_t {
  int_ = 0,
  uint = 1,
  float_ = 2,
  bfloat = 4,
  float8_e4m3fn = 10,
  float8_e5m2 = 12,
};
struct DataType {
  TypeCode code = TypeCode::float_;
  std::uint8_t bits = 32;
  std::uint16_t lanes = 1;
  friend constexpr bool operator==(DataType const&, DataType const&) noexcept = default;
};
/// DLTensor.
struct View {
  void* data = nullptr;
  Device device{};
  std::int32_t ndim = 0;
  DataType dtype{};
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  ///< in elements
  std::uint64_t byte_offset = 0;
};
/// DLManagedTensor: consumers that know nothing of versions (capsule "dltensor").
struct Managed {
  View tensor{};
  void* manager_ctx = nullptr;
  void (*deleter)(Managed*) = nullptr;
};
inline constexpr std::uint64_t read_only_flag = 1;
/// DLManagedTensorVersioned.
struct ManagedVersioned {
  Version version{};
  void* manager_ctx = nullptr;
  void (*deleter)(ManagedVersioned*) = nullptr;
  std::uint64_t flags = 0;
  View tensor{};
};

static_assert(sizeof(DataType) == 4 && sizeof(Device) == 8 && sizeof(Version) == 8);
static_assert(sizeof(void*) != 8 || (offsetof(View, device) == 8 && offsetof(View, ndim) == 16 &&
                                     offsetof(View, dtype) == 20 && offsetof(View, shape) == 24 &&
                                     offsetof(View, strides) == 32 &&
                                     offsetof(View, byte_offset) == 40 && sizeof(View) == 48));
static_assert(sizeof(void*) != 8 || (offsetof(Managed, manager_ctx) == 48 &&
                                     offsetof(Managed, deleter) == 56 && sizeof(Managed) == 64));
static_assert(sizeof(void*) != 8 ||
              (offsetof(ManagedVersioned, manager_ctx) == 8 &&
               offsetof(ManagedVersioned, deleter) == 16 &&
               offsetof(ManagedVersioned, flags) == 24 &&
               offsetof(ManagedVersioned, tensor) == 32 && sizeof(ManagedVersioned) == 80));
static_assert(std::is_standard_layout_v<Managed> && std::is_standard_layout_v<ManagedVersioned>);

[[nodiscard]] constexpr DataType data_type(Dtype dtype) noexcept {
  auto const bits = static_cast<std::uint8_t>(8 * bytes_per_item(dtype));
  switch (dtype) {
    case Dtype::f32:
    case Dtype::f16: return {TypeCode::float_, bits, 1};
    case Dtype::bf16: return {TypeCode::bfloat, bits, 1};
    case Dtype::e4m3fn: return {TypeCode::float8_e4m3fn, bits, 1};
    case Dtype::e5m2: return {TypeCode::float8_e5m2, bits, 1};
    case Dtype::u8: return {TypeCode::uint, bits, 1};
    case Dtype::i8:
    case Dtype::i32:
    case Dtype::i64: return {TypeCode::int_, bits, 1};
  }
  return {};
}

/// Not owning, for calls that only look: shape and strides are those of `t`, which must outlive it.
[[nodiscard]] constexpr View viewed(Tensor& t, Device device) noexcept {
  void* const data = t.num_elements() != 0 ? t.data : nullptr;  // as dlpack.h wants it
  return {data, device, t.rank, data_type(t.dtype), t.shape.data(), t.strides.data(), 0};
}

enum class Access : std::uint8_t { writable, read_only };

namespace detail {
/// What `manager_ctx` is: everything a consumer may look at, in one piece.
template <class M>
struct Holder {
  M managed{};
  Tensor tensor{};
  std::shared_ptr<void const> owner{};

  static void release(M* self) noexcept {
    if (self != nullptr) delete static_cast<Holder*>(self->manager_ctx);
  }
};
template <class M>
[[nodiscard]] M* held(Tensor const& t, Device device, std::shared_ptr<void const> owner) {
  auto holder = std::make_unique<Holder<M>>();
  holder->tensor = t;
  holder->owner = std::move(owner);
  holder->managed.tensor = viewed(holder->tensor, device);
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = &Holder<M>::release;
  return &holder.release()->managed;
}
}  // namespace detail

/// Who gets it calls its deleter, once. Allocates.
[[nodiscard]] inline ManagedVersioned* exported(Tensor const& t, Device device,
                                                std::shared_ptr<void const> owner,
                                                Access access = Access::writable) {
  ManagedVersioned* const managed = detail::held<ManagedVersioned>(t, device, std::move(owner));
  if (access == Access::read_only) managed->flags |= read_only_flag;
  return managed;
}
/// The same for consumers of before 1.0, which can't be told that it is read only.
[[nodiscard]] inline Managed* exported_unversioned(Tensor const& t, Device device,
                                                   std::shared_ptr<void const> owner) {
  return detail::held<Managed>(t, device, std::move(owner));
}

}  // namespace dlpack
}  // namespace interop
PAGEDKV_NAMESPACE_END

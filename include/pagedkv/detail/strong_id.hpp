// SPDX-License-Identifier: Apache-2.0
/// \file
/// A number with a type of its own, so that a block can't be passed where a sequence is meant.
#pragma once

#include <compare>
#include <limits>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN
namespace detail {

/// Trivially copyable, totally ordered, explicit from and to its representation.
/// The default value is null: the largest `Rep` for unsigned, -1 for signed representations.
template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  static constexpr Rep null_value =
      std::numeric_limits<Rep>::is_signed ? Rep(-1) : std::numeric_limits<Rep>::max();

  constexpr StrongId() noexcept = default;
  constexpr explicit StrongId(Rep value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool is_null() const noexcept { return value_ == null_value; }
  [[nodiscard]] static constexpr StrongId null() noexcept { return StrongId{}; }

  friend constexpr auto operator<=>(StrongId const&, StrongId const&) noexcept = default;

 private:
  Rep value_ = null_value;
};

}  // namespace detail
PAGEDKV_NAMESPACE_END

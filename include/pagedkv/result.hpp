// SPDX-License-Identifier: Apache-2.0
/// \file
/// A value or an `Errc`: `std::expected<T, Errc>` for C++20, with its member names.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include <pagedkv/error.hpp>
#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// What a failing verb returns: `return Unexpected{Errc::no_free_blocks};`
struct Unexpected {
  Errc code;
};

namespace detail {

/// A small trivial value is returned in registers. No union: g++ keeps one in memory, writes its
/// parts and reads it whole, and that failed store forwarding took a fifth of a decode step.
template <class T,
          bool Plain = std::is_trivially_copyable_v<T>&& std::is_default_constructible_v<T>>
struct ResultStorage {
  explicit ResultStorage(T value) noexcept : value_(value) {}
  explicit ResultStorage(Unexpected error) noexcept
      : status_(1 + static_cast<std::uint32_t>(error.code)) {}

  bool holds_value() const noexcept { return status_ == 0; }
  Errc code() const noexcept { return static_cast<Errc>(status_ - 1); }

  T value_{};
  std::uint32_t status_ = 0;  // 0, or 1 + error: a whole word, for a byte is read back in parts
};

template <class T>
struct ResultStorage<T, false> {
  explicit ResultStorage(T value) noexcept(std::is_nothrow_move_constructible_v<T>)
      : has_value_(true) {
    ::new (static_cast<void*>(&value_)) T(std::move(value));
  }
  explicit ResultStorage(Unexpected error) noexcept : error_(error.code), has_value_(false) {}
  ResultStorage(ResultStorage&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
      : has_value_(other.has_value_) {
    if (has_value_) {
      ::new (static_cast<void*>(&value_)) T(std::move(other.value_));
    } else {
      error_ = other.error_;
    }
  }
  ResultStorage(ResultStorage const& other) requires std::is_copy_constructible_v<T>
      : has_value_(other.has_value_) {
    if (has_value_) {
      ::new (static_cast<void*>(&value_)) T(other.value_);
    } else {
      error_ = other.error_;
    }
  }
  ResultStorage& operator=(ResultStorage&& other) noexcept(
      std::is_nothrow_move_constructible_v<T>) {
    if (this != &other) {
      this->~ResultStorage();
      ::new (static_cast<void*>(this)) ResultStorage(std::move(other));
    }
    return *this;
  }
  ~ResultStorage() {
    if (has_value_) value_.~T();
  }

  bool holds_value() const noexcept { return has_value_; }
  Errc code() const noexcept { return error_; }

  union {
    T value_;
    Errc error_;
  };
  bool has_value_;
};

/// Apart from those who call it, which are in the way of every step.
[[noreturn]] PAGEDKV_NEVER_INLINE inline void call_failed(Errc code) {
  std::string const message = std::string("Result::value: the call failed with ") +
                              to_string(code) + "; test the Result first";
  contract_broken(message.c_str());
}
inline void require_value([[maybe_unused]] bool has_value, [[maybe_unused]] Errc code) {
#if PAGEDKV_ASSERT_LEVEL >= 1
  if (!has_value) call_failed(code);
#endif
}

}  // namespace detail

/// Holds a `T` or an error; never empty. Reading the wrong one is misuse.
template <class T>
class [[nodiscard]] Result : private detail::ResultStorage<T> {
  using Storage = detail::ResultStorage<T>;
  using Storage::value_;

 public:
  using value_type = T;
  using error_type = Errc;

  Result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : Storage(std::move(value)) {}
  Result(Unexpected error) noexcept : Storage(error) {}

  [[nodiscard]] bool has_value() const noexcept { return Storage::holds_value(); }
  [[nodiscard]] explicit operator bool() const noexcept { return Storage::holds_value(); }

  [[nodiscard]] T& value() & { return checked(); }
  [[nodiscard]] T const& value() const& { return const_cast<Result*>(this)->checked(); }
  [[nodiscard]] T&& value() && { return std::move(checked()); }
  [[nodiscard]] T& operator*() & { return checked(); }
  [[nodiscard]] T const& operator*() const& { return const_cast<Result*>(this)->checked(); }
  [[nodiscard]] T&& operator*() && { return std::move(checked()); }
  [[nodiscard]] T* operator->() { return &checked(); }
  [[nodiscard]] T const* operator->() const { return &const_cast<Result*>(this)->checked(); }

  template <class U>
  [[nodiscard]] T value_or(U&& fallback) const& {
    return has_value() ? value_ : static_cast<T>(std::forward<U>(fallback));
  }

  [[nodiscard]] Errc error() const {
    PAGEDKV_ASSERT(!has_value(), "Result::error: the call succeeded; test the Result first");
    return Storage::code();
  }

 private:
  T& checked() {
    detail::require_value(has_value(), Storage::code());
    return value_;
  }
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = Errc;

  Result() noexcept = default;
  Result(Unexpected error) noexcept : error_(error.code), has_value_(false) {}

  [[nodiscard]] bool has_value() const noexcept { return has_value_; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }
  void value() const { detail::require_value(has_value_, error_); }
  [[nodiscard]] Errc error() const {
    PAGEDKV_ASSERT(!has_value_, "Result::error: the call succeeded; test the Result first");
    return error_;
  }

 private:
  Errc error_ = Errc::never_fits;
  bool has_value_ = true;
};

PAGEDKV_NAMESPACE_END

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The one version source. CMakeLists.txt reads the three numbers from here.
#pragma once

#define PAGEDKV_VERSION_MAJOR 0
#define PAGEDKV_VERSION_MINOR 1
#define PAGEDKV_VERSION_PATCH 0

/// Opens and closes `namespace pagedkv` with its inline version namespace.
#define PAGEDKV_NAMESPACE_BEGIN \
  namespace pagedkv {           \
  inline namespace v0 {
#define PAGEDKV_NAMESPACE_END \
  }                           \
  }

/// For the few functions whose call would cost as much as their work.
#if defined(__GNUC__)
#define PAGEDKV_ALWAYS_INLINE [[gnu::always_inline]] inline
#define PAGEDKV_NEVER_INLINE [[gnu::noinline]]  ///< rare parts of those
#else
#define PAGEDKV_ALWAYS_INLINE inline
#define PAGEDKV_NEVER_INLINE
#endif

/// Loops of a few instructions, where counting is most of the work.
#if defined(__CUDACC__)
#define PAGEDKV_UNROLL  // nvcc reads neither
#elif defined(__clang__)
#define PAGEDKV_UNROLL _Pragma("unroll 8")
#elif defined(__GNUC__)
#define PAGEDKV_UNROLL _Pragma("GCC unroll 8")
#else
#define PAGEDKV_UNROLL
#endif

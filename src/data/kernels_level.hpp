// SPDX-License-Identifier: Apache-2.0
/// \file
/// The body of kernels_<level>.cpp, compiled once for each PAGEDKV_LEVEL.
///
/// The codecs come from quant/, but under a namespace of this level: an inline function that two
/// levels compile must not have one name, or the linker keeps whichever it likes.
#pragma once

#include <pagedkv/version.hpp>

#include "kernels.hpp"
// kv_format.hpp came with kernels.hpp; its constants and enums serve all levels.

// What follows from here on lies in pagedkv::v0::<level>.
#undef PAGEDKV_NAMESPACE_BEGIN
#undef PAGEDKV_NAMESPACE_END
#define PAGEDKV_NAMESPACE_BEGIN \
  namespace pagedkv {           \
  inline namespace v0 {         \
  namespace PAGEDKV_LEVEL {
#define PAGEDKV_NAMESPACE_END \
  }                           \
  }                           \
  }

#include <pagedkv/data/cpu/softmax_exp.hpp>
#include <pagedkv/quant/vector_codec.hpp>

#include "attention_order.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// In this order.
// clang-format off
#include "level_codecs.hpp"
#include "level_attention.hpp"
#include "level_table.hpp"
// clang-format on

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The vectorized operations for x86-64 with AVX2 and F16C.
#if defined(__AVX2__) && defined(__F16C__)
#define PAGEDKV_LEVEL avx2
#include "kernels_level.hpp"
#else
#include "kernels.hpp"
PAGEDKV_NAMESPACE_BEGIN
cpu::Kernels const* cpu::kernels_avx2() noexcept { return nullptr; }
PAGEDKV_NAMESPACE_END
#endif

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The vectorized operations for x86-64 with AVX-512 F, BW, DQ and VL.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PAGEDKV_LEVEL avx512
#include "kernels_level.hpp"
#else
#include "kernels.hpp"
PAGEDKV_NAMESPACE_BEGIN
cpu::Kernels const* cpu::kernels_avx512() noexcept { return nullptr; }
PAGEDKV_NAMESPACE_END
#endif

// SPDX-License-Identifier: Apache-2.0
/// \file
/// Which sanitizer this build runs under. The executor's own sources are compiled without
/// -fsanitize=thread, with PAGEDKV_EMULATED_TSAN defined: its bookkeeping is no business of TSan's.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define PAGEDKV_UNDER_ASAN 1
#elif defined(__SANITIZE_THREAD__) || defined(PAGEDKV_EMULATED_TSAN)
#define PAGEDKV_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PAGEDKV_UNDER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define PAGEDKV_UNDER_TSAN 1
#endif
#endif

#ifndef PAGEDKV_UNDER_ASAN
#define PAGEDKV_UNDER_ASAN 0
#endif
#ifndef PAGEDKV_UNDER_TSAN
#define PAGEDKV_UNDER_TSAN 0
#endif

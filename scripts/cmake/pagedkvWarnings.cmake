# SPDX-License-Identifier: Apache-2.0
# Warnings for every target of this directory and below.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Part of clang's -Wconversion, not of g++'s: one rule for both.
    add_compile_options(-Wno-sign-conversion)
  endif()
  if(PAGEDKV_WERROR)
    add_compile_options(-Werror)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "-fsanitize")
      # The instrumentation hides initialization from g++'s flow analysis.
      add_compile_options(-Wno-error=maybe-uninitialized)
    endif()
  endif()
endif()

# SPDX-License-Identifier: Apache-2.0
# Warnings for every target of this directory and below. Not for nvcc: what it makes of a source
# isn't warning-free; the host compilers see the same headers.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Part of clang's -Wconversion, not of g++'s: one rule for both.
    list(APPEND warnings -Wno-sign-conversion)
  endif()
  if(PAGEDKV_WERROR)
    list(APPEND warnings -Werror)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "-fsanitize")
      # The instrumentation hides initialization from g++'s flow analysis.
      list(APPEND warnings -Wno-error=maybe-uninitialized)
    endif()
  endif()
  foreach(warning IN LISTS warnings)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${warning}>)
  endforeach()
endif()

# SPDX-License-Identifier: Apache-2.0
# emulated_tsan_tests: the same tests under TSan, by clang++-19 whatever compiles the rest. Its
# runtime makes a fiber in 20 us; that of g++ 12 takes 6 ms, and clang++ 14's is as slow to start.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  return()
endif()
find_program(PAGEDKV_TSAN_CXX NAMES clang++-19 clang++-20 clang++-21)
find_program(PAGEDKV_TSAN_SYMBOLIZER NAMES llvm-symbolizer-19 llvm-symbolizer
             HINTS /usr/lib/llvm-19/bin)
mark_as_advanced(PAGEDKV_TSAN_CXX PAGEDKV_TSAN_SYMBOLIZER)
if(NOT PAGEDKV_TSAN_CXX)
  add_test(NAME emulated_tsan
           COMMAND ${CMAKE_COMMAND} -E echo "skipped: no clang++-19 or later (Debian: clang-19, "
                   "libclang-rt-19-dev, llvm-19)")
  set_tests_properties(emulated_tsan PROPERTIES LABELS "emulated;emulated_tsan"
                                                SKIP_REGULAR_EXPRESSION skipped)
  return()
endif()

set(tsan_dir ${CMAKE_CURRENT_BINARY_DIR}/emulated_tsan)
file(MAKE_DIRECTORY ${tsan_dir})
get_target_property(catch_includes Catch2::Catch2 INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(fmt_includes fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
set(tsan_flags
    -std=c++20 -O1 -g1 -fno-strict-aliasing -I${PROJECT_SOURCE_DIR}/include -I${emulated_dir}
    -I${emulated_dir}/runtime -I${CMAKE_CURRENT_SOURCE_DIR}/support -DFMT_HEADER_ONLY=1
    -DPAGEDKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
set(tsan_includes ${catch_includes} ${fmt_includes})
list(FILTER tsan_includes EXCLUDE REGEX NOTFOUND)
list(REMOVE_ITEM tsan_includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
foreach(include IN LISTS tsan_includes)
  list(APPEND tsan_flags -isystem ${include})
endforeach()

set(tsan_objects)
# Adds an object of `source`, C++ whatever it is called; further arguments are its own flags.
function(pagedkv_add_tsan_object source)
  cmake_path(GET source STEM stem)
  set(object ${tsan_dir}/${stem}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${PAGEDKV_TSAN_CXX} ${tsan_flags} ${ARGN} -MD -MF ${object}.d -x c++ -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    VERBATIM)
  set(tsan_objects ${tsan_objects} ${object} PARENT_SCOPE)
endfunction()
foreach(source IN LISTS executor_sources ITEMS ${emulated_dir}/runtime/runtime.cpp)
  pagedkv_add_tsan_object(${source} -DPAGEDKV_EMULATED_TSAN)
endforeach()
# Which architectures the library was compiled for is no kernel's business.
set(tsan_host_sources ${cuda_host_sources})
list(FILTER tsan_host_sources EXCLUDE REGEX "/compiled\\.cpp$")
foreach(source IN LISTS emulated_tests cuda_kernel_sources tsan_host_sources)
  pagedkv_add_tsan_object(${source} -fsanitize=thread)
endforeach()

set(tsan_program ${tsan_dir}/emulated_tsan_tests)
set(tsan_libraries $<TARGET_FILE:pagedkv_catch_main> $<TARGET_FILE:pagedkv_catch>
                   $<TARGET_FILE:pagedkv>)
add_custom_command(
  OUTPUT ${tsan_program}
  COMMAND ${PAGEDKV_TSAN_CXX} -fsanitize=thread ${tsan_objects} ${tsan_libraries} -lpthread -o
          ${tsan_program}
  DEPENDS ${tsan_objects} pagedkv_catch_main pagedkv_catch pagedkv
  VERBATIM)
add_custom_target(emulated_tsan_tests ALL DEPENDS ${tsan_program})

set(tsan_environment)
if(PAGEDKV_TSAN_SYMBOLIZER)
  file(REAL_PATH ${PAGEDKV_TSAN_SYMBOLIZER} tsan_symbolizer)
  set(tsan_environment TSAN_OPTIONS=external_symbolizer_path=${tsan_symbolizer})
endif()
foreach(source IN LISTS emulated_tests)
  cmake_path(GET source STEM stem)
  add_test(NAME emulated_tsan.${stem} COMMAND ${tsan_program} ${catch_args} -\# [\#${stem}])
  set_tests_properties(
    emulated_tsan.${stem} PROPERTIES LABELS "emulated;emulated_tsan" TIMEOUT 600
                                     ENVIRONMENT "${tsan_environment}")
endforeach()

# SPDX-License-Identifier: Apache-2.0
# Kernels on the host, one fiber for each CUDA thread: docs/design/kernels.md.
set(emulated_dir ${CMAKE_CURRENT_SOURCE_DIR}/emulated)
file(GLOB executor_sources CONFIGURE_DEPENDS ${emulated_dir}/executor/*.cpp)

# Kernels read halves through wider vectors.
set(emulated_options -fno-strict-aliasing)
add_library(pagedkv_emulated STATIC ${executor_sources})
target_link_libraries(pagedkv_emulated PUBLIC pagedkv::headers)
target_include_directories(pagedkv_emulated PUBLIC ${emulated_dir})
target_compile_options(pagedkv_emulated PUBLIC ${emulated_options})
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  # The executor must be invisible to TSan.
  target_compile_options(pagedkv_emulated PRIVATE -fno-sanitize=thread)
  target_compile_definitions(pagedkv_emulated PRIVATE PAGEDKV_EMULATED_TSAN)
endif()

# pagedkv::cuda for programs that run on the executor: its own sources, and a CUDA runtime that puts
# everything off for as long as it may.
file(GLOB cuda_host_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cpp)
set(cuda_kernel_sources ${PROJECT_SOURCE_DIR}/cuda/calibrate_amax.cu
                        ${PROJECT_SOURCE_DIR}/cuda/operations.cu
                        ${PROJECT_SOURCE_DIR}/cuda/decode_attention.cu)
set_source_files_properties(${cuda_kernel_sources} PROPERTIES LANGUAGE CXX)
set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/compiled.cpp PROPERTIES COMPILE_DEFINITIONS
                            "PAGEDKV_CUDA_CODE=\"${cuda_code_names}\"")
add_library(pagedkv_cuda_emulated STATIC ${cuda_kernel_sources} ${cuda_host_sources}
                                         ${emulated_dir}/runtime/runtime.cpp)
target_link_libraries(pagedkv_cuda_emulated PUBLIC pagedkv_emulated)
target_include_directories(pagedkv_cuda_emulated PUBLIC ${emulated_dir}/runtime)
set_target_properties(pagedkv_cuda_emulated PROPERTIES CXX_EXTENSIONS OFF)

# The examples for CUDA devices, whole.
file(GLOB cuda_examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/[0-9][0-9]_*.cu)
set_source_files_properties(${cuda_examples} PROPERTIES LANGUAGE CXX)
foreach(source IN LISTS cuda_examples)
  cmake_path(GET source STEM name)
  add_executable(${name}_emulated ${source})
  target_link_libraries(${name}_emulated PRIVATE pagedkv_cuda_emulated pagedkv::pagedkv)
  add_test(NAME example.${name}_emulated COMMAND ${name}_emulated)
  set_tests_properties(example.${name}_emulated PROPERTIES LABELS "example;emulated" TIMEOUT 300)
endforeach()

pagedkv_add_catch_tests(
  emulated PER_FILE PATTERN *_test.cpp LIBS pagedkv_cuda_emulated pagedkv::pagedkv)
if(NOT TARGET emulated_tests)
  return()
endif()

# A bare __shared__ would give every thread a variable of its own: it must not compile.
add_test(NAME emulated.bare_shared
         COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -x c++ -I
                 ${PROJECT_SOURCE_DIR}/include ${emulated_dir}/samples/bare_shared.cuh)
set_tests_properties(
  emulated.bare_shared
  PROPERTIES LABELS emulated PASS_REGULAR_EXPRESSION pagedkv_error_use_PAGEDKV_SHARED_instead)

file(GLOB emulated_tests CONFIGURE_DEPENDS ${emulated_dir}/*_test.cpp)
if(PAGEDKV_TEST_FILES)
  list(FILTER emulated_tests INCLUDE REGEX "${PAGEDKV_TEST_FILES}")
endif()
include(emulated/tsan.cmake)

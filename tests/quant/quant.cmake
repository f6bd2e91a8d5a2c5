# SPDX-License-Identifier: Apache-2.0
# Formats and scales. PAGEDKV_EXHAUSTIVE=1 makes the codec tests walk over all 2^32 floats.
find_package(Threads REQUIRED)
pagedkv_add_catch_tests(
  quant PER_FILE PATTERN *_test.cpp TIMEOUT 900 LIBS pagedkv::pagedkv Threads::Threads)
if(NOT TARGET quant_tests)
  return()
endif()

# The vendor's conversions, where the toolkit is there; its recorded answers are compared anyway.
find_path(
  PAGEDKV_CUDA_INCLUDE_DIR cuda_fp8.h
  HINTS /usr/local/cuda/include ENV CUDA_HOME ENV CUDA_PATH
  PATH_SUFFIXES include)
mark_as_advanced(PAGEDKV_CUDA_INCLUDE_DIR)
if(PAGEDKV_CUDA_INCLUDE_DIR)
  set_source_files_properties(
    quant/fp8_header_test.cpp
    PROPERTIES COMPILE_DEFINITIONS PAGEDKV_HAVE_CUDA_FP8=1 COMPILE_OPTIONS
                                                           "-isystem;${PAGEDKV_CUDA_INCLUDE_DIR}"
               SKIP_PRECOMPILE_HEADERS ON)
endif()

# Products must not be fused into sums, whatever the compiler may do elsewhere.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  add_executable(quant_fused quant/fused_program.cpp)
  target_link_libraries(quant_fused PRIVATE pagedkv::headers)
  target_include_directories(quant_fused PRIVATE quant)
  target_compile_options(quant_fused PRIVATE -O2 -mfma -ffp-contract=fast)
  add_test(NAME quant.fused COMMAND quant_fused)
  set_tests_properties(quant.fused PROPERTIES LABELS quant TIMEOUT 120 SKIP_RETURN_CODE 77)
endif()

# The same source as device code.
find_program(PAGEDKV_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(PAGEDKV_NVCC)
if(PAGEDKV_NVCC)
  foreach(arch IN ITEMS 80 90)
    add_test(
      NAME quant.nvcc_sm_${arch}
      COMMAND
        ${PAGEDKV_NVCC} -std=c++20 -arch=sm_${arch} -Werror all-warnings -I
        ${PROJECT_SOURCE_DIR}/include -c ${CMAKE_CURRENT_SOURCE_DIR}/quant/device_codecs.cu -o
        ${CMAKE_CURRENT_BINARY_DIR}/device_codecs_${arch}.o)
    set_tests_properties(quant.nvcc_sm_${arch} PROPERTIES LABELS quant TIMEOUT 300)
  endforeach()
endif()

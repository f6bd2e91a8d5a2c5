# SPDX-License-Identifier: Apache-2.0
# pagedkv::cuda: the CUDA data plane, where PAGEDKV_CUDA wants it and nvcc is found. Sets
# PAGEDKV_HAS_CUDA. Who links it needs no nvcc.
set(PAGEDKV_HAS_CUDA OFF)

# PTX is what devices run that no machine code is for: that of the last architecture without a letter,
# which later devices take. That of 80 would convert fp8 in software on all of them.
set(cuda_default_architectures 80 89 90a 100a 120a)
set(PAGEDKV_CUDA_ARCHITECTURES "${cuda_default_architectures}" CACHE STRING
    "What the kernels are compiled for; PTX of the last one without a letter is added for what comes later")
set(cuda_code ${PAGEDKV_CUDA_ARCHITECTURES})
list(TRANSFORM cuda_code PREPEND sm_)
set(plain ${PAGEDKV_CUDA_ARCHITECTURES})
list(FILTER plain INCLUDE REGEX "^[0-9]+$")
if(plain)
  list(GET plain -1 last)
  list(APPEND cuda_code compute_${last})
endif()
# As cuda/compiled.cpp reads it.
list(JOIN cuda_code "," cuda_code_names)
set_source_files_properties(cuda/compiled.cpp PROPERTIES COMPILE_DEFINITIONS
                            "PAGEDKV_CUDA_CODE=\"${cuda_code_names}\"")

if(PAGEDKV_CUDA STREQUAL "OFF")
  return()
endif()

include(CheckLanguage)
# What is shipped is listed below; CMake 3.25 doesn't know all of it.
set(CMAKE_CUDA_ARCHITECTURES OFF)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(PAGEDKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PAGEDKV_CUDA=ON: no CUDA compiler found. Put nvcc 12.8 or later on the PATH or "
                        "set CMAKE_CUDA_COMPILER; PAGEDKV_CUDA=AUTO builds without it")
  endif()
  message(STATUS "pagedkv: no CUDA compiler, building without the CUDA data plane")
  return()
endif()
enable_language(CUDA)
# Older ones don't know all of the architectures, and say so in the middle of the build.
set(cuda_oldest_nvcc 12.8)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS cuda_oldest_nvcc)
  set(cuda_found "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER})")
  if(PAGEDKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PAGEDKV_CUDA=ON: ${cuda_found} is too old: it takes ${cuda_oldest_nvcc} or later; "
                        "PAGEDKV_CUDA=AUTO builds without it")
  endif()
  message(STATUS "pagedkv: ${cuda_found} is older than ${cuda_oldest_nvcc}, building without the CUDA data plane")
  return()
endif()
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cu cuda/*.cpp)
add_library(pagedkv_cuda STATIC ${cuda_sources})
add_library(pagedkv::cuda ALIAS pagedkv_cuda)
target_link_libraries(pagedkv_cuda PUBLIC pagedkv_headers CUDA::cudart)
target_compile_definitions(
  pagedkv_cuda
  PUBLIC PAGEDKV_CUDA_TOOLKIT
  PRIVATE PAGEDKV_CUDA_KERNELS_COMPILED)
# CMake 3.25 has no name for the dialect of nvcc 13.
set(nvcc_options -std=c++20)
foreach(code IN LISTS cuda_code)
  string(REGEX REPLACE "^[a-z]+_" "" arch ${code})
  list(APPEND nvcc_options "SHELL:-gencode arch=compute_${arch},code=${code}")
endforeach()
if(PAGEDKV_WERROR)
  list(APPEND nvcc_options "SHELL:-Werror all-warnings")
endif()
foreach(option IN LISTS nvcc_options)
  target_compile_options(pagedkv_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${option}>")
endforeach()
if(NOT PAGEDKV_ASSERT_LEVEL STREQUAL "")
  # As of pagedkv::pagedkv: the archive holds code of one level.
  target_compile_definitions(pagedkv_cuda INTERFACE PAGEDKV_ASSERT_LEVEL=${PAGEDKV_ASSERT_LEVEL})
endif()
set_target_properties(
  pagedkv_cuda
  PROPERTIES EXPORT_NAME cuda
             POSITION_INDEPENDENT_CODE ON
             CUDA_ARCHITECTURES OFF)
if(NOT PAGEDKV_INSTALL)
  # In somebody's build for whoever links it: the kernels take minutes.
  set_target_properties(pagedkv_cuda PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
set(PAGEDKV_HAS_CUDA ON)

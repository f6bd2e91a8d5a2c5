# SPDX-License-Identifier: Apache-2.0
# pagedkv::cuda: the CUDA data plane, where PAGEDKV_CUDA wants it and nvcc is found. Sets
# PAGEDKV_HAS_CUDA. Who links it needs no nvcc.
set(PAGEDKV_HAS_CUDA OFF)
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
find_package(CUDAToolkit REQUIRED)

set(PAGEDKV_CUDA_ARCHITECTURES "80;89;90a;100a;120a" CACHE STRING
    "What the kernels are compiled for; PTX of the first one is added for what comes later")
set(gencode)
foreach(arch IN LISTS PAGEDKV_CUDA_ARCHITECTURES)
  list(APPEND gencode "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
endforeach()
list(GET PAGEDKV_CUDA_ARCHITECTURES 0 first)
if(first MATCHES "^[0-9]+$")
  list(APPEND gencode "SHELL:-gencode arch=compute_${first},code=compute_${first}")
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cu cuda/*.cpp)
add_library(pagedkv_cuda STATIC ${cuda_sources})
add_library(pagedkv::cuda ALIAS pagedkv_cuda)
target_link_libraries(pagedkv_cuda PUBLIC pagedkv_headers CUDA::cudart)
target_compile_definitions(
  pagedkv_cuda
  PUBLIC PAGEDKV_CUDA_TOOLKIT
  PRIVATE PAGEDKV_CUDA_KERNELS_COMPILED)
# CMake 3.25 has no name for the dialect of nvcc 13.
set(nvcc_options -std=c++20 ${gencode})
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
set(PAGEDKV_HAS_CUDA ON)

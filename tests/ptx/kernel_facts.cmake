# SPDX-License-Identifier: Apache-2.0
# What nvcc and ptxas make of the kernels; only where nvcc and Python are.
find_program(PAGEDKV_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_program(PAGEDKV_PYTHON python3)
# Of the toolkit, or fetched by scripts/fetch-nvdisasm; without it PTX and code sizes are looked at.
find_program(PAGEDKV_NVDISASM nvdisasm HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(PAGEDKV_NVCC PAGEDKV_PYTHON PAGEDKV_NVDISASM)
set(nvdisasm_option)
if(PAGEDKV_NVDISASM)
  set(nvdisasm_option --nvdisasm ${PAGEDKV_NVDISASM})
endif()
if(NOT PAGEDKV_NVCC OR NOT PAGEDKV_PYTHON)
  message(STATUS "pagedkv: no nvcc or no python3, no checks of PTX")
  return()
endif()
add_test(
  NAME ptx.kernel_facts
  COMMAND
    ${PAGEDKV_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/kernel_facts.py --nvcc ${PAGEDKV_NVCC} --source
    ${PROJECT_SOURCE_DIR} --work ${CMAKE_CURRENT_BINARY_DIR}/ptx/facts --self-test
    ${nvdisasm_option})
set_tests_properties(ptx.kernel_facts PROPERTIES LABELS ptx TIMEOUT 600)

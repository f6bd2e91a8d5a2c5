# SPDX-License-Identifier: Apache-2.0
# What nvcc emits, run by an interpreter: docs/design/kernels.md.
find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
find_program(PAGEDKV_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(PAGEDKV_NVCC)
set(ptx_dir ${CMAKE_CURRENT_SOURCE_DIR}/ptx)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()

add_test(NAME ptx.interpreter COMMAND ${Python3_EXECUTABLE} ${ptx_dir}/interpreter_test.py)
set_tests_properties(ptx.interpreter PROPERTIES LABELS ptx TIMEOUT 60)
if(PAGEDKV_NVCC)
  foreach(arch IN ITEMS 80 90)
    foreach(what IN ITEMS samples kernels conversions)
      add_test(NAME ptx.${what}_${arch} COMMAND ${Python3_EXECUTABLE} ${ptx_dir}/${what}_test.py
                                                --nvcc ${PAGEDKV_NVCC} --arch ${arch})
      set_tests_properties(ptx.${what}_${arch} PROPERTIES LABELS ptx TIMEOUT 300)
    endforeach()
  endforeach()
endif()

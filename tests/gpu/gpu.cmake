# SPDX-License-Identifier: Apache-2.0
# The benchmarks for a device, on the executor: whether they run, compare what they should, and write
# what the report of scripts/gpu-check reads. Their times mean nothing there; the report is tested on
# numbers made up.
if(PAGEDKV_BUILD_BENCHMARKS)
  find_package(benchmark QUIET)
endif()
if(TARGET benchmark::benchmark)
  add_executable(cuda_data_emulated ${PROJECT_SOURCE_DIR}/benchmarks/cuda_data.cpp)
  target_link_libraries(cuda_data_emulated PRIVATE pagedkv_cuda_emulated pagedkv::pagedkv
                                                   benchmark::benchmark)
  target_include_directories(cuda_data_emulated PRIVATE ${PROJECT_SOURCE_DIR}/benchmarks)
  set(cuda_data_json ${CMAKE_CURRENT_BINARY_DIR}/cuda_data.json)
  add_test(NAME emulated.cuda_data COMMAND cuda_data_emulated --benchmark_min_time=0
           "--benchmark_filter=device_copy|/64/|decode_attention/fp8_e4m3/per_token_head/1024"
           --benchmark_out=${cuda_data_json} --benchmark_out_format=json)
  set_tests_properties(emulated.cuda_data PROPERTIES LABELS emulated TIMEOUT 300
                                                     FIXTURES_SETUP cuda_data_json)
endif()
find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND AND TARGET cuda_data_emulated)
  add_test(NAME emulated.cuda_data_report COMMAND ${Python3_EXECUTABLE}
           ${PROJECT_SOURCE_DIR}/benchmarks/cuda_report.py ${cuda_data_json})
  set_tests_properties(emulated.cuda_data_report PROPERTIES LABELS emulated TIMEOUT 60
                                                            FIXTURES_REQUIRED cuda_data_json)
endif()
if(Python3_Interpreter_FOUND)
  add_test(NAME gpu_check.report COMMAND ${Python3_EXECUTABLE}
                                         ${CMAKE_CURRENT_SOURCE_DIR}/gpu/report_test.py)
  set_tests_properties(gpu_check.report PROPERTIES LABELS programs TIMEOUT 60)
endif()

# What on_device.hpp and main.cpp do, on the executor: they run nowhere else without a device.
if(TARGET emulated_tests AND NOT PAGEDKV_TEST_FILES)
  add_executable(gpu_tests_emulated gpu/main.cpp ${emulated_dir}/graph_test.cpp
                                    ${emulated_dir}/streams_test.cpp
                                    ${emulated_dir}/update_tables_test.cpp)
  target_link_libraries(gpu_tests_emulated PRIVATE pagedkv_catch pagedkv_cuda_emulated
                                                   pagedkv::pagedkv)
  target_compile_definitions(gpu_tests_emulated PRIVATE PAGEDKV_TESTS_ON_DEVICE)
  add_test(NAME emulated.gpu_tests COMMAND gpu_tests_emulated ${catch_args})
  set_tests_properties(emulated.gpu_tests PROPERTIES LABELS emulated TIMEOUT 300)
endif()

# gpu_tests: the kernels' tests on a device, on the library's own CUDA code. Which of
# emulated/*_test.cpp they are: emulated/machine.hpp says.
if(NOT PAGEDKV_HAS_CUDA)
  add_test(NAME gpu COMMAND ${CMAKE_COMMAND} -E echo
                            "skipped: built without CUDA (preset cuda builds with it)")
  set_tests_properties(gpu PROPERTIES LABELS gpu SKIP_REGULAR_EXPRESSION skipped)
  return()
endif()

set(gpu_sources)
foreach(source IN LISTS emulated_tests)
  file(STRINGS ${source} of_executor LIMIT_COUNT 1
       REGEX "#include [<\"](pagedkv/data/cuda/.*\\.cuh|executor/|samples/|runtime)")
  if(NOT of_executor)
    list(APPEND gpu_sources ${source})
  endif()
endforeach()
add_executable(gpu_tests ${gpu_sources} gpu/main.cpp)
target_link_libraries(gpu_tests PRIVATE pagedkv_catch pagedkv::cuda pagedkv::pagedkv)
target_include_directories(gpu_tests PRIVATE ${emulated_dir})
target_compile_definitions(gpu_tests PRIVATE PAGEDKV_TESTS_ON_DEVICE)
target_precompile_headers(gpu_tests PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/support/catch.hpp
                          <pagedkv/pagedkv.hpp>)

foreach(source IN LISTS gpu_sources)
  cmake_path(GET source STEM stem)
  add_test(NAME gpu.${stem} COMMAND gpu_tests ${catch_args} -\# [\#${stem}])
  set_tests_properties(gpu.${stem} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77
                                              RESOURCE_LOCK gpu)
endforeach()

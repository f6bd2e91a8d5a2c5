# SPDX-License-Identifier: Apache-2.0
# What scripts/compare-benchmarks makes of results; the programs are made up, nothing is measured.
find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()
add_test(NAME compare.benchmarks COMMAND ${Python3_EXECUTABLE}
                                         ${CMAKE_CURRENT_LIST_DIR}/compare_benchmarks_test.py)
set_tests_properties(compare.benchmarks PROPERTIES LABELS compare TIMEOUT 120)

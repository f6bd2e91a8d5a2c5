# SPDX-License-Identifier: Apache-2.0
# How src/data is compiled: stored bytes and attention are the same on every machine, so products
# and sums are never fused, whatever the target can do.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set_source_files_properties(${data_sources} PROPERTIES COMPILE_OPTIONS
                              "-O3;-ffp-contract=off;-fno-math-errno")
endif()
set_source_files_properties(${data_sources} PROPERTIES COMPILE_DEFINITIONS PAGEDKV_NO_FP_CONTRACT)

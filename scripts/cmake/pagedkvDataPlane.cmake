# SPDX-License-Identifier: Apache-2.0
# How src/data is compiled: stored bytes and attention are the same on every machine, so products
# and sums are never fused, whatever the target can do. The kernels are compiled once for each
# vector width; the library picks one at run time.
set_source_files_properties(${data_sources} PROPERTIES COMPILE_DEFINITIONS PAGEDKV_NO_FP_CONTRACT)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(data_options -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
  set_source_files_properties(${data_sources} PROPERTIES COMPILE_OPTIONS "${data_options}")
  set(data_dir ${PROJECT_SOURCE_DIR}/src/data)
  # 64-byte vectors where the machine has shorter ones: passed in memory, and never to others.
  set(kernel_options ${data_options} -Wno-psabi)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND kernel_options -Wno-ignored-attributes)
  else()
    # g++ 12 warns of its own headers of intrinsics.
    list(APPEND kernel_options -Wno-maybe-uninitialized)
  endif()
  set_source_files_properties(${data_dir}/kernels_baseline.cpp PROPERTIES COMPILE_OPTIONS
                              "${kernel_options}")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    set_source_files_properties(${data_dir}/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS
                                "${kernel_options};-mavx2;-mf16c")
    set_source_files_properties(
      ${data_dir}/kernels_avx512.cpp
      PROPERTIES
        COMPILE_OPTIONS
        "${kernel_options};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512"
    )
  endif()
endif()

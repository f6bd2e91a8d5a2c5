# SPDX-License-Identifier: Apache-2.0
# cmake -D pagedkv_source= -D build= -D generator= -D compilers= -P matrix.cmake
#
# Builds event_log with every compiler at -O0 and -O3 and compares what it prints, byte for byte.
cmake_minimum_required(VERSION 3.25)

set(reference)
foreach(compiler IN LISTS compilers)
  cmake_path(GET compiler FILENAME compiler_name)
  foreach(level IN ITEMS -O0 -O3)
    set(tree ${build}/${compiler_name}${level})
    execute_process(
      COMMAND
        ${CMAKE_COMMAND} -S ${pagedkv_source}/tests/determinism/project -B ${tree} -G ${generator}
        -Dpagedkv_source=${pagedkv_source} -DCMAKE_CXX_COMPILER=${compiler}
        -DCMAKE_CXX_FLAGS=${level} -DCMAKE_BUILD_TYPE=None
      OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${tree} --target event_log
                    COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${tree}/event_log OUTPUT_FILE ${tree}/log COMMAND_ERROR_IS_FATAL ANY)
    file(SIZE ${tree}/log bytes)
    file(SHA256 ${tree}/log sum)
    message(STATUS "${compiler_name} ${level}: ${bytes} bytes, ${sum}")
    if(bytes EQUAL 0)
      message(FATAL_ERROR "${tree}/event_log printed nothing")
    endif()
    if(NOT reference)
      set(reference ${sum})
      set(reference_log ${tree}/log)
    elseif(NOT sum STREQUAL reference)
      message(FATAL_ERROR "The logs differ: ${reference_log} and ${tree}/log")
    endif()
  endforeach()
endforeach()

# SPDX-License-Identifier: Apache-2.0
# What must be in the machine code of libpagedkv.a: counted in the archive where it is optimized, and in
# what the other compiler at hand makes of its sources. Not under sanitizers, which add code.
find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  message(STATUS "pagedkv: no python3, the prefetches of the archive aren't counted")
  return()
endif()
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  return()
endif()

find_program(PAGEDKV_GXX g++)
find_program(PAGEDKV_CLANGXX clang++)
mark_as_advanced(PAGEDKV_GXX PAGEDKV_CLANGXX)
set(compilers ${PAGEDKV_GXX} ${PAGEDKV_CLANGXX})
list(FILTER compilers EXCLUDE REGEX NOTFOUND)
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
set(archive)
if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" MATCHES "-O[23]")
  set(archive --archive $<TARGET_FILE:pagedkv>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(REMOVE_ITEM compilers ${PAGEDKV_GXX})
  else()
    list(REMOVE_ITEM compilers ${PAGEDKV_CLANGXX})
  endif()
endif()

set(includes $<TARGET_PROPERTY:pagedkv,INCLUDE_DIRECTORIES>)
add_test(
  NAME archive.prefetches
  COMMAND
    ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/prefetches.py ${archive} --compile ${compilers}
    --source ${PROJECT_SOURCE_DIR} --work ${CMAKE_CURRENT_BINARY_DIR}/archive
    "-I$<JOIN:${includes},;-I>"
  COMMAND_EXPAND_LISTS)
set_tests_properties(archive.prefetches PROPERTIES LABELS archive TIMEOUT 300 SKIP_RETURN_CODE 77)

# SPDX-License-Identifier: Apache-2.0
# cmake -D project= -D build= -D generator= -D expect= -P run_project.cmake -- <configure arguments>
cmake_minimum_required(VERSION 3.25)

set(arguments)
set(past_separator FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(past_separator)
    list(APPEND arguments "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(past_separator TRUE)
  endif()
endforeach()

file(REMOVE_RECURSE ${build})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${project} -B ${build} -G ${generator} ${arguments}
  RESULT_VARIABLE status
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)

if(expect)
  if(status EQUAL 0)
    message(FATAL_ERROR "The configuration was accepted; it must be refused:\n${output}")
  endif()
  if(NOT output MATCHES "${expect}")
    message(FATAL_ERROR "The refusal does not say '${expect}':\n${output}")
  endif()
  return()
endif()

if(NOT status EQUAL 0)
  message(FATAL_ERROR "The configuration failed:\n${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${build}/consumer COMMAND_ERROR_IS_FATAL ANY)

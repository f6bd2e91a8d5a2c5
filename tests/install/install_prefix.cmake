# SPDX-License-Identifier: Apache-2.0
# cmake -D build= -D prefix= -P install_prefix.cmake: a fresh install tree, nothing left from before.
file(REMOVE_RECURSE ${prefix})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${prefix} COMMAND_ERROR_IS_FATAL ANY)

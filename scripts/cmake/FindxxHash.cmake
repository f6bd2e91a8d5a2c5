# SPDX-License-Identifier: Apache-2.0
# Finds xxHash's headers; pagedkv compiles them inline (XXH_INLINE_ALL), so no library is needed.
#
#   xxHash_FOUND, xxHash_VERSION, xxHash_INCLUDE_DIR
#   xxHash::xxHash   interface target with the include directory
#
# Set xxHash_ROOT or CMAKE_PREFIX_PATH to look elsewhere.
find_path(xxHash_INCLUDE_DIR xxhash.h)
mark_as_advanced(xxHash_INCLUDE_DIR)

if(xxHash_INCLUDE_DIR)
  file(STRINGS ${xxHash_INCLUDE_DIR}/xxhash.h xxHash_lines
       REGEX "#[ ]*define XXH_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" xxHash_VERSION "${xxHash_lines}")
  string(REPLACE ";" "." xxHash_VERSION "${xxHash_VERSION}")
  unset(xxHash_lines)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  xxHash
  REQUIRED_VARS xxHash_INCLUDE_DIR
  VERSION_VAR xxHash_VERSION)

if(xxHash_FOUND AND NOT TARGET xxHash::xxHash)
  add_library(xxHash::xxHash INTERFACE IMPORTED)
  target_include_directories(xxHash::xxHash INTERFACE ${xxHash_INCLUDE_DIR})
endif()

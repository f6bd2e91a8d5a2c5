# SPDX-License-Identifier: Apache-2.0
# Install rules: headers, library, CMake package, licence.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pagedkv)

install(
  TARGETS pagedkv_headers pagedkv
  EXPORT pagedkvTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT pagedkvTargets NAMESPACE pagedkv:: DESTINATION ${package_dir})
# In a file of its own: who doesn't ask for the component needs no toolkit.
if(PAGEDKV_HAS_CUDA)
  install(TARGETS pagedkv_cuda EXPORT pagedkvCudaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT pagedkvCudaTargets NAMESPACE pagedkv:: DESTINATION ${package_dir})
endif()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/scripts/cmake/pagedkvConfig.cmake.in
  ${PROJECT_BINARY_DIR}/pagedkvConfig.cmake
  INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a new minor version may change the API.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/pagedkvConfig.cmake
        ${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/scripts/cmake/FindxxHash.cmake
  DESTINATION ${package_dir})
install(
  FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The pages that README.md links to.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

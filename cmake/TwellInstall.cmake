# Installs libtwell and exports find_package(twell), and libtwell_cuda, where it is built, as its component
# cuda: find_package(twell COMPONENTS cuda).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS twell EXPORT twell-targets)
# A package of its own, so that who wants libtwell alone needs no CUDA toolkit.
if(TARGET twell_cuda)
  install(TARGETS twell_cuda EXPORT twell-cuda-targets)
  install(EXPORT twell-cuda-targets NAMESPACE twell:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/twell ${PROJECT_SOURCE_DIR}/cuda/include/twell DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT twell-targets NAMESPACE twell:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/twell-config.cmake.in ${PROJECT_BINARY_DIR}/twell-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/twell-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/twell-config.cmake
              ${PROJECT_BINARY_DIR}/twell-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)

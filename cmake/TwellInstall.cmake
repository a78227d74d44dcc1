# Installs libtwell alone and exports find_package(twell).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS twell EXPORT twell-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/twell DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT twell-targets NAMESPACE twell:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/twell-config.cmake.in ${PROJECT_BINARY_DIR}/twell-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/twell-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/twell-config.cmake
              ${PROJECT_BINARY_DIR}/twell-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twell)

# Installs libtwell and exports find_package(twell), and libtwell_cuda, where it is built, as its component
# cuda: find_package(twell COMPONENTS cuda). Also the command line, where it is built.
#
# Components, which are Debian packages in TwellPackage.cmake: lib, dev, cli.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/twell)

install(TARGETS twell EXPORT twell-targets
        LIBRARY COMPONENT lib NAMELINK_COMPONENT dev
        ARCHIVE COMPONENT dev)
# A package of its own, so that who wants libtwell alone needs no CUDA toolkit.
if(TARGET twell_cuda)
  install(TARGETS twell_cuda EXPORT twell-cuda-targets COMPONENT dev)
  install(EXPORT twell-cuda-targets NAMESPACE twell:: DESTINATION ${_cmake_dir} COMPONENT dev)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/twell ${PROJECT_SOURCE_DIR}/cuda/include/twell
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT twell-targets NAMESPACE twell:: DESTINATION ${_cmake_dir} COMPONENT dev)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/twell-config.cmake.in ${PROJECT_BINARY_DIR}/twell-config.cmake
  INSTALL_DESTINATION ${_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/twell-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/twell-config.cmake ${PROJECT_BINARY_DIR}/twell-config-version.cmake
        DESTINATION ${_cmake_dir} COMPONENT dev)

# Who links an archive needs OpenMP and the C++ library as well; a shared libtwell knows its own.
set(_pc_libs_private "${OpenMP_CXX_FLAGS} -lstdc++")
if(NOT BUILD_SHARED_LIBS)
  set(_pc_libs " ${_pc_libs_private}")
  set(_pc_libs_private "")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/twell.pc.in ${PROJECT_BINARY_DIR}/twell.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/twell.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# The program lies beside its operators, behind a launcher that finds PyTorch when it is called.
if(TARGET twell_cli)
  set(TWELL_PROGRAM_DIR ${CMAKE_INSTALL_LIBEXECDIR}/twell)
  install(TARGETS twell_cli RUNTIME DESTINATION ${TWELL_PROGRAM_DIR} COMPONENT cli)
  install(TARGETS twell_torch_ops LIBRARY DESTINATION ${TWELL_PROGRAM_DIR} COMPONENT cli)
  file(RELATIVE_PATH TWELL_PROGRAM /${CMAKE_INSTALL_BINDIR} /${TWELL_PROGRAM_DIR}/twell)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" TWELL_TORCH_SERIES ${LibTorch_VERSION})
  configure_file(${PROJECT_SOURCE_DIR}/cli/launcher.sh.in ${PROJECT_BINARY_DIR}/launcher.sh @ONLY)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/launcher.sh DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME twell COMPONENT cli)
  set(_completions ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  # Of the program's own definitions, as it is installed: a build has no use for them.
  install(CODE "
    execute_process(COMMAND ${PROJECT_BINARY_DIR}/cli/twell --print man
                    OUTPUT_FILE ${PROJECT_BINARY_DIR}/twell.1 COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND gzip -9nf ${PROJECT_BINARY_DIR}/twell.1 COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${PROJECT_BINARY_DIR}/cli/twell --print bash-completion
                    OUTPUT_FILE ${PROJECT_BINARY_DIR}/twell.bash COMMAND_ERROR_IS_FATAL ANY)" COMPONENT cli)
  install(FILES ${PROJECT_BINARY_DIR}/twell.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT cli)
  install(FILES ${PROJECT_BINARY_DIR}/twell.bash DESTINATION ${_completions} RENAME twell COMPONENT cli)
endif()

# Debian packages by CPack, one a component of TwellInstall.cmake; scripts/package calls it.
#
# libtwell0.1 and libtwell-dev come from the preset `package`, which builds a shared libtwell alone; twell from
# the preset `release`. docs/decisions.md says why twell does not carry PyTorch.
if(TARGET twell_cli)
  set(CPACK_COMPONENTS_ALL cli)
else()
  set(CPACK_COMPONENTS_ALL lib dev)
endif()
set(_series ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own

set(CPACK_DEBIAN_LIB_PACKAGE_NAME libtwell${_series})
set(CPACK_DEBIAN_LIB_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIB_PACKAGE_SHLIBDEPS ON)
# For dependencies of other packages on this one. CPack knows no variables of components here.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
# CPack's own scripts call ldconfig as of old; Debian's way is a trigger.
set(CPACK_DEBIAN_LIB_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/triggers)
set(CPACK_DEBIAN_LIB_DESCRIPTION "exact sparse feed-forward layers - shared library
libtwell computes the feed-forward layers of language models from the neurons
that fire. It gives the same output as a dense layer at any density.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtwell-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libtwell${_series} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEV_DESCRIPTION "exact sparse feed-forward layers - development files
Headers of libtwell, and what find_package(twell) of CMake and pkg-config read.")

set(CPACK_DEBIAN_CLI_PACKAGE_NAME twell)
set(CPACK_DEBIAN_CLI_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CLI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS "python3")
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS "python3-venv")
set(CPACK_DEBIAN_CLI_DESCRIPTION "exact sparse feed-forward layers - command line
Trains, measures, inspects and runs sparse language models. It needs a PyTorch
${TWELL_TORCH_SERIES} that is installed for Python; without one it says how to get it.")

# PyTorch's two libraries by themselves: those beside them, an OpenMP runtime among them, are Debian's to give.
if(TARGET twell_cli)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/torch-libraries)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/torch-libraries)
  foreach(name libtorch_cpu.so libc10.so)
    file(CREATE_LINK ${LibTorch_LIBRARY_DIR}/${name} ${PROJECT_BINARY_DIR}/torch-libraries/${name} SYMBOLIC)
  endforeach()
endif()

# What every package has: its licence, and a change log in Debian's form, by who makes the package.
file(READ ${PROJECT_SOURCE_DIR}/LICENSE _licence)
string(REGEX MATCH "Copyright \\(c\\) ([^\n]*)" _ "${_licence}")
set(_holders ${CMAKE_MATCH_1})
string(REGEX REPLACE "^.*(Permission is hereby)" "\\1" _licence "${_licence}")
string(REGEX REPLACE "\n\n" "\n.\n" _licence "${_licence}")
string(REGEX REPLACE "\n(.)" "\n \\1" _licence "${_licence}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/debian/copyright.in ${PROJECT_BINARY_DIR}/debian/copyright @ONLY)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} _upper)
  set(_doc ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${_upper}_PACKAGE_NAME})
  install(CODE "
    string(TIMESTAMP now \"%a, %d %b %Y %H:%M:%S +0000\" UTC)
    set(packager \"\$ENV{TWELL_PACKAGER}\")
    set(PROJECT_VERSION ${PROJECT_VERSION})
    configure_file(${CMAKE_CURRENT_LIST_DIR}/debian/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog @ONLY)
    execute_process(COMMAND gzip -9nf ${PROJECT_BINARY_DIR}/debian/changelog COMMAND_ERROR_IS_FATAL ANY)"
          COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/debian/copyright ${PROJECT_BINARY_DIR}/debian/changelog.gz
          DESTINATION ${_doc} COMPONENT ${component})
endforeach()
include(CPack)

# LibTorch as it comes inside the PyTorch package of TWELL_PYTHON.
#
# PyTorch's own CMake package stops where the wheel was built for CUDA and no toolkit is installed.
# The CPU half needs none: this links libtorch_cpu and libc10 alone, so programs also start without
# loading the CUDA libraries.
#
# Defines: LibTorch_FOUND, LibTorch_VERSION, LibTorch_LIBRARY_DIR and the target LibTorch::cpu.
set(TWELL_PYTHON "" CACHE FILEPATH "Python interpreter that has PyTorch installed")
if(NOT TWELL_PYTHON)
  find_program(TWELL_PYTHON_FOUND NAMES python3)
  set(TWELL_PYTHON ${TWELL_PYTHON_FOUND} CACHE FILEPATH "" FORCE)
endif()
execute_process(
  COMMAND ${TWELL_PYTHON} -c
          "import importlib.util as u, importlib.metadata as m; print(u.find_spec('torch').submodule_search_locations[0], m.version('torch'), sep=';')"
  OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(_torch)
  list(GET _torch 0 _torch_dir)
  list(GET _torch 1 LibTorch_VERSION)
  set(LibTorch_LIBRARY_DIR ${_torch_dir}/lib)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_LIBRARY_DIR
                                  VERSION_VAR LibTorch_VERSION)
if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_LIBRARY_DIR}/libc10.so)
  add_library(LibTorch::cpu SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION ${LibTorch_LIBRARY_DIR}/libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${_torch_dir}/include;${_torch_dir}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10
    # libtorch_cpu's own CUDA needs (cudart, cupti) are found through its run path when it loads.
    INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
endif()
